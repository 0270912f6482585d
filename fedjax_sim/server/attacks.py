"""Attacks on the messages that clients send to the server.

An attack says what malicious clients send instead of their progress. Attackers may read all
messages of the tick. Attacks are frozen structs whose strengths are traced leaves: attacks of one
kind with other strengths share a compiled program.

Clients that know only their own message:

- `SignFlip`: the reversed progress (Li et al. 2019).
- `Scaling`: many times the progress, model replacement (Bagdasaryan et al. 2020).
- `Gaussian`: normal numbers (Blanchard et al. 2017).
- `FreeRider`: no progress, or noise (Lin et al. 2019, Fraboni et al. 2021).
- `NotFinite`: nan or inf.

Clients that know all messages:

- `ALittleIsEnough`: the honest mean minus some standard deviations (Baruch et al. 2019).
- `InnerProduct`: the reversed honest mean (Xie et al. 2020).
- `MinMax`, `MinSum`: as far from the honest mean as honest messages are apart (Shejwalkar and
  Houmansadr 2021).
- `Mimic`: the message of one honest client (Karimireddy et al. 2022), which attackers may choose by
  what they remember of earlier ticks.

Clients that can be seen (`Canary`), by which privacy is audited, are not among the attacks of the
command line. A canary sends a vector in its own direction or nothing, as a coin says. Settings for
an audit:

    canary, clients = Canary(seed=1), tuple(range(100))
    hyper = fedavg.Hyper(
        num_clients=120,
        num_selected=120,
        attack=canary,
        attackers=clients,
        privacy=parse_privacy("correlated:noise=4"),
    )

A run with as many evaluations as ticks, and `keep=fedjax_sim.Keep(models=True)`, has all models of
the server in `run.samples`. Of these `canary.scores(run.samples, clients, run.timelines[0])` makes
the scores for `server.privacy.audit_canaries`, with `canary.included(clients)` for the coins.
The upper bound is `run.curves.epsilon`.

Clients that know all messages send the same forged one. Honest messages count equally for them,
whatever the weights that the server gives them. In a tick without an honest message their place is
taken by what the attackers would have sent honestly, see `Cohort.references`.

`Adversary` says who is malicious and when. Attacks on clients' data are in
`fedjax_sim.problems.poisoning`.

Dimension letters: those of `fedjax_sim.core.types`, `H` honest messages and `m` canaries. A message
is the vector of all leaves together.
"""

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.flatten_util import ravel_pytree

from fedjax_sim.clients.clipping import finite
from fedjax_sim.clients.rows import along
from fedjax_sim.core import settings, streams
from fedjax_sim.core.settings import AtLeast0, ConfigError, Named, Whole, fixed, setting, struct
from fedjax_sim.core.types import EMPTY, Array, Event, Key, Params, Timeline
from fedjax_sim.kernels.rounding import divisor, root, wide_of
from fedjax_sim.server.accounting import square_root_bands

__all__ = ["ATTACKS", "ALittleIsEnough", "Adversary", "Attack", "Canary", "Cohort", "FreeRider"]
__all__ += ["Gaussian", "Honest", "InnerProduct", "Mimic", "MinMax", "MinSum", "NotFinite"]
__all__ += ["OneAttack", "Scaling", "Senders", "SignFlip", "are_malicious"]
__all__ += ["attacks_of_one_program", "parse_attack"]


class Cohort(NamedTuple):
    """The slots of a tick as attackers see them.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        assert cohort.references().tolist() == [True, True, False]  # client 2 is malicious

    Attributes:
      clients: `i32[S]`.
      is_malicious: `bool[S]`, slots of attackers that are at work.
      is_present: `bool[S]`, slots in which somebody reports, attackers included.
      weight: `f[S]`, weights that the server gives the slots; 0 where nobody is present.
      memory: What attackers remember of the ticks until now, see `Attack.remember`.
    """

    clients: Array
    is_malicious: Array
    is_present: Array
    weight: Array
    memory: Params = ()

    def references(self) -> Array:
        """Find the slots of the messages that attackers imitate or work against: `bool[S]`.

        These are the honest ones. In a tick without an honest message, such as a tick of one slot,
        they are those of the attackers, who know what they would have sent honestly.
        """
        is_honest = self.is_present & ~self.is_malicious
        return jnp.where(is_honest.any(), is_honest, self.is_present)


class Attack(settings.Kind):
    """The interface of attacks on messages: malicious clients send forgeries, not their progress.

    @settings.struct
    class Silence(Attack):
        "Send zeros."
        name: str = settings.fixed("silence")

        def forge(self, key, messages, cohort):
            return jax.tree.map(jnp.zeros_like, messages)

    hyper = fedavg.Hyper(attack=Silence(), malicious=0.2)
    """

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Make the messages of malicious clients. Those of others are not used.

        Attackers know everything: they may read all messages of the tick.

        Args:
          key: Key of the attack's draws in this tick.
          messages: Progress that all clients of the tick have made, attackers too, leaves
            `[S, ...]`; any numbers where nobody is present.
          cohort: The slots.

        Returns:
          Leaves `[S, ...]`, or leaves that broadcast to these, in the messages' types.
        """
        raise NotImplementedError

    def is_forging(self) -> Array | bool:
        """Tell whether it forges anything: a bool, traced if its settings are."""
        return True

    def first_memory(self, message: Params) -> Params:
        """Return the memory of attackers before the first tick; () if they have none.

        Args:
          message: A message, leaves `[...]`, for its shapes.
        """
        return ()

    def remember(self, key: Key, messages: Params, cohort: Cohort, memory: Params) -> Params:
        """Return the memory of attackers after the messages of a tick.

        `messages` and `cohort` are those of `forge`.

        Args:
          memory: What they remembered before.
        """
        return memory


@struct
class Honest(Attack):
    """No attack."""

    name: str = fixed("none")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the messages."""
        return messages

    def is_forging(self) -> bool:
        """Return False."""
        return False


def in_wide(function: Callable[..., Array], messages: Params, *others: Params) -> Params:
    """Apply a function to every leaf in at least 32 bits.

    Args:
      function: From leaves `f[S, ...]` to new ones.
      messages: Leaves `[S, ...]`.
      others: Further arguments, with leaves in the same places, of at least 32 bits.

    Returns:
      The new leaves, in the messages' types.
    """
    return jax.tree.map(
        lambda leaf, *more: function(wide_of(leaf), *more).astype(leaf.dtype), messages, *others
    )


def mean_over(slots: Array, leaf: Array) -> Array:
    """Average over some of the slots, each with the same weight.

    Args:
      slots: `bool[S]`, which of them.
      leaf: `f[S, ...]`, of at least 32 bits; any numbers in other slots.

    Returns:
      `f[1, ...]`, which broadcasts to the leaf's shape; 0 if there are no such slots.
    """
    number = jnp.maximum(slots.sum(), 1).astype(leaf.dtype)
    return jnp.where(along(slots, leaf), leaf, 0).sum(axis=0, keepdims=True) / number


@struct
class Scaling(Attack):
    """Send c times one's progress (Bagdasaryan et al. 2020, arXiv 1807.00459).

    With c equal to the number of clients in a mean of equal weights, the global model becomes about
    the attacker's: model replacement. What the attacker has learnt is up to its data, see
    `fedjax_sim.problems.poison`.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = Scaling(scale=10.0).forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged[2] == 10 * 5.0  # what client 2, the malicious one, sends
    """

    name: str = fixed("scaling")
    sign: ClassVar[int] = 1
    """Sign of the factor."""

    scale: AtLeast0 = setting(10.0, "Factor c of the progress.")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Scale each message."""
        factor = self.sign * self.scale
        return in_wide(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, messages)


@struct
class SignFlip(Scaling):
    """Send -c times one's progress (Li et al. 2019, RSA, arXiv 1811.03761).

    The larger c is, the farther back it moves a mean of the messages.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = SignFlip(scale=2.0).forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged[2] == -2 * 5.0  # what client 2, the malicious one, sends
    """

    name: str = fixed("sign_flip")
    sign: ClassVar[int] = -1

    scale: AtLeast0 = setting(1.0, "Factor c of the reversed progress.")


@struct
class Gaussian(Attack):
    """Send independent normal numbers with mean 0 (Blanchard et al. 2017, arXiv 1703.02757).

    Attackers of one tick draw different numbers.

        hyper = fedavg.Hyper(attack=parse_attack("gaussian:deviation=2"), malicious=0.2)
    """

    name: str = fixed("gaussian")

    deviation: AtLeast0 = setting(1.0, "Standard deviation of each number.")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Draw a message for each slot."""

        def draw(wide: Array, key: Key) -> Array:
            noise = jax.random.normal(key, wide.shape, wide.dtype)
            return jnp.asarray(self.deviation, wide.dtype) * noise

        return in_wide(draw, messages, optax.tree.split_key_like(key, messages))


@struct
class FreeRider(Gaussian):
    """Send no progress, which needs no training (Lin et al. 2019, arXiv 1911.12560).

    With a deviation above 0, noise on the received model disguises it (Fraboni et al. 2021, arXiv
    2006.11901; here the noise does not decay).

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = FreeRider().forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged[2] == 0
    """

    name: str = fixed("free_rider")

    deviation: AtLeast0 = setting(
        0.0, "Standard deviation of the noise in each number, which disguises it."
    )


@struct
class NotFinite(Attack):
    """Send numbers that are not finite, as faulty clients do: one message spoils every mean.

    The server leaves such messages out, see `fedjax_sim.server.stages`.

        hyper = fedavg.Hyper(attack=NotFinite(value="inf"), attackers=(3, 7))
    """

    name: str = fixed("not_finite")

    value: Literal["nan", "inf"] = setting("nan", "What every number of a message is.")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Fill each message."""
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, float(self.value)), messages)


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
        return in_wide(
            lambda leaf: -jnp.asarray(self.strength, leaf.dtype) * mean_over(slots, leaf), messages
        )


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

        keys = optax.tree.split_key_like(streams.lane_key(key), now)
        before = jax.tree.map(begun, memory.direction, now, keys)
        pulls = _products(apart, before)[:, 0]
        moved = jax.tree.map(lambda leaf: along(pulls, leaf).astype(leaf.dtype) * leaf, apart)
        pulled = _of_length_1(jax.tree.map(lambda leaf: leaf.sum(axis=0, keepdims=True), moved))
        # Equal messages, such as a single one in the first tick, pull nowhere.
        moves = _products(pulled, pulled)[0, 0] > 0
        turned = _of_length_1(jax.tree.map(mixed, memory.direction, pulled))
        direction = optax.tree.where(moves, turned, _of_length_1(before))
        target = cohort.clients[_farthest(wide, direction, slots)]
        mean, direction = jax.tree.map(lambda leaf: leaf[0], (mean, direction))
        learnt = Watched(ticks, mean, direction, target)
        kept = optax.tree.where(ticks < self.warmup, learnt, memory)
        return kept._replace(ticks=ticks + 1)

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return that client's message: leaves `[1, ...]`."""
        slots = cohort.references()
        if not self.warmup:
            chosen = jnp.argmin(jnp.where(slots, cohort.clients, np.iinfo(np.int32).max))
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

    perturbation: Literal["std", "unit", "sign"] = setting(
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

        def moved(leaf: Array, mu: Array, p: Array) -> Array:
            return (largest * (mu + gamma.astype(p.dtype) * p)).astype(leaf.dtype)

        return jax.tree.map(moved, messages, mean, direction)

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
        flat = (leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(apart))
        farthest = functools.reduce(jnp.add, [jnp.square(leaf).sum(axis=1) for leaf in flat]).max()
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

    def largest_in(leaf: Array) -> Array:
        return jnp.where(along(slots, leaf), jnp.abs(leaf), 0).max(initial=0)

    largest = divisor(functools.reduce(jnp.maximum, map(largest_in, jax.tree.leaves(messages))))
    return jax.tree.map(lambda leaf: leaf / largest.astype(leaf.dtype), messages), largest


def _products(left: Params, right: Params) -> Array:
    """Compute inner products of messages: `f[A, B]` of leaves `f[A, ...]` and `f[B, ...]`."""

    def product(x: Array, y: Array) -> Array:
        x, y = (leaf.reshape(leaf.shape[0], -1) for leaf in (x, y))
        return jnp.matmul(x, y.T, precision="highest")

    return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(product, left, right)))


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


@struct
class Canary(Attack):
    """Send a vector of one's own in a random direction, or 0, as a fair coin says.

    Coins and directions depend on the client's number and the seed alone.

        canary, clients = Canary(seed=1), jnp.array([0, 5])
        everyone = Cohort(clients, jnp.ones(2, bool), jnp.ones(2, bool), jnp.full(2, 1 / 2))
        norms = jnp.linalg.norm(canary.forge(key, jnp.ones((2, 3)), everyone), axis=1)
        assert jnp.allclose(norms, canary.included(clients))  # 1, or 0 if the coin says no
    """

    name: str = fixed("canary")

    norm: settings.Above0 = setting(1.0, "L2 norm of the vector; at least the bound C of clipping.")
    seed: Whole = setting(0, "Seed of coins and directions.", traced=True)

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the clients' vectors, or 0."""
        like = jax.tree.map(lambda leaf: leaf[0], messages)
        clients = jnp.maximum(cohort.clients, 0)
        coins = jax.vmap(self._coin)(clients)

        def vector(client: Array, coin: Array) -> Params:
            flat, restored = ravel_pytree(like)
            direction = self._direction(client, flat.shape[0]).astype(flat.dtype)
            return restored(jnp.where(coin, self.norm, 0).astype(flat.dtype) * direction)

        return jax.vmap(vector)(clients, coins)

    def included(self, clients: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Tell which canaries take part. clients: their numbers, `i32[m]`.

        Returns:
          `bool[m]`.
        """
        return np.asarray(jax.vmap(self._coin)(jnp.asarray(clients, "int32")))

    def scores(
        self,
        models: Params,
        clients: npt.ArrayLike,
        timeline: Timeline | None = None,
        *,
        bands: int = 1,
    ) -> npt.NDArray[np.float64]:
        """Score how much the server's moves look as if each canary took part.

        A score is the sum over ticks of the move along the canary's direction, times the weight of
        the canary in the tick. Noise that is correlated is first made independent again.

        Args:
          models: The server's models before the first tick and after each, leaves `[T + 1, ...]`,
            of a server whose learning rate is 1 and that has no momentum.
          clients: Numbers of the canaries, `i32[m]`.
          timeline: The schedule if it is public, otherwise None, for equal weights.
          bands: As in the settings `correlated` of privacy.

        Returns:
          `f64[m]`.

        Raises:
          ConfigError: If there is not one model more than ticks.
        """
        flat = np.asarray(jax.vmap(lambda model: ravel_pytree(model)[0])(models), float)
        moves, numbers = np.diff(flat, axis=0), np.asarray(clients)
        shares = np.ones((len(moves), len(numbers)))
        if timeline is not None:
            if len(timeline.clients) != len(moves):
                allowed = (
                    f"{len(timeline.clients) + 1}, one before each tick and one after the last"
                )
                raise ConfigError("number of models", len(flat), allowed)
            who, weight = np.asarray(timeline.clients), np.asarray(timeline.weight, float)
            of_each = [np.where(who == each, weight, 0).sum(axis=1) for each in numbers]
            has_noise = (who != EMPTY).any(axis=1)
            moves, shares = moves[has_noise], np.stack(of_each, axis=1)[has_noise]
        if bands > 1:
            moves, shares = _decorrelated(moves, bands), _decorrelated(shares, bands)
        of = jax.vmap(lambda client: self._direction(client, flat.shape[1]))
        directions = np.asarray(of(jnp.asarray(numbers, "int32")), float)
        return ((moves @ directions.T) * shares).sum(axis=0)

    def _coin(self, client: Array) -> Array:
        """Draw the coin of a client, `bool[]`."""
        return jax.random.bernoulli(jax.random.fold_in(self._key_of(client), 0))

    def _direction(self, client: Array, dim: int) -> Array:
        """Draw the direction of a client, `f32[dim]` of norm 1."""
        vector = jax.random.normal(jax.random.fold_in(self._key_of(client), 1), (dim,), "float32")
        return vector / jnp.linalg.norm(vector)

    def _key_of(self, client: Array) -> Key:
        """Return the key of a client's draws."""
        return jax.random.fold_in(jax.random.key(jnp.asarray(self.seed).astype("int32")), client)


def _decorrelated(rows: np.ndarray, bands: int) -> np.ndarray:
    """Multiply rows `f64[T, ...]` by the matrix that makes the noises of ticks independent."""
    found = np.zeros_like(rows)
    for lag, coefficient in enumerate(square_root_bands(min(bands, len(rows)))):
        found[lag:] += coefficient * rows[: len(rows) - lag]
    return found


@struct
class OneAttack(settings.OneOfSeveral, Attack):
    """One of several attacks, chosen by its number, which is traced and can be swept.

    `attacks_of_one_program` makes such attacks of a list. As of `rules.OneOf`, only the chosen one
    is executed where lanes run one after another.

        second = OneAttack(which=1, options=(Honest(), Scaling(scale=3.0)))
        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = second.forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged[2] == 3 * 5.0
    """

    name: str = fixed("one_of")

    which: Whole = setting(0, "Number of the attack, counted from 0.", traced=True)
    options: tuple[Attack, ...] = setting(
        (Honest(),),
        "The attacks.",
        allowed="a tuple of attacks; on the command line joined by |, and written last",
        parse=lambda text: tuple(map(parse_attack, text.split("|"))),
    )

    def is_forging(self) -> Array:
        """Tell whether the chosen attack forges anything: `bool[]`."""
        return jnp.stack([jnp.asarray(attack.is_forging()) for attack in self.options])[self.number]

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the chosen attack's messages."""

        memories = cohort.memory or [()] * len(self.options)

        def in_form(leaf: Array, like: Array) -> Array:
            return jnp.broadcast_to(leaf, like.shape).astype(like.dtype)

        def forging(attack: Attack, memory: Params) -> Params:
            forged = attack.forge(key, messages, cohort._replace(memory=memory))
            return jax.tree.map(in_form, forged, messages)

        pairs = zip(self.options, memories, strict=True)
        return jax.lax.switch(self.number, [functools.partial(forging, *each) for each in pairs])

    def first_memory(self, message: Params) -> Params:
        """Return a memory for each attack; () if none needs one."""
        memories = tuple(attack.first_memory(message) for attack in self.options)
        return memories if jax.tree.leaves(memories) else ()

    def remember(self, key: Key, messages: Params, cohort: Cohort, memory: Params) -> Params:
        """Return the memories of all attacks, whichever is chosen."""
        pairs = zip(self.options, memory, strict=True)
        return tuple(attack.remember(key, messages, cohort, each) for attack, each in pairs)


ATTACKS: Named[type[Attack]] = Named.of(
    "attack",
    *(Honest, SignFlip, Scaling, Gaussian, FreeRider, NotFinite),
    *(ALittleIsEnough, InnerProduct, MinMax, MinSum, Mimic, OneAttack),
    example="sign_flip:scale=2",
)
"""Every kind of attack, by name."""
BLIND = (Honest, SignFlip, Scaling, Gaussian, FreeRider, NotFinite, Canary)
"""Attacks of clients that know only their own message.

Others would bring one client's update into the messages of many, whose sum no bound of one update
limits then.
"""


def parse_attack(text: str) -> Attack:
    """Read an attack from text.

        assert parse_attack("alie:z=1.5") == ALittleIsEnough(z=1.5)

    Args:
      text: A name of `ATTACKS`, followed by values for its fields, such as
        "min_max:perturbation=sign". Other fields have their defaults.

    Returns:
      The attack.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("attack", ATTACKS, text, last="options")


def attacks_of_one_program(attacks: Sequence[Attack]) -> list[OneAttack]:
    """Make attacks that share the compiled program of a sweep, one for each of a list.

        attacks = attacks_of_one_program([Honest(), SignFlip(), SignFlip(scale=3.0)])
        settings = {"adversary.attack": attacks, "malicious": [0.1, 0.2]}

    Args:
      attacks: Attacks, several of which may differ in numbers alone.

    Returns:
      As many attacks, each of which is one of the same kinds.
    """
    places = settings.alternatives(attacks)
    return [OneAttack(which=which, options=options) for which, options in places]


ROUNDING = 1e-5
"""Tolerance of the mean weight, relative: a mean of equal weights is rounded."""


def _is_attack(attack: object) -> bool:
    return not isinstance(attack, Honest)


@struct
class Adversary(settings.Checked):
    """Settings of an attack on the messages that clients send to the server.

    They are a group of the settings of every system that averages messages.

        twenty_ticks = Adversary(
            attack=SignFlip(), malicious=0.2, attack_from=100, attack_ticks=20
        )
        hyper = fedavg.Hyper(adversary=twenty_ticks, aggregator=Median())
    """

    attack: Attack = setting(
        Honest(),
        "What malicious clients send instead of their progress.",
        allowed=ATTACKS,
        parse=parse_attack,
    )
    malicious: settings.Probability = setting(
        0.0,
        "Share of the clients that are malicious. Its product with the number of clients is "
        "rounded. Which clients they are is drawn for each seed; those of a smaller share stay "
        "malicious with a larger one.",
        simpler_at=(0.0,),
        only_with={"attack": _is_attack, "attackers": lambda clients: not clients},
    )
    attackers: tuple[Whole, ...] = settings.clients_named(
        "Numbers of the clients that are malicious, instead of a share of them.",
        only_with={"attack": _is_attack},
    )
    attack_from: Whole = setting(
        0,
        "Number of server actions before the attack; malicious clients are honest until then.",
        begins="the attack",
        only_with={"attack": _is_attack},
        traced=True,
    )
    attack_ticks: Whole = setting(
        0,
        "Number of server actions that the attack lasts; 0 is for ever.",
        only_with={"attack": _is_attack},
        traced=True,
    )
    attack_when: Literal["always", "heavy"] = setting(
        "always",
        "Whether malicious clients send forgeries always, or only where their weight in the "
        "server action is at least the mean weight of those who report, as it is for heavy "
        "reports of asynchronous systems. Otherwise they are honest.",
        only_with={"attack": _is_attack},
    )

    @property
    def is_nobody(self) -> bool:
        """Whether it is known that no client is malicious."""
        return not self.attackers and settings.is_known(self.malicious, 0)

    @property
    def is_idle(self) -> bool:
        """Whether it is known that no client attacks."""
        return isinstance(self.attack, Honest) or self.is_nobody


def are_malicious(adversary: Adversary, key: Key, num_clients: int, clients: Array) -> Array:
    """Tell which clients are malicious, at work or not.

        adversary = Adversary(attack=SignFlip(), malicious=0.2)
        key = stream(jax.random.key(0), "learning")  # of the lane with seed 0
        is_malicious = are_malicious(adversary, key, 10, jnp.arange(10))

    Args:
      adversary: The settings.
      key: The lane's learning key.
      num_clients: Number of clients, N.
      clients: `i32[...]`, numbers of clients below N; others are taken for client 0 where a share
        is malicious.

    Returns:
      `bool[...]`, of round(malicious * N) clients true, or of those in `attackers`.

    Raises:
      ConfigError: If `attackers` names a client that there is not.
    """
    if adversary.attackers:
        if max(adversary.attackers) >= num_clients:
            allowed = f"of clients from 0 to {num_clients - 1}"
            raise ConfigError("adversary.attackers", adversary.attackers, allowed)
        return jnp.isin(clients, jnp.asarray(adversary.attackers, "int32"))
    # Who comes early in a random order of the clients, so that shares are nested.
    bits = streams.shuffle_bits(streams.lane_stream(key, "malicious"))
    places = streams.shuffled_index(bits, jnp.maximum(clients, 0), num_clients)
    return places < jnp.round(jnp.asarray(adversary.malicious, float) * num_clients)


class Senders(NamedTuple):
    """The senders that slots of a tick can name, and those of them that attack.

        adversary = Adversary(attack=SignFlip(), attackers=(3,), attack_from=10)
        senders = Senders(8, adversary)
        before = senders.attackers(key, event.within(tick=9))
        after = senders.attackers(key, event.within(tick=10))
        assert not before.any() and after.tolist() == [False, True]  # clients 0 and 3

    Attributes:
      number: How many there are, N.
      adversary: Who of them is malicious.
      can_repeat: Whether one may fill several slots of a tick.
      are_read: Whether the server leaves out messages that are not finite, whoever sends them.
    """

    number: int
    adversary: Adversary
    can_repeat: bool = False
    are_read: bool = False

    def attackers(self, key: Key, event: Event) -> Array:
        """Find the slots in which an attacker is at work.

        Args:
          key: The lane's learning key.
          event: The tick.

        Returns:
          `bool[S]`; False in empty slots.
        """
        adversary = self.adversary
        clients, weight = jnp.asarray(event.clients), jnp.asarray(event.weight)
        slots = (clients >= 0) & are_malicious(adversary, key, self.number, clients)
        slots = slots & adversary.attack.is_forging()
        since = event.tick - adversary.attack_from
        lasting = jnp.asarray(adversary.attack_ticks)
        slots = slots & (since >= 0) & ((lasting == 0) | (since < lasting))
        if adversary.attack_when == "heavy":
            is_present = clients >= 0
            mean = jnp.where(is_present, weight, 0).sum() / jnp.maximum(is_present.sum(), 1)
            slots = slots & (weight >= (1 - ROUNDING) * mean)
        return slots

    def finite_clients(self, event: Event, reports: Params) -> Array:
        """Return the clients of a tick with finite messages: `i32[S]`, `EMPTY` for others.

        Of a message that is not finite nobody keeps anything, where the server leaves it out.

        Args:
          reports: Leaves `[S, ...]`.
        """
        if self.adversary.is_idle and not self.are_read:
            return event.clients
        return jnp.where(finite(reports, event.clients != EMPTY)[1], event.clients, EMPTY)
