"""What one command compares: systems with their settings, on common data, partitions and timeline seeds."""

import argparse
import hashlib
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import cli_arguments as words
from fedjax_sim import datasets, partition, problems
from fedjax_sim.augmentation import AUGMENTATIONS
from fedjax_sim.datasets import Dataset
from fedjax_sim.defaults import Defaults
from fedjax_sim.lowbit import LowBit
from fedjax_sim.models import CONVOLUTIONS, MODELS
from fedjax_sim.partition import Partition
from fedjax_sim.results import label
from fedjax_sim.settings import ConfigError, check, fields, parse
from fedjax_sim.simulate import keys_of, request, stack_lanes
from fedjax_sim.systems import SYSTEMS
from fedjax_sim.timelines import Trace
from fedjax_sim.types import Hyper, Problem, System, Timeline

MAIN_JOB = ("fedavg", "quafl", "fedbuff", "favano")
"""The systems compared where none is named."""
PARTITION_KINDS = {name: entry for name, entry in partition.PARTITIONS.items() if name != "natural"}
"""Partitions that need no array of their own."""


class Contender(NamedTuple):
    """A system with its settings, and those that are swept."""

    system: System
    hyper: Hyper
    swept: dict[str, list[Any]]

    def points(self) -> list[tuple[str, Hyper]]:
        """Every combination of the swept settings: a label, and the whole settings."""
        combinations = [dict(zip(self.swept, values, strict=True)) for values in itertools.product(*self.swept.values())]
        return [(label(self.system.name, point), self.hyper.replace(**point)) for point in combinations]

    def resolved(self) -> dict[str, Any]:
        """All settings, the swept ones as lists."""
        values = {name: getattr(self.hyper, name) for name in fields(self.system.Hyper)} | self.swept
        return {name: [_plain(x) for x in value] if name in self.swept else _plain(value) for name, value in values.items()}


def contenders(names: Sequence[str], texts: Mapping[str, list[str]], defaults: Defaults) -> list[Contender]:
    """Resolve systems and settings given as text; every system takes the settings that it has."""
    if len(set(names)) < len(names):
        raise ConfigError("systems", " ".join(names), "named once each")
    systems = [SYSTEMS[words.named("system", name, SYSTEMS)] for name in names or MAIN_JOB]
    known = [fields(system.Hyper) for system in systems]
    for name in texts:
        if not any(name in own for own in known):
            raise ConfigError("setting name", name, "one of " + ", ".join(sorted(set().union(*known))))
    if len(texts.get("num_clients", [])) > 1:
        raise ConfigError("values of num_clients", ",".join(texts["num_clients"]), "one, as the partition follows it")
    return [_contender(system, texts, defaults) for system in systems]


def _contender(system: System, texts: Mapping[str, list[str]], defaults: Defaults) -> Contender:
    known = fields(system.Hyper)
    values = {name: [parse(system.Hyper, name, text) for text in each] for name, each in texts.items() if name in known}
    for name, each in values.items():
        if len({repr(value) for value in each}) < len(each):
            raise ConfigError(f"values of {name}", ",".join(texts[name]), "different from each other")
    fixed = {name: value for name, value in defaults.settings.items() if name in known}
    fixed |= {name: each[0] for name, each in values.items() if len(each) == 1}
    contender = Contender(system, system.Hyper(**fixed), {name: each for name, each in values.items() if len(each) > 1})
    for _, hyper in contender.points():
        check(hyper)
    return contender


class Data(NamedTuple):
    """What all contenders learn from."""

    dataset: Dataset
    partitions: dict[int, list[Partition]]  # by number of clients, one per seed
    partition: dict[str, Any]  # name and options
    model: str
    training: dict[str, str]  # names of the convolution, the augmentation and the low-bit widths
    scaling: dict[str, Any]  # mean and std

    def problems(self, num_clients: int) -> list[Problem]:
        """One problem per seed."""
        network: Any = MODELS[self.model].make(self.dataset.num_classes, CONVOLUTIONS[self.training["convolution"]])
        widths = words.low_bit(self.training["low_bit"])
        network = LowBit(network, *widths) if widths else network
        how = {"augmentation": AUGMENTATIONS[self.training["augmentation"]], **self.scaling}
        made: list[Problem] = list(problems.classifications(network, self.dataset, self.partitions[num_clients], **how))
        try:
            jax.eval_shape(made[0].init, jax.random.key(0))
        except (TypeError, ValueError):
            shape = self.dataset.train_images.shape[1:]
            raise ConfigError("model", self.model, f"one that takes examples of shape {shape}, as in {self.dataset.name}") from None
        return made

    def digest(self) -> str:
        """A hash of the examples."""
        digest = hashlib.sha256()
        for leaf in self.dataset[:4]:
            digest.update(repr((leaf.shape, str(leaf.dtype))).encode() + np.ascontiguousarray(leaf).tobytes())
        return digest.hexdigest()


def data(arguments: argparse.Namespace, defaults: Defaults, entrants: Sequence[Contender], seeds: Sequence[int]) -> Data:
    """Load and partition the data; raises ConfigError for what is not allowed."""
    model = words.named("model", arguments.model or defaults.model, MODELS)
    kind = words.named("partition", arguments.partition or "classes", PARTITION_KINDS)
    known = inspect.signature(PARTITION_KINDS[kind][0]).parameters.values()
    options = {p.name: p.default for p in known if p.default is not p.empty} | words.partition_options(arguments)
    dataset = datasets.load(arguments.dataset or "digits", data_dir=arguments.data_dir)
    partitions = {
        num: [partition.make(kind, dataset.train_labels, num_clients=num, seed=seed, **options) for seed in seeds]
        for num in sorted({entrant.hyper.num_clients for entrant in entrants})
    }
    training = {
        "convolution": words.named("convolution", arguments.convolution or "auto", CONVOLUTIONS),
        "augmentation": words.named("augmentation", arguments.augmentation or defaults.augmentation, AUGMENTATIONS),
        "low_bit": arguments.low_bit or "none",
    }
    words.low_bit(training["low_bit"])
    return Data(dataset, partitions, {"name": kind, **options}, model, training, {"mean": defaults.mean, "std": defaults.std})


def check_problems(contender: Contender, problems: Sequence[Problem]) -> None:
    """Raise ConfigError if settings do not fit the problems."""
    for (_, hyper), problem in itertools.product(contender.points(), problems):
        contender.system.complete(hyper, problem)


def timelines(contender: Contender, seeds: Sequence[int], time_budget: float) -> list[list[Timeline]]:
    """Each point's and seed's schedule, cut to the budget; raises ConfigError for a budget too short or too long.

    Points of equal static parts are drawn together, as `sweep` does, which then finds the drawing program compiled.
    """
    hypers = [contender.system.complete(hyper, None) for _, hyper in contender.points()]
    static_parts: list[Any] = [jax.tree.structure(hyper) for hyper in hypers]
    drawn: dict[int, list[Timeline]] = {}
    while len(drawn) < len(hypers):
        first = next(i for i in range(len(hypers)) if i not in drawn)
        group = [i for i, part in enumerate(static_parts) if part == static_parts[first]]
        cut = _draw(contender.system, [hypers[i] for i in group], seeds, time_budget)
        drawn |= {i: cut[k * len(seeds) : (k + 1) * len(seeds)] for k, i in enumerate(group)}
    return [drawn[i] for i in range(len(hypers))]


def _draw(system: System, hypers: list[Hyper], seeds: Sequence[int], time_budget: float) -> list[Timeline]:
    pairs = [(seed, hyper) for hyper in hypers for seed in seeds]
    lanes = stack_lanes(keys_of([seed for seed, _ in pairs]), [hyper for _, hyper in pairs], [None] * len(pairs))
    drawn, ticks = request(system, lanes, hypers, time_budget=time_budget)
    return [Timeline(*(leaf[i, : ticks[i]] for leaf in drawn)) for i in range(len(pairs))]


def _plain(value: Any) -> Any:
    """A value as JSON and labels show it."""
    if isinstance(value, Trace):
        digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in (value.client, value.start, value.finish))).hexdigest()
        return f"trace of {value.client.size} rows, sha256 {digest[:16]}"
    return value if value is None or isinstance(value, bool | int | float | str) else getattr(value, "__name__", str(value))
