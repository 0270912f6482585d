"""Estimation from more data than memory holds: streams of fresh examples, and examples in files.

What needs all examples at once is computed of a held-out sample of finite size: initial statistics,
metrics, the first memories h_i(S_0), and what a model knows of all data, such as their covariance.
Whole passes do not exist: `em`, `vr_fedem` and `batches="full"` are refused.

Dimension letters: those of `estimation`.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core.settings import ConfigError, Limit, shape
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.partition import Partition
from fedjax_sim.problems import client_data
from fedjax_sim.problems.latent import estimation

Draw = Callable[[Key, Array], Params]
"""From a key and a client's number, `i32[]`, to one example of the client's law."""


@struct.dataclass
class Sampled:
    """Base of a latent-variable model with a held-out sample, whose clients have other examples.

    Attributes:
      sample: The model with the sample, whose examples have the shapes and types of all others.
    """

    sample: estimation.Estimation
    is_sampled: ClassVar[bool] = True

    def _statistics(self, natural: Array, found: Params, weight: Array) -> Array:
        """Compute the weighted sum of expected statistics of examples `[B, ...]`: `f[q]`."""
        rows = jax.tree.map(lambda row, leaf: row.astype(leaf.dtype), found, self.sample.data)
        return self.sample.model.statistics(natural, rows, weight)

    def init(self, key: Key) -> Array:
        """Return the initial statistics S_0 of the sample: `f[q]`."""
        return self.sample.init(key)

    def maximise(self, statistics: Array) -> Params:
        """Compute the M-step: theta = T(s) from statistics `f[q]`."""
        return self.sample.maximise(statistics)

    def unknown(self, params: Params) -> Params:
        """Return the part of theta that a client has to be sent."""
        return self.sample.unknown(params)

    def natural(self, params: Params) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`."""
        return self.sample.natural(params)

    def client_statistics(self, natural: Array) -> Array:
        """Compute every client's mean expected statistics over the sample: `f[N, q]`."""
        return self.sample.client_statistics(natural)

    def evaluate(self, statistics: Array) -> Mapping[str, Array]:
        """Measure the statistics of a server on the sample, as `Estimation.evaluate`."""
        return self.sample.evaluate(statistics)


@struct.dataclass
class Stream(Sampled):
    """A latent-variable model, and clients with endless streams of examples.

    Mini-batches are oracles S_{k+1,i} with the mean of the client's law, independent of the past
    (FedEM, arXiv 2111.02083, A7).

        def draw(key, client):  # z + noise, around a different mean for each client
            return Seen(client + jax.random.normal(key, (1,)), jnp.float32(0.5))

        online = Stream.of(latent, draw)  # `latent` is the held-out sample
        run = fedjax_sim.simulate(
            fedem.system, online, fedem.Hyper(num_clients=2), budget=fedjax_sim.Ticks(20)
        )

    Attributes:
      sample: The model with a held-out sample.
      seed: `u32[]`, of all draws; the j-th example of a client is the same in every run.
      draw: The law of the examples.
    """

    seed: Array
    draw: Draw = struct.field(pytree_node=False)

    @classmethod
    def of(cls, sample: estimation.Estimation, draw: Draw, *, seed: int = 0) -> Self:
        """Build from a held-out sample and a law.

        Args:
          sample: The model with a held-out sample, as `make_estimation` makes it.
          draw: The law: a function from a key and a client's number to one example, of the type
            that the model takes.
          seed: Seed of the examples.

        Raises:
          ConfigError: If the examples are unlike those of the sample.
        """
        made = jax.eval_shape(draw, jax.random.key(0), jax.ShapeDtypeStruct((), "int32"))
        found = jax.tree.map(jnp.shape, made)
        known = jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], sample.data)
        if found != known:
            raise ConfigError("draw", f"a function to {found}", f"one to {known}, as in the sample")
        return cls(sample, jnp.uint32(seed), draw)

    @property
    def counts(self) -> Array:
        """Examples of a client, of which mini-batches are drawn: as many as whole numbers allow."""
        num = self.sample.counts.shape[0]
        return jnp.full(num, np.iinfo("int32").max // num, "int32")

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """Draw examples, and compute the weighted sum of their expected statistics: `f[q]`.

        The arguments are those of `Estimation.statistics`.
        """
        own = jax.random.fold_in(jax.random.key(self.seed), client)
        found = jax.vmap(lambda place: self.draw(jax.random.fold_in(own, place), client))(examples)
        return self._statistics(natural, found, weight * self.sample.share[client])


@struct.dataclass
class WithSample(client_data.ClientExamples, Sampled):
    """A latent-variable model, and clients with examples that may lie in files.

        seen = Seen(np.ones((6, 1), "float32"), np.full(6, 0.5, "float32"))
        split = iid(np.zeros(6, "int32"), num_clients=2, seed=0)
        train = WithSample.of(latent, datasets.stored(seen), split)
        run = fedjax_sim.simulate(
            fedem.system, train, fedem.Hyper(num_clients=2), budget=fedjax_sim.Ticks(20)
        )

    Attributes:
      sample: The model with a held-out sample, which is in memory.
      data: Examples of all clients: leaves `[n, ...]`.
      held: The positions of the clients' examples in `data`.
      share: `f[N]`, weights of the clients, with mean 1.
    """

    data: Params
    held: client_data.Held
    share: Annotated[Array, shape("N"), Limit(above=0)]

    @classmethod
    def of(
        cls,
        sample: estimation.Estimation,
        data: Any,
        split: Partition,
        *,
        weighting: str = "pooled",
    ) -> Self:
        """Build from a held-out sample and data. All data are read once, for checks.

        Args:
          sample: The model with a held-out sample of as many clients, as `make_estimation` makes
            it.
          data: Examples of all clients, such as `fedjax_sim.datasets.stored` opens them.
          split: Who holds which example.
          weighting: As in `make_estimations`.

        Raises:
          ConfigError: If examples are unlike those of the sample, if the model refuses them, or if
            the numbers of clients differ.
        """
        found, num, source = client_data.read_examples(data)
        form, known = (
            jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], each) for each in (found, sample.data)
        )
        if form != known:
            raise ConfigError("an example of data", form, f"{known}, as in the sample")
        if (clients := len(split.counts)) != (allowed := sample.counts.shape[0]):
            raise ConfigError("number of clients", clients, f"{allowed}, as in the sample")
        for block in [found] if source is None else source.blocks():
            rows = jax.tree.map(lambda row, leaf: jnp.asarray(row, leaf.dtype), block, sample.data)
            size = len(jax.tree.leaves(rows)[0])
            estimation.tell(sample.model, rows, jnp.full(size, 1 / size, sample.share.dtype))
        [held] = client_data.hold([split], num, source)
        shares = estimation.shares_of(split, weighting)
        made = cls(sample, found, held, jnp.asarray(shares, sample.share.dtype))
        made.check_values()
        return made

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """Compute the weighted sum of expected statistics of some examples, times the share.

        The arguments are those of `Estimation.statistics`.
        """
        found = client_data.rows_of(self.data, self.held.at(client, examples))
        return self._statistics(natural, found, weight * self.share[client])
