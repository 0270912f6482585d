"""Count what a program launched on a device, from the trace that `jax.profiler` writes.

A trace is a list of events in Chrome's format. On a GPU each kernel and each copy is one event in a
thread "Stream #..." of a process "/device:GPU:...", and names the compiled program and the
instruction that it belongs to. While a trace is taken XLA launches the kernels of command buffers
one by one, so that they are all seen. On a CPU the events of instructions stand in threads of the
host, and are no launches.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Launch(NamedTuple):
    """One event of a device.

    Attributes:
      program: The compiled program, such as "jit__advance"; "" if the trace does not tell.
      instruction: The instruction of the program, otherwise the name of the kernel.
      microseconds: How long it took on the device.
      kernel: The name of the kernel; many may belong to one instruction.
    """

    program: str
    instruction: str
    microseconds: float
    kernel: str = ""


def read_trace(folder: Path) -> dict[str, Any]:
    """Read the newest trace in a profile folder.

    Args:
      folder: What `jax.profiler.trace` was given.

    Raises:
      FileNotFoundError: If the folder holds no trace.
    """
    found = sorted(folder.glob("plugins/profile/*/*.trace.json.gz"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no trace (*.trace.json.gz).")
    with gzip.open(found[-1], "rt") as file:
        return json.load(file)


def launches_of(trace: Mapping[str, Any]) -> list[Launch]:
    """List what ran on accelerators; for a trace without any, what ran on the CPU."""
    events = trace["traceEvents"]
    named = {
        (each["name"], each["pid"], each.get("tid")): each["args"]["name"]
        for each in events
        if each.get("ph") == "M" and each["name"] in ("process_name", "thread_name")
    }
    accelerators = {
        pid
        for (kind, pid, _), name in named.items()
        if kind == "process_name" and name.startswith("/device:")
    }
    found = []
    for each in events:
        if each.get("ph") != "X":
            continue
        facts = each.get("args", {})
        thread = named.get(("thread_name", each["pid"], each.get("tid")), "")
        if accelerators:
            is_launch = each["pid"] in accelerators and thread.startswith("Stream #")
        else:
            is_launch = "hlo_op" in facts
        if is_launch:
            instruction = facts.get("hlo_op") or each["name"]
            told = facts.get("hlo_module", ""), instruction, each.get("dur", 0.0), each["name"]
            found.append(Launch(*told))
    return found


def count_launches(
    launches: Iterable[Launch], program: str, *, ticks: int, steps: int
) -> dict[str, Any]:
    """Tell the launches of local steps from those of the rest of a tick.

    An instruction belongs to the local steps if it ran at least half as often as all of them, to
    the rest of a tick if it ran at least half as often as there were ticks, and otherwise to
    evaluations. Copies of which the trace does not tell the program are counted as the program's.

    Args:
      launches: What a trace shows.
      program: The compiled program.
      ticks: Ticks that ran.
      steps: Trips of the loop of local steps in each tick.

    Returns:
      Launches of a local step, of a tick besides, and of everything else; the mean microseconds
      that the device took for a launch; all launches.
    """
    counted = [each for each in launches if each.program in (program, "")]
    times = Counter(each.instruction for each in counted)
    step = tick = other = 0
    for number in times.values():
        if 2 * number >= ticks * steps:
            step += number
        elif 2 * number >= ticks:
            tick += number
        else:
            other += number
    busy = sum(each.microseconds for each in counted)
    return {
        "launches of a local step": round(step / (ticks * steps), 2),
        "launches of a tick without steps": round(tick / ticks, 2),
        "other launches": other,
        "microseconds of a launch on the device": round(busy / max(len(counted), 1), 2),
        "launches": len(counted),
    }
