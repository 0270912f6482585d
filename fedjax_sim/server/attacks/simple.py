"""Attacks of clients that know no message but their own.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.core.settings import AtLeast0, fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.server.attacks.base import Attack, Cohort, in_wide


@struct
class SignFlip(Attack):
    """Send -c times one's progress (Li et al. 2019, RSA, arXiv 1811.03761).

    The larger c is, the farther back it moves a mean of the messages.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        forged = SignFlip(scale=2.0).forge(key, jnp.array([[1.0], [3.0], [5.0]]), cohort)
        assert forged[2] == -2 * 5.0  # what client 2, the malicious one, sends
    """

    name: str = fixed("sign_flip")

    scale: AtLeast0 = setting(1.0, "Factor c of the reversed progress.")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Reverse and scale each message."""
        return _scaled(messages, -self.scale)


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

    scale: AtLeast0 = setting(10.0, "Factor c of the progress.")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Scale each message."""
        return _scaled(messages, self.scale)


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
        return _noise(key, messages, self.deviation)


@struct
class FreeRider(Attack):
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

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return zeros with noise."""
        return _noise(key, messages, self.deviation)


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


def _scaled(messages: Params, factor: Any) -> Params:
    """Multiply messages by a number."""

    def product(leaf: Array) -> Array:
        return jnp.asarray(factor, leaf.dtype) * leaf

    return in_wide(product, messages)


def _noise(key: Key, messages: Params, deviation: Any) -> Params:
    """Draw normal numbers with mean 0 in the shapes and types of messages."""

    def draw(wide: Array, key: Key) -> Array:
        noise = jax.random.normal(key, wide.shape, wide.dtype)
        return jnp.asarray(deviation, wide.dtype) * noise

    return in_wide(draw, messages, optax.tree.split_key_like(key, messages))


KINDS = (SignFlip, Scaling, Gaussian, FreeRider, NotFinite)
"""The attacks of this file."""
