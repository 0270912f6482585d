"""What one command compares: systems with their settings, on shared data, partitions and seeds."""

import argparse
import hashlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import datasets, partition, problems
from fedjax_sim.cli.arguments import (
    GRADIENT_FLAGS,
    MIXTURE_FLAGS,
    check_metrics,
    check_name,
    choose_folder,
    read_bit_widths,
    read_number,
    read_partition_options,
    read_whole,
    refuse_flags,
)
from fedjax_sim.cli.defaults import Defaults
from fedjax_sim.datasets import Dataset, Text
from fedjax_sim.engine.drawing import count_ticks, measure_plan, request_timelines
from fedjax_sim.models import CONVOLUTIONS, MODELS
from fedjax_sim.models.low_bit import LowBit
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.augmentation import AUGMENTATIONS
from fedjax_sim.reporting.results import Folder, label_of
from fedjax_sim.settings import ConfigError, check, fields, parse
from fedjax_sim.systems import SYSTEMS
from fedjax_sim.timelines import ClientDelays, Trace
from fedjax_sim.types import LatentProblem, Plan, Problem, System, Timeline

MAIN_JOB = ("fedavg", "quafl", "fedbuff", "favano")
"""The systems compared if none is named."""


class Contender(NamedTuple):
    """A system with its settings.

    Attributes:
      system: The system.
      hyper: Its settings; those that are swept have the system's defaults here.
      swept: The values of each setting that is swept, by name.
    """

    system: System
    hyper: Any
    swept: dict[str, list[Any]]

    def points(self) -> list[tuple[str, Any]]:
        """List every combination of the swept values: a label, and the complete settings."""
        combinations = [
            dict(zip(self.swept, values, strict=True))
            for values in itertools.product(*self.swept.values())
        ]
        return [
            (label_of(self.system.name, point), self.hyper.replace(**point))
            for point in combinations
        ]

    def unused_settings(self) -> set[str]:
        """List the settings that have no effect at any of the points."""
        return set.intersection(
            *(
                set(hyper.decided() if isinstance(hyper, ClientDelays) else ())
                for _, hyper in self.points()
            )
        )

    def resolved(self) -> dict[str, Any]:
        """Return all settings by name as plain values for config.json, lists for those swept."""
        values = {
            name: getattr(self.hyper, name) for name in fields(self.system.Hyper)
        } | self.swept
        return {
            name: [_plain(each) for each in value] if name in self.swept else _plain(value)
            for name, value in values.items()
        }


def resolve_contenders(
    names: Sequence[str], texts: Mapping[str, list[str]], defaults: Defaults
) -> list[Contender]:
    """Resolve systems and settings given as text.

    A setting is applied only to systems that use it: a system may lack it, or have no use for it,
    such as the speeds of clients if delays are drawn for groups. If no system uses it, it is an
    error.

    Args:
      names: Names of systems; `MAIN_JOB` if empty.
      texts: One text per value, by name of the setting; several values are swept over.
      defaults: Defaults of the data set.

    Returns:
      One contender per system, in the order of the names.

    Raises:
      ConfigError: For an unknown or repeated system or setting, for systems that cannot share a
        problem, and for values that are not allowed.
    """
    if len(set(names)) < len(names):
        raise ConfigError("systems", " ".join(names), "named once each")
    systems = [SYSTEMS[check_name("system", name, SYSTEMS)] for name in names or MAIN_JOB]
    kinds = {system.fit.learns: system.name for system in systems}
    if len(kinds) > 1:
        raise ConfigError(
            "systems",
            " ".join(kinds.values()),
            "all of gradients or all of expectation maximisation, as they share a problem",
        )
    known = [fields(system.Hyper) for system in systems]
    for name in texts:
        if not any(name in settings for settings in known):
            raise ConfigError(
                "setting name", name, "one of " + ", ".join(sorted(set().union(*known)))
            )
    for name, why in (("trace", "cannot follow one"), ("privacy", "cannot account for it")):
        without = [
            system.name
            for system, settings in zip(systems, known, strict=True)
            if name not in settings
        ]
        if name in texts and without:
            raise ConfigError(
                name, ",".join(texts[name]), f"left out with {', '.join(without)}, which {why}"
            )
    if len(texts.get("num_clients", [])) > 1:
        raise ConfigError(
            "values of num_clients",
            ",".join(texts["num_clients"]),
            "one, as the partition follows it",
        )
    drafts = [_contender(system, texts, defaults) for system in systems]
    used = set().union(
        *(
            settings.keys() - draft.unused_settings()
            for settings, draft in zip(known, drafts, strict=True)
        )
    )
    found = []
    for system, draft in zip(systems, drafts, strict=True):
        left_to_others = draft.unused_settings() & used
        applied = {name: values for name, values in texts.items() if name not in left_to_others}
        found.append(_contender(system, applied, defaults))
        for _, hyper in found[-1].points():
            check(hyper)
    return found


def _contender(system: System, texts: Mapping[str, list[str]], defaults: Defaults) -> Contender:
    """Make a contender of those settings that the system has."""
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
    usual = defaults.em_settings if system.fit.learns is LatentProblem else defaults.settings
    usual = {**usual, **defaults.tuned.get(system.name, {})}
    fixed = {name: value for name, value in usual.items() if name in known}
    fixed |= {name: each[0] for name, each in values.items() if len(each) == 1}
    return Contender(
        system,
        system.Hyper(**fixed),
        {name: each for name, each in values.items() if len(each) > 1},
    )


class Data(NamedTuple):
    """What all contenders learn from.

    Attributes:
      dataset: The examples.
      partitions: Who holds which of them: one partition per seed, by number of clients.
      partition: Name and options of the partition.
      model: Name of the model.
      facts: The rest of what the problem depends on, for config.json.
      make: Makes problems, one for each of several partitions.
    """

    dataset: Dataset | Text
    partitions: dict[int, list[Partition]]
    partition: dict[str, Any]
    model: str
    facts: dict[str, Any]
    make: Callable[[Sequence[Partition]], Sequence[Any]]

    def problems(self, num_clients: int) -> list[Any]:
        """Make one problem per seed, for one of the numbers of clients in `partitions`."""
        return list(self.make(self.partitions[num_clients]))

    def digest(self) -> str:
        """Hash the shapes, types and bytes of the examples; returns SHA-256 in hex."""
        digest = hashlib.sha256()
        for array in self.dataset[:4]:
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def load_data(
    arguments: argparse.Namespace,
    defaults: Defaults,
    entrants: Sequence[Contender],
    seeds: Sequence[int],
) -> Data:
    """Load the data set, and partition it for every seed and number of clients.

    Args:
      arguments: The parsed words of `run`.
      defaults: Defaults of the data set.
      entrants: The contenders, all of gradients or all of expectation maximisation.
      seeds: Seeds of the partitions.

    Raises:
      ConfigError: For a flag, a name or a number that is not allowed, or that does not fit the
        data set or the systems.
    """
    system = entrants[0].system
    is_latent = system.fit.learns is LatentProblem
    refuse_flags(arguments, GRADIENT_FLAGS if is_latent else MIXTURE_FLAGS, system.name)
    model, facts = (_latent_facts if is_latent else _network_facts)(arguments, defaults)
    kind = check_name(
        "partition",
        arguments.partition or ("iid" if is_latent else defaults.partition),
        partition.PARTITIONS,
    )
    parameters = inspect.signature(partition.PARTITIONS[kind][0]).parameters.values()
    options = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    } | read_partition_options(arguments)
    name = arguments.dataset or "digits"
    load = datasets.load_text if datasets.is_text(name) else datasets.load
    dataset = load(name, data_dir=arguments.data_dir)
    client_ids: dict[str, Any] = {}
    if kind == "natural":
        if dataset.train_clients is None:
            raise ConfigError("partition", kind, f"another one, as {name} comes without clients")
        client_ids = {"client_ids": dataset.train_clients}
    # In a text, the speaker of a sequence serves as its label.
    labels = dataset.train_speakers if isinstance(dataset, Text) else dataset.train_labels
    partitions = {
        num_clients: [
            partition.make(
                kind, labels, num_clients=num_clients, seed=seed, **options, **client_ids
            )
            for seed in seeds
        ]
        for num_clients in sorted({entrant.hyper.num_clients for entrant in entrants})
    }
    if isinstance(dataset, Text):
        if is_latent:
            raise ConfigError("dataset", name, f"a set of images for {system.name}")
        if facts["augmentation"] != "none":
            raise ConfigError("augmentation", facts["augmentation"], "none with a text")
        if facts["per_client"]:
            allowed = "left out with a text, whose test sequences belong to no client"
            raise ConfigError("per_client", True, allowed)
    make = partial(_mixtures if is_latent else _classifications, dataset, model, facts)
    return Data(dataset, partitions, {"name": kind, **options}, model, facts, make)


def _network_facts(arguments: argparse.Namespace, defaults: Defaults) -> tuple[str, dict[str, Any]]:
    """Name the network, its convolution, augmentation, bits and normalisation of images."""
    model = check_name("model", arguments.model or defaults.model, MODELS)
    convolution, augmentation = arguments.convolution, arguments.augmentation
    facts: dict[str, Any] = {
        "convolution": check_name("convolution", convolution or "auto", CONVOLUTIONS),
        "augmentation": check_name(
            "augmentation", augmentation or defaults.augmentation, AUGMENTATIONS
        ),
        "low_bit": arguments.low_bit or "none",
    }
    read_bit_widths(facts["low_bit"])
    facts |= {"per_client": arguments.per_client}
    return model, {**facts, "mean": defaults.mean, "std": defaults.std}


def _classifications(
    dataset: Dataset | Text, model: str, facts: Mapping[str, Any], partitions: Sequence[Partition]
) -> Sequence[Problem]:
    """Make problems of training a network, one per partition."""
    network: Any = MODELS[model].make(dataset.num_classes, CONVOLUTIONS[facts["convolution"]])
    widths = read_bit_widths(facts["low_bit"])
    network = LowBit(network, *widths) if widths else network
    if isinstance(dataset, Text):
        return problems.make_next_characters(network, dataset, partitions)
    return problems.make_classifications(
        network,
        dataset,
        partitions,
        augmentation=AUGMENTATIONS[facts["augmentation"]],
        mean=facts["mean"],
        std=facts["std"],
        per_client=facts["per_client"],
    )


def _latent_facts(arguments: argparse.Namespace, defaults: Defaults) -> tuple[str, dict[str, Any]]:
    """Name the latent-variable model, its number of components and of dimensions."""
    model = check_name("model", arguments.model or "gaussian_mixture", latent.MODELS)
    sizes = {
        name: read_whole(name, getattr(arguments, name), usual)
        for name, usual in (("components", 10), ("dimensions", 20))
    }
    return model, sizes


def _mixtures(
    dataset: Any, model: str, facts: Mapping[str, Any], partitions: Sequence[Partition]
) -> Sequence[LatentProblem]:
    """Make problems of fitting a mixture to the images' features, one per partition."""
    entry = latent.MODELS[model]
    features = entry.features(dataset.train_images, facts["dimensions"])
    fewest = min(int(part.counts.sum()) for part in partitions)
    if facts["components"] > fewest:
        raise ConfigError(
            "components", facts["components"], f"at most {fewest}, the examples of all clients"
        )
    return latent.make_estimations(
        entry.make(facts["components"]), features.astype("float32"), partitions
    )


def check_problems(contender: Contender, problems: Sequence[Problem]) -> None:
    """Check that the settings of a contender fit the problems.

    Raises:
      ConfigError: If they do not.
    """
    for (_, hyper), problem in itertools.product(contender.points(), problems):
        contender.system.fit.complete(hyper, problem)


def read_metrics(
    arguments: argparse.Namespace, contenders: Sequence[Contender], data: Data
) -> list[str] | None:
    """Read which metrics are to be drawn, and check that some contender will have each of them.

    Args:
      arguments: The parsed words of `run`.
      contenders: Systems with their settings.
      data: What they learn from.

    Returns:
      The names; None, which stands for all metrics, if the user names none.

    Raises:
      ConfigError: If there will be no metric of a name.
    """
    if arguments.plot is None:
        return None
    known: dict[str, Any] = {}
    for contender in contenders:
        fit, algorithm = contender.system.fit, contender.system.algorithm

        def observe(
            problem: Any, hyper: Any, algorithm: Callable[..., Any] = algorithm
        ) -> dict[str, Any]:
            made = algorithm(problem, hyper, Plan())
            state = made.init(jax.random.key(0))
            return {**problem.evaluate(made.model(state)), **made.metrics(state)}

        problem = data.make(data.partitions[contender.hyper.num_clients][:1])[0]
        for _, hyper in contender.points():
            known |= jax.eval_shape(observe, problem, fit.complete(hyper, problem))
            if getattr(hyper, "privacy", None) is not None:
                known["epsilon"] = None
    if arguments.client_variance:
        known["client_variance"] = None
    return check_metrics(arguments.plot, list(known))


def draw_schedules(
    contender: Contender, seeds: Sequence[int], time_budget: float
) -> list[list[Timeline]]:
    """Draw the schedule of every point and seed.

    Points that differ in numbers alone are drawn together, as `sweep` does, which then finds the
    drawing program compiled.

    Args:
      contender: A system with its settings.
      seeds: Seeds of the schedules.
      time_budget: Virtual time at which they end.

    Returns:
      One list per point, in the order of `Contender.points`, with one schedule per seed.

    Raises:
      ConfigError: If the time budget is too short for one tick, or too long.
    """
    hypers = [contender.system.fit.complete(hyper, None) for _, hyper in contender.points()]
    drawn: dict[int, list[Timeline]] = {}
    for group in _groups_of(hypers):
        cut = _draw(contender.system, [hypers[i] for i in group], seeds, time_budget)
        drawn |= {i: cut[k * len(seeds) : (k + 1) * len(seeds)] for k, i in enumerate(group)}
    return [drawn[i] for i in range(len(hypers))]


def _groups_of(hypers: Sequence[Any]) -> list[list[int]]:
    """Group the numbers of settings of equal static parts."""
    groups: list[tuple[Any, list[int]]] = []
    for i, hyper in enumerate(hypers):
        static = jax.tree.structure(hyper)
        numbers = next((numbers for part, numbers in groups if part == static), None)
        if numbers is None:
            groups.append((static, [i]))
        else:
            numbers.append(i)
    return [numbers for _, numbers in groups]


def check_schedules(contender: Contender, seeds: Sequence[int], time_budget: float) -> None:
    """Draw the schedules of every point and seed, a few at a time, and keep none.

    Raises:
      ConfigError: If the time budget is too short for one tick, or too long.
    """
    hypers = [contender.system.fit.complete(hyper, None) for _, hyper in contender.points()]
    for group in _groups_of(hypers):
        pairs = [(seed, hypers[i]) for i in group for seed in seeds]
        drawn = [seed for seed, _ in pairs], [hyper for _, hyper in pairs]
        count_ticks(contender.system, *drawn, time_budget=time_budget)


def _draw(
    system: System, hypers: list[Any], seeds: Sequence[int], time_budget: float
) -> list[Timeline]:
    """Draw the schedules of settings with equal static parts: seeds of the first, then the next."""
    pairs = [(seed, hyper) for hyper in hypers for seed in seeds]
    inputs = [seed for seed, _ in pairs], [hyper for _, hyper in pairs]
    measure_plan(system, *inputs, time_budget=time_budget)
    drawn, ticks = request_timelines(system, *inputs, time_budget=time_budget)
    return [Timeline(*(leaf[i, : ticks[i]] for leaf in drawn)) for i in range(len(pairs))]


def read_time_budget(arguments: argparse.Namespace, defaults: Defaults) -> float:
    """Read the virtual time to simulate.

    Raises:
      ConfigError: If it is no finite number above 0.
    """
    is_latent = any(
        name in SYSTEMS and SYSTEMS[name].fit.learns is LatentProblem for name in arguments.systems
    )
    usual = defaults.em_time_budget if is_latent else defaults.time_budget
    return read_number("time_budget", arguments.time_budget, usual)


def find_folder(arguments: argparse.Namespace, base: str, *, resume: bool) -> Folder:
    """Find the results folder, without creating it.

    Args:
      arguments: The parsed words of a command.
      base: The folder's name if the user gives none; see `arguments.choose_folder`.
      resume: Whether to continue an unfinished run.

    Raises:
      ConfigError: If the folder is in use, or cannot be used.
    """
    path = choose_folder(base, resume=resume) if arguments.out is None else Path(arguments.out)
    return Folder(path, resume=resume, overwrite=arguments.overwrite)


def describe(
    contenders: Sequence[Contender], seeds: Sequence[int], time_budget: float
) -> dict[str, Any]:
    """Collect what config.json says about any command: systems with settings, seeds and time."""
    systems = {contender.system.name: contender.resolved() for contender in contenders}
    return {"systems": systems, "seeds": list(seeds), "time_budget": time_budget}


def _plain(value: Any) -> Any:
    """Turn a setting into a value that JSON and labels can show."""
    if isinstance(value, Trace):
        digest = hashlib.sha256(
            b"".join(leaf.tobytes() for leaf in (value.client, value.start, value.finish))
        ).hexdigest()
        return f"trace of {value.client.size} rows, sha256 {digest[:16]}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__name__", str(value))
