"""Penalised maximum likelihood of a latent-variable model from the data of clients.

This is the problem that the systems of expectation maximisation (EM) solve. Symbols as in
`fedjax_sim.core.types.LatentProblem`: parameters theta, expected statistics s, natural parameters
phi(theta), the M-step T.

`Stream` and `WithSample` are for more data than memory holds: streams of fresh examples, and
examples in files. What needs all examples at once is then computed of a held-out sample of finite
size: initial statistics, metrics, the first memories h_i(S_0), and what a model knows of all data,
such as their covariance. Whole passes do not exist: `em`, `vr_fedem` and `batches="full"` are
refused.

Dimension letters: `N` clients, `P` positions of all clients' examples, `B` examples of a
mini-batch, `n` examples, `q` numbers of a statistic.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Protocol, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import struct

from fedjax_sim.core import targets, trees
from fedjax_sim.core.settings import ConfigError, Limit, OneOf, checked, shape
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.datasets import files
from fedjax_sim.partition import Partition
from fedjax_sim.problems import client_data

EXAMPLES_AT_ONCE = 4096
"""Examples that a CPU evaluates together; the arrays of many more would not stay in its cache."""
EXAMPLES_ON_DEVICE = 2**20
"""The same of an accelerator, so that its memory holds their arrays."""
Draw = Callable[[Key, Array], Params]
"""From a key and a client's number, `i32[]`, to one example of the client's law."""


class LatentModel(Protocol):
    """A latent-variable model without data: the mathematics of a `LatentProblem`.

    A frozen struct whose arrays are pytree leaves. Examples are pytrees of leaves `[B, ...]`,
    weights are `f[B]`; s, phi and theta are those of `LatentProblem`. A model that inherits from
    this class has no penalty and no metrics unless it says so.
    """

    def with_data(self, examples: Params, weight: Array) -> Self:
        """Take in the statistics of all data that the server needs; weights sum to 1."""
        return self

    def initial(self, key: Key, examples: Params, weight: Array) -> Array:
        """Draw natural parameters to start from, given all data: `f[q]`."""

    def maximise(self, statistics: Array) -> Params:
        """Compute the M-step."""

    def natural(self, params: Params) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`.

        Args:
          params: theta.
        """

    def statistics(self, natural: Array, examples: Params, weight: Array) -> Array:
        """Compute the weighted sum of expected statistics: `f[q]`."""

    def loss(self, params: Params, examples: Params) -> Array:
        """Compute -log p(y; theta) of every example, up to a constant: `f[B]`."""

    def penalty(self, params: Params) -> Array | float:
        """Compute the penalty R(theta): `f[]`.

        Args:
          params: theta.
        """
        return 0.0

    def metrics(self, statistics: Array, params: Params) -> Mapping[str, Array]:
        """Compute further metrics, each a scalar."""
        return {}


@struct.dataclass
class Estimation(client_data.ClientExamples):
    """A latent-variable model and the examples of clients.

    The objective is F(theta) = (1/N) sum_i share_i mean_j -log p(y_ij; theta) + R(theta), where the
    mean is over the examples of client i. A client's statistics are multiplied by its share too.

    Attributes:
      model: The latent-variable model.
      data: Examples of all clients: a pytree of leaves `[n, ...]`, whatever the model takes.
      held: The positions of the clients' examples in `data`.
      share: `f[N]`, weights of the clients, with mean 1.
      start: `f[q]`, the initial statistics S_0, or None to draw them.
      per_client: Whether the mean loss of every client's examples is measured too.
    """

    model: LatentModel
    data: Params
    held: client_data.Held
    share: Annotated[Array, shape("N"), Limit(above=0)]
    start: Annotated[Array, shape("q"), Limit()] | None = None
    per_client: bool = struct.field(pytree_node=False, default=False, kw_only=True)
    metric_labels: ClassVar[Mapping[str, Sequence[str]]] = {}
    less_is_better: ClassVar[Sequence[str]] = ("objective", "client_loss")

    def _check_together(self) -> None:
        if dataclasses.is_dataclass(self.model):
            client_data.check_fields(self.model)
        super()._check_together()
        with _asking(self.model, self.data):
            drawn = _describe_statistics(*client_data.described(self))
        if self.start is not None and self.start.shape != drawn.shape:
            allowed = f"{drawn.shape}, as of the statistics"
            raise ConfigError("shape of start", self.start.shape, allowed)

    def init(self, key: Key) -> Array:
        """Return the initial statistics S_0, drawn unless `start` gives them: `f[q]`.

        They are drawn as the mean expected statistics under initial parameters of the model.
        """
        if self.start is not None:
            return self.start
        natural = self.model.initial(key, *self._pooled())
        return self.client_statistics(natural).mean(axis=0)

    def maximise(self, statistics: Array) -> Params:
        """Compute the M-step: theta = T(s) from statistics `f[q]`."""
        return self.model.maximise(statistics)

    def unknown(self, params: Params) -> Params:
        """Return the part of theta that a client has to be sent.

        This is all of it, unless the model has a method `unknown` that leaves known parts out.
        """
        return getattr(self.model, "unknown", lambda whole: whole)(params)

    def natural(self, params: Params) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`."""
        return self.model.natural(params)

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """Compute the weighted sum of expected statistics of some examples, times the share.

        Args:
          natural: `f[q]`, phi(theta).
          client: `i32[]`, the client's number.
          examples: `i32[B]`, positions below `counts[client]`.
          weight: `f[B]`, weight of each example.

        Returns:
          `f[q]`.
        """
        chex.assert_rank([client, examples], [0, 1])
        chex.assert_equal_shape([examples, weight])
        rows = client_data.rows_of(self.data, self.held.at(client, examples))
        return self.model.statistics(natural, rows, weight * self.share[client])

    def client_statistics(self, natural: Array) -> Array:
        """Compute every client's mean expected statistics, times its share.

        Args:
          natural: `f[q]`, phi(theta).

        Returns:
          `f[N, q]`.
        """
        return self._of_clients(lambda rows, weights: self.model.statistics(natural, rows, weights))

    def objective(self, params: Params) -> Array:
        """Compute the objective F(theta): `f[]`.

        Args:
          params: theta.
        """
        return self._weighted_losses(params).mean() + self.model.penalty(params)

    def _weighted_losses(self, params: Params) -> Array:
        """Compute every client's mean of -log p(y; theta), times its share: `f[N]`."""

        def weighted_loss(rows: Params, weights: Array) -> Array:
            losses = self.model.loss(params, rows)
            chex.assert_equal_shape([losses, weights])
            return jnp.sum(jnp.where(weights > 0, losses, 0) * weights)

        return self._of_clients(weighted_loss)

    def mean_field(self, statistics: Array) -> Array:
        """Compute the mean field h(s); its roots are the fixed points of EM.

        Args:
          statistics: `f[q]`, s.

        Returns:
          `f[q]`, the mean expected statistics under T(s) minus s.
        """
        natural = self.natural(self.maximise(statistics))
        return self.client_statistics(natural).mean(axis=0) - statistics

    def evaluate(self, statistics: Array) -> Mapping[str, Array]:
        """Measure the statistics of a server.

        Args:
          statistics: `f[q]`, s.

        Returns:
          "objective", F(T(s)); "mean_field", ||h(s)||^2; and the metrics of the model. With
          `per_client` also "client_loss[client]", the mean of -log p(y; T(s)) over the examples of
          each client: `f[N]`.
        """
        params = self.maximise(statistics)
        losses = self._weighted_losses(params)
        field = jnp.sum(jnp.square(self.mean_field(statistics)))
        metrics = {"objective": losses.mean() + self.model.penalty(params), "mean_field": field}
        if self.per_client:
            metrics["client_loss[client]"] = losses / self.share
        return {**metrics, **self.model.metrics(statistics, params)}

    def _of_clients(self, function: Callable[[Params, Array], Array]) -> Array:
        """Apply a function to all examples of every client and their weights: leading axis N."""
        num_clients, size = self.counts.shape[0], self.held.block_size()
        most = EXAMPLES_AT_ONCE if targets.is_for_cpu() else EXAMPLES_ON_DEVICE
        weights = self._weights()

        def of_client(client: Array) -> Array:
            def sums(rows: Array, is_there: Array, _: Array | int) -> Array:
                weight = jnp.where(is_there, weights[client], 0)
                return function(client_data.rows_of(self.data, rows), weight)

            return self.held.total(client, sums)

        at_once = min(max(1, most // size), num_clients)
        return jax.lax.map(of_client, jnp.arange(num_clients), batch_size=at_once)

    def _weights(self) -> Array:
        """Compute share_i / counts_i of every client: `f[N]`."""
        return self.share / self.counts.astype(self.share.dtype)

    def _pooled(self) -> tuple[Params, Array]:
        """Gather all clients' examples, leaves `[P, ...]`, and their weights with sum 1."""
        owner, is_there = self.held.owners()
        weights = jnp.where(is_there, self._weights()[owner], 0)
        return client_data.rows_of(self.data, self.held.index), weights / self.counts.shape[0]


@functools.lru_cache(maxsize=256)
def _describe_statistics(structure: trees.TypedStructure, leaves: tuple) -> jax.ShapeDtypeStruct:
    """Describe the statistics of problems that differ in values only."""
    return jax.eval_shape(
        lambda problem: problem.model.initial(jax.random.key(0), *problem._pooled()),
        structure.unflatten(leaves),
    )


@checked
def make_estimation(
    model: LatentModel, data: Any, partition: Partition, **options: Any
) -> Estimation:
    """Build an estimation problem.

    Args:
      model: The latent-variable model, without data.
      data: Examples of all clients, as in `make_estimations`.
      partition: Who holds which example, as the functions of `fedjax_sim.partition` return it.
      **options: `weighting`, `start` and `per_client`, as in `make_estimations`.

    Returns:
      The problem.

    Raises:
      ConfigError: If an option, a number of the model, the data or the partition is not allowed.
    """
    return make_estimations(model, data, [partition], **options)[0]


@checked
def make_estimations(
    model: LatentModel,
    data: Any,
    partitions: Sequence[Partition],
    *,
    weighting: Annotated[str, OneOf(("pooled", "equal"))] = "pooled",
    start: Annotated[npt.ArrayLike, shape("q"), Limit()] | None = None,
    per_client: bool = False,
) -> list[Estimation]:
    """Build one estimation problem per partition, for a sweep with a partition per seed.

    All problems share one copy of the examples.

    Args:
      model: The latent-variable model, without data.
      data: Examples of all clients: a pytree of finite leaves `[n, ...]`. The dtype of its first
        leaf is that of the problems; 64 bits are kept where `jax.enable_x64` is on. If it is of
        whole numbers, of bools, or of fewer than 32 bits, all leaves become float32.
      partitions: Partitions of the examples, from the functions of `fedjax_sim.partition`.
      weighting: "pooled" gives every example the same weight, so that the share of client i is
        N counts_i / sum(counts); "equal" gives every client the same weight.
      start: Initial statistics S_0 `[q]`, or None to draw them.
      per_client: Whether the mean loss of every client's examples is measured too.

    Returns:
      One problem per partition, in the same order.

    Raises:
      ConfigError: If `weighting`, a number of the model, the data or a partition is not allowed.
    """
    if dataclasses.is_dataclass(model):
        client_data.check_fields(model)
    examples, num = client_data.read_arrays("data", data)
    dtype = jax.tree.leaves(examples)[0].dtype
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 32:
        dtype = jnp.dtype("float32")
        examples = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), examples)
    # The model's numbers become arrays of the data's dtype, so that lanes with different numbers
    # share a compiled program.
    model = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), model)
    given = None if start is None else jnp.asarray(start, dtype)
    problems: list[Estimation] = []
    for partition, held in zip(partitions, client_data.hold(partitions, num), strict=True):
        shares = jnp.asarray(shares_of(partition, weighting), dtype)
        problem = Estimation(model, examples, held, shares, given, per_client=per_client)
        problem = dataclasses.replace(problem, model=tell(model, *problem._pooled()))
        if not problems:
            problem.check_values()
        problems.append(problem)
    return problems


@checked
def shares_of(
    partition: Partition, weighting: Annotated[str, OneOf(("pooled", "equal"))]
) -> np.ndarray:
    """Compute the weights of clients, with mean 1, as in `make_estimations`: `f64[N]`."""
    counts = np.asarray(partition.counts)
    return counts * len(counts) / counts.sum() if weighting == "pooled" else np.ones(len(counts))


def tell(model: LatentModel, examples: Params, weight: Array) -> LatentModel:
    """Call `model.with_data`, and say in one sentence that it takes no such examples.

    Raises:
      ConfigError: If it does not.
    """
    with _asking(model, examples):
        return model.with_data(examples, weight)


def _asking(model: LatentModel, examples: Params) -> contextlib.AbstractContextManager[None]:
    """Refuse examples if a model raises an error about them."""
    allowed = f"examples that {type(model).__name__} takes"
    return files.refusing("data", files.form_of(examples), allowed)


@struct.dataclass
class Sampled:
    """Base of a latent-variable model with a held-out sample; clients have other examples.

    Attributes:
      sample: The model with the sample, whose examples have the shapes and types of all others.
    """

    sample: Estimation
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
    def of(cls, sample: Estimation, draw: Draw, *, seed: int = 0) -> Self:
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
        cls, sample: Estimation, data: Any, split: Partition, *, weighting: str = "pooled"
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
        forms = functools.partial(jax.tree.map, lambda leaf: jnp.shape(leaf)[1:])
        form, known = forms(found), forms(sample.data)
        if form != known:
            raise ConfigError("an example of data", form, f"{known}, as in the sample")
        if (clients := len(split.counts)) != (allowed := sample.counts.shape[0]):
            raise ConfigError("number of clients", clients, f"{allowed}, as in the sample")
        for block in [found] if source is None else source.blocks(range(num)):
            rows = jax.tree.map(lambda row, leaf: jnp.asarray(row, leaf.dtype), block, sample.data)
            size = len(jax.tree.leaves(rows)[0])
            tell(sample.model, rows, jnp.full(size, 1 / size, sample.share.dtype))
        [held] = client_data.hold([split], num, source)
        shares = shares_of(split, weighting)
        made = cls(sample, found, held, jnp.asarray(shares, sample.share.dtype))
        made.check_values()
        return made

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """Compute the weighted sum of expected statistics of some examples, times the share.

        The arguments are those of `Estimation.statistics`.
        """
        found = client_data.rows_of(self.data, self.held.at(client, examples))
        return self._statistics(natural, found, weight * self.share[client])
