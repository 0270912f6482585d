"""Local training: which examples a step uses, what it does to a model, and for which clients.

Dimension letters: `S` slots, `M` examples of a client.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from scipy import stats

from fedjax_sim import ConfigError, Event, Plan
from fedjax_sim.clients import (
    BaseOptimizer,
    LocalTraining,
    SumRequest,
    batch_gradient,
    gradient_norm,
    local_training,
)
from fedjax_sim.clients.local_settings import Descent
from fedjax_sim.clients.mini_batches import LossGradient, shuffled_examples
from fedjax_sim.core.events import PackedRows
from fedjax_sim.core.streams import shuffle_bits
from fedjax_sim.core.targets import tracing_for
from fedjax_sim.core.types import Facts
from fedjax_sim.problems import Quadratic


@struct.dataclass
class Counting:
    """A problem whose model counts the examples it has seen.

    The gradient of an example's coordinate is minus the number of times it is in the mini-batch, so
    that with learning rate 1 every coordinate is a count.
    """

    counts: jax.Array
    size: int = struct.field(pytree_node=False)

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return -params[examples].sum()


def event_of(clients: Any, steps: Any, offset: Any) -> Event:
    """Make a tick with these slots: `i32[S]` each."""
    clients, steps, offset = (jnp.asarray(x, "int32") for x in (clients, steps, offset))
    zero = jnp.zeros_like(clients)
    return Event(
        jnp.int32(0), clients, steps, zero, zero.astype("float32"), offset, zero, jnp.int32(0)
    )


def _run(plan: Plan, problem: Any, hyper: Any, key: jax.Array, starts: Any, event: Event) -> Any:
    return local_training(problem, hyper, plan)(key, event, starts=starts)


run = jax.jit(_run, static_argnums=0)
KEY = jax.random.key(7)


def seen(
    steps: list[int],
    *,
    clients: list[int],
    counts: list[int],
    batch: int,
    offset: Any = 0,
    sampling: str = "shuffled_epochs",
) -> np.ndarray:
    """Count how often each slot has seen each example: `[S, M]`.

    Args:
      steps: Local steps of each slot.
      clients: Client of each slot.
      counts: Number of examples of each client.
      batch: Examples of a mini-batch.
      offset: Steps that the client has done before, one number or one per slot.
      sampling: As in `LocalTraining`.
    """
    problem = Counting(jnp.array(counts, "int32"), max(counts))
    hyper = LocalTraining(lr=1.0, batch_size=batch, sampling=sampling)
    event = event_of(clients, steps, np.broadcast_to(offset, len(clients)))
    start = jnp.zeros((len(clients), problem.size))
    return np.asarray(run(Plan(slots_at_once=len(clients)), problem, hyper, KEY, start, event)[0])


def test_extras_that_nobody_uses_are_refused() -> None:
    """Without `is_corrected` a correction would be left out in silence."""
    problem, hyper = Counting(jnp.array([3, 3], "int32"), 3), LocalTraining(lr=1.0, batch_size=1)
    event, starts = event_of([0, 1], [1, 1], [0, 0]), jnp.zeros((2, 6))
    train = local_training(problem, hyper, Plan(slots_at_once=2))
    with pytest.raises(ConfigError, match="extras is 'tuple', but must be left out unless"):
        train(KEY, event, starts=starts, extras=(starts,))


def test_every_example_once_an_epoch() -> None:
    """Six batches of four are four epochs of six examples, or three of eight.

    Padding beyond a client's count is never seen.
    """
    found = seen([6, 6], clients=[0, 1], counts=[6, 8], batch=4)
    assert found.tolist() == [[4] * 6 + [0] * 2, [3] * 8]


def test_batches_straddle_epochs() -> None:
    """With seven examples, five batches of three show all of them twice and one a third time."""
    found = seen([5], clients=[0], counts=[7], batch=3)
    assert sorted(found[0].tolist()) == [2] * 6 + [3]


def test_a_batch_larger_than_the_client() -> None:
    found = seen([1], clients=[0], counts=[3], batch=7)
    assert sorted(found[0].tolist()) == [2, 2, 3]


def test_the_next_update_continues_the_epoch_of_the_last() -> None:
    """Seven steps of one update are the three of an update and the four of the next."""
    whole = seen([7], clients=[0], counts=[5], batch=2)
    parts = seen([3], clients=[0], counts=[5], batch=2) + seen(
        [4], clients=[0], counts=[5], batch=2, offset=3
    )
    np.testing.assert_array_equal(whole, parts)


def test_each_epoch_is_a_different_permutation() -> None:
    bits = shuffle_bits(KEY)
    steps = jnp.arange(12)
    samples = np.asarray(
        jax.vmap(lambda step: shuffled_examples(bits, step, jnp.int32(6), 3))(steps)
    ).reshape(6, 6)
    np.testing.assert_array_equal(np.sort(samples, axis=1), np.broadcast_to(np.arange(6), (6, 6)))
    assert len({tuple(row) for row in samples.tolist()}) > 3


def test_late_steps_do_not_overflow() -> None:
    """Numbers of samples use all of 32 bits: here step * batch is just below 2^32."""
    step = 2**31 // 64 - 1
    found = np.asarray(shuffled_examples(shuffle_bits(KEY), jnp.int32(step), jnp.int32(10), 128))
    assert found.min() >= 0
    assert found.max() < 10
    # 128 samples are 12.8 epochs of ten; the incomplete epochs at both ends add at most one each.
    assert set(np.bincount(found, minlength=10).tolist()) <= {12, 13, 14}


def test_clients_have_different_orders() -> None:
    first = [tuple(seen([1], clients=[i], counts=[8] * 6, batch=4)[0].tolist()) for i in range(6)]
    assert len(set(first)) > 3


def test_sampling_with_replacement_is_uniform_over_a_clients_examples() -> None:
    """The p-value of a chi-square test on 3000 samples is above 1e-3; batches repeat examples."""
    found = seen([1000], clients=[0], counts=[6, 9], batch=3, sampling="with_replacement")[0]
    assert found[6:].sum() == 0
    assert found.sum() == 3000
    assert stats.chisquare(found[:6]).pvalue > 1e-3
    assert seen([1], clients=[0], counts=[2, 9], batch=3, sampling="with_replacement").max() >= 2


def updates(num: int, *, steps: int, batch: int, counts: list[int]) -> np.ndarray:
    """Count how often each of the first updates of client 0 has seen each example: `[num, M]`.

    Every update has a new shuffle.
    """
    offsets = steps * np.arange(num)
    return seen(
        [steps] * num,
        clients=[0] * num,
        counts=counts,
        batch=batch,
        offset=offsets,
        sampling="reshuffled",
    )


def test_an_update_with_a_new_shuffle_sees_no_example_twice() -> None:
    """It sees six of seven examples, and never the padding beyond a client's count."""
    found = updates(40, steps=2, batch=3, counts=[7, 9])
    assert (np.sort(found, axis=1) == [0] * 3 + [1] * 6).all()
    assert found[:, 7:].sum() == 0


def test_the_batches_of_an_update_are_those_of_one_shuffle() -> None:
    """Three batches of two are all six examples.

    Orders of two updates are independent, so the next update begins with another batch of the 15
    possible ones 14 times out of 15.
    """
    np.testing.assert_array_equal(updates(40, steps=3, batch=2, counts=[6]), 1)
    options = {
        "clients": [0] * 40,
        "counts": [6],
        "batch": 2,
        "offset": 3 * np.arange(40),
        "sampling": "reshuffled",
    }
    batches, pairs = seen([1] * 40, **options), seen([2] * 40, **options)
    assert (batches <= pairs).all()
    assert np.any(batches[1:] != batches[:-1], axis=1).mean() > 0.7


def test_an_update_longer_than_its_shuffle_runs_through_it_again() -> None:
    """Eight samples of three examples are all of them twice, and the first batch a third time."""
    found = updates(30, steps=4, batch=2, counts=[3])
    assert (np.sort(found, axis=1) == [2, 3, 3]).all()
    first = seen(
        [1] * 30,
        clients=[0] * 30,
        counts=[3],
        batch=2,
        offset=4 * np.arange(30),
        sampling="reshuffled",
    )
    np.testing.assert_array_equal(found - 2, first)


def test_new_shuffles_favour_no_example() -> None:
    """A chi-square test on 600 updates of four out of six examples has a p-value above 1e-3.

    An update sees each example with probability 2/3.
    """
    found = updates(600, steps=2, batch=2, counts=[6, 8]).sum(axis=0)
    # The examples of one update are drawn without replacement, so counts vary less than with
    # independent draws: by the factor 1 - 2/3, corrected by 6/5 for the fixed total.
    statistic = np.sum((found[:6] - 400) ** 2) / (600 * 2 / 3 * 1 / 3) * 5 / 6
    assert stats.chi2.sf(statistic, 5) > 1e-3
    assert statistic > stats.chi2.ppf(1e-3, 5)


def test_a_batch_without_replacement_is_drawn_anew_for_each_step() -> None:
    """No batch holds an example twice, and batches are uniform and independent of the one before.

    Both are chi-square tests with p-values above 1e-3, on pairs out of six examples.
    """
    options = {"counts": [6], "batch": 2, "sampling": "without_replacement"}
    first = seen([1] * 1500, clients=[0] * 1500, offset=np.arange(1500), **options).astype(int)
    assert first.max() == 1
    pairs = np.argsort(-first, axis=1, kind="stable")[:, :2]
    place = 6 * pairs[:, 0] + pairs[:, 1]
    counts = np.bincount(place, minlength=36)
    assert (counts > 0).sum() == 15
    assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3
    num_shared = (first[:-1] * first[1:]).sum(axis=1)[::2]
    expected = 750 * np.array([6, 8, 1]) / 15
    assert stats.chisquare(np.bincount(num_shared, minlength=3), expected).pvalue > 1e-3
    # The second step of an update is the first step of an update that begins one step later.
    two_steps = seen([2], clients=[0], offset=7, **options)[0]
    np.testing.assert_array_equal(two_steps, first[7] + first[8])
    larger = seen([1], clients=[0], counts=[3], batch=5, sampling="without_replacement")[0]
    assert sorted(larger.tolist()) == [1, 2, 2]


STARTS = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
CLIENTS, STEPS, OFFSET = [3, 0, 6, 2], [5, 0, 2, 3], [4, 0, 7, 1]


@pytest.mark.few(1)
@pytest.mark.parametrize("slots_at_once", [1, 3, 4])
def test_an_update_does_not_depend_on_the_other_slots(
    regression: Callable, slots_at_once: int
) -> None:
    """A client's update is the same in any slot and next to any clients, even to data that are nan.

    It is the same up to rounding, because a matrix product may be summed in another order.
    """
    hyper = LocalTraining(lr=0.1, batch_size=2)
    problem = regression()
    event = event_of(CLIENTS, STEPS, OFFSET)
    plan = Plan(slots_at_once=slots_at_once)
    ends, work = run(plan, problem, hyper, KEY, jnp.asarray(STARTS), event)
    np.testing.assert_array_equal(ends[1], STARTS[1])
    assert int(work.needed) == 10
    # One by one 10 steps are run; in blocks of three, longest first, 3 x 5 + 3 x 0; with all four
    # together 4 x 5.
    assert int(work.executed) == {1: 10, 3: 15, 4: 20}[slots_at_once]
    order = np.array([2, 3, 1, 0])
    moved = event_of(*(np.array(x)[order] for x in (CLIENTS, STEPS, OFFSET)))
    poisoned = problem.replace(inputs=problem.inputs.at[3].set(jnp.nan))
    others, _ = run(plan, poisoned, hyper, KEY, jnp.asarray(STARTS)[order], moved)
    np.testing.assert_allclose(others[:3], ends[order[:3]], rtol=1e-6)
    assert np.isnan(others[3]).all()


OPTIMIZERS = {
    "adam": optax.adam,
    "momentum": partial(optax.sgd, momentum=0.9),
    "weight decay": partial(optax.adamw, weight_decay=0.1),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masked_steps_change_neither_model_nor_optimizer(regression: Callable, name: str) -> None:
    """A slot that is batched with longer ones ends where a separate optimizer ends.

    The optimizer is run step by step; equal up to float32 rounding.
    """
    problem = regression(noise=0.0)
    client = int(np.argmax(problem.counts))
    # A batch of the size of the client's data is all its examples, in some order.
    hyper = LocalTraining(
        lr=0.05, batch_size=int(problem.counts[client]), optimizer=OPTIMIZERS[name]
    )
    clients, steps = [client] * 4, [3, 1, 0, 5]
    ends, _ = run(
        Plan(slots_at_once=4),
        problem,
        hyper,
        KEY,
        jnp.asarray(STARTS),
        event_of(clients, steps, [0] * 4),
    )
    optimizer = OPTIMIZERS[name](0.05)
    for slot, num in enumerate(steps):
        model = jnp.asarray(STARTS[slot])
        state = optimizer.init(model)
        for _ in range(num):
            gradient = jax.grad(problem.loss)(
                model, jnp.int32(client), jnp.arange(hyper.batch_size), KEY
            )
            update, state = optimizer.update(gradient, state, model)
            model = optax.apply_updates(model, update)
        np.testing.assert_allclose(ends[slot], model, rtol=2e-5, atol=1e-6)


def test_an_empty_slot_does_no_work(regression: Callable) -> None:
    event = event_of([-1, 2, -1, 0], [0, 3, 0, 1], [0] * 4)
    ends, work = run(
        Plan(slots_at_once=1),
        regression(),
        LocalTraining(lr=0.1, batch_size=2),
        KEY,
        jnp.asarray(STARTS),
        event,
    )
    np.testing.assert_array_equal(ends[jnp.array([0, 2])], STARTS[[0, 2]])
    assert (int(work.executed), int(work.needed)) == (4, 4)


def test_the_proximal_term_is_the_gradient_of_half_the_squared_distance_to_the_start(
    regression: Callable,
) -> None:
    """Steps are those on a loss that includes the term, differentiated by JAX.

    Equal up to float32 rounding.
    """
    problem = regression(noise=0.0)
    client = int(np.argmax(problem.counts))
    examples = jnp.arange(int(problem.counts[client]))
    hyper = LocalTraining(lr=0.1, batch_size=examples.size)
    event = event_of([client] * 2, [1, 4], [0] * 2)
    train = local_training(problem, hyper, Plan(slots_at_once=2), proximal=0.7)
    ends, _ = train(KEY, event, starts=jnp.asarray(STARTS[:2]))

    def loss(model: jax.Array, start: jax.Array) -> jax.Array:
        return problem.loss(model, jnp.int32(client), examples, KEY) + 0.7 / 2 * jnp.sum(
            (model - start) ** 2
        )

    for start, end, num in zip(jnp.asarray(STARTS[:2]), ends, (1, 4), strict=True):
        model = start
        for _ in range(num):
            model = model - 0.1 * jax.grad(loss)(model, start)
        np.testing.assert_allclose(end, model, rtol=2e-5, atol=1e-6)


def test_the_proximal_term_holds_models_near_their_start() -> None:
    """On a quadratic of curvature h, w converges to (h c + mu w_0) / (h + mu).

    The distance shrinks by the factor 1 - lr (h + mu) at each step.
    """
    h, mu, c, steps = 0.5, 1.5, 2.0, 6
    with jax.enable_x64(True):
        problem = Quadratic.of(np.full((4, 3), c), curvature=h)
        start = jnp.asarray(STARTS, float)
        event = event_of([0, 1, 2, 3], [steps] * 4, [0] * 4)
        hyper = LocalTraining(lr=0.2, batch_size=1)
        train = local_training(problem, hyper, Plan(slots_at_once=4), proximal=mu)
        ends, _ = train(KEY, event, starts=start)
    limit = (h * c + mu * STARTS.astype(float)) / (h + mu)
    np.testing.assert_allclose(
        ends, limit + (1 - 0.2 * (h + mu)) ** steps * (STARTS - limit), rtol=1e-12
    )


def test_one_start_is_the_same_start_in_every_slot(regression: Callable) -> None:
    """`start=` equals `starts=` with copies of the model, bit for bit."""
    hyper, problem = LocalTraining(lr=0.1, batch_size=2), regression()
    event = event_of(CLIENTS, STEPS, OFFSET)
    train = local_training(problem, hyper, Plan(slots_at_once=4))
    model = jnp.asarray(STARTS[0])
    with_one, work = jax.jit(lambda: train(KEY, event, start=model))()
    with_copies, same_work = run(
        Plan(slots_at_once=4), problem, hyper, KEY, jnp.stack([model] * 4), event
    )
    chex.assert_trees_all_equal((with_one, work), (with_copies, same_work))


@struct.dataclass
class Matrix:
    """Least squares with a matrix of parameters, whose first row no example touches."""

    counts: jax.Array
    inputs: jax.Array

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return jnp.mean((self.inputs[client, examples] @ params - 1) ** 2)


SUMMED = {
    "one after another": (Plan(), Facts()),
    "in blocks": (Plan(slots_at_once=3), Facts()),
    "together": (Plan(slots_at_once=4), Facts()),
    "turned": (Plan(slots_at_once=2, narrow=2), Facts()),
    "in turned rows": (Plan(narrow=2), Facts(most_steps=5, packed=PackedRows(2, 2, 4, 4))),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("of_progress", [False, True])
@pytest.mark.parametrize("name", SUMMED)
def test_a_sum_in_place_of_the_models(name: str, of_progress: bool) -> None:
    """It is that of single models, and exactly 0 where no model has moved, if it is of progress."""
    inputs = np.random.default_rng(2).normal(size=(7, 6, 3)).astype("float32")
    inputs[..., 0] = 0
    problem = Matrix(jnp.full(7, 6, "int32"), jnp.asarray(inputs))
    event, start = event_of(CLIENTS, STEPS, OFFSET), jnp.asarray(STARTS[:3, :2])
    weights, hyper = jnp.array([0.5, 2.0, 0.3, 0.25]), LocalTraining(lr=0.1, batch_size=2)
    plan, facts = SUMMED[name]
    event, train = event.within(facts=facts), local_training(problem, hyper, plan)
    total, work = jax.jit(
        lambda: train(KEY, event, start=start, total=SumRequest(weights, of_progress))
    )()
    models, same_work = jax.jit(lambda: train(KEY, event, start=start))()
    each = models - start[None] if of_progress else models
    np.testing.assert_allclose(total, np.einsum("s,sij->ij", weights, each), rtol=2e-6)
    assert np.all((total[0] == 0) == of_progress)
    chex.assert_trees_all_equal(work, same_work)


@pytest.mark.few(1)
@pytest.mark.parametrize("plan", [Plan(), Plan(slots_at_once=4)])
def test_steps_of_empty_slots_that_are_undone(plan: Plan, regression: Callable) -> None:
    """Their models are their starts, and sums are those of the other slots."""
    problem, hyper = regression(), LocalTraining(lr=0.1, batch_size=2)
    event, start = event_of([1, -1, 0, 2], [2, 0, 2, 2], [0] * 4), jnp.ones(3)
    known = event.within(facts=Facts(most_steps=2, same_steps=True))
    weights = jnp.array([0.5, 0.0, 0.3, 0.25])

    def train(event: Event, **asked: Any) -> Any:
        bound = local_training(problem, hyper, plan)
        return jax.jit(lambda: bound(KEY, event, start=start, **asked)[0])()

    models = train(event)
    np.testing.assert_array_equal(models[1], start)
    np.testing.assert_array_equal(train(known), models)
    for of_progress in (False, True):
        total = train(known, total=SumRequest(weights, of_progress))
        each = models - start[None] if of_progress else models
        np.testing.assert_allclose(total, weights @ each, rtol=2e-6)


def test_every_slots_gradient_gets_its_extras(regression: Callable) -> None:
    """A control variate is subtracted from each slot's gradient, as SCAFFOLD's local steps need.

    With a gradient g - extra and one step, the end is that of plain SGD plus lr times the extra.
    """
    hyper, problem = LocalTraining(lr=0.1, batch_size=2), regression()
    event = event_of(CLIENTS, [1, 0, 1, 1], OFFSET)
    extras = jnp.arange(12.0).reshape(4, 3)

    def controlled(
        problem: Any, hyper: Any, key: Any, client: Any, offset: Any, control: Any
    ) -> Any:
        gradient = batch_gradient(problem, hyper, key, client, offset)
        return lambda model, q: gradient(model, q) - control

    plan = Plan(slots_at_once=4)
    train = local_training(problem, hyper, plan, gradient=controlled)
    ends, _ = jax.jit(lambda: train(KEY, event, starts=jnp.asarray(STARTS), extras=(extras,)))()
    plain, _ = run(plan, problem, hyper, KEY, jnp.asarray(STARTS), event)
    moved = jnp.where(event.steps[:, None] > 0, 0.1 * extras, 0)
    np.testing.assert_allclose(ends, plain + moved, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [optax.sgd, optax.adam])
def test_the_rate_multiplies_nothing_of_the_models_size(optimizer: Any) -> None:
    """On a GPU it is the cotangent of the loss: only weights and one gradient move in a step."""
    model = {"w": jnp.ones((6, 5)), "b": jnp.ones(5)}

    @struct.dataclass
    class Linear:
        counts: jax.Array

        def loss(self, params: Any, client: Any, examples: Any, key: Any) -> jax.Array:
            inputs = jnp.linspace(0, 1, 12).reshape(2, 6)
            return jnp.tanh(inputs @ params["w"] + params["b"][None]).sum()

    def step(rate: jax.Array) -> Any:
        hyper = LocalTraining(lr=rate, batch_size=2, optimizer=optimizer)
        train = local_training(Linear(jnp.array([4])), hyper, Plan())
        return train(KEY, event_of([0], [1], [0]), start=model)[0]

    def is_multiplied(platform: str) -> bool:
        with tracing_for(platform):
            program = jax.make_jaxpr(lambda rate: step(rate))(0.1)
        return re.search(r"f32\[(1,)*6,5\] = mul ", str(program)) is not None

    assert is_multiplied("gpu") == (optimizer is optax.adam)
    assert is_multiplied("cpu")
    with tracing_for("gpu"):
        scaled = jax.jit(lambda rate: step(rate))(0.1)
    for ours, theirs in zip(*map(jax.tree.leaves, (scaled, jax.jit(step)(0.1))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_measures_do_not_depend_on_the_rate(regression: Callable) -> None:
    """On a GPU too, where the rate is the cotangent of the loss: 0 loses the gradient."""
    event, problem = event_of([0], [1], [0]), regression()

    def slope(rate: jax.Array) -> jax.Array:
        hyper, plan = LocalTraining(lr=rate, batch_size=2), Plan(measures=(("g", gradient_norm),))
        train = local_training(problem, hyper, plan)
        return train(KEY, event, start=jnp.asarray(STARTS[0]))[1].measured["g"]

    with tracing_for("gpu"):
        found = jax.jit(jax.vmap(lambda rate: slope(rate)))(jnp.array([0.0, 0.1]))
    np.testing.assert_allclose(found, jnp.stack([slope(0.1)] * 2), rtol=1e-5)


@pytest.mark.parametrize(("is_corrected", "proximal"), [(True, None), (False, 0.5), (True, 0.5)])
def test_what_is_added_to_a_gradient_is_multiplied_by_the_rate_before_the_steps(
    is_corrected: bool, proximal: float | None
) -> None:
    """On an accelerator a step multiplies at most the model; results are the same."""
    correction, start = jnp.linspace(-1, 1, 5), jnp.linspace(0, 0.4, 5)

    @struct.dataclass
    class Sines:
        counts: jax.Array

        def loss(self, params: Any, client: Any, examples: Any, key: Any) -> jax.Array:
            return jnp.tanh(jnp.ones((3, 5)) @ params).sum()

    def steps(rate: jax.Array) -> Any:
        hyper = LocalTraining(lr=rate, batch_size=2)
        train = local_training(
            Sines(jnp.array([4])), hyper, Plan(), is_corrected=is_corrected, proximal=proximal
        )
        extras = (correction[None],) if is_corrected else ()
        return train(KEY, event_of([0], [3], [0]), start=start, extras=extras)[0]

    def products(platform: str) -> int:
        with tracing_for(platform):
            program = jax.make_jaxpr(lambda rate: steps(rate))(0.1).jaxpr
        loops = [each for each in program.eqns if each.primitive.name in ("while", "scan")]
        assert loops
        return len(re.findall(r"f32\[(?:1,)*5\] = mul ", "".join(map(str, loops))))

    assert products("gpu") == (proximal is not None) < products("cpu")
    expected = start
    for _ in range(3):
        slope = 3 * (1 - jnp.tanh(expected.sum()) ** 2)
        slope += correction * is_corrected + (proximal or 0.0) * (expected - start)
        expected = expected - 0.1 * slope
    for platform in ("cpu", "gpu"):
        with tracing_for(platform):
            found = jax.jit(lambda rate: steps(rate))(0.1)
        np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)


def test_the_rate_as_cotangent_is_the_rate_times_the_gradient() -> None:
    """Types that would round the rate are multiplied by it after all."""
    gradient = LossGradient(lambda model, aux, q: (jnp.sum(jnp.sin(model)) + q, aux))
    model = jnp.linspace(0.0, 2, 7)
    scaled, _ = gradient.descent(0.3, model, (), jnp.int32(0))
    np.testing.assert_allclose(scaled, -0.3 * jnp.cos(model), rtol=1e-6)
    narrow = model.astype("bfloat16")
    scaled, _ = gradient.descent(jnp.float32(0.3), narrow, (), jnp.int32(0))
    np.testing.assert_array_equal(scaled, jnp.float32(-0.3) * gradient(narrow, jnp.int32(0)))
    assert scaled.dtype == "float32"


@jax.custom_vjp
def _clipped(x: jax.Array) -> jax.Array:
    """The identity, whose derivative is clipped."""
    return x


_clipped.defvjp(lambda x: (x, None), lambda _, slope: (jnp.clip(slope, -0.01, 0.02),))
MINDING: dict[str, Callable[[jax.Array], jax.Array]] = {
    # With small rates all derivatives are 0 in float16.
    "float16": lambda x: jnp.square(x.astype("float16")).astype("float32") * 1e-4,
    "clipped": lambda x: jnp.square(_clipped(x)),
    "clipped in a loop": lambda x: jax.lax.scan(lambda x, _: (_clipped(x), ()), x, length=2)[0],
}


@pytest.mark.parametrize("name", MINDING)
def test_the_rate_is_no_cotangent_where_its_scale_matters(name: str) -> None:
    gradient = LossGradient(lambda model, aux, q: (jnp.sum(MINDING[name](model)) + q, aux))
    model, rate = jnp.linspace(-2.0, 2, 7), 1e-4
    found, _ = jax.jit(gradient.descent)(rate, model, (), jnp.int32(0))
    np.testing.assert_allclose(found, -rate * gradient(model, jnp.int32(0)), rtol=1e-6)
    assert jnp.abs(found).max() > 0


def test_only_plain_sgd_has_a_rate() -> None:
    """An optimizer of one's own may do anything with its rate."""
    assert isinstance(LocalTraining(lr=0.1).local_optimizer(), Descent)
    for optimizer in (optax.adam, lambda rate: optax.sgd(rate, momentum=0.9)):
        own = LocalTraining(lr=0.1, optimizer=optimizer).local_optimizer()
        assert not isinstance(own, Descent)
    base = BaseOptimizer(lr=0.1)
    assert not isinstance(base.local_optimizer(), Descent)


def test_starts_of_the_wrong_number_of_slots_are_refused(regression: Callable) -> None:
    """Shapes are asserted where arrays enter, before anything could broadcast."""
    train = local_training(regression(), LocalTraining(batch_size=2), Plan(slots_at_once=4))
    event = event_of(CLIENTS, STEPS, OFFSET)
    with pytest.raises(AssertionError):
        train(KEY, event, starts=jnp.asarray(STARTS[:3]))
    corrected = local_training(
        regression(), LocalTraining(batch_size=2), Plan(slots_at_once=4), is_corrected=True
    )
    with pytest.raises(AssertionError):
        corrected(KEY, event, starts=jnp.asarray(STARTS), extras=(jnp.zeros(3),))
    with pytest.raises(AssertionError):
        train(KEY, event.within(steps=event.steps[:3]), starts=jnp.asarray(STARTS))


@pytest.mark.parametrize(
    "sampling", ["shuffled_epochs", "reshuffled", "without_replacement", "with_replacement"]
)
def test_mini_batches_are_the_same_with_64_bits(sampling: str) -> None:
    def draws() -> np.ndarray:
        return seen([5, 7], clients=[0, 1], counts=[17, 5], batch=4, sampling=sampling)

    narrow = draws()
    with jax.enable_x64(True):
        wide = draws()
    np.testing.assert_array_equal(narrow, wide)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_optimizers_keep_the_type_of_the_model(dtype: str) -> None:
    """The pull to the start has the 32 bits of its setting."""
    problem = Quadratic.of(jnp.ones((1, 3), dtype))
    momentum = partial(optax.sgd, momentum=0.5)
    hyper = LocalTraining(
        lr=jnp.float32(0.5), batch_size=1, proximal=jnp.float32(1.0), optimizer=momentum
    )
    event, starts = event_of([0], [2], [0]), jnp.zeros((1, 3), dtype)
    models, _ = run(Plan(), problem, hyper, KEY, starts, event)
    assert models.dtype == dtype
    # The second step's direction is 2 * 0.5 - 1 = 0, and half of the first one's.
    np.testing.assert_array_equal(models.astype("float32"), np.full((1, 3), 0.5 + 0.25))
