"""The data of a command: a data set, its partitions, and problems."""

import argparse
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli.comparison import Asked, Contender
from fedjax_sim.cli.defaults import Defaults
from fedjax_sim.core import settings
from fedjax_sim.core.settings import ConfigError, Count
from fedjax_sim.core.types import AnyProblem, LatentProblem, Layout
from fedjax_sim.datasets import Dataset, Text
from fedjax_sim.engine.planning import placement
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.partition import Partition, parts
from fedjax_sim.problems import classification, latent

Kind = tuple[str, dict[str, object], Callable[..., Sequence[AnyProblem]]]
"""Name of a model, further choices for config.json, and from data and partitions to problems."""
PARTITION_FLAGS = ("classes", "alpha", "shards_per_client", "min_examples", "group_sizes")
"""Flags that are options of partitions."""
GRADIENT_FLAGS = (
    *("convolution", "augmentation", "low_bit"),
    *("client_variance", "mean_model", "measures"),
)
"""Flags of `run` that only systems of gradient steps use."""
MIXTURE_FLAGS = ("components", "dimensions")
"""Flags of `run` that only systems of expectation maximisation use."""


class Data(NamedTuple):
    """The data of all contenders.

    Attributes:
      dataset: The examples.
      partitions: Who holds which of them: one partition per seed, by number of clients.
      partition: Name and options of the partition.
      model: Name of the model.
      facts: The rest of what the problem depends on, for config.json.
      build: Makes problems from examples, one for each of several partitions.
    """

    dataset: Dataset | Text
    partitions: dict[int, list[Partition]]
    partition: dict[str, object]
    model: str
    facts: dict[str, object]
    build: Callable[..., Sequence[AnyProblem]]

    def make(self, partitions: Sequence[Partition]) -> Sequence[AnyProblem]:
        """Make problems, one for each of several partitions."""
        return self.build(self.dataset, partitions)

    def described(self, asked: Asked, options: Mapping[str, Any]) -> dict[str, object]:
        """Return all that decides the results, for config.json and to compare resumed runs.

        Args:
          asked: Systems with their settings, seeds and time budget.
          options: Those of `read_options`.
        """
        digest = hashlib.sha256()
        for array in self.dataset[:4]:
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return {
            **asked.described(),
            "dataset": {"name": self.dataset.name, "sha256": digest.hexdigest()},
            "partition": self.partition,
            "model": self.model,
            **self.facts,
            "evals": options["num_evals"],
            "layout": options["layout"].deciding(),
            "precision": options["precision"],
            "prng": str(jax.config.jax_default_prng_impl),  # type: ignore[attr-defined]
        }

    def with_names(self, contender: Contender, *, more_seeds: bool = False) -> Contender:
        """Match the names in tables of clients, and in traces, with those of the data's clients.

        Args:
          contender: A system with its settings.
          more_seeds: Whether the data are partitioned for further seeds later.

        Raises:
          ConfigError: If a name is that of no client, or clients differ from seed to seed.
        """
        (system, hyper, _), owners = contender, self.dataset.train_clients
        is_natural = self.partition["name"] == "natural"
        if not is_natural or owners is None or not hasattr(hyper, "delays"):
            return contender
        firsts = [each.index[each.offsets] for each in self.partitions[hyper.num_clients]]
        names = [owners[each].tolist() for each in firsts]
        if isinstance(self.dataset, Text):
            names = [[self.dataset.speakers[i] for i in numbers] for numbers in names]
        is_sample = len(names[0]) < len(np.unique(owners))
        if any(each != names[0] for each in names) or (more_seeds and is_sample):
            tables = [point.delays.client_table for _, point in contender.points()]
            if any(table is not None and table.names for table in tables):
                allowed = "that of all clients in the data, as client_table names its clients, and "
                allowed += "other clients are drawn for other seeds"
                raise ConfigError("num_clients", hyper.num_clients, allowed)
            return contender
        known, swept = settings.names_of(system.Hyper), dict(contender.swept)
        for name in swept.keys() & {"client_table", "trace", "delays.client_table", "delays.trace"}:
            points = (hyper.replace(**{name: each}) for each in swept[name])
            matched = (point.with_client_names(names[0]) for point in points)
            swept[name] = [settings.value_of(each, known[name]) for each in matched]
        return contender._replace(hyper=hyper.with_client_names(names[0]), swept=swept)


def read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read the arguments of sweeps that `run` and `tune` have in common.

    Raises:
      ConfigError: For a value that is not allowed.
    """
    precision = arguments.precision or "float32"
    placement.check_precision(precision)
    # --max-lanes has the other field.
    layout = texts.read_fields("--layout", Layout, [*Layout().deciding()], arguments.layout)
    max_lanes = texts.read_value("max_lanes", arguments.max_lanes, None, Count)
    num_evals = texts.read_value("evals", arguments.evals, 25, Count)
    layout = layout._replace(max_lanes=max_lanes)
    return {"num_evals": num_evals, "layout": layout, "precision": precision}


def load_data(
    arguments: argparse.Namespace,
    asked: Asked,
    change: Callable[[Any], Any] = lambda dataset: dataset,
) -> Data:
    """Load the data set, and partition it for every seed and number of clients.

    Args:
      arguments: The parsed words of `run`.
      asked: Systems, all of gradients or all of expectation maximisation, seeds and defaults.
      change: Changes the data set before it is partitioned, such as by holding examples out.

    Raises:
      ConfigError: For a flag, a name or a number that is not allowed, or that does not fit the
        data set or the systems.
    """
    system, defaults = asked.contenders[0].system, asked.defaults
    is_latent, name = system.fit.learns is LatentProblem, arguments.dataset or "digits"
    useless = GRADIENT_FLAGS if is_latent else MIXTURE_FLAGS
    texts.refuse(arguments, useless, f"left out for {system.name}, which has no use for it")
    model, facts, make = (_mixtures if is_latent else _networks)(arguments, defaults)
    kind = arguments.partition or ("iid" if is_latent else defaults.partition)
    make_one = partition.PARTITIONS[kind]
    parameters, hints = inspect.signature(make_one).parameters, settings.hints_of(make_one)
    options = {key: one.default for key, one in parameters.items() if one.default is not one.empty}
    for flag in PARTITION_FLAGS:
        if (text := getattr(arguments, flag)) is not None:
            # `partition.make` refuses options that are not of this partition.
            options[flag] = texts.read_value(flag, text, None, hints.get(flag, str))
    load = datasets.load_text if datasets.is_text(name) else datasets.load
    dataset = change(load(name, data_dir=arguments.data_dir))
    given = dict(options)
    if kind == "natural":
        if dataset.train_clients is None:
            raise ConfigError("partition", kind, f"another one, as {name} comes without clients")
        given["client_ids"] = dataset.train_clients
    # In a text, the speaker of a sequence serves as its label.
    labels = dataset.train_speakers if isinstance(dataset, Text) else dataset.train_labels
    partitions = {
        num: [partition.make(kind, labels, num_clients=num, seed=s, **given) for s in asked.seeds]
        for num in sorted({each.hyper.num_clients for each in asked.contenders})
    }
    if isinstance(dataset, Text):
        if is_latent:
            raise ConfigError("dataset", name, f"a set of images for {system.name}")
        if facts["augmentation"] != "none":
            raise ConfigError("augmentation", facts["augmentation"], "none with a text")
        if facts["per_client"] and kind != "natural":
            allowed = "left out with a text, unless --partition natural makes its speakers clients"
            raise ConfigError("per_client", True, allowed)
    about = {"name": kind, **options}
    return Data(dataset, partitions, about, model, facts, make)


def _networks(arguments: argparse.Namespace, defaults: Defaults) -> Kind:
    """Read the network, its convolution, augmentation, bits and normalisation of images."""
    model = texts.check_name("model", arguments.model or defaults.model, models.MODELS)
    convolution, low_bit = arguments.convolution or "auto", arguments.low_bit or "none"
    augmentation = arguments.augmentation or defaults.augmentation
    texts.check_name("convolution", convolution, models.CONVOLUTIONS)
    if arguments.convolution is not None and not models.MODELS[model].has_convolutions:
        raise ConfigError("convolution", convolution, f"left out with the model {model}")
    texts.check_name("augmentation", augmentation, classification.AUGMENTATIONS)
    _in_few_bits(None, low_bit)
    options = {"mean": defaults.mean, "std": defaults.std, "per_client": arguments.per_client}

    def make(data: Dataset | Text, partitions: Sequence[Partition]) -> Sequence[AnyProblem]:
        network = models.MODELS[model].make(data.num_classes, models.CONVOLUTIONS[convolution])
        network = _in_few_bits(network, low_bit)
        if isinstance(data, Text):
            is_own = arguments.per_client
            own = [own_sequences(data, each) for each in partitions] if is_own else None
            return problems.make_next_characters(
                network, data, partitions, per_client=is_own, test_partition=own
            )
        how = {**options, "augmentation": classification.AUGMENTATIONS[augmentation]}
        return problems.make_classifications(network, data, partitions, **how)

    chosen = {"convolution": convolution, "augmentation": augmentation, "low_bit": low_bit}
    return model, chosen | options, make


def _in_few_bits(network: Any, text: str) -> Any:
    """Wrap a network for the bits of weights, activations and gradients, such as "3,3,4"."""
    if text == "none":
        return network
    try:
        weights, activations, gradients = map(int, text.split(","))
        return LowBit(network, weights, activations, gradients)
    except ValueError:
        allowed = "none, or three whole numbers such as 3,3,4: from 2 to 24, 24 and 8"
        raise ConfigError("low_bit", text, allowed) from None


def own_sequences(text: Text, natural: Partition) -> Partition:
    """Give the test sequences of a text to clients, each of which is one of its speakers.

    Args:
      text: The text.
      natural: Who holds which training sequences.

    Returns:
      Who holds which test sequences, with the same clients.
    """
    # One place more, for the number -1 of test sequences whose speaker has no training sequences.
    row_of = np.full(len(text.speakers) + 1, -1)
    firsts = natural.index[natural.offsets]
    row_of[text.train_speakers[firsts]] = np.arange(len(natural.counts))
    rows = np.flatnonzero(row_of[text.test_speakers] >= 0)
    return parts.gather_by_owner(rows, row_of[text.test_speakers[rows]], len(natural.counts))


def _mixtures(arguments: argparse.Namespace, defaults: Defaults) -> Kind:
    """Read the latent-variable model, its number of components and of dimensions."""
    model = texts.check_name("model", arguments.model or "gaussian_mixture", latent.MODELS)
    entry, per_client = latent.MODELS[model], arguments.per_client
    components = texts.read_value("components", arguments.components, 10, Count)
    dimensions = texts.read_value("dimensions", arguments.dimensions, 20, Count)

    def make(data: Dataset, partitions: Sequence[Partition]) -> Sequence[AnyProblem]:
        features = entry.features(data.train_images, dimensions).astype("float32")
        fewest = min(int(part.counts.sum()) for part in partitions)
        if components > fewest:
            allowed = f"at most {fewest}, the examples of all clients"
            raise ConfigError("components", components, allowed)
        fitted = entry.make(components)
        return latent.make_estimations(fitted, features, partitions, per_client=per_client)

    facts = {"components": components, "dimensions": dimensions, "per_client": per_client}
    return model, facts, make
