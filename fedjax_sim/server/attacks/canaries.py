"""Visible clients, canaries, for audits of a training's privacy.

A canary sends a vector in its own direction or nothing, as a coin says. Settings for an audit:

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

Dimension letters: those of `fedjax_sim.core.types`; `m` canaries.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree

from fedjax_sim.core.settings import Above0, ConfigError, Whole, fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params, Timeline
from fedjax_sim.server.attacks.base import Attack, Cohort
from fedjax_sim.server.privacy import square_root_bands


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

    norm: Above0 = setting(1.0, "L2 norm of the vector; at least the bound C of clipping.")
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
            shares = _shares(timeline, numbers)
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


def _shares(timeline: Timeline, numbers: np.ndarray) -> np.ndarray:
    """Sum the weights of canaries in every tick, `f64[T, m]`."""
    clients, weight = np.asarray(timeline.clients), np.asarray(timeline.weight, float)
    return np.stack([np.where(clients == each, weight, 0).sum(axis=1) for each in numbers], axis=1)


def _decorrelated(rows: np.ndarray, bands: int) -> np.ndarray:
    """Multiply rows `f64[T, ...]` by the matrix that makes the noises of ticks independent."""
    found = np.zeros_like(rows)
    for lag, coefficient in enumerate(square_root_bands(min(bands, len(rows)))):
        found[lag:] += coefficient * rows[: len(rows) - lag]
    return found
