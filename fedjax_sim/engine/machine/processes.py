"""Several processes that run one program together, on the devices of all of them.

After `jax.distributed.initialize()` every process makes the same calls with the same inputs, and
JAX runs each program on the devices of all processes. What a program returns is gathered, so that
every process returns the same results; only the first one, number 0, should write files. With one
process these functions do nothing special.
"""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import ConfigError

ResultT = TypeVar("ResultT")


def join_processes(
    coordinator: str | None = None, num: int | None = None, number: int | None = None
) -> None:
    """Connect this process with the others. Call it before JAX does anything.

    Under Slurm, Open MPI and Kubernetes, JAX finds out everything itself.

    Args:
      coordinator: Address of process 0, HOST:PORT; None to find it out.
      num: How many processes there are; None to find it out.
      number: Which of them this one is; None to find it out.

    Raises:
      ConfigError: If the others are neither found nor described.
    """
    try:
        jax.distributed.initialize(coordinator, num, number)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        allowed = (
            "used under srun, mpirun or Kubernetes, or with --coordinator HOST:PORT, "
            f"--num-processes and --process-id ({reason})"
        )
        raise ConfigError("--distributed", True, allowed) from None


def is_first() -> bool:
    """Tell whether this process is the one that writes files."""
    return jax.process_index() == 0


def on_first(action: Callable[[], ResultT]) -> ResultT | None:
    """Do something in the first process alone, and go on in the others once it has succeeded.

    Args:
      action: Called in the first process.

    Returns:
      The result in the first process, None in the others.

    Raises:
      InputError: In all processes, if the action raises one.
    """
    if not jax.distributed.is_initialized():  # Asking for their number would start JAX.
        return action()
    result, error = None, None
    if is_first():
        try:
            result = action()
        except InputError as raised:
            error = raised
    has_failed = multihost_utils.broadcast_one_to_all(np.int32(error is not None))
    if error is not None:
        raise error
    if has_failed:
        raise ConfigError("process 0", "stopped", "able to go on; its own message says why")
    return result


def put(tree: ResultT, sharding: jax.sharding.Sharding) -> ResultT:
    """Put arrays on devices. Every process has all of each array, and keeps its devices' share."""
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def put_leaf(leaf: Any) -> jax.Array:
        host = np.asarray(leaf, jax.dtypes.result_type(leaf))
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put_leaf, tree)


def fetch(tree: object) -> Any:
    """Fetch the whole of all arrays, also from devices of other processes.

    All are asked for at once, and then waited for.
    """

    def gather(leaf: Any) -> Any:
        is_elsewhere = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        if is_elsewhere and not leaf.is_fully_replicated:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return leaf

    if jax.process_count() > 1:
        tree = jax.tree.map(gather, tree)
    return jax.device_get(tree)


def least(number: float) -> float:
    """Return the smallest of all processes' numbers."""
    if jax.process_count() == 1:
        return number
    return float(np.min(multihost_utils.process_allgather(np.float32(number))))


def check_equal(inputs: object) -> None:
    """Check that all processes have the same arrays.

    Args:
      inputs: A pytree of arrays.

    Raises:
      ConfigError: In all processes, if they differ.
    """
    own = np.frombuffer(hash_arrays(inputs).digest(), np.uint8)
    if (multihost_utils.process_allgather(own) != own).any():
        allowed = "equal: give every process the same data, settings, seeds and versions"
        raise ConfigError("inputs of the processes", "different", allowed)


def hash_arrays(tree: object) -> Any:
    """Hash the shapes, types and bytes of arrays by SHA-256."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        digest.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
    return digest


def hash_programs(*programs: jax.stages.Lowered) -> str:
    """Hash the texts of programs, which include their constants, by SHA-256.

    The texts hold no addresses, lines of source files or numbers of devices, so equal code has
    equal digests in all processes. What a program calls on the host is not in them.
    """
    texts = "\n".join(program.as_text() for program in programs)
    return hashlib.sha256(texts.encode()).hexdigest()
