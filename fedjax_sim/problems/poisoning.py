"""Attacks on clients' data: wrong labels, and backdoors.

A poisoned problem is a problem of the same kind in which some clients have other training examples.
So it goes with every system and with sweeps, and the same clients may attack with their messages
too (`fedjax_sim.server.attacks`). Other clients' examples and all test examples stay as they are.

Dimension letters: `N` clients, `B` examples, `n` training examples, `K` classes, `H`, `W`, `C`
height, width and channels of an image, `D` numbers of an example that is a vector.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core.settings import ConfigError, Count, Probability, Seed, Whole, checked
from fedjax_sim.core.types import Array, Params
from fedjax_sim.problems.classification import Classification
from fedjax_sim.problems.client_data import check_range
from fedjax_sim.problems.losses import Metric
from fedjax_sim.problems.supervision import Supervised, check_shapes

SUCCESS = "attack_success"
"""The metric of a backdoor."""


@checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelFlip:
    """Wrong labels: class y becomes K - 1 - y, or one class becomes another.

    The former is the attack of Fang et al. 2020 (arXiv 1911.11815), the latter that of Tolpegin et
    al. 2020 (arXiv 2007.08432).

        assert LabelFlip().labels(np.array([0, 1, 9]), 10).tolist() == [9, 8, 0]
        assert LabelFlip(source=1, target=7).labels(np.array([0, 1, 9]), 10).tolist() == [0, 7, 9]

    Attributes:
      source: The class whose examples get another label; None for all classes.
      target: That label; None, together with `source`, for K - 1 - y.
    """

    source: Whole | None = None
    target: Whole | None = None

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise ConfigError("target", self.target, "given if and only if source is")
        if self.source is not None and self.source == self.target:
            raise ConfigError("target", self.target, "another class than source")

    @checked
    def labels(self, labels: np.ndarray, num_classes: Count) -> np.ndarray:
        """Flip labels.

        Args:
          labels: `i[B]`.
          num_classes: K.

        Returns:
          `i[B]`.

        Raises:
          ConfigError: If there is no such class.
        """
        check_range("labels", labels, 0, num_classes - 1)
        if self.source is None or self.target is None:
            return num_classes - 1 - labels
        check_class("source", self.source, num_classes)
        check_class("target", self.target, num_classes)
        return np.where(labels == self.source, self.target, labels)


@checked
@dataclasses.dataclass(frozen=True, kw_only=True)
class Backdoor:
    """A trigger that shall make the model name a class (Gu et al. 2017, arXiv 1708.06733).

    Poisoned examples carry the trigger and the label of that class. By default the trigger is a
    bright square in the lower right corner of an image `[H, W]` or `[H, W, C]`, or the last numbers
    of a vector `[D]`. It is put on the data as they are stored: before augmentation and scaling.

        images = Backdoor(target=2, size=3).put(jnp.zeros((1, 8, 8), "uint8"))
        assert (images == 255).sum() == 3 * 3

    Attributes:
      target: The class.
      share: Share of a malicious client's examples that are poisoned, rounded for each client.
      size: Height and width of the square; of a vector, how many numbers.
      value: What the numbers of the square are; None is 255 for bytes and 1 for other numbers.
      trigger: From inputs `[B, ...]` to inputs with another trigger, in place of the square. It is
        traced and must be hashable.
    """

    target: Whole = 0
    share: Probability = 0.5
    size: Count = 3
    value: float | None = None
    trigger: Callable[[Array], Array] | None = None

    def put(self, inputs: Array) -> Array:
        """Put the trigger on inputs.

        Args:
          inputs: `[B, ...]`, as they are stored.

        Returns:
          Inputs of the same shape and type.
        """
        if self.trigger is not None:
            return self.trigger(inputs)
        brightest = 255 if inputs.dtype == jnp.uint8 else 1
        value = jnp.asarray(brightest if self.value is None else self.value, inputs.dtype)
        if inputs.ndim == 2:
            return inputs.at[:, -self.size :].set(value)
        return inputs.at[:, -self.size :, -self.size :].set(value)

    def metrics(self) -> tuple[tuple[str, Metric], ...]:
        """Return the metric on test examples with the trigger, by name."""
        return ((SUCCESS, Metric(self._is_named, self._is_other)),)

    def _is_named(self, logits: Array, labels: Array) -> Array:
        """Tell whether the target is named: `bool[B]`."""
        return jnp.argmax(logits, axis=-1) == self.target

    def _is_other(self, logits: Array, labels: Array) -> Array:
        """Tell whether examples are of another class than the target: `bool[B]`."""
        return labels != self.target


@struct.dataclass(repr=False)
class Backdoored(Supervised):
    """A problem with a backdoor in the data of some clients, and a measure of its success.

    Attributes:
      backdoor: The backdoor.
    """

    backdoor: Backdoor = struct.field(pytree_node=False, default=Backdoor())

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Measure a model on the test examples, without and with the trigger.

        Args:
          params: The model.

        Returns:
          What the problem measures without the backdoor, and "attack_success": among test examples
          of other classes than the target, the share that the trigger makes the model name the
          target.
        """

        def prepare(batch: tuple[Array, Array]) -> tuple[Params, Params]:
            return self.prepare((self.backdoor.put(batch[0]), batch[1]))

        metrics = self.backdoor.metrics()
        triggered = dataclasses.replace(self, prepare=prepare, metrics=metrics, per_client=False)
        success = dict(Supervised.evaluate(triggered, params))
        del success["loss"]  # Of the true labels; no part of it is computed.
        return {**super().evaluate(params), **success}


@struct.dataclass(repr=False)
class BackdooredClassification(Backdoored, Classification):
    """A `Backdoored` problem of image classification."""


@checked
def poison(
    problem: Supervised,
    clients: Sequence[Whole] | np.ndarray,
    attack: LabelFlip | Backdoor,
    *,
    seed: Seed = 0,
) -> Supervised:
    """Poison the training examples of some clients.

        clients = iid(data.train_labels, num_clients=8, seed=0)
        problem = make_classification(MLP((16,), 10), data, clients)
        flipped = poison(problem, [0, 3], LabelFlip())
        backdoored = poison(problem, [0, 3], Backdoor(target=2))

    An `Adversary` whose `attackers` are the same numbers lets these clients attack with their
    messages too. Those that it draws for a seed are found by
    `fedjax_sim.server.attacks.are_malicious`.

    Args:
      problem: A problem whose data are pairs of inputs and classes, such as one of
        `make_classification`.
      clients: Numbers of the malicious clients; none is allowed, to measure a backdoor that is not
        there.
      attack: What is done to their examples.
      seed: Seed of the choice of the poisoned examples of a backdoor. With a larger share, the
        examples of a smaller one stay poisoned.

    Returns:
      The problem with a copy of the labels, and with a backdoor also of the inputs. A backdoor adds
      the metric "attack_success", see `Backdoored`.

    Raises:
      ConfigError: If the data are no such pairs, a client or a class does not exist, a client's
        example is also an honest client's, or the trigger does not fit.
    """
    inputs, labels, num_classes = _pairs_of(problem)
    rows_of = _rows_of(problem, _numbers_of(clients, problem.num_clients))
    changed = np.array(labels)
    if isinstance(attack, LabelFlip):
        rows = np.concatenate([np.zeros(0, "int32"), *rows_of.values()])
        changed[rows] = attack.labels(changed[rows], num_classes)
        return dataclasses.replace(problem, data=(inputs, jnp.asarray(changed)))
    _check_backdoor(attack, problem, num_classes)
    chosen = [np.zeros(0, "int32")]
    for client, rows in rows_of.items():
        mixed = np.random.default_rng([seed, client]).permutation(rows)
        chosen.append(mixed[: round(attack.share * len(rows))])
    rows = np.unique(np.concatenate(chosen))
    changed[rows] = attack.target
    if len(rows):
        inputs = inputs.at[rows].set(attack.put(inputs[rows]))
    if type(problem) not in (Supervised, Classification, Backdoored, BackdooredClassification):
        allowed = "a problem of `make_classification` or of `Supervised` itself"
        raise ConfigError("problem", type(problem).__name__, f"{allowed}, for a backdoor")
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    fields |= {"data": (inputs, jnp.asarray(changed)), "backdoor": attack}
    kind = BackdooredClassification if isinstance(problem, Classification) else Backdoored
    return kind(**fields)


def check_class(name: str, number: int, num_classes: int) -> None:
    """Check that there is a class.

    Raises:
      ConfigError: If there is not.
    """
    if number >= num_classes:
        raise ConfigError(name, number, f"a class from 0 to {num_classes - 1}")


def _pairs_of(problem: Supervised) -> tuple[Array, Array, int]:
    """Return inputs and labels of the training examples, and the number of classes."""
    if (files := problem.held.stored) is not None:
        raise ConfigError("data", str(files), "in memory, where examples are changed")
    data, shape = problem.data, check_shapes(problem)
    is_pair = isinstance(data, tuple) and len(data) == 2
    is_pair = is_pair and all(hasattr(each, "dtype") for each in data) and data[1].ndim == 1
    if not (is_pair and jnp.issubdtype(data[1].dtype, jnp.integer) and len(shape) == 2):
        allowed = "one with a pair of arrays, inputs and classes, and with logits"
        raise ConfigError("problem", type(problem).__name__, allowed)
    return data[0], data[1], shape[-1]


def _numbers_of(clients: Sequence[int] | np.ndarray, num_clients: int) -> list[int]:
    """Check numbers of clients, and return each once."""
    numbers = np.asarray(clients)
    if numbers.size and (numbers.ndim != 1 or numbers.dtype.kind not in "iu"):
        raise ConfigError("clients", clients, "numbers of clients")
    found = sorted(set(numbers.tolist()))
    if found and not 0 <= found[0] <= found[-1] < num_clients:
        raise ConfigError("clients", found, f"numbers from 0 to {num_clients - 1}")
    return found


def _rows_of(problem: Supervised, clients: list[int]) -> dict[int, np.ndarray]:
    """Return the positions of clients' examples, which nobody else may have."""
    index, (holder, is_there) = np.asarray(problem.held.index), problem.held.owners()
    owner = np.where(np.asarray(is_there), np.asarray(holder), -1)
    is_theirs = np.isin(owner, clients)
    shared = np.intersect1d(index[is_theirs], index[~is_theirs & (owner >= 0)])
    if len(shared):
        allowed = "nobody's but malicious clients' examples"
        raise ConfigError("positions of malicious clients' examples", shared[:8].tolist(), allowed)
    return {client: index[owner == client] for client in clients}


def _check_backdoor(backdoor: Backdoor, problem: Supervised, num_classes: int) -> None:
    """Check that the target, the value and the trigger fit the data."""
    inputs = problem.data[0]
    check_class("target", backdoor.target, num_classes)
    if not np.any(np.asarray(problem.test_data[1]) != backdoor.target):
        raise ConfigError("target", backdoor.target, "not the class of all test examples")
    if backdoor.trigger is None:
        sides = inputs.shape[1:3]
        if not sides or backdoor.size > min(sides):
            raise ConfigError("size", backdoor.size, f"at most the sides of an input, {sides}")
        is_byte = inputs.dtype == jnp.uint8
        if is_byte and backdoor.value is not None and not 0 <= backdoor.value <= 255:
            raise ConfigError("value", backdoor.value, "from 0 to 255 for bytes")
    one = jax.ShapeDtypeStruct((1, *inputs.shape[1:]), inputs.dtype)
    found = jax.eval_shape(backdoor.put, one)
    if (found.shape, found.dtype) != (one.shape, one.dtype):
        allowed = f"{list(one.shape)} of {one.dtype}, as without it"
        raise ConfigError("inputs with the trigger", f"{list(found.shape)} {found.dtype}", allowed)
