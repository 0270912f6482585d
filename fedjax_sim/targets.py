"""Which kind of machine a program is being traced for.

The same mathematics is written down differently for a CPU and for an accelerator: a loop that a CPU
runs in its cache is a train of kernel launches on a GPU. The engine states the machine while it
traces; anything traced outside it is for JAX's default backend.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax

_TARGET: ContextVar[str | None] = ContextVar("target", default=None)


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """State the platform, such as "cpu" or "tpu", of what is traced inside.

    Args:
      platform: The platform.
    """
    token = _TARGET.set(platform)
    try:
        yield
    finally:
        _TARGET.reset(token)


def is_for_cpu() -> bool:
    """Tell whether the program that is being traced will run on a CPU."""
    return (_TARGET.get() or jax.default_backend()) == "cpu"
