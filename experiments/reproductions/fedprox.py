"""FedProx's Synthetic data with stragglers: FedAvg drops them, FedProx takes what they have done.

Logistic regression of 30 clients, of which ten take part in each of 200 rounds, with 20 epochs of
SGD at rate 0.01 in mini-batches of ten and averages weighted by examples. A straggler does 1 to 19
epochs. The clients of a round and its stragglers are those of the released code, which draws them
by the number of the round. mu is 0 or 1, which is the paper's for these data.

The paper and its repository show these data in pictures; the one number that they print, "improving
absolute test accuracy by 22% on average", is that of five data sets. The printed numbers here are
those of others, who wrote the method anew in NumPy and ran it on the authors' file. Accuracies of
Synthetic(0, 0), (0.5, 0.5) and (IID), and without stragglers, stand below without a verdict.

Deviation: unless `--data-dir` is the folder `data` of litian96/FedProx, every seed draws data anew,
by the same law. A mini-batch may hold the last examples of an epoch and the first of the next, so
that all are of ten; random numbers other than clients and stragglers are this project's.
"""

import json
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments, Outcome, Sample, Sizes, Study, table
from experiments.reproductions import rows
from experiments.reproductions.rows import Printed
from fedjax_sim import datasets, problems
from fedjax_sim.core import streams
from fedjax_sim.core.settings import ConfigError, Probability, setting, struct
from fedjax_sim.core.types import Array, Key, Timeline
from fedjax_sim.datasets import Dataset
from fedjax_sim.problems import Supervised
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import rounds

STUDY = Study(
    full=Sizes(5, rounds=200, epochs=20.0, words="Synthetic data, 30 clients"),
    smoke=Sizes(2, rounds=3, epochs=2.0, words="Synthetic data, 3 rounds"),
)
SETS: dict[str, dict[str, Any]] = {
    "synthetic_0_0": {"alpha": 0.0, "beta": 0.0},
    "synthetic_0.5_0.5": {"alpha": 0.5, "beta": 0.5},
    "synthetic_1_1": {"alpha": 1.0, "beta": 1.0},
    "synthetic_iid": {"alpha": 0.0, "beta": 0.0, "is_iid": True},
}
ONLY = tuple(SETS)
"""The data sets that `--only` may name."""
SETTINGS: dict[str, Any] = {"num_clients": 30, "num_selected": 10, "batch_size": 10, "lr": 0.01}
SETTINGS |= {"weighting": "examples", "sampling": "reshuffled"}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg, no stragglers": {"stragglers": 0.0, "proximal": 0.0},
    "FedProx mu = 1, no stragglers": {"stragglers": 0.0, "proximal": 1.0},
    "FedAvg, 90 % dropped": {"proximal": 0.0, "late": "dropped"},
    "FedProx mu = 0, 90 % stragglers": {"proximal": 0.0},
    "FedProx mu = 1, 90 % stragglers": {"proximal": 1.0},
}
SOURCE = (
    'an "Audit Report" of FedProx, number PEA-002, found in an index of public code without its '
    "address; on litian96/FedProx, commit d2a4501 of 2021-04-14"
)
NUMBERS = {
    "FedAvg, 90 % dropped": ("FedAvg, drop stragglers", 58.58),
    "FedProx mu = 0, 90 % stragglers": ("Retain partial work, mu = 0", 69.00),
    "FedProx mu = 1, 90 % stragglers": ("FedProx, mu = 1", 71.96),
}
"""Printed accuracies on Synthetic(1, 1) in percent, and the words next to them."""


@struct
class Hyper(fedavg.FedProx):
    """FedProx whose stragglers report what they have done, or are left out."""

    stragglers: Probability = setting(0.9, "Share of a round's clients that are stragglers.")
    late: Literal["counted", "dropped"] = setting("counted", "What becomes of stragglers' work.")


def places(num_clients: int, size: int, num_rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a round's clients, and the order in which they are no stragglers, as the released code.

    Returns:
      The clients and their places in that order, from 0: `i[T, S]` each.
    """
    seeded = [np.random.RandomState(number) for number in range(num_rounds)]
    clients = [each.choice(num_clients, size, replace=False) for each in seeded]
    orders = [np.random.RandomState(i).permutation(size) for i in range(num_rounds)]
    return np.stack(clients), np.argsort(np.stack(orders), axis=1)


def schedule(key: Key, hyper: Hyper, num_ticks: int) -> Timeline:
    """Schedule rounds some of whose clients are stragglers."""
    clients, place = places(hyper.num_clients, hyper.num_selected, num_ticks)
    is_late = place >= jnp.round(hyper.num_selected * (1 - hyper.stragglers))

    most = jnp.asarray(hyper.local_epochs).astype(int)

    def draw(tick: Array) -> Array:
        straggling = jax.random.fold_in(streams.lane_stream(key, "stragglers"), tick)
        return jax.random.randint(straggling, (hyper.num_selected,), 1, most)

    epochs = jnp.where(is_late, jax.vmap(draw)(jnp.arange(num_ticks)), hyper.local_epochs)
    examples = jnp.asarray(hyper.examples)[clients]
    share = jnp.where(is_late & (hyper.late == "dropped"), 0.0, examples)
    return rounds.assemble_rounds(
        key,
        hyper,
        jnp.asarray(clients),
        share,
        lambda share: share / jnp.maximum(share.sum(axis=1, keepdims=True), 1),
        num_used=hyper.num_selected,
        steps=jnp.ceil(epochs * examples / hyper.batch_size - 1e-9).astype(int),
    )


FEDPROX: fedjax_sim.System = fedavg.fedprox
system = FEDPROX._replace(name="fedprox_stragglers", Hyper=Hyper, timeline=schedule)


def read(folder: Path, name: str) -> Dataset:
    """Read a data set of the folder `data` of FedProx's repository.

    Raises:
      ConfigError: If it is not there.
    """
    found = []
    for part in ("train", "test"):
        file = folder / name / "data" / part / f"my{part}.json"
        if not file.is_file():
            raise ConfigError("data_dir", str(folder), f"a folder with {name}/data/{part}/*.json")
        users = json.loads(file.read_text(encoding="utf-8"))
        found.append([users["user_data"][user] for user in users["users"]])
    images = [np.concatenate([np.asarray(u["x"], "float32") for u in part]) for part in found]
    labels = [np.concatenate([np.asarray(u["y"], "int32") for u in part]) for part in found]
    clients = np.repeat(np.arange(len(found[0])), [len(user["y"]) for user in found[0]])
    arrays = (images[0], labels[0], images[1], labels[1])
    return datasets.from_arrays(*arrays, num_classes=10, name=name, train_clients=clients)


def problem_of(data: Dataset) -> Supervised:
    """Make the problem: clients keep their examples, and all test examples count alike."""
    owner = data.train_clients
    assert owner is not None
    flat = [each.reshape(len(each), -1) for each in (data.train_images, data.test_images)]
    return problems.supervised(
        nn.Dense(10, kernel_init=nn.initializers.glorot_uniform()),
        problems.cross_entropy,
        (flat[0].astype("float32"), data.train_labels.astype("int32")),
        clients=owner.tolist(),
        test=(flat[1].astype("float32"), data.test_labels.astype("int32")),
        metrics={"accuracy": problems.is_right},
    )


def run(arguments: Arguments) -> Outcome:
    """Run all methods on the data that are asked for."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    curves, samples = {}, {}
    for name in arguments.chosen(ONLY):
        if arguments.data_dir is None:
            drawn = [datasets.make_synthetic(**SETS[name], seed=i) for i in range(sizes.seeds)]
        else:
            drawn = [read(Path(arguments.data_dir), name)] * sizes.seeds
        tasks = [problem_of(data) for data in drawn]
        for method, settings in METHODS.items():
            row = f"{name}, {method}"
            hyper = Hyper(**SETTINGS, local_epochs=sizes.epochs, **settings)
            curves[row] = fedjax_sim.sweep(
                system,
                tasks,
                hyper,
                seeds=sizes.seeds,
                budget=fedjax_sim.Ticks(sizes.rounds),
                num_evals=min(10, sizes.rounds),
                **arguments.kept(row),
            ).curves
    for row in curves:
        samples[row] = Sample.of(100 * curves[row].accuracy.isel(eval=-1).values.ravel())
    found = [
        (Printed(row, SOURCE, f'"{words} | {number:.2f}%"', number, 0.01), samples[row])
        for method, (words, number) in NUMBERS.items()
        if (row := f"synthetic_1_1, {method}") in samples
    ]
    drawn_by = "drawn anew by seed" if arguments.data_dir is None else "the authors' file"
    facts = sizes.config() | {"data": drawn_by, "ours": samples}
    others = [[row, str(each)] for row, each in samples.items()]
    text = rows.report(found, is_smoke=arguments.smoke) if found else ""
    text += f"\n\nAll accuracies, on data {drawn_by}:\n\n" + table(["row", "ours (seeds)"], others)
    return Outcome(curves, {}, [], facts, text, panel=arguments.panel)
