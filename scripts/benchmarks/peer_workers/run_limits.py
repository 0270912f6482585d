"""What the machine itself can do: a large float32 product, and a copy of a large array."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from protocol import Conversation, Job, read_job

SIZE = 2048
"""Rows of the square matrices."""
BYTES = 2**28
"""Bytes of the array that is copied, far more than caches hold."""
TRIES = 4


def main() -> None:
    """Answer each command with the best of some tries."""
    talk = Conversation()
    job = read_job()
    talk.ready("jax", "jaxlib", "numpy")
    for _ in talk.commands():
        talk.say(product=product(), copy=copy(job))


def product() -> float:
    """Measure products of matrices in JAX and in NumPy, and return the faster, in GFLOP/s."""
    left = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
    there = jnp.asarray(left)
    multiply = jax.jit(jnp.matmul)
    seconds = min(
        _best(lambda: multiply(there, there).block_until_ready()), _best(lambda: left @ left)
    )
    return 2 * SIZE**3 / seconds / 1e9


def copy(job: Job) -> float:
    """Measure a copy by as many threads as there are cores, in GB/s read and written."""
    source = np.ones(BYTES // 4, np.float32)
    target = np.zeros_like(source)
    parts = list(
        zip(np.array_split(target, job.cores), np.array_split(source, job.cores), strict=True)
    )
    with ThreadPoolExecutor(job.cores) as pool:
        seconds = _best(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))
    return 2 * BYTES / seconds / 1e9


def _best(work: Callable[[], object]) -> float:
    work()
    seconds = []
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
