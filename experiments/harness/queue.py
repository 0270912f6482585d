"""The runs that are too long for a CPU, in the order in which an accelerator is to do them.

`python -m experiments queue --minutes 9 --out DIR` goes on where the last call with this folder
was. Each run has a folder in DIR with its checkpoints, so that nothing is lost if the machine goes
away, and with its results once it is at an end. Times are guesses from parts of the runs on one
H200.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from fedjax_sim.core import lifecycle
from fedjax_sim.core.lifecycle import EXIT_CODES, PartError
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.results.reports import UNFINISHED


class Queued(NamedTuple):
    """A run that waits for an accelerator.

    Attributes:
      name: The experiment, as PAPER/NAME.
      words: Further words of its command line.
      is_on_cifar10: Whether it is on CIFAR-10's images.
    """

    name: str
    words: tuple[str, ...] = ()
    is_on_cifar10: bool = True


RUNS = {
    "fedstaleweight-fig2": Queued("fedstaleweight/fig2"),
    "hierarchical-fig4_5": Queued("hierarchical/fig4_5"),
    "hierarchical-fig3": Queued("hierarchical/fig3"),
    "hierarchical-fig7": Queued("hierarchical/own_rates", ("--only=fig7",)),
    "fald-fig3_4": Queued("fald/fig3_4", is_on_cifar10=False),
    "favano-fig3a": Queued("favano/fig3a", ("--seeds=1",)),
    "favano-fig3a-0.05": Queued("favano/fig3a", ("--seeds=1", "--rate=0.05")),
    "favano-fig3a-0.1": Queued("favano/fig3a", ("--seeds=1", "--rate=0.1")),
    "favano-fig3a-full": Queued("favano/fig3a"),
    "favano-fig7": Queued("favano/fig7", is_on_cifar10=False),
}
"""The runs by the names of their folders.

Times on one H200 in TF32, while others ran beside: nine minutes for five seeds of the first, three
of them for the one lane of Algorithm 1's formula; nine minutes for the second; two for the third;
four for five further seeds on each of the two data sets of fald/fig3_4. favano/fig3a had not begun
its first step after three minutes. favano/fig3b is not in the list: it takes a day, with 6,000
updates of a ResNet on TinyImageNet, whose images are not kept as one file.
"""


def run(given: argparse.Namespace) -> None:
    """Run the unfinished runs one after another, until the time is over.

    Args:
      given: The command line of `python -m experiments queue`.

    Raises:
      PartError: If the time is over before all are at an end, or some have failed.
    """
    if not given.minutes > 0:
        raise ConfigError("minutes", given.minutes, "a number above 0")
    end, failed = time.monotonic() + 60 * given.minutes, []
    for name, queued in RUNS.items():
        folder = Path(given.out or "results-queue") / name
        if (folder / "claims.json").exists() and not (folder / UNFINISHED).exists():
            print(f"{name} is at an end", flush=True)
            continue
        left = (end - time.monotonic()) / 60
        if left <= 0:
            raise PartError(f"{given.minutes:g} minutes are over before {name}", lifecycle.STOPPED)
        # It ends with this process, so that the next call finds nobody at work.
        environment = {**os.environ, lifecycle.PARENT: str(os.getpid())}
        process = subprocess.Popen(_words(queued, folder, left, given), env=environment)
        try:
            code = process.wait()
        except lifecycle.Stopped:  # The run is asked to save too.
            process.terminate()
            told = EXIT_CODES.get(process.wait(), "killed")
            raise PartError(f"stopped in {name}: {told}", lifecycle.STOPPED) from None
        print(f"{name}: {EXIT_CODES.get(code, f'ended with {code}')}", flush=True)
        if code == lifecycle.STOPPED:
            raise PartError(f"{given.minutes:g} minutes are over in {name}", code)
        if code:
            failed.append(name)
    if failed:
        raise PartError(f"{', '.join(failed)} failed", lifecycle.FAULT)


def _words(queued: Queued, folder: Path, minutes: float, given: argparse.Namespace) -> list[str]:
    """Write the command line of one run."""
    words = [sys.executable, "-m", "experiments", "run", queued.name, f"--out={folder}", "--resume"]
    words += [f"--minutes={minutes:.4f}", f"--precision={given.precision}"]
    words += [] if given.data_dir is None else [f"--data-dir={given.data_dir}"]
    if given.smoke:  # Without the seeds and panels of other data.
        return [*words, "--smoke", *(each for each in queued.words if each.startswith("--rate"))]
    dataset = given.dataset or "cifar10"
    return [*words, *queued.words, *([f"--dataset={dataset}"] if queued.is_on_cifar10 else [])]
