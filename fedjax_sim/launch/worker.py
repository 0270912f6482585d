"""Run one part of a sweep that was launched from Python.

python -m fedjax_sim.launch.worker CALL I/N FOLDER [--resume]
"""

import dataclasses
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import cloudpickle
import jax

from fedjax_sim.core import lifecycle
from fedjax_sim.engine.machine import compiling
from fedjax_sim.engine.sweeps import sweep
from fedjax_sim.engine.watching import Watch
from fedjax_sim.launch import jobs, parts, sweeps
from fedjax_sim.results.runs import LaneWarning


def main(words: Sequence[str]) -> int:
    """Run a part, and write the result of its sweep into its folder.

    Args:
      words: The file with the sweep's arguments, the part, its folder, and perhaps `--resume`.

    Returns:
      The exit code, see `fedjax_sim.core.lifecycle.EXIT_CODES`.
    """
    return lifecycle.exit_code_of("fedjax-sim", lambda: _run(words))


def _run(words: Sequence[str]) -> None:
    call, part, folder = words[0], parts.read_part(words[1]), Path(words[2])
    arguments, switches = sweeps.read_pickle(Path(call))
    for name, value in switches.items():
        jax.config.update(name, value)
    compiling.keep_compiled()
    compiling.use_cores()
    # The process that launched this one warns of the lanes of all parts.
    warnings.simplefilter("ignore", LaneWarning)
    saved, watch = arguments["checkpoints"], arguments.get("watch", Watch())
    resume = jobs.RESUME in words and (saved.resume or True)
    progress = folder.with_name(f"{folder.name}.progress")
    arguments |= {
        "checkpoints": dataclasses.replace(saved, folder=folder / "checkpoint", resume=resume),
        "watch": dataclasses.replace(watch, progress=progress),
        "lanes": part,
    }
    content = cloudpickle.dumps(sweep(**arguments))
    lifecycle.write_sealed(folder / sweeps.RUN, lambda path: path.write_bytes(content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
