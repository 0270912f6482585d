"""The data of a command: a data set, its partitions, and problems."""

import argparse
import hashlib
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.cli import arguments as texts
from fedjax_sim.cli.comparison import Asked, Contender
from fedjax_sim.cli.defaults import Defaults
from fedjax_sim.core import settings
from fedjax_sim.core.settings import ConfigError, Count
from fedjax_sim.core.types import LatentProblem, Plan, Problem, System
from fedjax_sim.datasets import Dataset, Text
from fedjax_sim.models.quantized import LowBit
from fedjax_sim.partition import Partition, parts
from fedjax_sim.problems import latent
from fedjax_sim.problems.classification import AUGMENTATIONS

Facts = dict[str, Any]
"""Further choices on which a problem depends, as config.json has them."""
PARTITION_FLAGS = ("classes", "alpha", "shards_per_client", "min_examples", "group_sizes")
"""Flags that are options of partitions."""
GRADIENT_FLAGS = ("convolution", "augmentation", "low_bit", "client_variance")
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
      make: Makes problems, one for each of several partitions.
    """

    dataset: Dataset | Text
    partitions: dict[int, list[Partition]]
    partition: dict[str, Any]
    model: str
    facts: Facts
    make: Callable[[Sequence[Partition]], Sequence[Any]]

    def digest(self) -> str:
        """Hash the shapes, types and bytes of the examples; returns SHA-256 in hex."""
        digest = hashlib.sha256()
        for array in self.dataset[:4]:
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def with_names(self, contender: Contender) -> Contender:
        """Match the names in tables of clients, and in traces, with those of the data's clients.

        Raises:
          ConfigError: If a name is that of no client, or clients differ from seed to seed.
        """
        if self.partition["name"] != "natural" or self.dataset.train_clients is None:
            return contender
        firsts = [each.index[:, 0] for each in self.partitions[contender.hyper.num_clients]]
        names = [self.dataset.train_clients[each].tolist() for each in firsts]
        if isinstance(self.dataset, Text):
            names = [[self.dataset.speakers[i] for i in numbers] for numbers in names]
        return contender.with_client_names(names)


def load_data(arguments: argparse.Namespace, asked: Asked) -> Data:
    """Load the data set, and partition it for every seed and number of clients.

    Args:
      arguments: The parsed words of `run`.
      asked: Systems, all of gradients or all of expectation maximisation, seeds and defaults.

    Raises:
      ConfigError: For a flag, a name or a number that is not allowed, or that does not fit the
        data set or the systems.
    """
    system, defaults = asked.contenders[0].system, asked.defaults
    is_latent = system.fit.learns is LatentProblem
    for flag in GRADIENT_FLAGS if is_latent else MIXTURE_FLAGS:
        if (value := getattr(arguments, flag)) not in (None, False):
            allowed = f"left out for {system.name}, which has no use for it"
            raise ConfigError(flag, value, allowed)
    model, facts = (_latent_facts if is_latent else _network_facts)(arguments, defaults)
    kind = arguments.partition or ("iid" if is_latent else defaults.partition)
    make_one = partition.PARTITIONS[kind]
    parameters, hints = inspect.signature(make_one).parameters, settings.hints_of(make_one)
    options = {key: one.default for key, one in parameters.items() if one.default is not one.empty}
    for flag in PARTITION_FLAGS:
        if (text := getattr(arguments, flag)) is not None:
            # `partition.make` refuses options that are not of this partition.
            options[flag] = texts.read_value(flag, text, None, hints.get(flag, str))
    name = arguments.dataset or "digits"
    load = datasets.load_text if datasets.is_text(name) else datasets.load
    dataset = load(name, data_dir=arguments.data_dir)
    given = dict(options)
    if kind == "natural":
        if dataset.train_clients is None:
            raise ConfigError("partition", kind, f"another one, as {name} comes without clients")
        given["client_ids"] = dataset.train_clients
    # In a text, the speaker of a sequence serves as its label.
    labels = dataset.train_speakers if isinstance(dataset, Text) else dataset.train_labels
    partitions = {
        num: [
            partition.make(kind, labels, num_clients=num, seed=seed, **given)
            for seed in asked.seeds
        ]
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
    problems_of: Any = _mixtures if is_latent else _classifications
    make = partial(problems_of, dataset, model, facts)
    return Data(dataset, partitions, {"name": kind, **options}, model, facts, make)


def _network_facts(arguments: argparse.Namespace, defaults: Defaults) -> tuple[str, Facts]:
    """Name the network, its convolution, augmentation, bits and normalisation of images."""
    model = texts.check_name("model", arguments.model or defaults.model, models.MODELS)
    convolution, low_bit = arguments.convolution or "auto", arguments.low_bit or "none"
    augmentation = arguments.augmentation or defaults.augmentation
    texts.check_name("convolution", convolution, models.CONVOLUTIONS)
    texts.check_name("augmentation", augmentation, AUGMENTATIONS)
    _in_few_bits(None, low_bit)
    facts = {"convolution": convolution, "augmentation": augmentation, "low_bit": low_bit}
    facts |= {"per_client": arguments.per_client, "mean": defaults.mean, "std": defaults.std}
    return model, facts


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


def _classifications(
    dataset: Dataset | Text, model: str, facts: Facts, partitions: Sequence[Partition]
) -> Sequence[Problem]:
    """Make problems of training a network, one per partition."""
    convolve, per_client = models.CONVOLUTIONS[facts["convolution"]], facts["per_client"]
    network = models.MODELS[model].make(dataset.num_classes, convolve)
    network = _in_few_bits(network, facts["low_bit"])
    if isinstance(dataset, Text):
        tests = [own_sequences(dataset, each) for each in partitions] if per_client else None
        return problems.make_next_characters(
            network, dataset, partitions, per_client=per_client, test_partition=tests
        )
    options = {name: facts[name] for name in ("mean", "std", "per_client")}
    options["augmentation"] = AUGMENTATIONS[facts["augmentation"]]
    return problems.make_classifications(network, dataset, partitions, **options)


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
    row_of[text.train_speakers[natural.index[:, 0]]] = np.arange(len(natural.counts))
    rows = np.flatnonzero(row_of[text.test_speakers] >= 0)
    return parts.gather_by_owner(rows, row_of[text.test_speakers[rows]], len(natural.counts))


def _latent_facts(arguments: argparse.Namespace, defaults: Defaults) -> tuple[str, Facts]:
    """Name the latent-variable model, its number of components and of dimensions."""
    model = texts.check_name("model", arguments.model or "gaussian_mixture", latent.MODELS)
    sizes = {
        name: texts.read_value(name, getattr(arguments, name), usual, Count)
        for name, usual in (("components", 10), ("dimensions", 20))
    }
    return model, {**sizes, "per_client": arguments.per_client}


def _mixtures(
    dataset: Dataset, model: str, facts: Facts, partitions: Sequence[Partition]
) -> Sequence[LatentProblem]:
    """Make problems of fitting a mixture to the images' features, one per partition."""
    entry = latent.MODELS[model]
    features = entry.features(dataset.train_images, facts["dimensions"])
    fewest = min(int(part.counts.sum()) for part in partitions)
    if facts["components"] > fewest:
        allowed = f"at most {fewest}, the examples of all clients"
        raise ConfigError("components", facts["components"], allowed)
    fitted, per_client = entry.make(facts["components"]), facts["per_client"]
    features = features.astype("float32")
    return latent.make_estimations(fitted, features, partitions, per_client=per_client)


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
        observe = partial(_observe, contender.system)
        problem = data.make(data.partitions[contender.hyper.num_clients][:1])[0]
        for _, hyper in contender.points():
            whole = contender.system.fit.complete(hyper, problem)
            known |= jax.eval_shape(observe, problem, whole)
            if getattr(hyper, "privacy", None) is not None:
                known["epsilon"] = None
    if arguments.client_variance:
        known["client_variance"] = None
    return texts.read_names("metric", arguments.plot, list(known))


def _observe(system: System, problem: Any, hyper: Any) -> dict[str, Any]:
    """Measure the first model of a system."""
    made = system.algorithm(problem, hyper, Plan())
    state = made.init(jax.random.key(0))
    return {**problem.evaluate(made.model(state)), **made.metrics(state)}
