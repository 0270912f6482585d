"""Public calls: wrong and odd values of every argument get one sentence, before compilation.

`KINDS` says which values are wrong for arguments of a name, and `CALLS` has a right call of each
function and constructor; cases are generated from both. Beyond that, each argument is replaced by
every odd value in turn. The call is right then, or ends in one sentence; it never ends in an error
of Python, NumPy or JAX.
"""

import contextlib
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_sim
from fedjax_sim import (
    compression,
    datasets,
    diagnostics,
    launch,
    models,
    partition,
    privacy,
    problems,
    timelines,
)
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import check
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.problems import latent
from fedjax_sim.results import reports, trackers
from fedjax_sim.server.accounting import audit_canaries
from fedjax_sim.server.attacks import Attack
from fedjax_sim.server.privacy import Privacy
from fedjax_sim.server.rules import Rule
from fedjax_sim.systems import fedavg
from fedjax_sim.theory import favano, fedem, fedstaleweight, hierarchical, langevin

NUMBER = ["1", True, math.nan, [1.0, 2.0]]
KINDS: dict[str, tuple[list[Any], str]] = {
    "count": (
        [0, -1, 1.5, True, "3", [2]],
        "at_once batch bins buffer_size classes client_devices components cpus embedding "
        "evals_per_chunk factors heads lane_batches lane_devices max_lanes max_steps "
        "min_characters min_examples num num_canaries num_classes num_clients num_contacted "
        "num_evals num_examples num_guesses num_parts num_ticks parts processes "
        "sequence_length shards_per_client slots_at_once slow_labels thin timeout_min",
    ),
    "whole": (
        [-1, 0.5, True, "3"],
        "burn_in gpus iterations messages number pad rank restarts rounds seed signal_delay_s",
    ),
    "switch": (
        ["no", 1, 0.0],
        "client_variance differentiable flip is_iid is_wanted lanes_at_once overwrite packed "
        "per_class per_client resume top_up trust",
    ),
    "above 0": (
        [0.0, -1.0, math.inf, *NUMBER],
        "beta floor mem_gb num_cpus smoothness time_budget",
    ),
    "at least 0": (
        [-1.0, math.inf, *NUMBER],
        "alpha deviation every gradient_variance noise num_gpus omega prior prior_precision "
        "round_time sensitivity sync_time",
    ),
    "probability": ([5, -0.1, *NUMBER], "contact_probability delta participation"),
    "share": ([1.0, -0.1, *NUMBER], "held_out skip slow_fraction"),
    "text": ([3, None, ["name"]], "law pull reweighting text"),
    "path": (["", 3, True], "folder path"),
    "function": ([3, "abs"], "convolution make on_evaluation"),
    "object": (
        [3, "abc"],
        "dataset keep launcher layout model partition system timeline watch",
    ),
    "mapping": ([3, "abc", [("lr", [0.1])]], "curves options settings"),
    "array": (
        ["abc", None, {"a": 1}, [[1], [1, 2]]],
        "centers labels mean1 probabilities samples test_labels train_images",
    ),
}
"""Wrong values for each kind of argument, and the names of the arguments of this kind."""
WRONG = {name: values for values, names in KINDS.values() for name in names.split()}


class Says(NamedTuple):
    """A wrong value with the beginning of its sentence, which names a part of the argument."""

    value: Any
    words: str


FEDAVG = fedjax_sim.SYSTEMS["fedavg"]
HYPER = FEDAVG.paper(num_clients=4, num_selected=2, local_steps=1, batch_size=1)
QUADRATIC = problems.Quadratic.of(np.eye(4, 2))
LABELS = np.arange(12) % 3
IMAGES = np.zeros((12, 2, 2, 1), np.uint8)
SPLIT = partition.iid(LABELS, num_clients=4, seed=0)
DATASET = datasets.from_arrays(IMAGES, LABELS, IMAGES, LABELS)
NETWORK = models.MLP((2,), 3)
PROBABILITIES = np.full((6, 2), 0.5)
TIMELINE = fedjax_sim.Timeline(
    time=np.arange(1.0, 4.0),
    clients=np.zeros((3, 1), int),
    steps=np.ones((3, 1), int),
    version=np.arange(3)[:, None],
    weight=np.ones((3, 1)),
    holds=np.zeros((3, 1), int),
)
SETUP = dict.fromkeys(favano.FavanoSetup._fields, 1.0) | {
    "num_clients": 10,
    "num_contacted": 2,
    "max_steps": 5,
}
UNIT = fedem.Constants(1.0, 1.0, 1.0, 1.0)
STUDENT = {"labels": LABELS, "num_clients": 2, "seed": 0}
FRAME = pd.DataFrame({"x": np.arange(12.0), "y": LABELS, "who": np.arange(12) % 4})
RUN = {"system": FEDAVG, "problem": QUADRATIC, "hyper": HYPER, "budget": fedjax_sim.Ticks(2)}
LAUNCH = RUN | {
    "checkpoints": fedjax_sim.Checkpoints("never made"),
    "problem": lambda seed: QUADRATIC,
}
THREE = {"num_classes": 3}
ARRAYS = dict(zip(fedjax_sim.datasets.Dataset._fields, DATASET[:4], strict=False))
GAUSSIANS = {"mean1": np.zeros(2), "cov1": np.eye(2), "mean2": np.zeros(2), "cov2": np.eye(2)}
OPTIONS = {
    "budget": [3, 2.5, "100", (2,), True, fedjax_sim.Ticks],
    "keep": [True, {"models": True}],
    "watch": [
        *(True, print, fedjax_sim.Keep()),
        Says(fedjax_sim.Watch(progress="no folder/progress"), "progress is 'no folder/progress'"),
    ],
    "layout": [{"packed": True}],
    "precision": ["float64", 32],
}
SWEEP = OPTIONS | {
    "seeds": [0, True, "12", 1.5, [-1], [0.5], ["a"], [True], [], [1, 1], [2**31]],
    "settings": [
        *({"lr": 0.1}, {"lr": "0.1"}, {3: [1]}, Says({"lr": [-1.0]}, "lr is -1.0")),
        Says({"lr": []}, "values of lr is []"),
    ],
    "checkpoints": [3, "abc", True, {"folder": "never made"}],
}
Wrong = Mapping[str, list[Any]]
CALLS: dict[Callable[..., Any], tuple[dict[str, Any], Wrong]] = {
    fedjax_sim.simulate: (RUN | {"seed": 0}, OPTIONS),
    fedjax_sim.bind: (RUN | {"seed": 0}, {"budget": OPTIONS["budget"], "precision": ["half"]}),
    fedjax_sim.sweep: (
        RUN | {"seeds": 1, "settings": None, "lanes": None},
        SWEEP
        | {
            "lanes": [
                *(3, [], [9], [-1], ["a"], "01", [0.5]),
                Says(fedjax_sim.Part(0, 9), "number of parts is 9"),
            ]
        },
    ),
    launch.sweep: (
        LAUNCH,
        SWEEP
        | {
            "checkpoints": [
                *SWEEP["checkpoints"],
                Says(
                    fedjax_sim.Checkpoints("never made", resume=True),
                    "folder to resume is 'never made'",
                ),
            ]
        },
    ),
    fedjax_sim.Ticks: ({"num_ticks": 1}, {}),
    fedjax_sim.Time: ({"time_budget": 1.0}, {"time_budget": [None]}),
    fedjax_sim.Energy: ({"energy_budget": 1.0, "most_ticks": 1}, {}),
    fedjax_sim.Keep: ({}, {"models": WRONG["resume"]}),
    fedjax_sim.Layout: ({}, {}),
    fedjax_sim.Watch: ({}, {"progress": ["", 3], "trackers": [3, "csv", [3]]}),
    fedjax_sim.Checkpoints: ({"folder": "kept"}, {"folder": [None]}),
    fedjax_sim.Part: ({"number": 0, "num_parts": 1}, {}),
    fedjax_sim.load: (
        {"folder": "no folder"},
        {"folder": [Says("no folder", "folder is 'no folder'")]},
    ),
    fedjax_sim.keep_compiled: ({}, {}),
    fedjax_sim.use_cores: ({"num": 1}, {}),
    launch.Local: ({}, {}),
    launch.Slurm: ({}, {"partition": [3], "cluster": ["here", 3]}),
    launch.Ray: ({}, {}),
    models.MLP: ({"hidden": (2,), **THREE}, {"hidden": [3, (0,), ("a",)]}),
    models.LogisticRegression: (THREE, {}),
    models.LeNet: (THREE, {}),
    models.CharacterRNN: (THREE, {"cell": ["relu", 3]}),
    models.CharacterTransformer: (THREE, {}),
    models.resnet18: (THREE, {}),
    models.from_nnx: ({"make": lambda rngs: NETWORK}, {}),
    LowBit: (
        {"model": NETWORK},
        {
            "weights": [1, 3.0],
            "activations": [25, True],
            "gradients": [9],
            "scale": ["mean"],
            "levels": ["exact"],
            "full_precision": ["Dense_0"],
        },
    ),
    partition.Partition: (
        {"index": SPLIT.index, "counts": SPLIT.counts},
        {"index": [SPLIT.index + 0.5, SPLIT.index - 1, LABELS[None], "a"], "counts": [[-1], 0.5]},
    ),
    partition.make: (STUDENT | {"name": "iid"}, {"name": [3, None, ["name"]]}),
    partition.iid: (
        STUDENT,
        {"num_clients": [99], "labels": [[0.5, 1.5], [], Says([-1], "smallest label is -1")]},
    ),
    partition.dirichlet: (STUDENT | {"alpha": 1.0}, {"alpha": [0.0]}),
    partition.label_groups: (STUDENT | {"slow_labels": 1, "num_clients": 4}, {}),
    partition.dirichlet_groups: (
        STUDENT | {"alpha": 1.0, "group_sizes": (1, 1)},
        {"alpha": [0.0], "group_sizes": [4, "4", (0, 4), (2, 1), (1.5, 2.5)]},
    ),
    partition.pachinko: (STUDENT | {"superclasses": (0, 0, 1)}, {}),
    partition.classes_per_client: (STUDENT, {}),
    partition.shards: (STUDENT | {"shards_per_client": 1}, {}),
    partition.natural: (
        STUDENT | {"client_ids": np.arange(12) % 2},
        {"client_ids": [3, [1, 2], None, np.ones(12)]},
    ),
    datasets.load: (
        {"name": "digits"},
        {"name": [3, None, ["name"], Says("cifar", "dataset is 'cifar'")]},
    ),
    datasets.make_synthetic: ({"alpha": 1.0, "beta": 1.0, "num_clients": 2, "seed": 0}, {}),
    datasets.from_text: (
        {"text": "A:\nwords", "name": "play", "sequence_length": 2},
        {"held_out": [0]},
    ),
    datasets.from_arrays: (
        ARRAYS,
        {
            "train_images": [np.full((12, 2, 2, 1), math.nan)],
            "test_labels": [LABELS[:3], LABELS - 1, LABELS + 0.5],
            "num_classes": [Says(2, "largest label is 2")],
            "name": [3, None],
        },
    ),
    datasets.Dataset: (DATASET._asdict(), {"train_labels": [LABELS[:3], "abc", None]}),
    problems.Quadratic.of: (
        {"centers": np.eye(4, 2)},
        {
            "centers": [[1.0], [[math.nan]]],
            "noise": [None],
            "curvature": [-1.0, [1.0, 2.0], "1"],
            "start": [[1.0, 2.0, 3.0], "0"],
        },
    ),
    problems.GaussianClients.of: (
        {"hessians": 1.0, "centers": np.eye(4, 2)},
        {
            "hessians": [np.ones(3), "1", None],
            "counts": [0, 0.5, [1, 2], "1", -3, [1.0, 2.5, 1, 1], math.nan, math.inf, 2**32],
            "centers": [[1.0], "a"],
            "noise": [np.ones((3, 3)), "0"],
        },
    ),
    problems.make_gaussian_clients: (
        {"seed": 0, "alpha": 1.0, "num_clients": 3},
        {
            "examples_per_client": [0, 0.5, [1, 2], "1"],
            "covariance": [3.0, "1", -np.eye(2), np.ones((3, 2))],
            "dtype": ["int32", 32, "float33"],
        },
    ),
    problems.make_classification: (
        {"model": NETWORK, "dataset": DATASET, "partition": SPLIT},
        {
            "partition": [[SPLIT]],
            "mean": [math.nan, "0", None],
            "std": [0.0, -1.0, "1", [1.0, 0.0], [1.0, 1.0]],
            "augmentation": [True, "crop_flip"],
            "frozen": [3],
            **{key: [] for key in ("per_class", "per_client", "prior_precision")},
        },
    ),
    problems.make_logistic: (
        {
            "dataset": datasets.from_arrays(IMAGES, LABELS % 2, IMAGES, LABELS % 2),
            "partition": SPLIT,
        },
        {"dtype": ["int32", 32]},
    ),
    problems.hold_out: (
        {"partition": SPLIT, "share": 0.5, "seed": 0},
        {"share": ["half", True, None]},
    ),
    problems.partition_by_ids: (
        {"ids": [1, 2, 1]},
        {
            "ids": [
                *(3, [], Says([None], "client of example 0 is None")),
                Says([[1]], "client of example 0 is [1]"),
            ]
        },
    ),
    problems.from_dataframe: ({"table": FRAME, "target": "y"}, {}),
    problems.supervised: (
        {
            "model": NETWORK,
            "data": (IMAGES, LABELS),
            "split": SPLIT,
            "loss": problems.cross_entropy,
        },
        {},
    ),
    problems.Augmentation: ({}, {}),
    latent.BernoulliMixture: ({"components": 2}, {}),
    latent.GaussianMixture: (
        {"components": 2},
        {"starts": ["zero", 3], "covariance_type": ["x"]},
    ),
    latent.FactorAnalysis: ({"factors": 1}, {}),
    latent.MissingValues: (
        {"shape": (3, 2), "rank": 1},
        {"rank": [0], "family": ["normal"], "shape": [3, (1,)]},
    ),
    latent.make_estimation: (
        {"model": latent.BernoulliMixture(2), "data": np.eye(12), "partition": SPLIT},
        {
            "data": ["abc", 3.0, np.full((12, 2), math.nan), [np.eye(12), np.eye(3)]],
            "weighting": ["uniform", 3],
            "start": ["a", [[1.0]], 1.0],
        },
    ),
    privacy.NoisySteps: (
        {"num_examples": 10, "batch": 5, "accountant": "rdp", "delta": 1e-5},
        {"delta": [0, 1]},
    ),
    privacy.epsilon_after: (
        {"mechanism": privacy.NoisySteps(10, 5, "rdp", 1e-5), "noise": 1.0, "rounds": 1},
        {},
    ),
    privacy.local_epsilon: ({"privacy": privacy.LocalLaplace(noise=9.0), "messages": 1}, {}),
    privacy.gaussian_epsilon: (
        {"sensitivity": 1.0, "deviation": 1.0, "delta": 1e-5},
        {"delta": [0], "sensitivity": [-1.0, "3"]},
    ),
    privacy.one_run_bound: (
        {"num_canaries": 9, "num_guesses": 4, "num_correct": 4, "delta": 0.0},
        {"num_guesses": [10], "num_correct": [-1, 0.5, 5]},
    ),
    timelines.Trace: (
        {"client": [0], "start": [0.0], "finish": [1.0]},
        {"finish": [[math.nan], "a"], "client": [None, 3]},
    ),
    timelines.ClientTable: (
        {"rate": [1.0]},
        {
            "rate": ["a", *(Says([value], "client_table rate") for value in (-1.0, math.nan))],
            "names": [3],
        },
    ),
    timelines.read_trace: (
        {"path": "no file.csv"},
        {"path": [Says("no file.csv", "trace is 'no file.csv'")]},
    ),
    timelines.read_client_table: (
        {"path": "no file.csv"},
        {"path": [Says("no file.csv", "client_table is 'no file.csv'")]},
    ),
    diagnostics.wasserstein2: (
        GAUSSIANS,
        {
            "mean1": [Says(np.zeros(1), "cov1 is array([[1., 0.], [0., 1.]])")],
            "cov2": [np.eye(3), 1.0, -np.eye(2)],
        },
    ),
    diagnostics.fit_gaussian: ({"samples": np.zeros((3, 2))}, {"samples": [[1.0], [[1.0, 2.0]]]}),
    diagnostics.Gaussian: (
        {"mean": np.zeros(2), "covariance": np.eye(2)},
        {"covariance": [np.eye(3), "a", 1.0]},
    ),
    diagnostics.reliability: (
        {"probabilities": PROBABILITIES, "labels": np.zeros(6, int)},
        {
            "probabilities": [PROBABILITIES * 10, -PROBABILITIES, [0.5]],
            "labels": [np.zeros(3, int), *(np.full(6, value) for value in (0.5, -1, 2))],
        },
    ),
    diagnostics.score_predictions: (
        {"probabilities": PROBABILITIES, "labels": np.zeros(6, int)},
        {"labels": [np.zeros((6, 1), int)]},
    ),
    diagnostics.influence: ({"timeline": TIMELINE, "num_clients": 2}, {}),
    diagnostics.fairness_report: (
        {"timeline": TIMELINE, "num_clients": 2, "groups": [0, 1]},
        {"groups": [[0], [0.5, 1], [-1, 0], "ab"]},
    ),
    diagnostics.thin_samples: (
        {"samples": np.zeros((1, 5, 2))},
        {"burn_in": [9], "samples": [np.zeros(3), (), [np.zeros((1, 2)), np.zeros((2, 2))]]},
    ),
    diagnostics.deviation: ({"influence": np.ones(3)}, {"target": [np.ones(2), "a"]}),
    favano.FavanoSetup: (SETUP, {}),
    favano.kappa_sharp: ({"num_clients": 10, "num_contacted": 2}, {}),
    favano.step_law: (
        {
            "rate": 0.5,
            "contact_probability": 0.5,
            "round_time": 1.0,
            "max_steps": 3,
            "law": "runtime_geom",
        },
        {"law": ["geom"]},
    ),
    favano.reweighting_constants: (
        {
            "moments": favano.StepMoments(*np.ones((4, 2))),
            "max_steps": 3,
            "reweighting": "expectation",
        },
        {"reweighting": ["none"]},
    ),
    fedem.Constants: (UNIT._asdict(), {}),
    fedem.total_omega: ({"omega": 1.0, "participation": 1.0}, {}),
    fedem.memory_step: ({"omega": 1.0}, {}),
    fedem.vr_step_size: ({"constants": UNIT, "num_clients": 4, "omega": 1.0}, {}),
    hierarchical.max_iterations: ({"shift": 1.0, "sync_time": 1.0}, {}),
    fedstaleweight.raw_weight: ({"staleness": 1.0, "num_clients": 3, "buffer_size": 2}, {}),
    fedstaleweight.expected_staleness: (
        {"share": 0.5, "buffer_size": 3, "pull": "own_finish"},
        {"pull": ["never"]},
    ),
    langevin.PrivacySetup: (
        dict.fromkeys(langevin.PrivacySetup._fields, 0.5)
        | dict.fromkeys(("num_clients", "num_selected", "local_steps", "num_rounds"), 1)
        | {"scheme": "full", "adversary": "server", "draw_probability": None},
        {
            **dict.fromkeys(("local_steps", "num_rounds"), WRONG["num_clients"]),
            **{key: [0.0, math.nan] for key in ("step_size", "temperature", "sensitivity")},
            **dict.fromkeys(("rho", "delta_round", "delta_total"), WRONG["skip"]),
            **{key: [0.0, 1.5] for key in ("batch_fraction", "least_weight")},
            "num_selected": WRONG["rank"],
            "delta_step": [0.0, 1.0],
            "draw_probability": [1.1, -0.1],
            **{key: ["some"] for key in ("scheme", "adversary")},
        },
    ),
    reports.load: (
        {"path": "no folder"},
        {"path": [Says("no folder", "results folder is 'no folder'")]},
    ),
    reports.Folder: ({"path": "out"}, {}),
    reports.summary: ({"curves": {}}, {}),
    trackers.CSV: ({"path": "out.csv"}, {}),
}
"""Right calls, and wrong values of their arguments beyond those that `WRONG` has."""
OTHER_KINDS = {
    (fedjax_sim.load, "system"): [],
    (launch.Slurm, "partition"): [],
    (LowBit, "model"): [],
    (datasets.make_synthetic, "beta"): WRONG["alpha"],
    (problems.GaussianClients.of, "noise"): [],
    (privacy.gaussian_epsilon, "sensitivity"): [],
    (privacy.one_run_bound, "delta"): [],
    (fedem.vr_step_size, "num_clients"): [],
    (langevin.PrivacySetup, "sensitivity"): [],
}
"""Arguments that are of another kind than those of their name in other calls."""
READING = (
    *(models.from_nnx, timelines.read_trace, timelines.read_client_table),
    *(reports.load, fedjax_sim.load),
)
"""Functions that fail at right arguments here, for lack of a file or of an nnx module."""
FORMULAS = (
    *("fedjax_sim.server.privacy", "fedjax_sim.server.accounting"),
    *("fedjax_sim.results.diagnostics", "fedjax_sim.theory"),
)
OF_PROCESSES = (
    *(launch.sweep, fedjax_sim.keep_compiled, fedjax_sim.use_cores),
    *(LowBit, reports.summary),
)
TRIED = [
    call
    for call in CALLS
    if call not in OF_PROCESSES
    and (inspect.isclass(call) or not call.__module__.startswith(FORMULAS))
]
"""All but functions that change the process, or compute for ever with some numbers."""
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 10**30, 0.0, 0.5, -0.5, 1e-300, math.nan, math.inf, 1j),
    *("", "a", "fedavg", b"a", Path("nothing"), [], (), [1, "a"], [[1], [1, 2]], [0.5, -1], {}),
    *({"a": 1}, {1, 2}, np.zeros(0), np.ones((2, 2)), np.array("a"), np.array([None]), np.int8(-3)),
    *(jnp.ones(3), jax.random.key(0), len, object(), set, np, DATASET, HYPER, QUADRATIC, SPLIT),
]
SENTENCE = re.compile(r"[^\n]+ is [^\n]+, but must be [^\n]+\.")


def arguments_of(call: Callable[..., Any]) -> list[str]:
    """List the arguments of a call by name."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(call).parameters.values()
    return [each.name for each in parameters if each.kind not in several]


def wrong_values(call: Callable[..., Any]) -> Iterator[tuple[str, Any, str]]:
    """Generate arguments with wrong values, and what the sentence about each has to name."""
    further = CALLS[call][1]
    for name in dict.fromkeys([*arguments_of(call), *further]):
        usual = OTHER_KINDS.get((call, name), WRONG.get(name, []))
        for value in [*usual, *further.get(name, [])]:
            yield (name, *value) if isinstance(value, Says) else (name, value, "")


@pytest.fixture
def cwd(tmp_path: Path) -> Iterator[Path]:
    """Work in an empty folder."""
    with contextlib.chdir(tmp_path):
        yield tmp_path


def test_there_are_enough_cases_and_no_name_is_unused() -> None:
    assert len(ODD) >= 35 and len([each for call in CALLS for each in wrong_values(call)]) >= 900
    assert {*WRONG} <= {name for call in CALLS for name, _, _ in wrong_values(call)}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_wrong_values_get_a_sentence(
    call: Callable[..., Any], compiled_in_module: list[str], cwd: Path
) -> None:
    """It names the argument, or the part of it that is wrong."""
    compiled_in_module.clear()
    problems_found = []
    for name, value, words in wrong_values(call):
        case = f"{name}={value!r:.80}"
        try:
            call(**CALLS[call][0] | {name: value})
        except InputError as error:
            field = str(error).partition(" is ")[0]
            if not SENTENCE.fullmatch(str(error)) or (words or name) not in (
                str(error) if words else field
            ):
                problems_found.append(f"{case}: {error}")
        except Exception as error:
            problems_found.append(f"{case}: {type(error).__name__}: {error!s:.200}")
        else:
            problems_found.append(f"{case}: not refused")
    assert problems_found == []
    # Whether user data are finite is found out where they will be used, on the device.
    assert {*compiled_in_module} <= {"jit(_is_finite)"}
    assert list(cwd.iterdir()) == []


@pytest.mark.parametrize("call", TRIED, ids=lambda call: call.__qualname__)
def test_odd_values_get_a_sentence(call: Callable[..., Any], cwd: Path) -> None:
    """Or are right, such as 1 where a number is asked for.

    A function given as a problem is the user's code: its errors reach the user unchanged.
    Those of `sweep` that `simulate` has too are tried there alone.
    """
    right = CALLS[call][0]
    call(**right) if call not in READING else None
    named = arguments_of(call)
    if call is fedjax_sim.sweep:
        named = ["seeds", "settings", "lanes"]
    found = []
    for name, value in itertools.product(named, ODD):
        if name in ("problem", "make") and callable(value):
            continue
        try:
            call(**right | {name: value})
        except InputError as error:
            if not SENTENCE.fullmatch(f"{error}".removesuffix(".") + "."):
                found.append(f"{name}={value!r:.80}: {error}")
        except Exception as error:
            found.append(f"{name}={value!r:.80}: {type(error).__name__}: {error!s:.200}")
    assert found == []


class Undecorated(compression.RandK):
    """A compressor without the decorator of settings."""


def audited(**options: float) -> Any:
    """Audit four canaries."""
    coins = [True, True, False, False]
    return audit_canaries([3.0, 2.0, -1.0, -2.0], coins, num_guesses=4, **options)


TABLE = pd.DataFrame({"a": [1.0], "b": [2.0]})
SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"compression": compression.Compressor()}, "compression is"),
    ({"aggregator": Rule()}, "aggregator is"),
    ({"attack": Attack(), "malicious": 0.5}, "attack is"),
    ({"privacy": Privacy()}, "privacy is"),
    ({"compression": Undecorated()}, "class of settings is"),
    ({"compression": compression.RandK(kept="x")}, "kept is 'x'"),  # type: ignore[arg-type]
    ({"lr": 1j}, "lr is 1j"),
]
FURTHER: list[tuple[Callable[[Any], Any], str]] = [
    *((lambda run, given=given: check(fedavg.Hyper(**given)), words) for given, words in SETTINGS),
    (lambda run: timelines.ClientTable(rate=np.array([1j, 2])), "rate is"),
    (lambda run: run.save("/dev/null"), "folder is '/dev/null'"),
    (lambda run: run.save(""), "folder is ''"),
    (lambda run: problems.from_dataframe(TABLE, target=[]), "target is"),
    (lambda run: timelines.Trace([-1], [0.0], [1.0]), "trace is"),
    (lambda run: diagnostics.to_arviz(3), "run is 3"),  # type: ignore[arg-type]
    (lambda run: diagnostics.influence(run.timelines[0], 1), "num_clients is 1"),
    (lambda run: audited(delta=2.0), "delta is 2.0"),
    (lambda run: audited(delta=0.0, confidence=1.0), "confidence is 1.0"),
    (lambda run: diagnostics.influence(run.timelines[0], 10**30), "num_clients is 1000000"),
]


@pytest.fixture(scope="module")
def run() -> fedjax_sim.Run:
    return fedjax_sim.simulate(**RUN)


@pytest.mark.parametrize(("say", "words"), FURTHER, ids=[words for _, words in FURTHER])
def test_further_odd_values_get_a_sentence(
    say: Callable[[Any], Any], words: str, run: fedjax_sim.Run
) -> None:
    """What a generated search of public calls has found."""
    with pytest.raises(InputError, match=rf"{re.escape(words)}[^\n]*, but must be [^\n]+\.$"):
        say(run)
