"""How much memory of the host this process may still take, and words for bytes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import resource
except ImportError:  # Windows has no limits on a process.
    resource = None  # type: ignore[assignment]


def free_on_host() -> float:
    """Measure the bytes that this process may still take on the host.

    It is the least of what the machine has left, what the process's control group may still take,
    and what its limit of address space (`ulimit -v`) leaves.
    """
    limits = (
        free_on_machine(Path("/proc/meminfo")),
        free_in_group(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        free_addresses(),
    )
    return min(limits)


def free_on_machine(meminfo: Path) -> float:
    """Read the bytes that are available on the machine; its whole memory where it does not say."""
    with contextlib.suppress(OSError):
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return 1024.0 * int(value.split()[0])
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float("inf")


def free_in_group(membership: Path, mount: Path) -> float:
    """Read the bytes that the control groups of this process leave it.

    Files that are only cached count as free, because the kernel gives them back.

    Args:
      membership: The file that names the groups, `/proc/self/cgroup`.
      mount: Folder in which the groups are mounted: version 2, or version 1 with a folder `memory`.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return float("inf")
    free = float("inf")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            free = min([free, *_free_upwards(mount, path, names)])
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            free = min([free, *_free_upwards(mount / "memory", path, names)])
    return free


def _free_upwards(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[float]:
    """Read the bytes left by a group and those above it; a container has only some mounted."""
    limit, usage, cached = names
    folder = mount / path.strip("/")
    for group in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):
            # Without a limit the first version has a huge number, and the second "max".
            most = int((group / limit).read_text())
            used = int((group / usage).read_text())
            for line in (group / "memory.stat").read_text().splitlines():
                if line.split()[0] == cached:
                    used -= int(line.split()[1])
            yield float(max(0, most - used))
        if group == mount:
            return


def free_addresses() -> float:
    """Read the bytes of address space that this process has left under `ulimit -v`."""
    if resource is None:
        return float("inf")
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return float("inf")
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return float(most)
    return float(max(0, most - pages * resource.getpagesize()))


def write_bytes(number: float) -> str:
    """Write a number of bytes for people.

    Args:
      number: The bytes.

    Returns:
      Three digits and a unit, such as "1.5 GB" or "20 MB".
    """
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"
