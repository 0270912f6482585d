"""Run one part of a sweep that was launched from Python.

python -m fedjax_sim.launch.worker CALL I/N FOLDER [--resume]
"""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import cloudpickle
import jax

from fedjax_sim.engine.machine.compiling import keep_compiled, use_cores
from fedjax_sim.engine.shares import Unit, survey_lanes
from fedjax_sim.engine.sweeps import sweep
from fedjax_sim.launch.jobs import RESUME
from fedjax_sim.launch.parts import LANES, keep_lanes, lanes_of_part, read_part, write_lanes
from fedjax_sim.launch.sweeps import RUN, read_pickle
from fedjax_sim.lifecycle import exit_code_of, write_sealed
from fedjax_sim.results.runs import LaneWarning

SURVEYED = (
    *("system", "problem", "hyper", "seeds", "settings", "time_budget", "num_ticks", "max_lanes"),
)
"""Arguments of `sweep` that decide how lanes are divided among parts."""


def main(words: Sequence[str]) -> int:
    """Run a part, and write what its sweep returned into its folder.

    Args:
      words: The file with the sweep's arguments, the part, its folder, and perhaps `--resume`.

    Returns:
      The exit code, see `fedjax_sim.lifecycle.EXIT_CODES`.
    """
    return exit_code_of("fedjax-sim", lambda: _run(words))


def _run(words: Sequence[str]) -> None:
    call, part, folder = words[0], read_part(words[1]), Path(words[2])
    assert part is not None
    arguments, switches = read_pickle(Path(call))
    for name, value in switches.items():
        jax.config.update(name, value)
    keep_compiled()
    use_cores()
    # The process that launched this one warns of the lanes of all parts.
    warnings.simplefilter("ignore", LaneWarning)
    checkpoints = folder / "checkpoint"
    # A part that goes on to a longer budget keeps its lanes.
    asked = {name: arguments[name] for name in SURVEYED}
    arguments["resume"] = RESUME in words and arguments["resume"]

    def survey() -> dict[str, list[Unit[int]]]:
        return {"sweep": survey_lanes(**asked)}

    if RESUME in words:
        lanes = keep_lanes(checkpoints / LANES, part, survey)
    else:
        lanes = lanes_of_part(part, survey())
    checkpoints.mkdir(parents=True, exist_ok=True)
    write_lanes(checkpoints / LANES, part, lanes)
    run = sweep(
        **arguments,
        lanes=lanes["sweep"],
        checkpoint=checkpoints,
        progress=folder.with_name(f"{folder.name}.progress"),
    )
    content = cloudpickle.dumps(run)
    write_sealed(folder / RUN, lambda path: path.write_bytes(content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
