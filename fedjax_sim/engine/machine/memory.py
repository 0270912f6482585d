"""How much memory is free, and how much a compiled program takes.

Programs take memory of the devices, and schedules that of the host while they are planned. A CPU is
its own host, so there all comes out of one memory.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.core import lifecycle, settings
from fedjax_sim.engine.machine import compiling, processes

SHARE = 0.8
"""Share of the free memory that a sweep is planned for. Compilers and estimates need the rest."""


AHEAD = 0.05
"""Share of the free memory that may be taken to work ahead."""


MAPS, MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
"""Where Linux lists the memory maps of this process, and how many it may have."""


MAPS_SHARE = 0.5
"""Share of the memory maps above which compiled programs are dropped."""


class OutOfMemoryError(settings.ConfigError, MemoryError):
    """Memory ran out; as one sentence, in case fewer lanes at a time do not help."""


class DoesNotFitError(OutOfMemoryError):
    """More memory is asked for than is free; found out before any ran out."""


def free_memory() -> float:
    """Measure the free bytes of each device, in the process that has the least."""
    return processes.least(free_here())


def free_here() -> float:
    """Measure the free bytes of each device of this process; of CPUs those of the host."""
    if jax.default_backend() == "cpu":
        return lifecycle.free_on_host()
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    free = (x["bytes_limit"] - x["bytes_in_use"] for x in stats if "bytes_limit" in x)
    return min(free, default=float("inf"))


def drop_programs_near_the_limit(maps: Path = MAPS, most: Path = MOST_MAPS) -> None:
    """Drop JAX's compiled programs if the process has many memory maps.

    A program for a CPU takes about ten of them. A process that compiles thousands of programs would
    end at the limit (65,530 by default) without an exception. Dropped programs are compiled again
    when they are called, or read from the cache on disk.

    maps: File with a line for each memory map of the process. most: File with their largest number.
    """
    try:
        limit = int(most.read_text())
        num = maps.read_bytes().count(b"\n")
    except OSError:  # Other systems have no such limit.
        return
    if num > MAPS_SHARE * limit:
        jax.clear_caches()
        compiling.known_sizes.clear()


def measure_programs(programs: Sequence[jax.stages.Compiled]) -> int:
    """Return the bytes that the largest of some programs takes on one device, 0 if none says.

    These are its arguments, results, temporary arrays and code.
    """
    found = [0]
    for program in programs:
        if (stats := program.memory_analysis()) is not None:
            arrays = stats.argument_size_in_bytes + stats.output_size_in_bytes
            arrays += stats.temp_size_in_bytes - stats.alias_size_in_bytes
            found.append(arrays + stats.generated_code_size_in_bytes)
    return max(found)


def bytes_to_share(tree: object, devices: Sequence[jax.Device]) -> int:
    """Count the bytes that one memory takes when arrays are put on devices, one copy for each.

    Devices that are cores of a CPU read one copy in their common memory. What lies on one of the
    devices counts as there already: the others have so much more memory free. Entries of the tree
    that are the same array are put once.
    """
    platform, total, known = devices[0].platform, 0, set()
    for leaf in jax.tree.leaves(tree):
        there = leaf.devices() if isinstance(leaf, jax.Array) else set()
        if platform == "cpu":
            is_there = any(device.platform == "cpu" for device in there)
        else:
            is_there = bool(there & {*devices})
        if not is_there and id(leaf) not in known:
            known.add(id(leaf))
            total += leaf.nbytes
    return total


def count_bytes(tree: object) -> int:
    """Count the bytes of arrays, or of their descriptions. Repeated entries count once."""

    def of_leaf(leaf: Any) -> int:
        if isinstance(leaf, np.ndarray):
            repeats = [n for n, stride in zip(leaf.shape, leaf.strides, strict=True) if not stride]
            return int(leaf.nbytes // max(1, int(np.prod(repeats, initial=1))))
        return int(np.prod(np.shape(leaf), initial=1)) * leaf.dtype.itemsize

    return sum(of_leaf(leaf) for leaf in jax.tree.leaves(tree))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, in any of the ways that JAX reports it."""
    if isinstance(error, MemoryError):
        return True
    words = ("RESOURCE_EXHAUSTED", "bad_alloc", "Out of memory", "out of memory")
    is_jax = isinstance(error, jax.errors.JaxRuntimeError)
    return is_jax and any(word in str(error) for word in words)


def say(sentence: str) -> None:
    """Print a sentence where progress is shown, in the first process alone."""
    if processes.is_first():
        lifecycle.say(sentence)
