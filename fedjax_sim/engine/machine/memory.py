"""How much memory is free, how much a group of lanes takes, and how many lanes fit at a time.

Three things take memory: the lanes' schedules while they are planned (`drawing.measure_plan`, on
the host), the arrays of a compiled program (its arguments, results and temporary arrays, on the
devices), and what is kept until the sweep returns (timelines, models and kept samples, on the
host). The first and the last follow from shapes, the second from the compiled program. A CPU is its
own host, so there all of it comes out of one memory.

Dimension letters: those of `fedjax_sim.types`; `H` rows of the store behind `client_variance`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import lifecycle
from fedjax_sim.engine.machine import processes
from fedjax_sim.engine.machine.compiling import Size, forget_known
from fedjax_sim.lifecycle import free_on_host
from fedjax_sim.settings import ConfigError

SHARE = 0.8
"""Share of the free memory that a sweep is planned for. Compilers and estimates need the rest."""


AHEAD = 0.05
"""Share of the free memory that may be taken to work ahead, of what planning leaves."""


MAPS, MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
"""Where Linux lists the memory maps of this process, and how many it may have."""


MAPS_SHARE = 0.5
"""Share of the memory maps above which compiled programs are dropped."""


STORE_SHARE = 0.5
"""Share of the free memory above which a store of old models is named."""


class OutOfMemoryError(ConfigError, MemoryError):
    """Memory ran out; as one sentence, in case fewer lanes at a time do not help."""


class Free(NamedTuple):
    """Bytes that are free.

    Attributes:
      host: On the host; infinite if that is not known.
      device: On each device; the same memory as the host's for CPUs.
    """

    host: float
    device: float


class Needs(NamedTuple):
    """Bytes that the programs of L lanes take in the memory of a device.

    Attributes:
      lanes: What there is for each lane, of all lanes together.
      fixed: What all lanes share.
    """

    lanes: int
    fixed: int

    @property
    def total(self) -> int:
        return self.lanes + self.fixed


def free_memory() -> Free:
    """Measure the free memory of the host and of each device, in the process that has the least."""
    here = free_here()
    return Free(processes.least(here.host), processes.least(here.device))


def free_here() -> Free:
    """Measure the free memory of this process's host and of each of its devices."""
    host = free_on_host()
    if jax.default_backend() == "cpu":
        return Free(host, host)
    on_devices = [
        stats["bytes_limit"] - stats["bytes_in_use"]
        for device in jax.local_devices()
        if (stats := device.memory_stats()) and "bytes_limit" in stats
    ]
    return Free(host, min(on_devices, default=float("inf")))


def fits_ahead(on_device: float, on_host: float = 0.0) -> bool:
    """Tell whether the host may work ahead, which takes so many bytes on a device and on the host.

    Several processes never do: all of them would have to find room, and what they gather is fetched
    by programs that would wait for the work that was sent ahead.
    """
    free = free_here()
    fits = on_device <= AHEAD * free.device and on_host <= AHEAD * free.host
    return fits and jax.process_count() == 1


def drop_programs_near_the_limit(maps: Path = MAPS, most: Path = MOST_MAPS) -> None:
    """Drop JAX's compiled programs if the process has many memory maps.

    A program for a CPU takes about ten of them. A process that compiles thousands of programs, such
    as a comparison of many methods, would end at the limit (65,530 by default) without an
    exception. Dropped programs are compiled again when they are called, or read from the cache on
    disk.

    Args:
      maps: File with a line for each memory map of the process.
      most: File with the largest number.
    """
    try:
        limit = int(most.read_text())
        num = maps.read_bytes().count(b"\n")
    except OSError:  # Other systems have no such limit.
        return
    if num > MAPS_SHARE * limit:
        jax.clear_caches()
        forget_known()


def measure_programs(programs: Sequence[jax.stages.Compiled], arguments: int) -> tuple[Size, ...]:
    """Return the memory of compiled programs on one device, 0 where that is not known.

    Args:
      programs: The programs.
      arguments: Bytes of those arguments of a program that are there already, or that all lanes
        share.
    """
    sizes = []
    for program in programs:
        stats: Any = program.memory_analysis()
        if stats is None:
            sizes.append(Size(0, 0))
            continue
        arrays = stats.argument_size_in_bytes + stats.output_size_in_bytes
        arrays += stats.temp_size_in_bytes - stats.alias_size_in_bytes
        sizes.append(Size(max(0, arrays - arguments), stats.generated_code_size_in_bytes))
    return tuple(sizes)


def program_needs(programs: Sequence[Size], added: int, num_devices: int) -> Needs:
    """Return the memory that the larger of the programs needs beyond what is taken already.

    Args:
      programs: The programs, which run one after another.
      added: Bytes that all lanes share and that are not there yet, see `bytes_to_share`.
      num_devices: Devices that share the memory.
    """
    needs = (Needs(num_devices * size.arrays, added + size.code) for size in programs)
    return max(needs, key=lambda each: each.total, default=Needs(0, 0))


def bytes_to_share(tree: Any, devices: Sequence[Any]) -> int:
    """Count the bytes that one memory takes when arrays are put on devices, one copy for each.

    Devices that are cores of a CPU read one copy in their common memory. What lies on one of the
    devices counts as there already: the others have so much more memory free.

    Args:
      tree: Arrays. Entries that are the same array are put once.
      devices: The devices.
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


def count_bytes(tree: Any) -> int:
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


def even_pieces(num_lanes: int, most: int) -> int:
    """Choose how many of L lanes to run at a time, at most `most`.

    It divides L if possible, because pieces of equal size share one program; otherwise it is such
    that the last piece is nearly as large as the others.
    """
    most = max(1, min(most, num_lanes))
    divisors = (n for n in range(most, most // 2, -1) if num_lanes % n == 0)
    return next(divisors, -(-num_lanes // -(-num_lanes // most)))


def say(sentence: str) -> None:
    """Print a sentence where progress is shown, in the first process alone."""
    if processes.is_first():
        lifecycle.say(sentence)
