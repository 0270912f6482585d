"""Penalised maximum likelihood of a latent-variable model from data on the client axis: the problem of expectation maximisation."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import Array, Key, LatentModel, Params


@struct.dataclass
class Estimation:
    """The objective is F(theta) = sum_i share_i / N mean_j -log p(y_ij; theta) + R(theta); a client's statistics are times its share.

    All examples lie on the device once; a partition is an index array. Letters as in `types`, and `M` places for examples of a client.
    """

    model: LatentModel
    data: Any  # leaves [examples, ...]
    index: Array  # i32[N, M]  positions of the clients' examples, padded
    counts: Array  # i32[N]  true numbers of examples
    share: Array  # f[N]  weights of clients, of mean 1
    start: Array | None = None  # f[q]  S_0; drawn if None

    def init(self, key: Key) -> Array:
        """Draw S_0: the mean statistics under initial parameters of the model's, unless they are given."""
        if self.start is not None:
            return self.start
        natural = self.model.initial(key, *self._pooled())
        return self.client_statistics(natural).mean(axis=0)

    def maximise(self, statistics: Array) -> Params:
        """T(s)."""
        return self.model.maximise(statistics)

    def unknown(self, params: Params) -> Params:
        """What of theta a client has to be sent: all of it, unless the model knows better."""
        return getattr(self.model, "unknown", lambda whole: whole)(params)

    def natural(self, params: Params) -> Array:
        """phi(theta): `f[q]`."""
        return self.model.natural(params)

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """Weighted sum of the expected statistics of a client's examples, times its share: `f[q]`."""
        return self.model.statistics(
            natural, self._rows(self.index[client, examples]), weight * self.share[client]
        )

    def client_statistics(self, natural: Array) -> Array:
        """Every client's mean expected statistics, times its share: `f[N, q]`."""
        return jax.vmap(self.model.statistics, in_axes=(None, 0, 0))(
            natural, self._rows(self.index), self._weights()
        )

    def objective(self, params: Params) -> Array:
        """F(theta)."""
        losses = jax.vmap(self.model.loss, in_axes=(None, 0))(params, self._rows(self.index))
        weights = self._weights()
        return jnp.sum(jnp.where(weights > 0, losses, 0) * weights) / self.counts.shape[
            0
        ] + self.model.penalty(params)

    def mean_field(self, statistics: Array) -> Array:
        """The field h(s) whose roots are the fixed points of EM, s bar(T(s)) - s: `f[q]`."""
        return (
            self.client_statistics(self.natural(self.maximise(statistics))).mean(axis=0)
            - statistics
        )

    def evaluate(self, statistics: Array) -> Mapping[str, Array]:
        """F(T(s)) as "objective", ||h(s)||^2 as "mean_field", and what the model watches."""
        params = self.maximise(statistics)
        metrics = {
            "objective": self.objective(params),
            "mean_field": jnp.sum(jnp.square(self.mean_field(statistics))),
        }
        return {**metrics, **self.model.metrics(statistics, params)}

    def _rows(self, places: Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[places], self.data)

    def _weights(self) -> Array:
        """Weights of the examples in a client's mean, times its share, 0 beyond its count: `f[N, M]`."""
        is_there = jnp.arange(self.index.shape[1])[None] < self.counts[:, None]
        return jnp.where(
            is_there, self.share[:, None] / self.counts[:, None].astype(self.share.dtype), 0
        )

    def _pooled(self) -> tuple[Any, Array]:
        """All clients' examples, leaves `[N M, ...]`, and their weights, which sum to 1."""
        return self._rows(self.index.ravel()), self._weights().ravel() / self.counts.shape[0]


def make_estimation(model: LatentModel, data: Any, partition: Any, **options: Any) -> Estimation:
    """Build one problem. Arguments as in `estimations`."""
    return make_estimations(model, data, [partition], **options)[0]


def make_estimations(
    model: LatentModel,
    data: Any,
    partitions: Sequence[Any],
    *,
    weighting: str = "pooled",
    start: Any = None,
) -> list[Estimation]:
    """Build one problem per partition over the same examples, which are held once; for a sweep with a partition per seed.

    data: a pytree of leaves `[examples, ...]`, finite. partitions: with `index` and `counts`, as the functions of `partition` return
    them. weighting: "pooled", every example weighs the same, a client's share being N counts_i / sum(counts); or "equal", every client
    does. start: S_0, or None to draw it. Arrays are 64-bit where `jax.enable_x64` is on and theirs are.
    """
    if weighting not in ("pooled", "equal"):
        raise ConfigError("weighting", weighting, "one of pooled, equal")
    sizes = {np.shape(leaf)[0] for leaf in jax.tree.leaves(data)}
    if len(sizes) != 1:
        raise ConfigError("data", f"arrays of {sorted(sizes)} examples", "arrays of equally many")
    for leaf in jax.tree.leaves(data):
        if not np.isfinite(leaf).all():
            raise ConfigError("data", "an array with nan or inf", "finite")
    examples = jax.tree.map(jnp.asarray, data)
    dtype = jax.tree.leaves(examples)[0].dtype
    # Numbers of the model become arrays of the data's type, so that lanes of several models share a program.
    model = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), model)
    capacity = max(partition.index.shape[1] for partition in partitions)
    problems = []
    for partition in partitions:
        counts, index = np.asarray(partition.counts), np.asarray(partition.index)
        if counts.min() < 1 or counts.max() > index.shape[1]:
            raise ConfigError(
                "partition.counts",
                int(counts.min()),
                f"from 1 to the {index.shape[1]} places of a client",
            )
        if index.min() < 0 or index.max() >= min(sizes):
            raise ConfigError(
                "partition.index", int(index.max()), f"positions of the {min(sizes)} examples"
            )
        share = (
            counts * len(counts) / counts.sum() if weighting == "pooled" else np.ones(len(counts))
        )
        places = jnp.asarray(np.pad(index, ((0, 0), (0, capacity - index.shape[1]))), "int32")
        shares = jnp.asarray(share, dtype)
        given = None if start is None else jnp.asarray(start, dtype)
        problem = Estimation(model, examples, places, jnp.asarray(counts, "int32"), shares, given)
        problems.append(problem.replace(model=model.with_data(*problem._pooled())))  # type: ignore[attr-defined]
    return problems
