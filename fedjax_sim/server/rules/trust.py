"""A rule that trusts messages as far as they agree with an update of the server's own.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.core.batching import weighted_sum
from fedjax_sim.core.checking import Count, Whole
from fedjax_sim.core.settings import clients_named, filled, fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import divisor, wide_of
from fedjax_sim.server.rules.base import Rule
from fedjax_sim.server.rules.centres import distances_to


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
