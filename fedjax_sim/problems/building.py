"""Build problems of supervised learning from a user's network, loss and data, and check them.

Dimension letters: those of `supervision`.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, overload

import jax
import numpy as np
from jax.tree_util import Partial

from fedjax_sim.core import trees
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Seed, checked
from fedjax_sim.core.types import Array, Key, LocalLoss, Params
from fedjax_sim.datasets import Stored
from fedjax_sim.models import calls
from fedjax_sim.partition import Partition
from fedjax_sim.problems import client_data
from fedjax_sim.problems.losses import Metric, PerExample, cross_entropy, is_right
from fedjax_sim.problems.supervision import Supervised, as_pair, check_shapes

SupervisedT = TypeVar("SupervisedT", bound=Supervised)


class Options(TypedDict, total=False):
    """Arguments that every problem of supervised learning takes.

        options: Options = {"prior_precision": 1.0, "test_block": 100}
        clients = iid(data.train_labels, num_clients=5, seed=0)
        problem = make_classification(MLP((16,), 10), data, clients, **options)
        assert problem.prior_precision == 1

    Attributes:
      per_client: Whether metrics are also measured on every client's own test examples.
      start: Parameters to start from, or some of them: the others are drawn anew for each seed.
      frozen: Which parameters are not trained, nor averaged or sent: a function of a path such as
        "params/Dense_0/kernel", or a regular expression found in it. They must be in `start`.
      prior_precision: Precision of a Gaussian prior on the trained parameters; None for none.
      step_loss: The loss of local steps in place of the mean of `loss`: a function (params, aux,
        batch, extras) -> (loss, aux), where the batch has `inputs`, `targets` and a `key`, and
        extras are `fedjax_sim.core.types.Extras`. The aux is () unless the network has state.
      test_block: Test examples that a CPU evaluates together; fewer need less memory.
    """

    per_client: bool
    start: Params | None
    frozen: str | Callable[[str], bool] | None
    prior_precision: AtLeast0 | None
    step_loss: LocalLoss | None
    test_block: Count


@overload
def supervised(
    model: calls.Model, loss: PerExample, data: Any, split: list[Partition], **options: Any
) -> list[Supervised]: ...


@overload
def supervised(
    model: calls.Model, loss: PerExample, data: Any, split: Partition | None = None, **options: Any
) -> Supervised: ...


@checked  # type: ignore[misc]  # The options are listed here alone.
def supervised(
    model: calls.Model,
    loss: PerExample,
    data: Any,
    split: Partition | list[Partition] | None = None,
    *,
    clients: Iterable[Hashable] | None = None,
    test: Any = 0.2,
    test_clients: Iterable[Hashable] | None = None,
    metrics: Mapping[str, PerExample | Metric] | None = None,
    mask: Callable[[Any], Array] | None = None,
    prepare: Callable[[Any], tuple[Any, Any]] | None = None,
    augment: Callable[[Key, Any], Any] | None = None,
    seed: Seed = 0,
    **options: Unpack[Options],
) -> Supervised | list[Supervised]:
    """Build a problem from a network, a loss and data.

    The loss of a mini-batch is the mean of `loss` over its examples; local steps follow its
    gradient. Collections of the network other than its parameters, such as running statistics, are
    averaged and not trained. Example, a regression whose clients have names:

        problem = problems.supervised(
            models.MLP((32,), 1), problems.squared_error, (inputs, targets), clients=names
        )

    Args:
      model: A network: anything with `init(key, inputs)` and `apply(params, inputs)`, such as a
        flax module; `fedjax_sim.models.from_nnx`, `from_equinox` and `from_haiku` make one of
        others.
      loss: From the network's outputs and the targets of B examples to their losses, `f[B]`; with
        a mask, one for each of its entries. `fedjax_sim.problems` has the usual ones.
      data: The examples: a pair of inputs and targets, each a pytree of arrays `[n, ...]`;
        `Examples`, which may name clients; or with `prepare` any pytree of arrays `[n, ...]`.
        Tensors of other libraries serve as arrays. A data set with `__len__` and `__getitem__`,
        such as PyTorch's, is read once; its examples are pairs, or with `prepare` any pytree.
      split: Who holds which example: a partition, such as those of `fedjax_sim.partition`, or a
        list of several, for a sweep with one per seed. Leave it out if clients are named.
      clients: The client of each of the n examples: strings, or any other ids. Clients are numbered
        in the order of their sorted ids, as in `partition_by_ids`, and results name them.
      test: Examples to test on, in the form of `data`; or the share of every client's examples
        that is held out for it, at least one of each client that has two.
      test_clients: The clients of examples in `test`, by the ids in `clients`.
      metrics: What else is measured on test examples, by name: functions like `loss`, whose means
        are reported, or `Metric`s.
      mask: From the targets to which of their entries count: `bool[B, ...]`. Means of losses and
        metrics are taken over these entries, so that long sequences weigh more.
      prepare: From a mini-batch of the data to inputs and targets, such as a change of scale.
      augment: From a key and a mini-batch of the data to changed data, in local steps.
      seed: Seed of the choice of test examples.
      **options: `per_client`, `start`, `frozen`, `prior_precision`, `step_loss` and `test_block`,
        see `fedjax_sim.problems.Options`.

    Returns:
      The problem; a list of problems for a list of partitions, which share the data.

    Raises:
      ConfigError: If an argument is not allowed, if the data are not of one length, or if the
        network, the loss or a metric does not take the data or has a result of the wrong shape.
    """
    _check_model(model)
    if isinstance(data, client_data.Examples):
        clients = data.clients if clients is None and split is None else clients
        data = (data.inputs, data.targets)
    if isinstance(test, client_data.Examples):
        test_clients = test.clients if test_clients is None else test_clients
        test = (test.inputs, test.targets)
    data, num, files = client_data.read_examples(data)
    if prepare is None and not (isinstance(data, tuple) and len(data) == 2):
        raise ConfigError("data", type(data).__name__, "a pair of inputs and targets, or prepared")
    partitions, names = client_data.read_owners(split, clients, num)
    owned: list[Partition] | None = None
    if isinstance(test, float | int):
        pairs = [client_data.hold_out(partition, test, seed) for partition in partitions]
        partitions, owned = [train for train, _ in pairs], [test for _, test in pairs]
        test_data = data
        if files is not None:
            test_data, owned = _read_tests(files, owned)
    else:
        test_data, num_tests = client_data.read_arrays("test", test)
        if test_clients is not None:
            owned = [client_data.owners_of_tests(names, test_clients, num_tests)]
    made = build(
        Supervised,
        partitions,
        owned,
        options,
        files=files,
        data=data,
        test_data=test_data,
        model=model,
        loss_of=loss,
        metrics=tuple((name, _metric(each)) for name, each in (metrics or {}).items()),
        mask_of=mask,
        prepare=Partial(prepare or as_pair),
        augmentation=augment,
        client_ids=names,
    )
    _check_targets(made[0])
    if isinstance(test, float | int):
        made = _test_on_held_out(made, owned or [])
    return made[0] if split is None or isinstance(split, Partition) else made


def build(
    kind: type[SupervisedT],
    partitions: Sequence[Partition],
    tests: Sequence[Partition] | None,
    options: Options,
    files: Stored | None = None,
    **shared: Any,
) -> list[SupervisedT]:
    """Build one problem per partition, all with the same data, and check them.

    Args:
      kind: The class of the problems.
      partitions: Partitions of the training examples.
      tests: Partitions of the test examples, one or as many; None if these are nobody's own.
      options: Further arguments of the caller's.
      files: The files in which the training examples lie; None if they are in memory.
      **shared: Fields that all problems share, which options take the place of.

    Returns:
      One problem per partition, in the same order.

    Raises:
      ConfigError: If a partition does not fit, if tests are not of the same clients, if clients
        without test examples are to be evaluated one by one, or if a shape is wrong, see
        `check_shapes`.
    """
    [nobody] = client_data.hold([Partition(np.zeros(1, "int32"), np.ones(1, "int32"))], 1)
    fields: dict[str, Any] = {"held": nobody, **shared, **options}
    start, frozen = fields.pop("start", None), fields.pop("frozen", None)
    if (prior := options.get("prior_precision")) is not None:
        fields["prior_precision"] = trees.as_array(prior, "float32")
    problem = _with_start(kind(**fields), start, frozen)
    check_shapes(problem)
    state = calls.state_of(problem.model, trees.shapes_of_model(problem))
    problem = dataclasses.replace(problem, state=state)
    num, num_tests = (len(jax.tree.leaves(x)[0]) for x in (problem.data, problem.test_data))
    clients = client_data.hold(partitions, num if files is None else files.num, files)
    made = [dataclasses.replace(problem, held=held) for held in clients]
    if tests is None:
        if problem.per_client and not problem.has_tests_of_clients:
            allowed = "False, unless test examples are held out or have clients"
            raise ConfigError("per_client", True, allowed)
        return made
    if len(tests) not in (1, len(partitions)):
        allowed = "1, or as many as of the training examples"
        raise ConfigError("number of partitions in test_partition", len(tests), allowed)
    tests = list(tests) * (len(partitions) // len(tests))
    for partition, test in zip(partitions, tests, strict=True):
        if (found := len(test.counts)) != (wanted := len(partition.counts)):
            allowed = f"{wanted}, as in the partition of the training examples"
            raise ConfigError("clients of test_partition", found, allowed)
    poorest = min(tests, key=lambda each: int(each.counts.min())).counts
    if poorest.min() == 0:
        # Else other test examples than the clients' own would take their places.
        if problem.per_client or problem.has_tests_of_clients:
            at = int(np.argmin(poorest))
            name = problem.client_ids[at] if problem.client_ids is not None else at
            allowed = "at least 1 to evaluate clients; one with two examples can keep one"
            raise ConfigError(f"number of test examples of client {name!r}", 0, allowed)
        return made
    own = client_data.hold(tests, num_tests)
    return [dataclasses.replace(each, test_held=held) for each, held in zip(made, own, strict=True)]


def _check_targets(problem: Supervised) -> None:
    """Check that masks leave an entry of every example, because a mini-batch may be of one.

    Also check that there are no other classes than those of the network.
    """
    # A loss of the user's own, such as one with smoothed labels, goes with the usual accuracy.
    known = {problem.loss_of, *(metric.values for _, metric in problem.metrics)}
    mask_of, has_classes = problem.mask_of, not known.isdisjoint({cross_entropy, is_right})
    if mask_of is None and not has_classes:
        return
    # What is only needed for inputs is not computed.
    prepared = jax.jit(lambda data: problem.prepare(data)[1])
    for name, targets in _targets_of(problem, prepared):
        if mask_of is not None:
            mask = np.asarray(mask_of(targets))
            empty = np.flatnonzero(~mask.reshape(len(mask), -1).any(axis=1))
            if len(empty):
                allowed = "true of at least one of its entries"
                raise ConfigError(f"mask of example {empty[0]} of {name}", False, allowed)
        if has_classes:
            classes = np.asarray(targets)
            check_classes(problem, name, classes if mask_of is None else classes[mask])


def _targets_of(
    problem: Supervised, prepared: Callable[[Params], Params]
) -> Iterator[tuple[str, Params]]:
    """Yield the targets of the training examples, of files in blocks, and of the test examples."""
    if (files := problem.held.stored) is None:
        yield "data", prepared(problem.data)
    else:
        # Where examples are pairs as they are, their targets alone are read.
        alone = files.targets if getattr(problem.prepare, "func", None) is as_pair else None
        for found in (alone or files).blocks(range(files.num)):
            yield "data", found if alone else prepared(found)
    yield "test", prepared(problem.test_data)


def _read_tests(files: Stored, owned: Sequence[Partition]) -> tuple[Params, list[Partition]]:
    """Read test examples out of files: the examples, and their positions among these."""
    numbers = np.unique(np.concatenate([tests.index for tests in owned]))
    data, _ = client_data.read_arrays("test", files.read(numbers))
    places = (np.searchsorted(numbers, tests.index).astype("int32") for tests in owned)
    return data, [tests._replace(index=index) for tests, index in zip(owned, places, strict=True)]


def check_classes(problem: Supervised, name: str, classes: np.ndarray) -> None:
    """Check that a network has an output for every class. Examples of others would have no loss.

    Args:
      problem: A problem whose shapes have been checked.
      name: What the classes are called.
      classes: Whole numbers.

    Raises:
      ConfigError: If a class is none of the network's.
    """
    num, least, most = check_shapes(problem)[-1], int(classes.min()), int(classes.max())
    if least < 0:
        raise ConfigError(f"smallest class in {name}", least, "at least 0")
    if most >= num:
        allowed = f"at most {num - 1}, as the network has {num} outputs"
        raise ConfigError(f"largest class in {name}", most, allowed)


def _with_start(
    problem: SupervisedT, start: Params | None, frozen: str | Callable[[str], bool] | None
) -> SupervisedT:
    """Give a `Supervised` problem parameters to start from, some of which may be frozen.

    `start` and `frozen` are those of `supervised`.

    Raises:
      ConfigError: If `start` does not fit the network, or lacks a frozen leaf.
    """
    if start is None and frozen is None:
        return problem
    drawn = trees.shapes_of_model(problem)
    names, leaves = trees.paths_of(drawn), jax.tree.leaves(drawn)
    given = dict(zip(trees.paths_of(start), jax.tree.leaves(start), strict=True))
    for name in given.keys() - set(names):
        raise ConfigError("leaf of start", name, "one of " + ", ".join(names))
    for name, leaf in zip(names, leaves, strict=True):
        if name in given and np.shape(given[name]) != leaf.shape:
            found = np.shape(given[name])
            raise ConfigError(f"shape of {name} in start", found, f"{leaf.shape}, as in the model")
    flags = [False] * len(names)
    if frozen is not None:
        if not trees.is_predicate(frozen):
            allowed = "a regular expression, or a function from a path to whether it is frozen"
            raise ConfigError("frozen", frozen, allowed)
        flags = jax.tree.leaves(trees.leaves_that(frozen, drawn))
        for name, is_frozen in zip(names, flags, strict=True):
            if is_frozen and name not in given:
                raise ConfigError("frozen leaf", name, "in start")
        if all(flags) or not any(flags):
            found = ", ".join(names)
            raise ConfigError("frozen", frozen, f"true of some, but not all of {found}")

    def part(is_frozen: bool) -> Params:
        chosen = [
            trees.as_array(given[name], leaf.dtype) if name in given and flag == is_frozen else None
            for name, leaf, flag in zip(names, leaves, flags, strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(drawn), chosen)

    kept = None if frozen is None else part(True)
    return dataclasses.replace(problem, start=part(False), frozen=kept)


def _check_model(model: object) -> None:
    """Check that a network can be called and kept, which needs no data."""
    if not (hasattr(model, "init") and hasattr(model, "apply")) or isinstance(model, type):
        allowed = "an object with init and apply; see fedjax_sim.models.from_nnx and others"
        raise ConfigError("model", getattr(model, "__name__", type(model).__name__), allowed)
    if not isinstance(model, Hashable):
        raise ConfigError("model", type(model).__name__, "hashable")


def _metric(given: PerExample | Metric) -> Metric:
    """Make a hashable metric."""
    metric = given if isinstance(given, Metric) else Metric(given)
    dims = (metric.dims,) if isinstance(metric.dims, str) else tuple(metric.dims)
    return metric._replace(dims=dims, labels=tuple(tuple(each) for each in metric.labels))


def _test_on_held_out(made: list[Supervised], tests: Sequence[Partition]) -> list[Supervised]:
    """Evaluate on the held-out examples of all clients."""
    most = max(len(each.index) for each in tests)
    return [
        dataclasses.replace(
            problem,
            test_rows=trees.as_array(np.pad(index, (0, most - len(index))), "int32"),
            num_tests=trees.as_array(len(index), "int32"),
        )
        for problem, (index, _) in zip(made, tests, strict=True)
    ]
