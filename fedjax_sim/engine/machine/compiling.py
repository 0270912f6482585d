"""Compile for this machine: its cores, the cost of compiling, and the cache of programs.

JAX keeps the programs themselves, and looks for them at every call. Here is noted which were
compiled before and what they take, so that equal calls do not ask again. If JAX has dropped one
that counts as known here, it compiles that program when it is called.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Hashable
from typing import Any, Self

import jax

from fedjax_sim.core.lifecycle import cache_folder, say
from fedjax_sim.core.settings import Count, checked

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


COMPILED_QUICKLY: dict[str, bool | int] = {"xla_backend_optimization_level": 0}
"""Options of XLA with which programs that run once are compiled."""
if jax.__version_info__ < (0, 11):  # Later versions refuse this option.
    COMPILED_QUICKLY["xla_cpu_use_fusion_emitters"] = False


class RunsOnce:
    """A function that runs once, compiled well or, if that takes longer than running it, quickly.

    Results of the two agree to rounding. JAX accepts the options of the second in no other program.

    Attributes:
      well: The function, compiled as others are.
      quickly: The function, compiled with `COMPILED_QUICKLY`.
    """

    def __init__(self, function: Callable[..., Any], **options: Any):
        """Wrap a function.

        Args:
          function: The function.
          options: Further ones of `jax.jit`.
        """
        self.well = jax.jit(function, **options)
        self.quickly = jax.jit(function, **options, compiler_options=COMPILED_QUICKLY)


@checked
def use_cores(num: Count | None = None) -> int:
    """Make every CPU core a device, so that lanes run side by side.

    Call it before JAX does anything; later it changes nothing.

    Args:
      num: Number of devices; by default the cores that this process may use.

    Returns:
      The number of devices there are.
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):  # Raised if the backend runs already.
        jax.config.update("jax_num_cpu_devices", num or available or 1)
    return jax.local_device_count()


@checked
def keep_compiled(is_wanted: bool = True) -> None:
    """Keep compiled programs on disk for the next process, or do not.

    `sweep` and `simulate` keep them unless this was called with False, or unless JAX's own switch
    `JAX_ENABLE_COMPILATION_CACHE=0` is set. They go to JAX's own cache folder if one is configured,
    otherwise to `$FEDJAX_SIM_CACHE/jax`; `FEDJAX_SIM_CACHE` is `~/.cache/fedjax_sim` by default.
    Nothing is kept in a folder that cannot be written, or without a home folder; one sentence on
    the error stream then says so.

    Args:
      is_wanted: False keeps nothing from now on.
    """
    jax.config.update("jax_enable_compilation_cache", is_wanted)
    if is_wanted and jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        cache = cache_folder()
        try:
            if cache is None:
                raise OSError("this process has no home folder")
            (cache / "jax").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache / "jax"):
                pass
        except OSError as error:
            say(
                f"compiled programs are not kept ({error}): set FEDJAX_SIM_CACHE to a folder that "
                "can be written."
            )
            jax.config.update("jax_enable_compilation_cache", False)
            return
        jax.config.update("jax_compilation_cache_dir", str(cache / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def keep_by_default() -> None:
    """Keep compiled programs unless that was switched off."""
    if jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        keep_compiled()


known_sizes: dict[Hashable, int] = {}
"""Bytes of the compiled programs, by static arguments and shapes of the others.

JAX keeps the programs themselves. Whoever clears JAX's caches clears this one too.
"""
