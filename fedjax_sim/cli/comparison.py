"""What one command compares: systems with their settings, on common data, partitions and timeline seeds."""

import argparse
import hashlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import datasets, partition, problems
from fedjax_sim.cli import arguments as words
from fedjax_sim.cli.defaults import Defaults
from fedjax_sim.datasets import Dataset, Text
from fedjax_sim.engine.drawing import request_timelines
from fedjax_sim.engine.lanes import keys_of
from fedjax_sim.models import CONVOLUTIONS, MODELS
from fedjax_sim.models.low_bit import LowBit
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.augmentation import AUGMENTATIONS
from fedjax_sim.reporting.results import label
from fedjax_sim.settings import ConfigError, check, fields, parse
from fedjax_sim.systems import SYSTEMS
from fedjax_sim.timelines import ClientDelays, Trace
from fedjax_sim.types import Hyper, LatentProblem, Problem, System, Timeline

MAIN_JOB = ("fedavg", "quafl", "fedbuff", "favano")
"""The systems compared where none is named."""


class Contender(NamedTuple):
    """A system with its settings, and those that are swept."""

    system: System
    hyper: Hyper
    swept: dict[str, list[Any]]

    def points(self) -> list[tuple[str, Hyper]]:
        """Every combination of the swept settings: a label, and the whole settings."""
        combinations = [
            dict(zip(self.swept, values, strict=True))
            for values in itertools.product(*self.swept.values())
        ]
        return [
            (label(self.system.name, point), self.hyper.replace(**point)) for point in combinations
        ]

    def without_use(self) -> set[str]:
        """Settings that others of its own decide, at every point."""
        return set.intersection(
            *(
                set(hyper.decided() if isinstance(hyper, ClientDelays) else ())
                for _, hyper in self.points()
            )
        )

    def resolved(self) -> dict[str, Any]:
        """All settings, the swept ones as lists."""
        values = {
            name: getattr(self.hyper, name) for name in fields(self.system.Hyper)
        } | self.swept
        return {
            name: [_plain(x) for x in value] if name in self.swept else _plain(value)
            for name, value in values.items()
        }


def contenders(
    names: Sequence[str], texts: Mapping[str, list[str]], defaults: Defaults
) -> list[Contender]:
    """Resolve systems and settings given as text; every system takes the settings that it has.

    Of these it leaves those for which it has no use, such as speeds of clients where delays are drawn for groups, to the systems that have
    one; where none has, they are refused.
    """
    if len(set(names)) < len(names):
        raise ConfigError("systems", " ".join(names), "named once each")
    systems = [SYSTEMS[words.named("system", name, SYSTEMS)] for name in names or MAIN_JOB]
    kinds = {system.learns: system.name for system in systems}
    if len(kinds) > 1:
        raise ConfigError(
            "systems",
            " ".join(kinds.values()),
            "all of gradients or all of expectation maximisation, as they share a problem",
        )
    known = [fields(system.Hyper) for system in systems]
    for name in texts:
        if not any(name in own for own in known):
            raise ConfigError(
                "setting name", name, "one of " + ", ".join(sorted(set().union(*known)))
            )
    if "trace" in texts and (
        without := [
            system.name for system, own in zip(systems, known, strict=True) if "trace" not in own
        ]
    ):
        raise ConfigError(
            "trace",
            ",".join(texts["trace"]),
            f"left out with {', '.join(without)}, which cannot follow one",
        )
    if len(texts.get("num_clients", [])) > 1:
        raise ConfigError(
            "values of num_clients",
            ",".join(texts["num_clients"]),
            "one, as the partition follows it",
        )
    drafts = [_contender(system, texts, defaults) for system in systems]
    used = set().union(
        *(own.keys() - draft.without_use() for own, draft in zip(known, drafts, strict=True))
    )
    found = []
    for system, draft in zip(systems, drafts, strict=True):
        left = draft.without_use() & used
        found.append(
            _contender(
                system, {name: each for name, each in texts.items() if name not in left}, defaults
            )
        )
        for _, hyper in found[-1].points():
            check(hyper)
    return found


def _contender(system: System, texts: Mapping[str, list[str]], defaults: Defaults) -> Contender:
    known = fields(system.Hyper)
    values = {
        name: [parse(system.Hyper, name, text) for text in each]
        for name, each in texts.items()
        if name in known
    }
    for name, each in values.items():
        if len({repr(value) for value in each}) < len(each):
            raise ConfigError(
                f"values of {name}", ",".join(texts[name]), "different from each other"
            )
    usual = defaults.em_settings if system.learns is LatentProblem else defaults.settings
    fixed = {name: value for name, value in usual.items() if name in known}
    fixed |= {name: each[0] for name, each in values.items() if len(each) == 1}
    return Contender(
        system,
        system.Hyper(**fixed),
        {name: each for name, each in values.items() if len(each) > 1},
    )


class Data(NamedTuple):
    """What all contenders learn from."""

    dataset: Dataset | Text
    partitions: dict[int, list[Partition]]  # by number of clients, one per seed
    partition: dict[str, Any]  # name and options
    model: str
    facts: dict[str, Any]  # what else decides about the problem
    make: Callable[[Sequence[Partition]], Sequence[Any]]  # problems from partitions

    def problems(self, num_clients: int) -> list[Any]:
        """One problem per seed."""
        return list(self.make(self.partitions[num_clients]))

    def digest(self) -> str:
        """A hash of the examples."""
        digest = hashlib.sha256()
        for leaf in self.dataset[:4]:
            digest.update(
                repr((leaf.shape, str(leaf.dtype))).encode() + np.ascontiguousarray(leaf).tobytes()
            )
        return digest.hexdigest()


def data(
    arguments: argparse.Namespace,
    defaults: Defaults,
    entrants: Sequence[Contender],
    seeds: Sequence[int],
) -> Data:
    """Load and partition the data; raises ConfigError for what is not allowed."""
    system = entrants[0].system
    is_latent = system.learns is LatentProblem
    words.left_out(arguments, words.OF_GRADIENTS if is_latent else words.OF_MIXTURES, system.name)
    model, facts = (_latent_facts if is_latent else _network_facts)(arguments, defaults)
    kind = words.named(
        "partition",
        arguments.partition or ("iid" if is_latent else defaults.partition),
        partition.PARTITIONS,
    )
    known = inspect.signature(partition.PARTITIONS[kind][0]).parameters.values()
    options = {
        p.name: p.default for p in known if p.default is not p.empty
    } | words.partition_options(arguments)
    name = arguments.dataset or "digits"
    dataset = (datasets.load_text if datasets.is_text(name) else datasets.load)(
        name, data_dir=arguments.data_dir
    )
    own: dict[str, Any] = {}
    if kind == "natural":
        if dataset.train_clients is None:
            raise ConfigError("partition", kind, f"another one, as {name} comes without clients")
        own = {"client_ids": dataset.train_clients}
    # Of a text, whose each sequence is serves as its label.
    labels = dataset.train_speakers if isinstance(dataset, Text) else dataset.train_labels
    partitions = {
        num: [
            partition.make(kind, labels, num_clients=num, seed=seed, **options, **own)
            for seed in seeds
        ]
        for num in sorted({entrant.hyper.num_clients for entrant in entrants})
    }
    if isinstance(dataset, Text):
        if is_latent:
            raise ConfigError("dataset", name, f"a set of images for {system.name}")
        if facts["augmentation"] != "none":
            raise ConfigError("augmentation", facts["augmentation"], "none with a text")
    make = partial(_mixtures if is_latent else _classifications, dataset, model, facts)
    return Data(dataset, partitions, {"name": kind, **options}, model, facts, make)


def _network_facts(arguments: argparse.Namespace, defaults: Defaults) -> tuple[str, dict[str, Any]]:
    """The network's name; the convolution's, the augmentation's, low-bit widths, mean and standard deviation."""
    model = words.named("model", arguments.model or defaults.model, MODELS)
    facts = {
        "convolution": words.named("convolution", arguments.convolution or "auto", CONVOLUTIONS),
        "augmentation": words.named(
            "augmentation", arguments.augmentation or defaults.augmentation, AUGMENTATIONS
        ),
        "low_bit": arguments.low_bit or "none",
    }
    words.low_bit(facts["low_bit"])
    return model, {**facts, "mean": defaults.mean, "std": defaults.std}


def _classifications(
    dataset: Dataset | Text, model: str, facts: Mapping[str, Any], partitions: Sequence[Partition]
) -> Sequence[Problem]:
    network: Any = MODELS[model].make(dataset.num_classes, CONVOLUTIONS[facts["convolution"]])
    widths = words.low_bit(facts["low_bit"])
    network = LowBit(network, *widths) if widths else network
    if isinstance(dataset, Text):
        return problems.make_next_characters(network, dataset, partitions)
    how = {
        "augmentation": AUGMENTATIONS[facts["augmentation"]],
        "mean": facts["mean"],
        "std": facts["std"],
    }
    made = problems.make_classifications(network, dataset, partitions, **how)
    try:
        jax.eval_shape(made[0].init, jax.random.key(0))
    except (TypeError, ValueError):
        shape = dataset.train_images.shape[1:]
        raise ConfigError(
            "model", model, f"one that takes examples of shape {shape}, as in {dataset.name}"
        ) from None
    return made


def _latent_facts(arguments: argparse.Namespace, defaults: Defaults) -> tuple[str, dict[str, Any]]:
    """The latent-variable model's name, its number of components and of dimensions."""
    model = words.named("model", arguments.model or "gaussian_mixture", latent.MODELS)
    sizes = {
        name: words.whole(name, getattr(arguments, name), usual)
        for name, usual in (("components", 10), ("dimensions", 20))
    }
    return model, sizes


def _mixtures(
    dataset: Any, model: str, facts: Mapping[str, Any], partitions: Sequence[Partition]
) -> Sequence[LatentProblem]:
    entry = latent.MODELS[model]
    features = entry.features(dataset.train_images, facts["dimensions"])
    least = min(int(part.counts.sum()) for part in partitions)
    if facts["components"] > least:
        raise ConfigError(
            "components", facts["components"], f"at most {least}, the examples of all clients"
        )
    return latent.make_estimations(
        entry.make(facts["components"]), features.astype("float32"), partitions
    )


def check_problems(contender: Contender, problems: Sequence[Problem]) -> None:
    """Raise ConfigError if settings do not fit the problems."""
    for (_, hyper), problem in itertools.product(contender.points(), problems):
        contender.system.complete(hyper, problem)


def timelines(
    contender: Contender, seeds: Sequence[int], time_budget: float
) -> list[list[Timeline]]:
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


def _draw(
    system: System, hypers: list[Hyper], seeds: Sequence[int], time_budget: float
) -> list[Timeline]:
    pairs = [(seed, hyper) for hyper in hypers for seed in seeds]
    drawn, ticks = request_timelines(
        system,
        keys_of([seed for seed, _ in pairs]),
        [hyper for _, hyper in pairs],
        time_budget=time_budget,
    )
    return [Timeline(*(leaf[i, : ticks[i]] for leaf in drawn)) for i in range(len(pairs))]


def _plain(value: Any) -> Any:
    """A value as JSON and labels show it."""
    if isinstance(value, Trace):
        digest = hashlib.sha256(
            b"".join(leaf.tobytes() for leaf in (value.client, value.start, value.finish))
        ).hexdigest()
        return f"trace of {value.client.size} rows, sha256 {digest[:16]}"
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else getattr(value, "__name__", str(value))
    )
