"""Public calls with arguments of wrong types and wrong values: each gets one sentence, early.

The sentence names the argument and its value. Nothing is compiled before it, and no file is made.
"""

import collections
import contextlib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import (
    datasets,
    diagnostics,
    engine,
    launch,
    models,
    partition,
    privacy,
    problems,
    timelines,
)
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.problems import latent
from fedjax_sim.results import reports, trackers
from fedjax_sim.theory import favano, fedem, fedstaleweight, hierarchical

# Values that are wrong for each kind of argument.
NUMBER = ["1", True, math.nan, [1.0, 2.0]]
COUNT = [0, -1, 1.5, True, "3", [2]]
WHOLE = [-1, 0.5, True, "3"]
SEED = [-1, 0.5, True, "0"]
SWITCH = ["no", 1, 0.0]
ABOVE_0 = [0.0, -1.0, math.inf, *NUMBER]
AT_LEAST_0 = [-1.0, math.inf, *NUMBER]
PROBABILITY = [5, -0.1, *NUMBER]
SHARE = [1.0, -0.1, *NUMBER]
TEXT = [3, None, ["name"]]
PATH = ["", 3, True]
FUNCTION = [3, "abs"]
ARRAY = ["abc", None, {"a": 1}, [[1], [1, 2]]]
OBJECT = [3, "abc"]
MAPPING = [3, "abc", [("lr", [0.1])]]

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]
HYPER = FEDAVG.paper(num_clients=4, num_selected=2, local_steps=1, batch_size=1)
QUADRATIC = problems.Quadratic.of(np.eye(4, 2))
LABELS = np.arange(12) % 3
IMAGES = np.zeros((12, 2, 2, 1), np.uint8)
SPLIT = partition.iid(LABELS, num_clients=4, seed=0)
DATASET = datasets.from_arrays(IMAGES, LABELS, IMAGES, LABELS)
ARRIVALS = timelines.Arrivals(num_clients=4, buffer_size=2)
NETWORK = models.MLP((2,), 3)
PROBABILITIES = np.full((6, 2), 0.5)
KEY = jax.random.key(0)
TIMELINE = fedjax_sim.Timeline(
    time=np.arange(1.0, 4.0),
    clients=np.zeros((3, 1), int),
    steps=np.ones((3, 1), int),
    version=np.arange(3)[:, None],
    weight=np.ones((3, 1)),
    holds=np.zeros((3, 1), int),
)
SETUP = {
    "num_clients": 10,
    "num_contacted": 2,
    "max_steps": 5,
    "smoothness": 1.0,
    "gradient_variance": 1.0,
    "dissimilarity": 1.0,
    "dissimilarity_factor": 1.0,
    "initial_gap": 1.0,
    "noise_constant": 1.0,
    "drift_constant": 1.0,
}
UNIT = fedem.Constants(1.0, 1.0, 1.0, 1.0)
RUN = {"system": FEDAVG, "problem": QUADRATIC, "hyper": HYPER, "budget": fedjax_sim.Ticks(2)}
SAVED = fedjax_sim.Checkpoints("never made")
LAUNCH = {**RUN, "checkpoints": SAVED, "problem": lambda seed: QUADRATIC}
OPTIONS = {
    "num_evals": COUNT,
    "keep": [*OBJECT, True, {"models": True}],
    "watch": [*OBJECT, True, print, fedjax_sim.Keep()],
    "layout": [*OBJECT, {"packed": True}],
    "precision": ["float64", 32],
}
SWEEP = {
    "system": OBJECT,
    "seeds": [0, True, "12", 1.5, [-1], [0.5], ["a"], [True], [], [1, 1], [2**31]],
    "settings": [*MAPPING, {"lr": 0.1}, {"lr": "0.1"}, {"lr": []}, {"lr": [-1.0]}, {3: [1]}],
    "budget": [3, 2.5, "100", (2,), True, fedjax_sim.Ticks],
    "checkpoints": [*OBJECT, True, {"folder": "never made"}],
    **OPTIONS,
}
LAYOUT = ("slots_at_once", "lane_devices", "client_devices", "lane_batches", "max_lanes")

CALLS: dict[str, list[tuple[Callable[..., Any], dict[str, Any], dict[str, list[Any]]]]] = {
    "sweep": [
        (fedjax_sim.sweep, RUN, SWEEP),
        (
            fedjax_sim.sweep,
            RUN,
            {"lanes": [3, [], [9], [-1], ["a"], "01", [0.5], fedjax_sim.Part(0, 9)]},
        ),
        (fedjax_sim.sweep, RUN, {"watch": [fedjax_sim.Watch(progress="no folder/progress")]}),
        (fedjax_sim.simulate, RUN, {"seed": SEED, "budget": SWEEP["budget"], **OPTIONS}),
        (fedjax_sim.Ticks, {}, {"num_ticks": COUNT}),
        (fedjax_sim.Time, {}, {"time_budget": [*ABOVE_0, None]}),
        (fedjax_sim.Keep, {}, {"models": SWITCH, "client_variance": SWITCH}),
        (
            fedjax_sim.Watch,
            {},
            {"progress": ["", 3], "on_evaluation": FUNCTION, "trackers": [3, "csv", [3]]},
        ),
        (fedjax_sim.Checkpoints, {}, {"folder": [*PATH, None]}),
        (fedjax_sim.Checkpoints, {"folder": "x"}, {"every": AT_LEAST_0, "resume": SWITCH}),
        (fedjax_sim.Part, {"num_parts": 2}, {"number": WHOLE}),
        (fedjax_sim.Part, {"number": 0}, {"num_parts": COUNT}),
        (fedjax_sim.Layout, {}, {**dict.fromkeys(LAYOUT, COUNT), "packed": SWITCH}),
        (fedjax_sim.Layout, {}, {"evals_per_chunk": COUNT}),
        (fedjax_sim.Layout, {}, {"lanes_at_once": SWITCH}),
        (engine.load, {}, {"folder": [*PATH, "no folder"]}),
        (engine.load, {"folder": "."}, {"trust": SWITCH}),
        (engine.keep_compiled, {}, {"is_wanted": SWITCH}),
        (engine.use_cores, {}, {"num": COUNT}),
    ],
    "launch": [
        (launch.sweep, LAUNCH, {**SWEEP, "parts": COUNT, "launcher": OBJECT}),
        (launch.sweep, LAUNCH, {"budget": [None], "watch": [fedjax_sim.Watch(progress="file")]}),
        (
            launch.sweep,
            LAUNCH,
            {"checkpoints": [fedjax_sim.Checkpoints("never made", resume=True)]},
        ),
        (launch.Local, {}, {"processes": COUNT, "restarts": WHOLE}),
        (launch.Slurm, {}, dict.fromkeys(("timeout_min", "cpus", "at_once"), COUNT)),
        (launch.Slurm, {}, dict.fromkeys(("gpus", "restarts", "signal_delay_s"), WHOLE)),
        (launch.Slurm, {}, {"mem_gb": ABOVE_0, "partition": [3], "cluster": ["here", 3]}),
        (launch.Slurm, {}, {"options": MAPPING}),
        (launch.Ray, {}, {"num_cpus": ABOVE_0, "num_gpus": AT_LEAST_0, "restarts": WHOLE}),
    ],
    "models": [
        (models.MLP, {"hidden": (2,), "num_classes": 3}, {"hidden": [3, (0,), ("a",)]}),
        (models.MLP, {"hidden": (2,)}, {"num_classes": COUNT}),
        (models.LogisticRegression, {}, {"num_classes": COUNT}),
        (models.LeNet, {"num_classes": 3}, {"num_classes": COUNT, "convolution": FUNCTION}),
        (models.CharacterRNN, {"num_classes": 3}, {"embedding": COUNT, "cell": ["relu", 3]}),
        (models.CharacterTransformer, {"num_classes": 3}, {"heads": COUNT, "rank": WHOLE}),
        (models.resnet18, {}, {"num_classes": COUNT}),
        (
            LowBit,
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
        (models.from_nnx, {}, {"make": FUNCTION}),
    ],
    "partition": [
        (
            partition.Partition,
            {"index": SPLIT.index, "counts": SPLIT.counts},
            {"index": [SPLIT.index + 0.5, SPLIT.index - 1, LABELS, "a"], "counts": [[1, 2], 0.5]},
        ),
        (partition.make, {"labels": LABELS, "num_clients": 2, "seed": 0}, {"name": TEXT}),
        (partition.iid, {"labels": LABELS, "num_clients": 2}, {"seed": SEED}),
        (partition.iid, {"labels": LABELS, "seed": 0}, {"num_clients": [*COUNT, 99]}),
        (partition.iid, {"num_clients": 2, "seed": 0}, {"labels": [*ARRAY, [0.5, 1.5], [-1], []]}),
        (
            partition.dirichlet,
            {"labels": LABELS, "num_clients": 2, "alpha": 1.0, "seed": 0},
            {"alpha": ABOVE_0, "min_examples": COUNT, "top_up": SWITCH},
        ),
        (
            partition.label_groups,
            {"labels": LABELS, "num_clients": 4, "slow_labels": 1, "seed": 0},
            {"slow_fraction": SHARE, "held_out": SHARE, "slow_labels": COUNT},
        ),
        (
            partition.dirichlet_groups,
            {"labels": LABELS, "num_clients": 4, "alpha": 1.0, "seed": 0},
            {"group_sizes": [4, "4", (0, 4), (2, 1), (1.5, 2.5)]},
        ),
        (
            partition.dirichlet_groups,
            {"labels": LABELS, "num_clients": 4, "group_sizes": (2, 2), "seed": 0},
            {"alpha": ABOVE_0},
        ),
        (
            partition.pachinko,
            {"labels": LABELS, "num_clients": 2, "superclasses": (0, 0, 1), "seed": 0},
            {"beta": ABOVE_0},
        ),
        (
            partition.classes_per_client,
            {"labels": LABELS, "num_clients": 2, "seed": 0},
            {"classes": COUNT},
        ),
        (
            partition.shards,
            {"labels": LABELS, "num_clients": 2, "seed": 0},
            {"shards_per_client": COUNT},
        ),
        (
            partition.natural,
            {"labels": LABELS, "num_clients": 2, "seed": 0},
            {"client_ids": [3, [1, 2], None, np.ones(12)]},
        ),
    ],
    "datasets": [
        (
            datasets.make_synthetic,
            {"alpha": 1.0, "beta": 1.0},
            {"alpha": AT_LEAST_0, "num_clients": COUNT, "seed": SEED, "is_iid": SWITCH},
        ),
        (
            datasets.from_text,
            {"text": "A:\nwords", "name": "play"},
            {
                "text": TEXT,
                "sequence_length": COUNT,
                "held_out": [0, *SHARE],
                "min_characters": COUNT,
                "characters": [3, ""],
            },
        ),
        (
            datasets.from_arrays,
            dict(zip(datasets.Dataset._fields, DATASET[:4], strict=False)),
            {
                "train_images": [*ARRAY, np.full((12, 2, 2, 1), math.nan)],
                "test_labels": [*ARRAY, LABELS[:3], LABELS - 1, LABELS + 0.5],
                "num_classes": [*COUNT, 2],
                "name": [3, None],
            },
        ),
        (datasets.load, {}, {"name": [*TEXT, "cifar"]}),
        (datasets.Dataset, DATASET._asdict(), {"train_labels": [LABELS[:3], "abc", None]}),
    ],
    "problems": [
        (
            problems.Quadratic.of,
            {"centers": np.eye(4, 2)},
            {
                "centers": [*ARRAY, [1.0], [[math.nan]]],
                "noise": [-1, "1", None, [1.0, 2.0], math.inf],
                "curvature": [-1.0, [1.0, 2.0], "1"],
                "start": [[1.0, 2.0, 3.0], "0"],
                "per_client": SWITCH,
            },
        ),
        (
            problems.GaussianClients.of,
            {"hessians": 1.0, "centers": np.eye(4, 2)},
            {
                "hessians": [np.ones(3), "1", None],
                "counts": [0, 0.5, [1, 2], "1", -3],
                "centers": [[1.0], "a"],
                "noise": [np.ones((3, 3)), "0"],
            },
        ),
        (
            problems.make_gaussian_clients,
            {"seed": 0, "alpha": 1.0},
            {
                "seed": SEED,
                "alpha": AT_LEAST_0,
                "num_clients": COUNT,
                "examples_per_client": [0, 0.5, [1, 2], "1"],
                "covariance": [3.0, "1", -np.eye(2), np.ones((3, 2))],
                "dtype": ["int32", 32, "float33"],
            },
        ),
        (
            problems.make_classification,
            {"model": NETWORK, "dataset": DATASET, "partition": SPLIT},
            {
                "model": OBJECT,
                "dataset": OBJECT,
                "partition": [*OBJECT, [SPLIT]],
                "mean": [math.nan, "0", None],
                "std": [0.0, -1.0, "1", [1.0, 0.0], [1.0, 1.0]],
                "augmentation": [True, "crop_flip"],
                "per_class": SWITCH,
                "per_client": SWITCH,
                "prior_precision": AT_LEAST_0,
                "frozen": [3],
            },
        ),
        (
            problems.make_logistic,
            {"dataset": DATASET, "partition": SPLIT},
            {"prior_precision": AT_LEAST_0, "dtype": ["int32", 32]},
        ),
        (problems.hold_out, {"partition": SPLIT, "seed": 0}, {"share": ["half", True, None]}),
        (
            problems.hold_out,
            {"partition": SPLIT, "share": 0.5},
            {"seed": SEED, "partition": OBJECT},
        ),
        (problems.partition_by_ids, {}, {"ids": [3, [None], [], [[1]]]}),
        (problems.Augmentation, {}, {"pad": WHOLE, "flip": SWITCH}),
    ],
    "latent models": [
        (latent.BernoulliMixture, {}, {"components": COUNT}),
        (latent.GaussianMixture, {"components": 2}, {"components": COUNT, "guard": SWITCH}),
        (latent.GaussianMixture, {"components": 2}, {"prior": AT_LEAST_0}),
        (
            latent.GaussianMixture,
            {"components": 2},
            {"starts": ["zero", 3], "covariance_type": ["x"]},
        ),
        (latent.FactorAnalysis, {}, {"factors": COUNT}),
        (latent.FactorAnalysis, {"factors": 2}, {"floor": ABOVE_0}),
        (
            latent.MissingValues,
            {"shape": (3, 2), "rank": 1},
            {"rank": COUNT, "iterations": [-1, 0.5, "3"], "family": ["normal"], "shape": [3, (1,)]},
        ),
        (
            latent.make_estimation,
            {"model": latent.BernoulliMixture(2), "data": np.eye(12), "partition": SPLIT},
            {
                "model": OBJECT,
                "data": ["abc", 3.0, np.full((12, 2), math.nan), [np.eye(12), np.eye(3)]],
                "partition": OBJECT,
                "weighting": ["uniform", 3],
                "start": ["a", [[1.0]], 1.0],
                "per_client": SWITCH,
            },
        ),
    ],
    "compression, privacy": [
        (
            privacy.NoisySteps,
            {"num_examples": 10, "batch": 5, "accountant": "rdp", "delta": 1e-5},
            {"num_examples": COUNT, "batch": COUNT, "delta": [0, 1, *PROBABILITY]},
        ),
        (
            privacy.epsilon_after,
            {"mechanism": privacy.NoisySteps(10, 5, "rdp", 1e-5)},
            {"noise": AT_LEAST_0, "rounds": [-1, 0.5, "3"]},
        ),
        (
            privacy.local_epsilon,
            {"privacy": privacy.LocalLaplace(noise=9.0)},
            {"messages": [-1, 0.5, "3"]},
        ),
        (
            privacy.gaussian_epsilon,
            {"sensitivity": 1.0, "deviation": 1.0, "delta": 1e-5},
            {"sensitivity": [-1.0, "3"], "deviation": AT_LEAST_0, "delta": [0, *PROBABILITY]},
        ),
        (
            privacy.one_run_bound,
            {"num_canaries": 9, "num_guesses": 4, "num_correct": 4, "delta": 0.0},
            {"num_canaries": COUNT, "num_guesses": [*COUNT, 10], "num_correct": [-1, 0.5, 5]},
        ),
    ],
    "timelines": [
        (timelines.read_trace, {}, {"path": [*PATH, "no file.csv"]}),
        (timelines.read_client_table, {}, {"path": [*PATH, "no file.csv"]}),
        (timelines.ClientTable, {}, {"rate": ["a", [-1.0], [math.nan]], "names": [3]}),
        (
            timelines.Trace,
            {"client": [0], "start": [0.0], "finish": [1.0]},
            {"finish": [[math.nan], "a"], "client": [None, 3]},
        ),
    ],
    "diagnostics": [
        (
            diagnostics.wasserstein2,
            {"mean1": np.zeros(2), "cov1": np.eye(2), "mean2": np.zeros(2), "cov2": np.eye(2)},
            {"mean1": [*ARRAY, np.zeros(1)], "cov2": [np.eye(3), 1.0, -np.eye(2)]},
        ),
        (diagnostics.fit_gaussian, {}, {"samples": [*ARRAY, [1.0], [[1.0, 2.0]]]}),
        (diagnostics.Gaussian, {"mean": np.zeros(2)}, {"covariance": [np.eye(3), "a", 1.0]}),
        (
            diagnostics.reliability,
            {"probabilities": PROBABILITIES, "labels": np.zeros(6, int)},
            {
                "probabilities": [PROBABILITIES * 10, -PROBABILITIES, [0.5], "a"],
                "labels": [np.zeros(3, int), np.full(6, 0.5), np.full(6, -1), np.full(6, 2), "a"],
                "bins": COUNT,
            },
        ),
        (
            diagnostics.influence,
            {"timeline": TIMELINE, "num_clients": 2},
            {"timeline": OBJECT, "num_clients": COUNT, "skip": SHARE},
        ),
        (
            diagnostics.fairness_report,
            {"timeline": TIMELINE, "num_clients": 2},
            {"groups": [[0], [0.5, 1], [-1, 0], "ab"]},
        ),
        (
            diagnostics.thin_samples,
            {"samples": np.zeros((1, 5, 2))},
            {"burn_in": [9, *WHOLE], "thin": COUNT},
        ),
        (
            diagnostics.thin_samples,
            {},
            {"samples": [np.zeros(3), (), [np.zeros((1, 2)), np.zeros((2, 2))]]},
        ),
        (diagnostics.deviation, {"influence": np.ones(3)}, {"target": [np.ones(2), "a"]}),
    ],
    "theory": [
        (
            favano.FavanoSetup,
            SETUP,
            {"num_clients": COUNT, "gradient_variance": AT_LEAST_0, "smoothness": ABOVE_0},
        ),
        (favano.kappa_sharp, {"num_clients": 10}, {"num_contacted": COUNT}),
        (
            favano.step_law,
            {
                "rate": 0.5,
                "contact_probability": 0.5,
                "round_time": 1.0,
                "max_steps": 3,
                "law": "runtime_geom",
            },
            {
                "law": [*TEXT, "geom"],
                "contact_probability": PROBABILITY,
                "round_time": AT_LEAST_0,
                "max_steps": COUNT,
            },
        ),
        (fedem.total_omega, {"omega": 1.0}, {"participation": PROBABILITY}),
        (fedem.memory_step, {}, {"omega": AT_LEAST_0}),
        (fedem.vr_step_size, {"constants": UNIT, "num_clients": 4}, {"omega": AT_LEAST_0}),
        (
            favano.reweighting_constants,
            {"moments": favano.StepMoments(*np.ones((4, 2))), "max_steps": 3},
            {"reweighting": [*TEXT, "none"]},
        ),
        (hierarchical.max_iterations, {"shift": 1.0}, {"sync_time": AT_LEAST_0}),
        (fedstaleweight.raw_weight, {"staleness": 1.0, "num_clients": 3}, {"buffer_size": COUNT}),
        (
            fedstaleweight.expected_staleness,
            {"share": 0.5, "buffer_size": 3},
            {"pull": [*TEXT, "never"]},
        ),
    ],
    "reporting": [
        (reports.load, {}, {"path": [*PATH, "no folder"]}),
        (reports.Folder, {"path": "out"}, {"path": PATH, "resume": SWITCH, "overwrite": SWITCH}),
        (reports.summary, {}, {"curves": MAPPING}),
        (trackers.CSV, {}, {"path": PATH}),
    ],
}
CASES = [
    (area, function, {**arguments, name: value}, name, value)
    for area, calls in CALLS.items()
    for function, arguments, wrong in calls
    for name, values in wrong.items()
    for value in values
]
FIELDS = {
    "cifar": "dataset is 'cifar'",
    "no file.csv": "is 'no file.csv'",
    "a": "client_table is",
    "0/9": "number of parts is 9",
    repr(fedjax_sim.Watch(progress="no folder/progress")): "progress is 'no folder/progress'",
    repr(fedjax_sim.Watch(progress="file")): "progress is 'file'",
    repr(fedjax_sim.Checkpoints("never made", resume=True)): "folder to resume is 'never made'",
    "no folder": "results folder is 'no folder'",
    repr({"lr": []}): "values of lr is []",
    repr({"lr": [-1.0]}): "lr is -1.0",
    repr([None]): "client of example 0 is None",
    repr([[1]]): "client of example 0 is [1]",
    repr([-1]): "smallest label is -1",
    "2": "largest label is 2",
    repr(np.zeros(1)): "cov1 is array([[1., 0.], [0., 1.]])",
}
"""Beginnings of sentences that name a part of the argument, by the argument's value."""


def name_of(number: int) -> str:
    area, function, _, name, _ = CASES[number]
    return f"{area}, {function.__qualname__}({name}), case {number}"


def test_there_are_enough_in_every_area() -> None:
    numbers = collections.Counter(area for area, *_ in CASES)
    assert sum(numbers.values()) >= 750
    assert min(numbers.values()) >= 15


@pytest.mark.parametrize("number", range(len(CASES)), ids=name_of)
def test_a_wrong_call_gets_one_sentence(
    number: int, compiled_in_module: list[str], cwd: Path
) -> None:
    _, function, arguments, name, value = CASES[number]
    compiled_in_module.clear()
    with pytest.raises(InputError) as caught:
        function(**arguments)
    sentence = str(caught.value)
    assert re.fullmatch(r"[^\n]+ is [^\n]+, but must be [^\n]+\.", sentence)
    field = sentence.partition(" is ")[0]
    assert name in field or FIELDS.get(str(value), FIELDS.get(repr(value), "nothing")) in sentence
    # Whether user data are finite is found out where they will be used, on the device.
    assert {*compiled_in_module} <= {"jit(_is_finite)"}
    assert list(cwd.iterdir()) == []


@pytest.fixture(scope="module")
def cwd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in an empty folder."""
    folder = tmp_path_factory.mktemp("cwd")
    with contextlib.chdir(folder):
        yield folder
