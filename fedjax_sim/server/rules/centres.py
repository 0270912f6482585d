"""Rules that weigh whole messages by their length, or by their agreement with the server's update.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.core.batching import weighted_sum
from fedjax_sim.core.settings import clients_named, filled, fixed, setting, struct
from fedjax_sim.core.settings.declared import Above0, Count, Whole
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import divisor, root, wide_of
from fedjax_sim.server.rules.base import Rule
from fedjax_sim.server.rules.coordinates import Median


@struct
class GeometricMedian(Rule):
    """The point with the least weighted sum of distances (Pillutla et al. 2022, arXiv 1912.13445).

    The smoothed Weiszfeld algorithm: v <- sum_i b_i x_i / sum_i b_i, b_i = w_i / max(nu,
    ||v - x_i||). With a share a of the weight malicious, a < 1/2, the geometric median is at most
    2 (1 - a) / (1 - 2 a) times as far from any point as the farthest honest message is.

    Deviation: v starts at the weighted median of each coordinate instead of the weighted mean, from
    which a message of 1e30 would leave no digit of the others, and few iterations are enough.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = GeometricMedian().centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, 2.0, rtol=1e-3)  # on a line, it is the median
    """

    name: str = fixed("geometric_median")
    weighs: ClassVar[bool] = True

    iterations: Count = setting(3, "Number of Weiszfeld iterations, R.")
    smoothing: Above0 = setting(1e-6, "Distance below which a message does not weigh more, nu.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return an approximate geometric median; the key is not used."""
        wide = jax.tree.map(wide_of, messages)

        def improve(_: Array, point: Params) -> Params:
            pull = weight / jnp.maximum(distances_to(point, wide), self.smoothing)
            return weighted_sum(pull / pull.sum(), wide)

        start = Median().centre(key, wide, weight, is_present)
        centre = jax.lax.fori_loop(0, self.iterations, improve, start)
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), centre, messages)


@struct
class CentredClipping(Rule):
    """Steps towards the messages, of bounded length (Karimireddy et al. 2021, arXiv 2012.10333).

    v <- v + sum_i w_i (x_i - v) min(1, tau / ||x_i - v||), with weights that sum to 1.
    Each message moves the centre by at most its weight times tau in an iteration. Of equal
    messages, the centre is that message if it is not longer than tau times the iterations;
    otherwise it is shortened to this length.

    Deviation: in the paper, v starts at the last tick's centre, and clients send momenta, so that
    this is close to the next messages. Here v starts at 0, that is at the server's model, and the
    rule remembers nothing.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = CentredClipping(radius=3.0).centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, (1 + 2 + 3) / 3)  # a step of 3 towards 90
    """

    name: str = fixed("centred_clipping")
    weighs: ClassVar[bool] = True

    radius: Above0 = setting(1.0, "Largest step towards a message, tau.")
    iterations: Count = setting(1, "Number of iterations, L.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the centre after all iterations; the key is not used."""
        wide = jax.tree.map(wide_of, messages)
        share = weight / weight.sum()

        def step(_: Array, point: Params) -> Params:
            pull = share * shortening(distances_to(point, wide), self.radius)
            stays = 1 - pull.sum()
            return jax.tree.map(
                lambda moved, leaf: moved + (stays * leaf).astype(leaf.dtype),
                weighted_sum(pull, wide),
                point,
            )

        start = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), wide)
        centre = jax.lax.fori_loop(0, self.iterations, step, start)
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), centre, messages)


@struct
class NormBound(Rule):
    """The weighted mean of messages of bounded norm (Sun et al. 2019, arXiv 1911.07963).

    Each message moves the centre by at most its weight's share times the bound. Of equal messages,
    the centre is that message, shortened to the bound if it is longer.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = NormBound(bound=3.0).centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, (1 + 2 + 3) / 3)
    """

    name: str = fixed("norm_bound")
    weighs: ClassVar[bool] = True

    bound: Above0 = setting(1.0, "Largest L2 norm of a message, M.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the weighted mean of shortened messages; the key is not used."""
        origin = jax.tree.map(lambda leaf: jnp.zeros_like(wide_of(leaf[0])), messages)
        pull = shortening(distances_to(origin, messages), self.bound)
        return weighted_sum(weight / weight.sum() * pull, messages)


def shortening(norms: Array, most: Any) -> Array:
    """Compute the factors that shorten vectors to at most a norm: min(1, most / norm).

    Args:
      norms: `f[S]`.
      most: The largest norm.

    Returns:
      `f[S]`, 1 for vectors that are short enough.
    """
    return jnp.where(norms > most, most / divisor(norms), 1)


def distances_to(point: Params, messages: Params) -> Array:
    """Compute the distance of each message from a point.

    It is exact, up to rounding, even where its square is too large for the type.

    Args:
      point: Leaves `f[...]`.
      messages: Leaves `[S, ...]`.

    Returns:
      `f[S]`; infinite where the distance itself is too large for the type.
    """

    norms = jax.tree.map(_leaf_distances, messages, point)
    parts = jnp.stack(jnp.broadcast_arrays(*jax.tree.leaves(norms)))
    largest = parts.max(axis=0)
    ratios = parts / divisor(largest)[None]
    return jnp.where(jnp.isfinite(largest), largest * root(jnp.square(ratios).sum(axis=0)), jnp.inf)


def _leaf_distances(leaf: Array, start: Array) -> Array:
    """Compute distances in one leaf: `f[S]`."""
    wide, axes = wide_of(leaf), tuple(range(1, leaf.ndim))
    # Squares of numbers times this power of two are never too large.
    small = 2.0 ** -(jnp.finfo(wide.dtype).maxexp * 5 // 8)
    plain = jnp.square(wide - start[None]).sum(axis=axes)
    scaled = jnp.square(wide * small - (start * small)[None]).sum(axis=axes)
    return root(jnp.where(jnp.isfinite(plain), plain, scaled)) / jnp.where(
        jnp.isfinite(plain), 1, small
    )


@struct
class FLTrust(Rule):
    """The mean of the messages that agree with the server's own update (Cao et al. 2021, NDSS).

    The server has a few examples, the root data, and trains on them as clients do, which gives an
    update g_0 (arXiv 2012.13995). The trust in a message is the positive part of the
    cosine of its angle to g_0. Messages get the length of g_0, and the centre is their mean with
    the trust as weight. It is 0 if nobody is trusted. Of equal messages, the centre is that message
    with the length of g_0.

    Deviation: the paper has no weights. Here trust is multiplied by the weights of the tick, which
    with equal weights is the paper's rule.

    See `fedjax_sim.server.own_updates` for how the server trains.

        rule = FLTrust(examples=50).with_own(jnp.array([2.0, 0.0]))  # the server's own update
        messages = jnp.array([[5.0, 0.0], [-90.0, 0.0], [0.0, 7.0]])
        centre = rule.centre(key, messages, jnp.full(3, 1 / 3), jnp.ones(3, bool))
        assert jnp.allclose(centre, jnp.array([2.0, 0.0]))  # only the first points the same way
    """

    name: str = fixed("fltrust")
    weighs: ClassVar[bool] = True

    examples: Count = setting(
        100, "Examples of the root data, drawn once for each seed; at most all that there are."
    )
    owners: tuple[Whole, ...] = clients_named(
        "Numbers of the clients among whose examples the root data are drawn, instead of all. Of a "
        "poisoned problem, name clients whose examples are clean."
    )
    own: Params = filled()

    def needs_own(self) -> bool:
        """Yes."""
        return True

    def with_own(self, update: Params) -> Rule:
        """Return the rule that compares messages with this update."""
        return dataclasses.replace(self, own=update)

    def roots(self) -> tuple["FLTrust", ...]:
        """Return the rule itself."""
        return (self,)

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the trusted mean; the key is not used."""
        own = jax.tree.map(wide_of, self.own)
        origin = jax.tree.map(jnp.zeros_like, own)
        norms = distances_to(origin, messages)
        [length] = distances_to(origin, jax.tree.map(lambda leaf: leaf[None], own))

        def products(leaf: Array, own: Array) -> Array:
            # With a vector of length 1 they are no larger than the norms.
            unit = own / divisor(length).astype(own.dtype)
            flat = wide_of(leaf).reshape(leaf.shape[0], -1)
            return jnp.matmul(flat, unit.ravel(), precision="highest")

        along = functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(products, messages, own)))
        # Messages whose norm is too large for the type have no trust.
        cosines = jnp.where(jnp.isfinite(norms), along / divisor(norms), 0)
        trust = jnp.maximum(cosines, 0) * weight
        pull = trust / divisor(trust.sum()) * length / divisor(norms)
        return weighted_sum(pull, messages)


KINDS = (GeometricMedian, CentredClipping, NormBound)
"""The rules of this file that need nothing but the messages."""
