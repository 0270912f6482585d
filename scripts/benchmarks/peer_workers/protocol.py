"""What a worker and the benchmark say to each other: lines of JSON on standard input and output.

A worker runs in a peer's own environment, so this module needs NumPy alone. The benchmark starts it
with the path of a job, waits for the line that says it is ready, and then sends one command a turn:
`{"rounds": 20, "save": "models.npz"}`. The worker runs that many rounds of federated averaging from
the initial model, and answers with the seconds they took.

Models travel as lists of arrays: kernel and bias of each layer in turn, dense kernels `[in, out]`,
convolutions' `[height, width, in, out]`, images flattened in the order height, width, channel.
"""

import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Model = list[np.ndarray]


class Job(NamedTuple):
    """What a worker is to measure.

    Attributes:
      hidden: Units of the hidden layers of a perceptron; none is logistic regression.
      convolutions: Channels of the 3x3 convolutions without padding that come before one pooling
        and the dense layers; none for a perceptron.
      cohort: Clients of a round.
      steps: Local steps of a client.
      batch: Examples of a step.
      lr: Local learning rate.
      lanes: Runs to make side by side in one process, with equal settings and different seeds.
      rates: Learning rates of a sweep, `lanes` runs being split evenly among them; [] for none.
      cores: Cores that the worker may use.
      mode: Which of the peer's ways to run, as its worker lists them; "" for its only one.
      seed: Of the random cohorts and mini-batches.
      arrays: The file of `Data`.
    """

    hidden: list[int]
    convolutions: list[int]
    cohort: int
    steps: int
    batch: int
    lr: float
    lanes: int
    rates: list[float]
    cores: int
    mode: str
    seed: int
    arrays: str


class Data(NamedTuple):
    """The arrays that all contestants share.

    Attributes:
      images: `u8[n, H, W, C]`, to be divided by 255.
      labels: `i32[n]`.
      index: `i32[N, M]`, examples of each client.
      initial: The initial model.
    """

    images: np.ndarray
    labels: np.ndarray
    index: np.ndarray  # type: ignore[assignment]
    initial: Model


def read_job() -> Job:
    """Read the job whose path is the only argument of the program."""
    return Job(**json.loads(Path(sys.argv[1]).read_text()))


def read_data(path: str | Path) -> Data:
    """Read the shared arrays."""
    with np.load(path) as file:
        initial = [file[f"layer_{i}"] for i in range(sum(name[:6] == "layer_" for name in file))]
        return Data(file["images"], file["labels"], file["index"], initial)


def write_model(path: str | Path, model: Sequence[np.ndarray], **more: np.ndarray) -> None:
    """Write a model, and further arrays, so that `read_model` and `read_data` can read it."""
    layers = {f"layer_{i}": np.asarray(leaf) for i, leaf in enumerate(model)}
    np.savez(path, **layers, **more)  # type: ignore[arg-type]


def read_model(path: str | Path) -> Model:
    """Read a model."""
    with np.load(path) as file:
        return [file[f"layer_{i}"] for i in range(len(file.files))]


def scaled(images: np.ndarray) -> np.ndarray:
    """Scale bytes to [0, 1], `f32`."""
    return images.astype(np.float32) / np.float32(255)


class Shuffles:
    """The examples that each client trains on in a round, in a new random order.

    Args:
      data: The shared arrays.
      job: The job.
    """

    def __init__(self, data: Data, job: Job) -> None:
        """Start the random numbers from the job's seed."""
        self._rng = np.random.default_rng(job.seed)
        self._index, self._cohort = data.index, job.cohort
        self._wanted = job.steps * job.batch

    def cohort(self) -> np.ndarray:
        """Draw the clients of a round, without replacement."""
        return self._rng.choice(len(self._index), self._cohort, replace=False)

    def examples(self, client: int) -> np.ndarray:
        """Draw the examples of all local steps of a client: shuffled epochs, as many as needed."""
        mine = self._index[client]
        epochs = -(-self._wanted // len(mine))
        drawn = [self._rng.permutation(mine) for _ in range(epochs)]
        return np.concatenate(drawn)[: self._wanted]


class Conversation:
    """The worker's end of the conversation.

    Whatever a library prints on standard output goes to standard error instead.
    """

    def __init__(self) -> None:
        """Keep standard output for answers."""
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **facts: Any) -> None:
        """Send one line."""
        self._out.write(json.dumps(facts) + "\n")
        self._out.flush()

    def ready(self, *packages: str, note: str = "") -> None:
        """Say that preparations are over, with the versions of the packages that matter."""
        self.say(
            ready=True,
            note=note,
            versions={name: importlib.metadata.version(name) for name in packages},
        )

    def commands(self) -> Iterator[tuple[int, str | None]]:
        """Iterate over commands: the rounds to run and where to save the model, if anywhere."""
        for line in sys.stdin:
            command = json.loads(line)
            yield command["rounds"], command.get("save")

    def answer(self, run: Callable[[], Sequence[np.ndarray]], save: str | None) -> None:
        """Time a run, save the model that it returns, and send the seconds."""
        began = time.perf_counter()
        model = run()
        seconds = time.perf_counter() - began
        if save:
            write_model(save, model)
        self.say(seconds=seconds)


def serve(
    prepare: Callable[[Job, Data], Callable[[int], Sequence[np.ndarray]]],
    *packages: str,
    note: str = "",
) -> None:
    """Prepare a job, then run it at each command.

    Args:
      prepare: From the job and the data to a function that runs a number of rounds from the initial
        model, and returns the model reached once it is really there.
      packages: Packages whose versions matter.
      note: Anything that readers of the results should know.
    """
    talk = Conversation()
    try:
        job = read_job()
        run = prepare(job, read_data(job.arrays))
        talk.ready(*packages, note=note)
        for rounds, save in talk.commands():
            talk.answer(lambda rounds=rounds: run(rounds), save)  # type: ignore[misc]
    except Exception as error:
        traceback.print_exc()
        talk.say(error=f"{type(error).__name__}: {error}"[:300])
