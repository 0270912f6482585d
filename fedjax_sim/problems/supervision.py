"""Supervised learning: any network, any loss, any arrays with examples first.

`supervised` in `fedjax_sim.problems.building` builds such a problem from a user's data;
images with classes (`classification`) and texts (`next_character`) are cases of it.

The data are a pytree of arrays that stay on the device as they are. A mini-batch is gathered,
changed at random (in local steps only), and prepared: split into inputs and targets, and scaled.
In local steps a network that has a switch between training and evaluation (see
`fedjax_sim.models.calls`) is in training, with random streams named "dropout" and "quantize".

Outputs, losses and metrics of fewer than 32 bits, such as bfloat16, are converted to float32 before
they are summed.

Dimension letters: `N` clients, `M` places for examples of a client and `U` for its test examples
(the rest is padding), `B` examples of a mini-batch, `n` training and `m` test examples.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from fedjax_sim import trees
from fedjax_sim.checking import Count
from fedjax_sim.models.calls import draw_params, outputs_of
from fedjax_sim.problems import evaluation
from fedjax_sim.problems.losses import Metric, PerExample
from fedjax_sim.streams import stream
from fedjax_sim.targets import is_for_cpu
from fedjax_sim.types import Array, Key, Model, Params

EVALUATED_AT_ONCE = 500
"""Test examples that a CPU evaluates together, so that activations stay in its cache."""
OWN_AT_ONCE = 50
"""Test examples of one client that are evaluated together."""
CLIENTS_AT_ONCE = 50
"""Clients whose own models an accelerator evaluates together."""


@struct.dataclass
class Preparation:
    """From a mini-batch of data to inputs and targets.

    Attributes:
      function: The function; None if the data are pairs of both.
    """

    function: Callable[[Any], tuple[Any, Any]] | None = struct.field(
        pytree_node=False, default=None
    )

    def __call__(self, batch: Any) -> tuple[Any, Any]:
        """Return inputs and targets, leaves `[B, ...]`, of data with leaves `[B, ...]`."""
        return batch if self.function is None else self.function(batch)


@struct.dataclass(repr=False)
class Supervised:
    """The mean loss of a network's outputs.

    Models are the network's parameters without the frozen leaves, in whose places they have None.

    Attributes:
      data: Training examples of all clients, a pytree with leaves `[n, ...]`.
      test_data: Test examples, likewise `[m, ...]`; the same arrays if examples are held out.
      index: `i32[N, M]`, positions of the clients' examples in `data`, padded.
      counts: `i32[N]`, number of examples of each client, without padding.
      model: The network.
      loss_of: From outputs and targets to losses, `f[B]`, or in the shape of the mask.
      metrics: Names and definitions of what is measured besides the loss.
      mask_of: From targets to which of their entries count, `bool[B, ...]`; None for all.
      prepare: From a mini-batch of data to inputs and targets: a pytree that can be called.
      augmentation: From a key and a mini-batch of data to changed data; None for no change.
      prior_precision: `f[]`, precision of a Gaussian prior on the parameters w, or None. The term
        prior_precision / 2 ||w||^2 is divided evenly among the losses of all examples.
      start: The model to start from; leaves that are None are drawn. None draws all.
      frozen: The leaves that are not trained, None for the others; None if all are trained.
      test_rows: `i32[m']`, positions in `test_data` of the examples to test on, padded; None for
        all of them.
      num_tests: `i32[]`, number of these positions, without padding.
      test_index: `i32[N, U]`, positions in `test_data` of each client's own test examples, padded;
        None if clients have none.
      test_counts: `i32[N]`, numbers of these.
      per_client: Whether the model is also evaluated for every client.
      client_ids: What the clients are called; None for numbers.
      test_block: Test examples that a CPU evaluates together.
    """

    data: Any
    test_data: Any
    index: Array
    counts: Array
    model: Model = struct.field(pytree_node=False)
    loss_of: PerExample = struct.field(pytree_node=False)
    metrics: tuple[tuple[str, Metric], ...] = struct.field(pytree_node=False, default=())
    mask_of: Callable[[Any], Array] | None = struct.field(pytree_node=False, default=None)
    prepare: Any = Preparation()
    augmentation: Callable[[Key, Any], Any] | None = struct.field(pytree_node=False, default=None)
    prior_precision: Array | None = None
    start: Params | None = None
    frozen: Params | None = None
    test_rows: Array | None = None
    num_tests: Array | None = None
    test_index: Array | None = None
    test_counts: Array | None = None
    per_client: bool = struct.field(pytree_node=False, default=False)
    client_ids: tuple[Any, ...] | None = struct.field(pytree_node=False, default=None)
    test_block: Count = struct.field(pytree_node=False, default=EVALUATED_AT_ONCE)

    def __repr__(self) -> str:
        """Say how much there is; arrays would fill the screen."""
        examples, model = int(self.counts.sum()), type(self.model).__name__
        return f"{type(self).__name__}({self.num_clients} clients, {examples} examples, {model})"

    @property
    def num_clients(self) -> int:
        """Number of clients, N."""
        return self.counts.shape[0]

    @property
    def has_tests_of_clients(self) -> bool:
        """Whether every client's model can be evaluated for itself, see `evaluate_clients`."""
        return self.test_index is not None

    @property
    def metric_labels(self) -> Mapping[str, Sequence[Any]]:
        """Labels along the dimensions of metrics, by name of the dimension."""
        labels: dict[str, Sequence[Any]] = {}
        for _, metric in self.metrics:
            labels |= dict(zip(metric.dims, metric.labels, strict=False))
        return labels | ({"client": self.client_ids} if self.client_ids is not None else {})

    @property
    def less_is_better(self) -> Collection[str]:
        """Names of the metrics of which small values are good ones."""
        names = ["loss", *(name for name, metric in self.metrics if metric.less_is_better)]
        return [f"{who}{name}" for name in names for who in ("", *_OF_CLIENTS)]

    def init(self, key: Key) -> Params:
        """Return the model to start from: what `start` gives, and the rest drawn by the network."""
        rows = jax.tree.map(lambda leaf: leaf[:1], self.data)
        params = draw_params(self.model, key, self.prepare(rows)[0])
        if self.start is not None:
            params = trees.join(self.start, params)
        if self.frozen is not None:
            params = jax.tree.map(
                lambda kept, leaf: leaf if kept is None else None,
                self.frozen,
                params,
                is_leaf=lambda leaf: leaf is None,
            )
        return params

    def parameters(self, params: Params) -> Params:
        """Put the frozen leaves into a model: all parameters that the network takes.

        Args:
          params: The model without its frozen leaves.

        Returns:
          The whole model.
        """
        return params if self.frozen is None else trees.join(params, self.frozen)

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Compute the mean loss of some of a client's examples.

        Args:
          params: The model.
          client: `i32[]`, the client's number.
          examples: `i32[B]`, positions below `counts[client]`.
          key: For augmentation and for the network's random streams.

        Returns:
          `f[]`, the mean over the entries that count, plus the prior's part of one example.
        """
        chex.assert_rank([client, examples], [0, 1])
        return self.mean_loss(params, self.index[client, examples], key)

    def mean_loss(self, params: Params, rows: Array, key: Key) -> Array:
        """Compute the mean loss of training examples: `f[]`.

        Args:
          params: The model.
          rows: `i32[B]`, positions of the examples in `data`.
        """
        losses, mask = self._losses(params, rows, key)
        mean = losses.mean() if mask is None else _mean_among(losses, mask)
        return mean if self.prior_precision is None else mean + self._penalty(params)

    def alone(self, client: Array) -> "OneClient":
        """Look up the losses of one client.

        Args:
          client: `i32[]`, the client's number.

        Returns:
          The losses, with the same values as those of this problem for the client.
        """
        chex.assert_rank(client, 0)
        return OneClient(self, client, self.index[client])

    def client_loss(self, params: Params, client: Array, key: Key) -> Array:
        """Compute the mean loss of all of a client's examples.

        Args:
          params: The model.
          client: `i32[]`, the client's number.
          key: For augmentation and for the network's random streams.

        Returns:
          `f[]`, as `loss` gives it for all examples of the client.
        """
        chex.assert_rank(client, 0)
        places = jnp.arange(self.index.shape[1])
        rows = self.index[client, jnp.minimum(places, self.counts[client] - 1)]
        losses, mask = self._losses(params, rows, key)
        is_there = places < self.counts[client]
        if mask is not None:
            return _mean_among(losses, mask & evaluation.along(is_there, mask)) + self._penalty(
                params
            )
        total = jnp.where(is_there, losses, 0).sum()
        return total / self.counts[client] + self._penalty(params)

    def outputs(self, params: Params) -> Array:
        """Compute the network's outputs for all of `test_data`: `f[m, ...]`.

        Args:
          params: A model.
        """
        num, whole = self._num_examples, self.parameters(params)
        outputs = jax.lax.map(
            lambda rows: outputs_of(self.model, whole, self._tested(rows)[0]),
            jnp.minimum(self._test_places(whole, num), num - 1),
        )
        return outputs.reshape(-1, *outputs.shape[2:])[:num]

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Measure a model on the test examples.

        Args:
          params: The model.

        Returns:
          "loss", without the prior, and the metrics, means over the entries that count. Those with
          dimensions have them in their names, such as "class_accuracy[class]". With `per_client`
          also "client_loss[client]" and so on, see `evaluate_clients`: `f[N]`.
        """
        whole = self.parameters(params)
        num: Any = self._num_examples if self.num_tests is None else self.num_tests
        capacity = self._num_examples if self.test_rows is None else self.test_rows.shape[0]

        def sums(places: Array) -> dict[str, Any]:
            rows = jnp.minimum(places, num - 1)
            rows = rows if self.test_rows is None else self.test_rows[rows]
            return self._sums(whole, rows, places < num)

        totals = jax.lax.map(sums, self._test_places(whole, capacity))
        metrics = evaluation.means_over_examples(
            jax.tree.map(lambda each: each.sum(axis=0), totals), num
        )
        if self.per_client:
            of_clients = self.evaluate_clients(lambda client: params)
            metrics |= {f"client_{name}[client]": each for name, each in of_clients.items()}
        return metrics

    def evaluate_clients(self, model_of: Callable[[Array], Params]) -> Mapping[str, Array]:
        """Measure every client's model on the client's own test examples.

        Args:
          model_of: From the number of a client, `i32[]`, to its model.

        Returns:
          "loss" and the metrics without dimensions, of every client: `f[N]`. Nothing if not every
          client has test examples. A loss that became nan is inf, as nan stands for nothing to
          measure.
        """
        if self.test_index is None or self.test_counts is None:
            return {}
        index, counts = self.test_index, self.test_counts
        size = min(index.shape[1], OWN_AT_ONCE)

        def of_client(client: Array) -> dict[str, Array]:
            whole, count = self.parameters(model_of(client)), counts[client]

            def block(number: Array) -> dict[str, Any]:
                places = number * size + jnp.arange(size, dtype="int32")
                rows = index[client, jnp.minimum(places, count - 1)]
                return self._sums(whole, rows, places < count)

            nothing = jax.tree.map(
                lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(block, client)
            )
            totals = jax.lax.fori_loop(
                0,
                (count + size - 1) // size,
                lambda number, totals: jax.tree.map(jnp.add, totals, block(number)),
                nothing,
            )
            means = evaluation.means_over_examples(totals, count)
            means["loss"] = inf_for_nan(means["loss"])
            return {name: value for name, value in means.items() if "[" not in name}

        return self._map_clients(of_client)

    def _map_clients(self, of_client: Callable[[Array], dict[str, Array]]) -> dict[str, Array]:
        """Call a function with the number of every client, several at a time on accelerators."""
        at_once = None if is_for_cpu() else CLIENTS_AT_ONCE
        clients = jnp.arange(self.num_clients, dtype="int32")
        return jax.lax.map(of_client, clients, batch_size=at_once)

    @property
    def _num_examples(self) -> int:
        """Number of examples in `test_data`, m."""
        return jax.tree.leaves(self.test_data)[0].shape[0]

    def _test_places(self, whole: Params, num: int) -> Array:
        """List places of test examples, `i32[batches, batch]`; those from `num` on are padding."""
        example, _ = self._tested(jnp.zeros(1, "int32"))
        apply = partial(outputs_of, self.model)
        at_once = evaluation.evaluated_at_once(apply, whole, example, on_cpu=self.test_block)
        batch = min(num, at_once)
        num_batches = -(-num // batch)
        return jnp.arange(num_batches * batch).reshape(num_batches, batch)

    def _tested(self, rows: Array) -> tuple[Any, Any]:
        """Look up inputs and targets of test examples `i32[B]`."""
        return self.prepare(rows_of(self.test_data, rows))

    def _losses(self, params: Params, rows: Array, key: Key) -> tuple[Array, Array | None]:
        """Compute the losses of training examples `i32[B]` in training mode, and their mask."""
        batch = rows_of(self.data, rows)
        if self.augmentation is not None:
            batch = self.augmentation(stream(key, "augmentation"), batch)
        rngs = {"dropout": stream(key, "dropout"), "quantize": stream(key, "quantize")}
        inputs, targets = self.prepare(batch)
        whole = self.parameters(params)
        outputs = outputs_of(self.model, whole, inputs, train=True, rngs=rngs)
        mask = None if self.mask_of is None else self.mask_of(targets)
        losses = trees.in_32_bits(self.loss_of(outputs, targets))
        chex.assert_shape(losses, rows.shape if mask is None else mask.shape)
        return losses, mask

    def _sums(self, whole: Params, rows: Array, is_there: Array) -> dict[str, Any]:
        """Sum losses and metrics over test examples.

        Args:
          whole: The network's parameters.
          rows: `i32[B]`, positions in `test_data`.
          is_there: `bool[B]`, which of them count.

        Returns:
          By name the sum over what counts, along the metric's dimensions, and how many entries
          these are; None for the latter if it is the number of examples.
        """
        inputs, targets = self._tested(rows)
        outputs = outputs_of(self.model, whole, inputs)
        mask = None if self.mask_of is None else self.mask_of(targets)
        named = (*self.metrics, ("loss", Metric(self.loss_of)))
        return evaluation.sums_over_examples(named, outputs, targets, is_there, mask)

    def _penalty(self, params: Params) -> Array | float:
        """Compute the prior's part of one example's loss; 0 without a prior."""
        if self.prior_precision is None:
            return 0.0
        per_example = self.prior_precision / (2 * self.counts.sum())
        return per_example * optax.tree.norm(trees.in_32_bits(params), squared=True)


_OF_CLIENTS = ("client_", "personal_", "personal_client_")
"""What the names of the metrics of single clients' examples, or models, begin with."""


@struct.dataclass
class OneClient:
    """The losses of one client.

    Attributes:
      problem: The problem.
      client: `i32[]`, the client's number.
      index: `i32[M]`, positions of the client's examples in the problem's data, padded.
    """

    problem: Supervised
    client: Array
    index: Array

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Compute the mean loss of some of the client's examples: `f[]`."""
        return self.problem.mean_loss(params, self.index[examples], key)

    def client_loss(self, params: Params, client: Array, key: Key) -> Array:
        """Compute the mean loss of all of them: `f[]`."""
        return self.problem.client_loss(params, self.client, key)


def rows_of(data: Any, rows: Array) -> Any:
    """Look up examples `i32[B]` of a pytree with leaves `[n, ...]`.

    A CPU reads rows of numbers faster than rows of matrices.
    """

    def look_up(leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0], -1) if leaf.ndim > 1 else leaf
        found = flat.at[rows].get(mode="promise_in_bounds")
        return found.reshape(*rows.shape, *leaf.shape[1:])

    return jax.tree.map(look_up, data)


def inf_for_nan(losses: Array) -> Array:
    """Replace nan by inf in losses `f[...]`, so that means that leave nan out do not hide it."""
    return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def _mean_among(losses: Array, mask: Array) -> Array:
    """Average losses over the entries that count."""
    return jnp.where(mask, losses, 0).sum() / mask.sum().astype(losses.dtype)
