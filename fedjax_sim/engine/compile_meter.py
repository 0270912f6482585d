"""Count the programs that JAX compiles, and the seconds that this takes."""

import time
from typing import Self

import jax

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
TRACE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)


class CompileMeter:
    """Programs compiled within a `with` statement.

    Attributes:
      count: Number of programs compiled, or fetched from the cache.
      seconds: Seconds in which something was traced, lowered or compiled. Programs that are
        compiled at the same time share them.
    """

    def __init__(self) -> None:
        self.count = 0
        self._spans: list[tuple[float, float]] = []

    @property
    def seconds(self) -> float:
        total, until = 0.0, 0.0
        for begin, end in sorted(self._spans):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total

    def __enter__(self) -> Self:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILE_EVENT:
            self.count += 1
        if event in (COMPILE_EVENT, *TRACE_EVENTS):
            now = time.perf_counter()
            self._spans.append((now - duration_secs, now))
