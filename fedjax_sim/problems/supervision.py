"""Supervised learning: any network, any loss, any arrays with examples first.

`supervised` in `fedjax_sim.problems.building` builds such a problem from a user's data;
images with classes (`classification`) and texts (`next_character`) are cases of it.

The data are a pytree of arrays that stay on the device as they are. A mini-batch is gathered,
changed at random (in local steps only), and prepared: split into inputs and targets, and scaled.
In local steps a network that has a switch between training and evaluation (see
`fedjax_sim.models.calls`) is in training, with random streams named "dropout" and "quantize".

Outputs, losses and metrics of fewer than 32 bits, such as bfloat16, are converted to float32 before
they are summed.

That a network, a loss and metrics fit the data is checked before anything is computed: they are
traced with a mini-batch of `CHECKED` examples.

Dimension letters: `N` clients, `B` examples of a mini-batch, `n` training and `m` test examples.
"""

import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct
from flax.errors import InvalidRngError
from jax.extend.core import Var
from jax.tree_util import Partial

from fedjax_sim.core import trees
from fedjax_sim.core.settings import ConfigError, Count, Limit, shape
from fedjax_sim.core.streams import stream
from fedjax_sim.core.targets import is_for_cpu, lanes_together
from fedjax_sim.core.types import Array, Batch, Extras, Key, LocalLoss, Params
from fedjax_sim.datasets.files import form_of, refusing
from fedjax_sim.models import calls
from fedjax_sim.problems import client_data
from fedjax_sim.problems.losses import Metric, PerExample

Prepare = Callable[[Params], tuple[Params, Params]]
"""From a mini-batch of data to inputs and targets."""
Augment = Callable[[Key, Params], Params]
"""From a key and a mini-batch of data to changed data."""
Sums = dict[str, tuple[Array, Array | None]]
"""Sums over entries by name, and how many entries these are; None for the number of examples."""
LARGEST = 2**28
"""Bytes up to which an accelerator evaluates a lane's test examples together: of the examples, and
of activations that are in memory at the same time."""
LARGEST_OF_ALL = 2**31
"""The same of all lanes that are evaluated at once."""
EVALUATED_AT_ONCE = 500
"""Test examples that a CPU evaluates together, so that activations stay in its cache."""
OWN_AT_ONCE = 50
"""Test examples of one client that are evaluated together."""
CLIENTS_AT_ONCE = 50
"""Number of clients' own models that an accelerator evaluates together."""


class Drawn(NamedTuple):
    """The mini-batch of a local step, gathered, augmented and prepared.

    Attributes:
      inputs: Leaves `[B, ...]`.
      targets: Leaves `[B, ...]`.
      key: For the network's random streams.
    """

    inputs: Params
    targets: Params
    key: Key


def as_pair(batch: tuple[Params, Params]) -> tuple[Params, Params]:
    """Return inputs and targets of data that are pairs of both."""
    return batch


@struct.dataclass(repr=False)
class Supervised(client_data.ExampleLosses):
    """The mean loss of a network's outputs.

    Models are the network's parameters without the frozen leaves, in whose places they have None.

    Attributes:
      data: Training examples of all clients, a pytree with leaves `[n, ...]`.
      test_data: Test examples, likewise `[m, ...]`; the same arrays if examples are held out.
      held: The positions of the clients' examples in `data`.
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
      test_held: The positions in `test_data` of the clients' own test examples; None if clients
        have none.
      per_client: Whether the model is also evaluated for every client.
      client_ids: What the clients are called; None for numbers.
      state: Names of the network's collections that are averaged but not trained, such as
        "batch_stats".
      step_loss: The loss of local steps in place of the mean of `loss_of`, a `LocalLoss` with
        `Drawn` examples; None for that mean.
      test_block: Test examples that a CPU evaluates together.
    """

    data: Params
    test_data: Params
    held: client_data.Held
    model: calls.Model = struct.field(pytree_node=False)
    loss_of: PerExample = struct.field(pytree_node=False)
    metrics: tuple[tuple[str, Metric], ...] = struct.field(pytree_node=False, default=())
    mask_of: Callable[[Params], Array] | None = struct.field(pytree_node=False, default=None)
    prepare: Prepare = Partial(as_pair)
    augmentation: Augment | None = struct.field(pytree_node=False, default=None)
    prior_precision: Annotated[Array, shape(""), Limit(least=0)] | None = None
    start: Params | None = None
    frozen: Params | None = None
    test_rows: Annotated[Array, shape("m")] | None = None
    num_tests: Annotated[Array, shape("")] | None = None
    test_held: client_data.Held | None = None
    per_client: bool = struct.field(pytree_node=False, default=False)
    client_ids: tuple[Hashable, ...] | None = struct.field(pytree_node=False, default=None)
    test_block: Count = struct.field(pytree_node=False, default=EVALUATED_AT_ONCE)
    state: tuple[str, ...] = struct.field(pytree_node=False, default=())
    step_loss: LocalLoss | None = struct.field(pytree_node=False, default=None)

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
        """Whether every client has test examples for its model, see `evaluate_clients`."""
        return self.test_held is not None

    @property
    def metric_labels(self) -> Mapping[str, Sequence[Hashable]]:
        """Labels along the dimensions of metrics, by name of the dimension."""
        labels: dict[str, Sequence[Hashable]] = {}
        for _, metric in self.metrics:
            labels |= dict(zip(metric.dims, metric.labels, strict=False))
        return labels | ({"client": self.client_ids} if self.client_ids is not None else {})

    @property
    def less_is_better(self) -> Collection[str]:
        """Names of the metrics of which small values are good ones."""
        names = ["loss", *(name for name, metric in self.metrics if metric.less_is_better)]
        return [f"{who}{name}" for name in names for who in ("", *_OF_CLIENTS)]

    def _check_together(self) -> None:
        super()._check_together()
        check_shapes(self)
        if self.test_held is not None:
            self.test_held.check(self.test_data, "test_")
            if (found := len(self.test_held.counts)) != self.num_clients:
                raise ConfigError("clients of test_held", found, f"{self.num_clients}, as of held")
        if self.test_rows is not None and self.num_tests is not None:
            rows, num = self.test_rows, self.num_tests[None]
            zero = jnp.zeros_like(num)
            client_data.Held(rows, zero, num, len(rows)).check(self.test_data, "test_")
        if (self.test_rows is None) != (self.num_tests is None):
            raise ConfigError("test_rows", self.test_rows, "given if and only if num_tests is")

    def init(self, key: Key) -> Params:
        """Return the model to start from: the leaves of `start`, the rest drawn by the network."""
        rows = jax.tree.map(lambda leaf: leaf[:1], self.data)
        params = calls.draw_params(self.model, key, self.prepare(rows)[0])
        if self.start is not None:
            params = trees.join(self.start, params)
        if self.frozen is not None:
            flags = jax.tree.map(lambda x: x is not None, self.frozen, is_leaf=lambda x: x is None)
            params, _ = trees.split(params, flags)
        return params

    def parameters(self, params: Params) -> Params:
        """Put the frozen leaves into a model: all parameters that the network takes.

        Args:
          params: The model without its frozen leaves.

        Returns:
          The whole model.
        """
        return params if self.frozen is None else trees.join(params, self.frozen)

    @property
    def local_loss(self) -> LocalLoss:
        """The loss of local steps, a `LocalLoss`; there is none if `loss` serves them."""
        if self.step_loss is None and not self.state:
            raise AttributeError("local_loss")
        return self._local_loss

    def _local_loss(
        self, params: Params, aux: Params, batch: Batch, extras: Extras
    ) -> tuple[Array, Params]:
        """Compute the loss of a local step; the aux is the model's state if it has some."""
        rows = self.held.at(extras.client, batch.examples)
        if self.step_loss is None:
            losses, mask, after = self._losses(params, rows, batch.key)
            loss = self._mean(params, losses, mask)
        else:
            known, drawn = self.parameters(params), Drawn(*self._drawn(rows, batch.key), batch.key)
            given = {name: known[name] for name in self.state} if self.state else aux
            extras = extras._replace(start=self.parameters(extras.start))
            loss, after = self.step_loss(known, given, drawn, extras)
            loss, aux = loss + self._penalty(params), after
        if self.state:
            fresh = jax.tree.map(lambda _: None, params) | {k: after[k] for k in self.state}
            is_none = partial(operator.is_, None)
            aux = jax.tree.map(
                lambda old, new: None if old is None else new, params, fresh, is_leaf=is_none
            )
        return loss, aux

    def untrained(self, params: Params) -> Params:
        """Return bools in the structure of `params`, a model: whether leaves are network state.

        These are averaged, but not trained.
        """
        return trees.leaves_that(lambda path: path.split("/")[0] in self.state, params)

    def outputs(self, params: Params) -> Array:
        """Compute the network's outputs for all of `test_data`: `f[m, ...]`.

        Args:
          params: A model.
        """
        num, whole = self._num_examples, self.parameters(params)
        outputs = jax.lax.map(
            lambda rows: calls.outputs_of(self.model, whole, self._tested(rows)[0]),
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
        num = self._num_examples if self.num_tests is None else self.num_tests
        capacity = self._num_examples if self.test_rows is None else self.test_rows.shape[0]

        def sums(places: Array) -> Sums:
            rows = jnp.minimum(places, num - 1)
            rows = rows if self.test_rows is None else self.test_rows[rows]
            return self._sums(whole, rows, places < num)

        totals = jax.lax.map(sums, self._test_places(whole, capacity))
        metrics = means_over_examples(jax.tree.map(lambda each: each.sum(axis=0), totals), num)
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
        if (held := self.test_held) is None:
            return {}

        def of_client(client: Array) -> dict[str, Array]:
            whole = self.parameters(model_of(client))

            def sums(rows: Array, is_there: Array, _: Array | int) -> Sums:
                return self._sums(whole, rows, is_there)

            totals = held.total(client, sums, min(held.most, OWN_AT_ONCE))
            means = means_over_examples(totals, held.counts[client])
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
        apply = partial(calls.outputs_of, self.model)
        at_once = evaluated_at_once(apply, whole, example, on_cpu=self.test_block)
        batch = min(num, at_once)
        num_batches = -(-num // batch)
        return jnp.arange(num_batches * batch).reshape(num_batches, batch)

    def _tested(self, rows: Array) -> tuple[Params, Params]:
        """Look up inputs and targets of test examples `i32[B]`."""
        return self.prepare(client_data.rows_of(self.test_data, rows))

    def _losses(
        self, params: Params, rows: Array, key: Key, *, train: bool = True
    ) -> tuple[Array, Array | None, Params]:
        """Compute losses of training examples `i32[B]`, their mask, and the network's next state.

        train: whether the network is in training; otherwise its state stays, and is ().
        """
        inputs, targets = self._drawn(rows, key)
        rngs = {"dropout": stream(key, "dropout"), "quantize": stream(key, "quantize")}
        whole, mutable = self.parameters(params), self.state if train else ()
        found = calls.outputs_of(self.model, whole, inputs, train=train, rngs=rngs, mutable=mutable)
        outputs, state = found if mutable else (found, ())
        mask = None if self.mask_of is None else self.mask_of(targets)
        losses = trees.in_32_bits(self.loss_of(outputs, targets))
        chex.assert_shape(losses, rows.shape if mask is None else mask.shape)
        return losses, mask, state

    def _drawn(self, rows: Array, key: Key) -> tuple[Params, Params]:
        """Look up inputs and targets of training examples `i32[B]`, changed at random."""
        batch = client_data.rows_of(self.data, rows)
        if self.augmentation is not None:
            batch = self.augmentation(stream(key, "augmentation"), batch)
        return self.prepare(batch)

    def _sums(self, whole: Params, rows: Array, is_there: Array) -> Sums:
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
        outputs = calls.outputs_of(self.model, whole, inputs)
        mask = None if self.mask_of is None else self.mask_of(targets)
        named = (*self.metrics, ("loss", Metric(self.loss_of)))
        return sums_over_examples(named, outputs, targets, is_there, mask)

    def _penalty(self, params: Params) -> Array | float:
        """Compute the prior's part of one example's loss; 0 without a prior."""
        if self.prior_precision is None:
            return 0.0
        if self.state:
            params = trees.split(params, self.untrained(params))[0]
        per_example = trees.in_32_bits(self.prior_precision) / (2 * self.counts.sum())
        return per_example * optax.tree.norm(trees.in_32_bits(params), squared=True)


_OF_CLIENTS = ("client_", "personal_", "personal_client_")
"""Beginnings of the names of metrics of single clients' examples, or models."""


def inf_for_nan(losses: Array) -> Array:
    """Replace nan by inf in losses `f[...]`, so that means that leave nan out do not hide it."""
    return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def evaluated_at_once(
    apply: Callable[[Params, Array], Params], params: Params, example: Array, *, on_cpu: int
) -> int:
    """Choose how many test examples to evaluate together.

    Args:
      apply: From parameters and examples to logits.
      params: The parameters.
      example: One example, `[1, ...]`.
      on_cpu: The number on a CPU, whose cache should hold the activations.

    Returns:
      On an accelerator, as many as `LARGEST` bytes allow, and `LARGEST_OF_ALL` of all lanes: mostly
      all.
    """
    if is_for_cpu():
        return on_cpu
    largest = min(LARGEST, LARGEST_OF_ALL // lanes_together())
    program = jax.make_jaxpr(apply)(params, example).jaxpr
    needed = _bytes_at_once(program, [False] * (len(program.invars) - 1) + [True])
    return max(1, largest // max(1, example.size * example.dtype.itemsize + needed))


def _bytes_at_once(program: Any, are_given: list[bool]) -> int:
    """Count the results of a program's equations that are needed at the same time, at most.

    Equations run in their order; inner programs have their own results. What follows from the
    parameters alone, such as these in bfloat16, there is once for all examples.

    Args:
      program: The program, traced.
      are_given: Which of its inputs follow from the example.
    """
    last_uses = {
        var: number
        for number, equation in enumerate(program.eqns)
        for var in equation.invars
        if not hasattr(var, "val")  # literals
    } | dict.fromkeys((var for var in program.outvars if not hasattr(var, "val")), math.inf)
    found = {var for var, is_given in zip(program.invars, are_given, strict=True) if is_given}
    held: dict[Var, int] = {}
    most = 0
    for number, equation in enumerate(program.eqns):
        follow = [not hasattr(var, "val") and var in found for var in equation.invars]
        if not any(follow):
            continue
        found |= {*equation.outvars}
        held |= {var: var.aval.size * var.aval.dtype.itemsize for var in equation.outvars}
        # What a loop carries may follow from the example later.
        is_call = equation.primitive.name not in ("scan", "while")
        of_inner = 0
        for inner in trees.programs_within(equation):
            num = len(inner.invars)
            is_same = is_call and num == len(follow)
            of_inner = max(of_inner, _bytes_at_once(inner, follow if is_same else [True] * num))
        most = max(most, sum(held.values()) + of_inner)
        held = {var: size for var, size in held.items() if last_uses.get(var, -1) > number}
    return most


def sums_over_examples(
    metrics: Sequence[tuple[str, Metric]],
    outputs: Params,
    targets: Params,
    is_there: Array,
    mask: Array | None,
) -> Sums:
    """Sum losses and metrics over the examples of a block.

    Args:
      metrics: The metrics by name.
      outputs: What the network computed, leaves `[B, ...]`.
      targets: What it should have computed, leaves `[B, ...]`.
      is_there: `bool[B]`, which examples count.
      mask: `bool[B, ...]`, which of their entries count; None for all.

    Returns:
      By name the sum over what counts, along the metric's dimensions, and how many entries
      these are; None for the latter if it is the number of examples.
    """
    counted = is_there if mask is None else mask & client_data.along(is_there, mask)
    sums: Sums = {}
    for name, metric in metrics:
        values, among = trees.in_32_bits(metric.values(outputs, targets)), counted
        if jnp.issubdtype(values.dtype, jnp.integer):
            values = values.astype("float32")  # Long sums of whole numbers could overflow.
        if metric.dims:
            among = client_data.along(counted, values)
        if metric.among is not None:
            among = among & metric.among(outputs, targets)
        axes = tuple(range(counted.ndim))
        number = None
        if metric.among is not None or mask is not None:
            number = jnp.broadcast_to(among, values.shape).sum(axis=axes)
        name = f"{name}[{', '.join(metric.dims)}]" if metric.dims else name
        sums[name] = jnp.where(among, values, 0).sum(axis=axes), number
    return sums


def means_over_examples(sums: Sums, num: Array | int) -> dict[str, Array]:
    """Divide sums by numbers of entries.

    Args:
      sums: What `sums_over_examples` returned for all blocks, added up.
      num: Number of examples, by which sums are divided that name no number.
    """
    dtype = jnp.promote_types(sums["loss"][0].dtype, "float32")
    return {
        name: total.astype(dtype) / (num if number is None else number)
        for name, (total, number) in sums.items()
    }


CHECKED = 2
"""Examples of the mini-batch with which shapes are checked."""


def check_shapes(problem: Supervised) -> tuple[int, ...]:
    """Check that a network, a loss and metrics fit the data, without computing anything.

    Args:
      problem: The problem; its partition does not matter.

    Returns:
      The shape of the outputs for two examples; () if these are no single array.

    Raises:
      ConfigError: If they do not fit, naming what has which shape.
    """
    return _shape_of_outputs(*client_data.described(problem))


@functools.lru_cache(maxsize=256)
def _shape_of_outputs(structure: trees.TypedStructure, leaves: tuple) -> tuple[int, ...]:
    """Check shapes once for problems that differ in values only."""
    problem = structure.unflatten(leaves)
    rows = jax.ShapeDtypeStruct((CHECKED,), jnp.int32)
    found = []
    for kind in ("data", "test_data"):
        data, allowed = getattr(problem, kind), "such that it can be prepared"
        with refusing(kind, form_of(data), allowed, TypeError, ValueError):
            found.append(jax.eval_shape(_prepared, problem.prepare, data, rows))
    if form_of(found[0]) != form_of(found[1]):
        raise ConfigError("examples of test", form_of(found[1]), f"{form_of(found[0])}, as of data")
    inputs, targets = found[0]
    name, allowed = type(problem.model).__name__, f"a network that takes inputs {form_of(inputs)}"
    draws = (
        f"one that draws only in local steps, which set one of {', '.join(calls.SWITCHES)}, "
        "and from the streams dropout and quantize"
    )
    with refusing("model", name, allowed), refusing("model", name, draws, InvalidRngError):
        outputs = _outputs_for(problem, inputs)
    counted: tuple[int, ...] = (CHECKED,)
    if problem.mask_of is not None:
        mask = _traced("mask", lambda outputs, targets: problem.mask_of(targets), outputs, targets)
        if mask.dtype != bool or mask.shape[:1] != counted:
            allowed = f"bools of shape {counted} and perhaps more axes"
            raise ConfigError("mask of two examples", form_of(mask), allowed)
        counted = mask.shape
    _check_values("loss", Metric(problem.loss_of), outputs, targets, counted)
    for name, metric in problem.metrics:
        if not name or "[" in name or "/" in name or name == "loss":
            raise ConfigError("name of a metric", name, 'another one, without brackets and "/"')
        _check_values(f"metric {name}", metric, outputs, targets, counted)
    return getattr(outputs, "shape", ())


def _outputs_for(problem: Supervised, inputs: Params) -> Params:
    """Describe the outputs of a network, and check that it can be trained and evaluated.

    Raises:
      ConfigError: If variables cannot be told from parameters, or dropout is off in local steps.
    """
    model = problem.model
    if not isinstance(getattr(model.apply, "__self__", None), nn.Module):
        calls.check_switches(model.apply)
    params = jax.eval_shape(lambda problem: problem.init(jax.random.key(0)), problem)
    state = calls.state_of(model, params)
    if state and isinstance(model, nn.Module) and not calls.has_switch(model):
        calls.check_switches(model.__call__)  # Statistics would stay as they are without a word.
    has_names = isinstance(params, Mapping)
    if not state and has_names and (calls.PARAMETERS in params or isinstance(model, nn.Module)):
        for name in params.keys() - {calls.PARAMETERS}:
            if jax.tree.leaves(params[name]):
                allowed = "params or frozen, as its apply does not take mutable="
                raise ConfigError("collection of the network's variables", name, allowed)

    def outputs_in(train: bool, mutable: tuple[str, ...] = ()) -> Params:
        def compute(problem: Supervised, params: Params, x: Params) -> Params:
            key = jax.random.key(0)
            rngs = {"dropout": key, "quantize": key} if train else None
            whole = problem.parameters(params)
            return calls.outputs_of(model, whole, x, train=train, rngs=rngs, mutable=mutable)

        return jax.eval_shape(compute, problem, params, inputs)

    outputs = outputs_in(train=False)
    # Without a switch local steps and evaluations make the same call.
    with nn.intercept_methods(_refuse_idle_dropout):
        found = outputs_in(train=True, mutable=state)
    for name in state:
        known, after = problem.parameters(params)[name], found[1][name]
        if form_of(known) != form_of(after):
            allowed = f"{form_of(known)} after a local step, as before it"
            raise ConfigError(f"collection {name} of the network", form_of(after), allowed)
    return outputs


def _refuse_idle_dropout(
    compute: Callable[..., Params], args: tuple, kwargs: dict, context: nn.module.InterceptorContext
) -> Params:
    """Call a method of a flax module, unless it is a dropout that is switched off."""
    module = context.module
    if isinstance(module, nn.Dropout | nn.MultiHeadDotProductAttention):
        rate = module.rate if isinstance(module, nn.Dropout) else module.dropout_rate
        given = inspect.signature(compute).bind(*args, **kwargs).arguments
        if rate > 0 and (module.deterministic or given.get("deterministic")):
            allowed = (
                "random in local steps: the network takes none of "
                f"{', '.join(calls.SWITCHES)}, or does not pass it on; or else of rate 0"
            )
            raise ConfigError(f"dropout {'/'.join(module.path)}", "off", allowed)
    return compute(*args, **kwargs)


def _check_values(
    name: str, metric: Metric, outputs: Params, targets: Params, counted: tuple[int, ...]
) -> None:
    """Check the shape of a loss or metric of two examples."""
    values = _traced(name, metric.values, outputs, targets)
    shape, whole = np.shape(values), (*counted, *metric.dims)
    rank = len(counted) + len(metric.dims)
    if len(shape) != rank or shape[: len(counted)] != counted:
        sizes = f"({', '.join(map(str, whole))}{',' if rank == 1 else ''})"
        entries = "each entry of the mask" if len(counted) > 1 else "each example"
        allowed = f"{sizes} for {CHECKED} examples, one number for {entries}"
        raise ConfigError(f"shape of the {name}", shape, allowed)
    for dim, labels, size in zip(metric.dims, metric.labels, shape[len(counted) :], strict=False):
        if len(labels) != size:
            raise ConfigError(f"labels of {dim} of the {name}", labels, f"as many as {size}")
    if metric.among is not None:
        among = _traced(name, metric.among, outputs, targets)
        if among.dtype != bool or len(among.shape) != rank:
            allowed = f"bools of shape {shape}, as its values"
            raise ConfigError(f"`among` of the {name}", form_of(among), allowed)


def _traced(name: str, function: PerExample, outputs: Params, targets: Params) -> Params:
    """Describe the result of a loss, a mask or a metric."""
    label = getattr(function, "__name__", type(function).__name__)
    given = f"outputs {form_of(outputs)} and targets {form_of(targets)}"
    with refusing(name, label, f"a function of {given}"):
        return jax.eval_shape(function, outputs, targets)


def _prepared(
    prepare: Callable[..., tuple[Params, Params]], data: Params, rows: Array
) -> tuple[Params, Params]:
    inputs, targets = prepare(client_data.rows_of(data, rows))
    return inputs, targets
