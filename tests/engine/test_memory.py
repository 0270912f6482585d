"""Reading how much memory is free, and words for it."""

import resource
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.lifecycle import (
    free_addresses,
    free_in_group,
    free_on_host,
    free_on_machine,
    write_bytes,
)
from fedjax_sim.engine.machine.memory import (
    OutOfMemoryError,
    count_bytes,
    drop_programs_near_the_limit,
    is_out_of_memory,
)


def write_group(folder: Path, names: tuple[str, str, str], values: tuple[str, int, int]) -> None:
    """Write the files of a control group: its limit, what it uses, and how much of it is cached."""
    folder.mkdir(parents=True, exist_ok=True)
    limit, used, cached = values
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {cached}\n")


NEWER = ("memory.max", "memory.current", "inactive_file")
OLDER = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def test_control_groups_of_the_second_version(tmp_path: Path) -> None:
    """A group above may leave less than the process's own; cached files count as free."""
    member = tmp_path / "cgroup"
    member.write_text("0::/job/step\n")
    mount = tmp_path / "mount"
    write_group(mount / "job" / "step", NEWER, ("max", 900, 0))
    assert free_in_group(member, mount) == np.inf
    write_group(mount / "job", NEWER, ("1000", 900, 300))
    assert free_in_group(member, mount) == 400
    write_group(mount / "job" / "step", NEWER, ("650", 600, 100))
    assert free_in_group(member, mount) == 150
    # In a container the own group is often the only one that is mounted, as the root.
    member.write_text("0::/\n")
    write_group(mount, NEWER, ("80", 100, 0))
    assert free_in_group(member, mount) == 0


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    member = tmp_path / "cgroup"
    member.write_text("9:name=systemd:/\n4:cpu,memory:/job/step\n3:cpuset:/\n0::/\n")
    mount = tmp_path / "mount"
    write_group(mount / "memory" / "job", OLDER, ("2000", 500, 100))
    write_group(mount / "memory", OLDER, (str(2**63 - 4096), 10**9, 0))
    assert free_in_group(member, mount) == 1600
    assert free_in_group(tmp_path / "none", mount) == np.inf


def test_free_memory_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 50 kB\nMemAvailable:   20 kB\nSwapFree: 9 kB\n")
    assert free_on_machine(tmp_path / "meminfo") == 20 * 1024
    # Where nothing says what is available, it is all memory there is.
    assert free_on_machine(tmp_path / "none") > 2**26
    assert 2**20 < free_on_host() <= free_on_machine(Path("/proc/meminfo")) * 1.5


def test_a_limit_of_address_space_counts() -> None:
    """In a new process, as a limit cannot be lifted again."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert free_addresses() == np.inf
    code = (
        "import resource\n"
        "from fedjax_sim.core.lifecycle import free_addresses as free\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36)); before = free()\n"
        "held = bytearray(2**30); print(2**36 - before, before - free())"
    )
    root = Path(fedjax_sim.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    used, held = map(float, done.stdout.split())
    assert 2**20 < used < 2**34
    assert 2**30 <= held < 1.1 * 2**30


def test_programs_are_dropped_before_memory_maps_run_out(tmp_path: Path) -> None:
    """Above half of the limit, and not below; without the files nothing happens."""
    maps, most = tmp_path / "maps", tmp_path / "most"
    maps.write_text("a map\n" * 60)
    compiled = jax.jit(lambda x: x + 1)
    compiled(1)
    drop_programs_near_the_limit(maps, most)
    most.write_text("121\n")
    drop_programs_near_the_limit(maps, most)
    assert compiled._cache_size() == 1  # type: ignore[attr-defined]
    most.write_text("119\n")
    drop_programs_near_the_limit(maps, most)
    assert compiled._cache_size() == 0  # type: ignore[attr-defined]
    assert compiled(1) == 2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("memory", 1, "more"), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), True),
        (jax.errors.JaxRuntimeError("INTERNAL: std::bad_alloc"), True),
        (jax.errors.JaxRuntimeError("INTERNAL: no such kernel"), False),
        (RuntimeError("out of memory, says somebody else"), False),
    ],
)
def test_how_a_lack_of_memory_is_reported(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_a_real_allocation_that_fails_is_recognised() -> None:
    with pytest.raises(MemoryError) as of_numpy:
        np.ones(2**57)
    assert is_out_of_memory(of_numpy.value)


def test_bytes_of_views_and_descriptions() -> None:
    row = np.zeros((1, 3), "float32")
    tree = [np.zeros(5), jax.ShapeDtypeStruct((2, 3), np.int32), np.broadcast_to(row, (9, 3))]
    assert count_bytes(tree) == 40 + 24 + 12
    assert write_bytes(1.5e9) == "1.5 GB"
    assert write_bytes(20e6) == "20 MB"
