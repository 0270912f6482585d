"""Estimation from streams: every mini-batch has fresh examples (FedEM, arXiv 2111.02083, A7).

Dimension letters: those of `estimation`.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.problems.latent.estimation import Estimation

Draw = Callable[[Key, Array], Params]
"""From a key and a client's number, `i32[]`, to one example of the client's law."""


@struct.dataclass
class Stream:
    """A latent-variable model, and clients with endless streams of examples.

    Mini-batches are oracles S_{k+1,i} with the mean of the client's law, independent of the past.
    Whole passes do not exist: `em`, `vr_fedem` and `batches="full"` are refused. Metrics, initial
    statistics and the first memories h_i(S_0) are those of a held-out sample of finite size.

        def draw(key, client):  # z + noise, around a different mean for each client
            return Seen(client + jax.random.normal(key, (1,)), jnp.float32(0.5))

        online = Stream.of(latent, draw)  # `latent` is the held-out sample
        run = fedjax_sim.simulate(
            fedem.system, online, fedem.Hyper(num_clients=2), budget=fedjax_sim.Ticks(20)
        )

    Attributes:
      held: The model with a held-out sample.
      seed: `u32[]`, of all draws; the j-th example of a client is the same in every run.
      draw: The law of the examples.
    """

    held: Estimation
    seed: Array
    draw: Draw = struct.field(pytree_node=False)
    is_endless: ClassVar[bool] = True

    @classmethod
    def of(cls, held: Estimation, draw: Draw, *, seed: int = 0) -> Self:
        """Build from a held-out sample and a law.

        Args:
          held: The model with a held-out sample, as `make_estimation` makes it.
          draw: The law: a function from a key and a client's number to one example, of the type
            that the model takes.
          seed: Seed of the examples.

        Raises:
          ConfigError: If the examples are unlike those of the sample.
        """
        made = jax.eval_shape(draw, jax.random.key(0), jax.ShapeDtypeStruct((), "int32"))
        found = jax.tree.map(jnp.shape, made)
        known = jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], held.data)
        if found != known:
            raise ConfigError("draw", f"a function to {found}", f"one to {known}, as in the sample")
        return cls(held, jnp.uint32(seed), draw)

    @property
    def counts(self) -> Array:
        """Examples of a client, of which mini-batches are drawn: as many as whole numbers allow."""
        num = self.held.counts.shape[0]
        return jnp.full(num, np.iinfo("int32").max // num, "int32")

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """Draw examples, and compute the weighted sum of their expected statistics: `f[q]`.

        The arguments are those of `Estimation.statistics`.
        """
        own = jax.random.fold_in(jax.random.key(self.seed), client)
        rows = jax.vmap(lambda place: self.draw(jax.random.fold_in(own, place), client))(examples)
        rows = jax.tree.map(lambda row, leaf: row.astype(leaf.dtype), rows, self.held.data)
        return self.held.model.statistics(natural, rows, weight * self.held.share[client])

    def init(self, key: Key) -> Array:
        """Return the initial statistics S_0 of the sample: `f[q]`."""
        return self.held.init(key)

    def maximise(self, statistics: Array) -> Params:
        """Compute the M-step: theta = T(s) from statistics `f[q]`."""
        return self.held.maximise(statistics)

    def unknown(self, params: Params) -> Params:
        """Return the part of theta that a client has to be sent."""
        return self.held.unknown(params)

    def natural(self, params: Params) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`."""
        return self.held.natural(params)

    def client_statistics(self, natural: Array) -> Array:
        """Compute every client's mean expected statistics over the sample: `f[N, q]`."""
        return self.held.client_statistics(natural)

    def evaluate(self, statistics: Array) -> Mapping[str, Array]:
        """Measure the statistics of a server on the sample, as `Estimation.evaluate`."""
        return self.held.evaluate(statistics)
