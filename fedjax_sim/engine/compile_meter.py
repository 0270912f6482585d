"""Count the programs that JAX compiles, and the seconds that this takes."""

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
      seconds: Seconds spent on tracing, lowering and compiling.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILE_EVENT:
            self.count += 1
        if event in (COMPILE_EVENT, *TRACE_EVENTS):
            self.seconds += duration_secs
