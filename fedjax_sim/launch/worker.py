"""Run one part of a sweep that was launched from Python.

python -m fedjax_sim.launch.worker CALL I/N FOLDER [--resume]
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cloudpickle
import jax

from fedjax_sim.engine.machine.compiling import keep_compiled, use_cores
from fedjax_sim.engine.sweeps import sweep
from fedjax_sim.engine.watching import Watch
from fedjax_sim.launch import jobs, parts
from fedjax_sim.launch.sweeps import RUN, read_pickle
from fedjax_sim.lifecycle import exit_code_of, write_sealed
from fedjax_sim.results.runs import LaneWarning


def main(words: Sequence[str]) -> int:
    """Run a part, and write the result of its sweep into its folder.

    Args:
      words: The file with the sweep's arguments, the part, its folder, and perhaps `--resume`.

    Returns:
      The exit code, see `fedjax_sim.lifecycle.EXIT_CODES`.
    """
    return exit_code_of("fedjax-sim", lambda: _run(words))


def _run(words: Sequence[str]) -> None:
    call, part, folder = words[0], parts.read_part(words[1]), Path(words[2])
    arguments, switches = read_pickle(Path(call))
    for name, value in switches.items():
        jax.config.update(name, value)
    keep_compiled()
    use_cores()
    # The process that launched this one warns of the lanes of all parts.
    warnings.simplefilter("ignore", LaneWarning)
    checkpoints = folder / "checkpoint"
    resume = jobs.RESUME in words and (arguments["checkpoints"].resume or True)
    watch = arguments.get("watch", Watch())
    arguments |= {
        "checkpoints": replace(arguments["checkpoints"], folder=checkpoints, resume=resume),
        "watch": replace(watch, progress=folder.with_name(f"{folder.name}.progress")),
        "lanes": part,
    }
    content = cloudpickle.dumps(sweep(**arguments))
    write_sealed(folder / RUN, lambda path: path.write_bytes(content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
