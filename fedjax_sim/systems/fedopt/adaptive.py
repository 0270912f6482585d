"""The server's adaptive optimizers of Reddi et al. (2021, arXiv 2003.00295), Algorithm 2.

x <- x + eta m / (sqrt(v) + tau), with m <- beta_1 m + (1 - beta_1) Delta and v by one of the rules
below. They differ from optax's optimizers of the same names, which correct the bias of m and v and
begin with another v.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.server import ServerStep
from fedjax_sim.settings import fixed, real, redefault, struct
from fedjax_sim.types import Array, Params

Rule = Callable[[Array, Array, Array | float], Array]
"""From v, the square of the mean progress, and beta_2 to the next v."""


def adagrad(v: Array, square: Array, decay: Array | float) -> Array:
    """Add up the squares, without any decay."""
    return v + square


def adam(v: Array, square: Array, decay: Array | float) -> Array:
    """Average the squares, older ones less."""
    return decay * v + (1 - decay) * square


def yogi(v: Array, square: Array, decay: Array | float) -> Array:
    """Move towards the square by an amount that does not depend on the distance to it."""
    return v - (1 - decay) * square * jnp.sign(v - square)


def adaptive(
    rule: Rule,
    learning_rate: Array | float,
    *,
    momentum: Array | float,
    decay: Array | float,
    adaptivity: Array | float,
) -> optax.GradientTransformation:
    """Make the optimizer of Algorithm 2.

    Args:
      rule: How v is updated.
      learning_rate: eta.
      momentum: beta_1.
      decay: beta_2.
      adaptivity: tau; v begins with tau^2.
    """

    def init(model: Params) -> tuple[Params, Params]:
        first = jax.tree.map(lambda w: jnp.full_like(w, adaptivity**2), model)
        return optax.tree.zeros_like(model), first

    def update(slope: Params, state: Any, model: Params = None) -> tuple[Params, Any]:
        m = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, state[0], slope)
        v = jax.tree.map(lambda v, g: rule(v, g * g, decay), state[1], slope)
        step = jax.tree.map(lambda m, v: -learning_rate * m / (jnp.sqrt(v) + adaptivity), m, v)
        return step, (m, v)

    return optax.GradientTransformation(init, update)


@struct
class MomentumStep(ServerStep):
    """Settings of SGD with momentum on the server: v <- beta v + Delta, x <- x + eta v."""

    server_optimizer: Any = fixed(None)
    server_momentum: float = real(
        0.9,
        "Momentum of the server, beta: share of its last step that is added to the next.",
        least=0,
        most=0.999,
    )

    def server_transformation(self) -> optax.GradientTransformation:
        """Make the server's optimizer."""
        return optax.sgd(self.server_lr, self.server_momentum)


@struct
class AdaptiveStep(ServerStep):
    """Settings of Algorithm 2 on the server, by default with Adam's rule."""

    server_lr: float = redefault(ServerStep, "server_lr", 0.01)
    server_optimizer: Any = fixed(None)
    rule: Any = fixed(adam)
    first_decay: float = real(0.9, "Decay of the mean of progress, beta_1.", least=0, most=0.999)
    second_decay: float = real(
        0.99, "Decay of the mean of its squares, beta_2.", least=0, most=0.99999
    )
    adaptivity: float = real(
        1e-3, "Progress that counts as small, tau; the less, the more adaptive.", above=0
    )

    def server_transformation(self) -> optax.GradientTransformation:
        """Make the server's optimizer."""
        return adaptive(
            self.rule,
            self.server_lr,
            momentum=self.first_decay,
            decay=self.second_decay,
            adaptivity=self.adaptivity,
        )
