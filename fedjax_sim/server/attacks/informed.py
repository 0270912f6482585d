"""Attacks of clients that know all messages of the tick and send the same forged one.

Honest messages count equally, whatever the weights that the server gives them. In a tick without
an honest message their place is taken by what the attackers would have sent honestly, see
`Cohort.references`.

Dimension letters: those of `core.types`, and `H` honest messages. A message is the vector of
all leaves together.
"""

import functools
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.core.settings import AtLeast0, ConfigError, OneOf, Whole, fixed, setting, struct
from fedjax_sim.core.streams import lane_key
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import divisor, root, wide_of
from fedjax_sim.server.attacks.base import Attack, Cohort, along, in_wide, mean_over

PERTURBATIONS = ("std", "unit", "sign")


@struct
class ALittleIsEnough(Attack):
    """Hide within the spread of the honest messages (Baruch et al. 2019, arXiv 1902.06156).

    Each number is mu - z sigma, with mean and standard deviation (of the population, as in the
    authors' code) of the honest messages.

    The paper computes z from n messages, of which f are forged. The attackers need
    s = floor(n / 2 + 1) - f honest supporters for a majority, so z is the quantile of the normal
    distribution at (n - f - s) / (n - f).

    Deviation: s is at least 1 and z at least 0, where the formula has no finite value (attackers
    who are a majority alone) or a negative one (one attacker among an even number). In a tick
    without an honest message z is 0.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = ALittleIsEnough(z=1.5).forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged == 2 - 1.5 * 1  # mean and standard deviation of 1 and 3 are 2 and 1
    """

    name: str = fixed("alie")

    z: AtLeast0 = setting(
        0.0,
        "Distance to the mean in standard deviations. 0 takes the paper's, from the numbers of "
        "messages and of attackers in the tick.",
    )

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the mean minus z standard deviations: leaves `[1, ...]`."""
        slots, z = cohort.references(), self._distance(cohort)

        def shifted(leaf: Array) -> Array:
            mean = mean_over(slots, leaf)
            return mean - z.astype(leaf.dtype) * _deviation(slots, leaf, mean)

        return in_wide(shifted, messages)

    def _distance(self, cohort: Cohort) -> Array:
        """Return z: `f[]`."""
        number = cohort.is_present.sum()
        forged = (cohort.is_present & cohort.is_malicious).sum()
        supporters = jnp.maximum(number // 2 + 1 - forged, 1)
        share = 1 - supporters.astype(float) / jnp.maximum(number - forged, 1)
        found = jax.scipy.special.ndtri(jnp.maximum(share, 0.5))
        return jnp.where(jnp.asarray(self.z) > 0, self.z, found)


@struct
class InnerProduct(Attack):
    """Send -eps times the honest mean (Xie et al. 2020, arXiv 1903.03936).

    A result with a negative inner product with the honest mean moves the model the wrong way. Small
    eps deceive rules that look for outliers, large ones the mean.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = InnerProduct(strength=0.5).forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged == -0.5 * (1 + 3) / 2
    """

    name: str = fixed("inner_product")

    strength: AtLeast0 = setting(0.1, "Factor eps of the reversed mean.")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the reversed mean: leaves `[1, ...]`."""
        slots = cohort.references()

        def reversed_mean(leaf: Array) -> Array:
            return -jnp.asarray(self.strength, leaf.dtype) * mean_over(slots, leaf)

        return in_wide(reversed_mean, messages)


class Watched(NamedTuple):
    """Memory of the mimic attack, of the ticks with honest reports.

    Attributes:
      ticks: `i32[]`, their number.
      mean: The mean of the honest messages, each tick's counting equally, leaves `f[...]`.
      direction: The direction in which honest messages vary most, of length 1, leaves `f[...]`.
      target: `i32[]`, the client that is mimicked.
    """

    ticks: Array
    mean: Params
    direction: Params
    target: Array


@struct
class Mimic(Attack):
    """Send the message of one honest client (Karimireddy et al. 2022, arXiv 2006.09365).

    It is thus counted too often, which no rule can see as an outlier, and which does harm where
    clients have different data.

    Without warm-up it is the honest client with the lowest number among those present, which in
    rounds of all clients is always the same one. With warm-up attackers learn the direction z in
    which honest messages vary most by Oja's rule, one power iteration in each tick (the authors'
    public code epfml/byzantine-robust-noniid-optimizer, codes/attacks/mimic.py): in the t-th tick,
    counted from 0, with honest messages g_i,

        mu <- (t mu + mean_i g_i) / (t + 1)
        u = sum_i <g_i - mu, z> (g_i - mu), z <- (t z + u / ||u||) / (t + 1), z <- z / ||z||

    until the warm-up is over, and mimic the client with the largest <g_i, z>. After it they stay
    with the last one. z starts at random, and stays where it is where all g_i - mu are 0. That
    takes the memory of two messages.

    Deviation: where that client does not report, which does not happen in the paper, the one with
    the largest <g_i, z> of those who do takes its place.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = Mimic().forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged == 1.0  # the message of client 0
    """

    name: str = fixed("mimic")

    warmup: Whole = setting(
        0,
        "Server actions in which attackers learn which honest client to mimic, and meanwhile mimic "
        "the best that they know; those without honest reports do not count. 0 takes the one with "
        "the lowest number.",
        begins="what follows the warm-up",
    )

    def first_memory(self, message: Params) -> Params:
        """Return a memory of nothing; () without warm-up."""
        if not self.warmup:
            return ()
        zeros = jax.tree.map(lambda leaf: jnp.zeros_like(wide_of(leaf)), message)
        return Watched(jnp.int32(0), zeros, zeros, jnp.int32(-1))

    def remember(self, key: Key, messages: Params, cohort: Cohort, memory: Params) -> Params:
        """Return the memory after a power iteration; after the warm-up nothing else is learnt."""
        if not self.warmup:
            return memory
        slots, ticks = cohort.references(), memory.ticks
        wide = jax.tree.map(wide_of, messages)

        def mixed(old: Array, new: Array) -> Array:
            return (ticks * old[None] + new) / (ticks + 1).astype(new.dtype)

        now = jax.tree.map(lambda leaf: mean_over(slots, leaf), wide)
        mean = jax.tree.map(mixed, memory.mean, now)
        apart = jax.tree.map(lambda leaf, mu: _centred(slots, leaf, mu), wide, mean)
        apart, _ = _scaled(slots, apart)

        def begun(z: Array, leaf: Array, own: Key) -> Array:
            return jnp.where(ticks > 0, z[None], jax.random.normal(own, leaf.shape, leaf.dtype))

        keys = optax.tree.split_key_like(lane_key(key), now)
        before = jax.tree.map(begun, memory.direction, now, keys)
        pulls = _products(apart, before)[:, 0]
        moved = jax.tree.map(lambda leaf: along(pulls, leaf).astype(leaf.dtype) * leaf, apart)
        pulled = _of_length_1(jax.tree.map(lambda leaf: leaf.sum(axis=0, keepdims=True), moved))
        # Equal messages, such as a single one in the first tick, pull nowhere.
        moves = _products(pulled, pulled)[0, 0] > 0
        direction = jax.tree.map(
            lambda new, old: jnp.where(moves, new, old),
            _of_length_1(jax.tree.map(mixed, memory.direction, pulled)),
            _of_length_1(before),
        )
        target = cohort.clients[_farthest(wide, direction, slots)]
        mean, direction = jax.tree.map(lambda leaf: leaf[0], (mean, direction))
        learnt = Watched(ticks, mean, direction, target)
        is_learning = ticks < self.warmup
        kept = jax.tree.map(lambda new, old: jnp.where(is_learning, new, old), learnt, memory)
        return kept._replace(ticks=ticks + 1)

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return that client's message: leaves `[1, ...]`."""
        slots = cohort.references()
        if not self.warmup:
            last = np.iinfo(np.int32).max
            chosen = jnp.argmin(jnp.where(slots, cohort.clients, last))
        elif not cohort.memory:
            allowed = "0 here, where attackers cannot remember earlier messages"
            raise ConfigError("adversary.attack.warmup", self.warmup, allowed)
        else:
            direction = jax.tree.map(lambda leaf: leaf[None], cohort.memory.direction)
            is_target = slots & (cohort.clients == cohort.memory.target)
            best = _farthest(jax.tree.map(wide_of, messages), direction, slots)
            chosen = jnp.where(is_target.any(), jnp.argmax(is_target), best)
        return jax.tree.map(lambda leaf: leaf[chosen][None], messages)


@struct
class Optimized(Attack):
    """The common base of attacks as far from the honest mean as a bound on distances allows.

    The message is mu + gamma p, with a perturbation p and the largest gamma within the bound
    (Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine", NDSS). Their search for gamma is
    not needed, as squared distances are quadratics in gamma.
    """

    perturbation: Annotated[str, OneOf(PERTURBATIONS)] = setting(
        "std",
        "Direction p in which the honest mean is moved: against the honest standard deviations "
        "(std), against the mean, of length 1 (unit), or against the mean's signs (sign).",
    )

    def _gamma(self, apart: Params, direction: Params, slots: Array) -> Array:
        """Find the largest gamma.

        Args:
          apart: Honest messages minus their mean, leaves `f[S, ...]`; 0 in other slots.
          direction: p, leaves `f[1, ...]`. If all are 0, any finite gamma will do.
          slots: `bool[S]`, slots of the honest messages.

        Returns:
          `f[]`.
        """
        raise NotImplementedError

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the moved mean: leaves `[1, ...]`."""
        slots = cohort.references()
        wide, largest = _scaled(slots, jax.tree.map(wide_of, messages))
        mean = jax.tree.map(lambda leaf: mean_over(slots, leaf), wide)
        apart = jax.tree.map(lambda leaf, mu: _centred(slots, leaf, mu), wide, mean)
        direction = self._direction(mean, wide, slots)
        gamma = self._gamma(apart, direction, slots)
        return jax.tree.map(
            lambda leaf, mu, p: (largest * (mu + gamma.astype(p.dtype) * p)).astype(leaf.dtype),
            messages,
            mean,
            direction,
        )

    def _direction(self, mean: Params, wide: Params, slots: Array) -> Params:
        """Return p: leaves `f[1, ...]`."""
        if self.perturbation == "std":
            return jax.tree.map(lambda leaf, mu: -_deviation(slots, leaf, mu), wide, mean)
        if self.perturbation == "sign":
            return jax.tree.map(lambda mu: -jnp.sign(mu), mean)
        return jax.tree.map(jnp.negative, _of_length_1(mean))


@struct
class MinMax(Optimized):
    """Be no further from any honest message than honest messages are from each other.

    max_i ||mu + gamma p - g_i|| <= max_ij ||g_i - g_j||. Each i bounds gamma by the root of a
    quadratic; the smallest of these roots is gamma.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = MinMax().forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert jnp.allclose(forged, 3 - (3 - 1))  # as far from 3 as 1 is
    """

    name: str = fixed("min_max")

    def _gamma(self, apart: Params, direction: Params, slots: Array) -> Array:
        """Return the smallest root of the quadratics: `f[]`."""
        products = _products(apart, apart)
        squares = jnp.diagonal(products)
        distances = squares[:, None] + squares[None, :] - 2 * products
        within = slots[:, None] & slots[None, :]
        room = jnp.maximum(jnp.where(within, distances, 0).max() - squares, 0)
        # ||gamma p - d||^2 = a gamma^2 - 2 b gamma + ||d||^2 with d = g - mu. Of the two forms of
        # the positive root, the one that subtracts nothing.
        a = divisor(_products(direction, direction)[0, 0])
        b = _products(apart, direction)[:, 0]
        half = root(b**2 + a * room)
        gammas = jnp.where(b > 0, (b + half) / a, room / divisor(half - b))
        return jnp.where(slots.any(), jnp.where(slots, gammas, jnp.inf).min(), 0)


@struct
class MinSum(Optimized):
    """Have no larger sum of squared distances to the honest messages than an honest message has.

    sum_i ||mu + gamma p - g_i||^2 <= max_i sum_j ||g_i - g_j||^2. As mu is the mean, both sides
    have the part sum_i ||g_i - mu||^2, and what is left is ||gamma p|| <= max_i ||g_i - mu||.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = MinSum().forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert jnp.allclose(forged, 2 - (3 - 2))  # as far from the mean 2 as 3 is
    """

    name: str = fixed("min_sum")

    def _gamma(self, apart: Params, direction: Params, slots: Array) -> Array:
        """Return the largest distance to the mean, in lengths of p: `f[]`."""
        farthest = _squares(apart).max()
        return root(farthest / divisor(_products(direction, direction)[0, 0]))


def _deviation(slots: Array, leaf: Array, mean: Array) -> Array:
    """Compute standard deviations over slots: `f[1, ...]` of `f[S, ...]` and the mean."""
    apart = jnp.abs(_centred(slots, leaf, mean))
    largest = divisor(apart.max(axis=0, keepdims=True))
    return largest * root(mean_over(slots, jnp.square(apart / largest)))


def _centred(slots: Array, leaf: Array, mean: Array) -> Array:
    """Subtract the mean `f[1, ...]` from messages `f[S, ...]`; 0 in other slots."""
    return jnp.where(along(slots, leaf), leaf - mean, 0)


def _scaled(slots: Array, messages: Params) -> tuple[Params, Array]:
    """Divide messages by the largest number in some slots, so that fourth powers stay in range.

    Args:
      slots: `bool[S]`.
      messages: Leaves `f[S, ...]`.

    Returns:
      The messages, and the number, `f[]`; 1 if all numbers are 0.
    """
    sizes = [
        jnp.where(along(slots, leaf), jnp.abs(leaf), 0).max(initial=0)
        for leaf in jax.tree.leaves(messages)
    ]
    largest = divisor(functools.reduce(jnp.maximum, sizes))
    return jax.tree.map(lambda leaf: leaf / largest.astype(leaf.dtype), messages), largest


def _products(left: Params, right: Params) -> Array:
    """Compute inner products of messages: `f[A, B]` of leaves `f[A, ...]` and `f[B, ...]`."""
    products = jax.tree.map(
        lambda x, y: jnp.matmul(
            x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1).T, precision="highest"
        ),
        left,
        right,
    )
    return functools.reduce(jnp.add, jax.tree.leaves(products))


def _of_length_1(vector: Params) -> Params:
    """Divide a message by its length: leaves `f[1, ...]`; 0 stays 0."""
    length = root(_products(vector, vector)[0, 0])
    return jax.tree.map(lambda leaf: leaf / divisor(length).astype(leaf.dtype), vector)


def _farthest(messages: Params, direction: Params, slots: Array) -> Array:
    """Find the slot with the longest way in a direction, among some: `i32[]`.

    Args:
      messages: Leaves `f[S, ...]`.
      direction: Leaves `f[1, ...]`.
      slots: `bool[S]`.
    """
    return jnp.argmax(jnp.where(slots, _products(messages, direction)[:, 0], -jnp.inf))


def _squares(messages: Params) -> Array:
    """Compute squared lengths of messages: `f[S]` of leaves `f[S, ...]`."""
    squares = [
        jnp.square(leaf).reshape(leaf.shape[0], -1).sum(axis=1)
        for leaf in jax.tree.leaves(messages)
    ]
    return functools.reduce(jnp.add, squares)


KINDS = (ALittleIsEnough, InnerProduct, MinMax, MinSum, Mimic)
"""The attacks of this file."""
