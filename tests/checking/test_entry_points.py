"""Entry points and constructors that users call: odd values of every argument get a sentence.

Each argument of a right call is replaced by every odd value in turn. The call is right, or ends in
one sentence; it never ends in an error of Python, NumPy or JAX.
"""

import contextlib
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_sim
from fedjax_sim import datasets, engine, launch, models, partition, problems, timelines
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.problems import latent
from fedjax_sim.results import reports, trackers
from fedjax_sim.theory import favano, fedem
from tests.checking.test_wrong_calls import (
    DATASET,
    HYPER,
    IMAGES,
    LABELS,
    NETWORK,
    QUADRATIC,
    RUN,
    SETUP,
    SPLIT,
)

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 10**30, 0.0, 0.5, -0.5, 1e-300, math.nan, math.inf, 1j),
    *("", "a", "fedavg", b"a", Path("nothing"), [], (), [1, "a"], [[1], [1, 2]], [0.5, -1], {}),
    *({"a": 1}, {1, 2}, np.zeros(0), np.ones((2, 2)), np.array("a"), np.array([None]), np.int8(-3)),
    *(jnp.ones(3), jax.random.key(0), len, object(), set, np, DATASET, HYPER, QUADRATIC, SPLIT),
]
STUDENT = {"labels": LABELS, "num_clients": 2, "seed": 0}
FRAME = pd.DataFrame({"x": np.arange(12.0), "y": LABELS, "who": np.arange(12) % 4})
RUNS: dict[Callable[..., Any], dict[str, Any]] = {
    fedjax_sim.simulate: RUN | {"seed": 0},
    fedjax_sim.bind: RUN | {"seed": 0},
    fedjax_sim.sweep: RUN | {"seeds": 1, "settings": None, "lanes": None},
}
"""Right calls of what learns."""
MADE: dict[Callable[..., Any], dict[str, Any]] = {
    fedjax_sim.Ticks: {"num_ticks": 1},
    fedjax_sim.Time: {"time_budget": 1.0},
    fedjax_sim.Energy: {"energy_budget": 1.0, "most_ticks": 1},
    fedjax_sim.Keep: {},
    fedjax_sim.Layout: {},
    fedjax_sim.Watch: {},
    fedjax_sim.Checkpoints: {"folder": "kept"},
    fedjax_sim.Part: {"number": 0, "num_parts": 1},
    launch.Local: {},
    launch.Slurm: {},
    launch.Ray: {},
    models.MLP: {"hidden": (2,), "num_classes": 3},
    models.LogisticRegression: {"num_classes": 3},
    models.LeNet: {"num_classes": 3},
    models.CharacterRNN: {"num_classes": 3},
    models.CharacterTransformer: {"num_classes": 3},
    models.resnet18: {"num_classes": 3},
    models.from_nnx: {"make": lambda rngs: NETWORK},
    partition.Partition: {"index": SPLIT.index, "counts": SPLIT.counts},
    partition.make: STUDENT | {"name": "iid"},
    partition.iid: STUDENT,
    partition.dirichlet: STUDENT | {"alpha": 1.0},
    partition.shards: STUDENT | {"shards_per_client": 1},
    partition.natural: STUDENT | {"client_ids": np.arange(12) % 2},
    datasets.load: {"name": "digits"},
    datasets.make_synthetic: {"alpha": 1.0, "beta": 1.0, "num_clients": 2, "seed": 0},
    datasets.from_text: {"text": "A:\nwords", "name": "play", "sequence_length": 2},
    datasets.from_arrays: dict(
        zip(("train_images", "train_labels", "test_images", "test_labels"), DATASET, strict=False)
    ),
    problems.Quadratic.of: {"centers": np.eye(4, 2)},
    problems.GaussianClients.of: {"hessians": 1.0, "centers": np.eye(4, 2)},
    problems.make_gaussian_clients: {"seed": 0, "alpha": 1.0, "num_clients": 2},
    problems.make_classification: {"model": NETWORK, "dataset": DATASET, "partition": SPLIT},
    problems.make_logistic: {
        "dataset": datasets.from_arrays(IMAGES, LABELS % 2, IMAGES, LABELS % 2),
        "partition": SPLIT,
    },
    problems.hold_out: {"partition": SPLIT, "share": 0.5, "seed": 0},
    problems.partition_by_ids: {"ids": [1, 2, 1]},
    problems.from_dataframe: {"table": FRAME, "target": "y"},
    problems.supervised: {
        "model": NETWORK,
        "data": (IMAGES, LABELS),
        "split": SPLIT,
        "loss": problems.cross_entropy,
    },
    problems.Augmentation: {},
    latent.BernoulliMixture: {"components": 2},
    latent.GaussianMixture: {"components": 2},
    latent.FactorAnalysis: {"factors": 1},
    latent.MissingValues: {"shape": (3, 2), "rank": 1},
    latent.make_estimation: {
        "model": latent.BernoulliMixture(2),
        "data": np.eye(12),
        "partition": SPLIT,
    },
    timelines.Trace: {"client": [0], "start": [0.0], "finish": [1.0]},
    timelines.ClientTable: {"rate": [1.0]},
    timelines.read_trace: {"path": "no file.csv"},
    timelines.read_client_table: {"path": "no file.csv"},
    reports.load: {"path": "no folder"},
    reports.Folder: {"path": "out"},
    engine.load: {"folder": "no folder"},
    trackers.CSV: {"path": "out.csv"},
    favano.FavanoSetup: SETUP,
    fedem.Constants: dict(zip(fedem.Constants._fields, (1.0, 1.0, 1.0, 1.0), strict=True)),
}
"""Right calls of what makes and reads."""
READING = (
    models.from_nnx,
    timelines.read_trace,
    timelines.read_client_table,
    reports.load,
    engine.load,
)
"""Those whose call is right, but finds no file and no module of nnx."""
NEW_IN_SWEEP = ("seeds", "settings", "lanes")


def places(call: Callable[..., Any]) -> list[str]:
    """List the arguments of a call."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(call).parameters.values()
    return [each.name for each in parameters if each.kind not in kinds]


def test_there_are_enough_odd_values() -> None:
    assert len(ODD) >= 35


@pytest.mark.parametrize("call", MADE, ids=lambda call: call.__qualname__)
def test_odd_values_get_a_sentence(call: Callable[..., Any], cwd: Path) -> None:
    """Or are right, such as 1 where a number is asked for."""
    call(**MADE[call]) if call not in READING else None
    assert find_raw_errors(call, MADE[call], places(call)) == []


@pytest.mark.parametrize("call", RUNS, ids=lambda call: call.__qualname__)
def test_odd_values_of_runs_get_a_sentence(call: Callable[..., Any], cwd: Path) -> None:
    """Those of `sweep` that `simulate` has too are tried there alone."""
    named = [name for name in places(call) if call is not fedjax_sim.sweep or name in NEW_IN_SWEEP]
    assert find_raw_errors(call, RUNS[call], named) == []


def find_raw_errors(call: Callable[..., Any], right: dict[str, Any], named: list[str]) -> list[str]:
    """Call with each odd value in each place, and list what ends in another error than a sentence.

    A function in the place of a problem is the user's, who is told of its own errors as they are.
    """
    found = []
    for place, value in itertools.product(named, ODD):
        if place in ("problem", "make") and callable(value):
            continue
        try:
            call(**{**right, place: value})
        except InputError as error:
            if not re.fullmatch(r"[^\n]+ is [^\n]+, but must be [^\n]+", str(error)):
                found.append(f"{place}={value!r:.80}: {error}")
        except Exception as error:
            found.append(f"{place}={value!r:.80}: {type(error).__name__}: {error!s:.200}")
    return found


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in an empty folder."""
    folder = tmp_path_factory.mktemp("cwd")
    with contextlib.chdir(folder):
        yield folder
