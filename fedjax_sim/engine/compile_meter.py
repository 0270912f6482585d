"""Count the programs that JAX compiles, and the seconds that this takes."""

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


TRACE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)


class CompileMeter:
    """Programs compiled, and the seconds that took, since the meter was made."""

    _count = 0
    _seconds = 0.0

    def __init__(self) -> None:
        self._before = (CompileMeter._count, CompileMeter._seconds)

    @property
    def count(self) -> int:
        return CompileMeter._count - self._before[0]

    @property
    def seconds(self) -> float:
        return CompileMeter._seconds - self._before[1]

    @classmethod
    def listen(cls, event: str, duration_secs: float, **_: str | int) -> None:
        """Take note of one event of `jax.monitoring`."""
        if event == COMPILE_EVENT:
            cls._count += 1
        if event in (COMPILE_EVENT, *TRACE_EVENTS):
            cls._seconds += duration_secs
