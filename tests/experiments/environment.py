"""The environment that experiments are run in, each in a process of its own."""

import os
from pathlib import Path

import jax

REPOSITORY = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """The caller's, with the suite's cache of compiled programs."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
    }
