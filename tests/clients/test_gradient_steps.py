"""Local work: which examples, which optimizer steps, and for whom."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from scipy import stats

from fedjax_sim import Event, Plan
from fedjax_sim.clients.gradient_steps import LocalTraining, local_sgd, shuffled_examples
from fedjax_sim.problems import Quadratic
from fedjax_sim.streams import shuffle_bits


@struct.dataclass
class Counting:
    """A problem whose model counts the examples it has seen: the gradient is minus their number, each. With lr 1, a count per example."""

    counts: jax.Array
    size: int = struct.field(pytree_node=False)

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return -params[examples].sum()


def event_of(clients: Any, steps: Any, offset: Any) -> Event:
    clients, steps, offset = (jnp.asarray(x, "int32") for x in (clients, steps, offset))
    zero = jnp.zeros_like(clients)
    return Event(
        jnp.int32(0), clients, steps, zero, zero.astype("float32"), offset, zero, jnp.int32(0)
    )


def _run(plan: Plan, problem: Any, hyper: Any, key: jax.Array, start: Any, event: Event) -> Any:
    return local_sgd(problem, hyper, plan, key, start, event)


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
    """How often each slot has seen each example: `[S, M]`. offset: one, or one per slot."""
    problem = Counting(jnp.array(counts, "int32"), max(counts))
    hyper = LocalTraining(lr=1.0, batch_size=batch, sampling=sampling)
    event = event_of(clients, steps, np.broadcast_to(offset, len(clients)))
    start = jnp.zeros((len(clients), problem.size))
    return np.asarray(run(Plan(slots_at_once=len(clients)), problem, hyper, KEY, start, event)[0])


def test_every_example_once_an_epoch() -> None:
    """Six steps of four are four epochs of six, or three of eight; what lies beyond a client's count is never seen."""
    found = seen([6, 6], clients=[0, 1], counts=[6, 8], batch=4)
    assert found.tolist() == [[4] * 6 + [0] * 2, [3] * 8]


def test_batches_straddle_epochs() -> None:
    """Seven examples, batches of three: after five steps everyone has been seen twice, and one of them a third time."""
    found = seen([5], clients=[0], counts=[7], batch=3)
    assert sorted(found[0].tolist()) == [2] * 6 + [3]


def test_a_batch_larger_than_the_client() -> None:
    found = seen([1], clients=[0], counts=[3], batch=7)
    assert sorted(found[0].tolist()) == [2, 2, 3]


def test_streams_go_on_where_the_last_update_ended() -> None:
    """Seven steps at once are three and then four more."""
    whole = seen([7], clients=[0], counts=[5], batch=2)
    parts = seen([3], clients=[0], counts=[5], batch=2) + seen(
        [4], clients=[0], counts=[5], batch=2, offset=3
    )
    np.testing.assert_array_equal(whole, parts)


def test_each_epoch_is_a_permutation_of_its_own() -> None:
    bits = shuffle_bits(KEY)
    steps = jnp.arange(12)
    samples = np.asarray(
        jax.vmap(lambda step: shuffled_examples(bits, step, jnp.int32(6), 3))(steps)
    ).reshape(6, 6)
    np.testing.assert_array_equal(np.sort(samples, axis=1), np.broadcast_to(np.arange(6), (6, 6)))
    assert len({tuple(row) for row in samples.tolist()}) > 3


def test_late_steps_do_not_overflow() -> None:
    """Sample numbers use all of 32 bits: step * batch just below 2^32."""
    step = 2**31 // 64 - 1
    found = np.asarray(shuffled_examples(shuffle_bits(KEY), jnp.int32(step), jnp.int32(10), 128))
    assert found.min() >= 0
    assert found.max() < 10
    # 128 samples of ten are twelve or thirteen of each, wherever epochs begin: one more or less at both ends.
    assert set(np.bincount(found, minlength=10).tolist()) <= {12, 13, 14}


def test_clients_have_orders_of_their_own() -> None:
    first = [tuple(seen([1], clients=[i], counts=[8] * 6, batch=4)[0].tolist()) for i in range(6)]
    assert len(set(first)) > 3


def test_sampling_with_replacement_is_uniform_over_a_clients_own_examples() -> None:
    """Chi-square of 3000 samples, p-value above 1e-3; some batch holds an example twice."""
    found = seen([1000], clients=[0], counts=[6, 9], batch=3, sampling="with_replacement")[0]
    assert found[6:].sum() == 0
    assert found.sum() == 3000
    assert stats.chisquare(found[:6]).pvalue > 1e-3
    assert seen([1], clients=[0], counts=[2, 9], batch=3, sampling="with_replacement").max() >= 2


def updates(num: int, *, steps: int, batch: int, counts: list[int]) -> np.ndarray:
    """How often each of the first updates of client 0 has seen each example, each update with a shuffle of its own: `[num, M]`."""
    offsets = steps * np.arange(num)
    return seen(
        [steps] * num,
        clients=[0] * num,
        counts=counts,
        batch=batch,
        offset=offsets,
        sampling="reshuffled",
    )


def test_an_update_with_its_own_shuffle_sees_no_example_twice() -> None:
    """Six of seven; what lies beyond a client's count is never seen."""
    found = updates(40, steps=2, batch=3, counts=[7, 9])
    assert (np.sort(found, axis=1) == [0] * 3 + [1] * 6).all()
    assert found[:, 7:].sum() == 0


def test_the_batches_of_an_update_are_those_of_one_shuffle() -> None:
    """Three batches of two are all six examples. The next update begins with another batch, 14 times of 15: its order is its own."""
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


def test_an_update_longer_than_its_shuffle_goes_through_it_again() -> None:
    """Eight samples of three examples: all twice, and two of them a third time, which the first batch has seen."""
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


def test_shuffles_of_their_own_favour_no_example() -> None:
    """Chi-square of 600 updates of four examples of six, p-value above 1e-3; an update takes each with the probability 2/3."""
    found = updates(600, steps=2, batch=2, counts=[6, 8]).sum(axis=0)
    # Examples of one update are drawn without replacement, which makes counts more even than independent draws by 1 - 2/3, and 6/5.
    statistic = np.sum((found[:6] - 400) ** 2) / (600 * 2 / 3 * 1 / 3) * 5 / 6
    assert stats.chi2.sf(statistic, 5) > 1e-3
    assert statistic > stats.chi2.ppf(1e-3, 5)


def test_a_batch_without_replacement_is_drawn_anew_for_each_step() -> None:
    """No example twice in a batch; subsets of six are uniform and independent of the one before: chi-square, p-value above 1e-3."""
    options = {"counts": [6], "batch": 2, "sampling": "without_replacement"}
    first = seen([1] * 1500, clients=[0] * 1500, offset=np.arange(1500), **options).astype(int)
    assert first.max() == 1
    pairs = np.argsort(-first, axis=1, kind="stable")[:, :2]
    place = 6 * pairs[:, 0] + pairs[:, 1]
    counts = np.bincount(place, minlength=36)
    assert (counts > 0).sum() == 15
    assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3
    common = (first[:-1] * first[1:]).sum(axis=1)[::2]
    assert (
        stats.chisquare(np.bincount(common, minlength=3), 750 * np.array([6, 8, 1]) / 15).pvalue
        > 1e-3
    )
    # The second step of an update is the first of one that begins a step later.
    np.testing.assert_array_equal(
        seen([2], clients=[0], offset=7, **options)[0], first[7] + first[8]
    )
    assert seen([1], clients=[0], counts=[3], batch=5, sampling="without_replacement")[
        0
    ].tolist() in ([1, 2, 2], [2, 1, 2], [2, 2, 1])


STARTS = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
CLIENTS, STEPS, OFFSET = [3, 0, 6, 2], [5, 0, 2, 3], [4, 0, 7, 1]


@pytest.mark.parametrize("slots_at_once", [1, 3, 4])
def test_work_does_not_depend_on_company(regression: Callable, slots_at_once: int) -> None:
    """A client's update is the same whoever is in the other slots, in whichever slot, even next to data that are not numbers.

    To rounding, as a product of matrices may be added up in another order in another place.
    """
    hyper = LocalTraining(lr=0.1, batch_size=2)
    problem = regression()
    event = event_of(CLIENTS, STEPS, OFFSET)
    plan = Plan(slots_at_once=slots_at_once)
    ends, work = run(plan, problem, hyper, KEY, jnp.asarray(STARTS), event)
    np.testing.assert_array_equal(ends[1], STARTS[1])
    assert int(work.needed) == 10
    # One by one 10 steps; three at once, the longest together: 3 x 5 and 3 x 0; all four: 4 x 5.
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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_beyond_a_slots_own_change_neither_model_nor_optimizer(
    regression: Callable, name: str
) -> None:
    """A slot batched with longer ones ends where an optimizer of its own ends, run step by step. To float32 rounding."""
    problem = regression(noise=0.0)
    client = int(np.argmax(problem.counts))
    # As many samples as the client has are all of them, in some order: the whole batch.
    hyper = LocalTraining(
        lr=0.1, batch_size=int(problem.counts[client]), optimizer=OPTIMIZERS[name], lr_scale=0.5
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
    """Steps on the loss with the term written out, whose gradient is taken by automatic differentiation. To float32 rounding."""
    problem = regression(noise=0.0)
    client = int(np.argmax(problem.counts))
    examples = jnp.arange(int(problem.counts[client]))
    hyper = LocalTraining(lr=0.1, batch_size=examples.size)
    event = event_of([client] * 2, [1, 4], [0] * 2)
    ends, _ = local_sgd(
        problem, hyper, Plan(slots_at_once=2), KEY, jnp.asarray(STARTS[:2]), event, proximal=0.7
    )

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
    """On a quadratic of curvature h, w goes towards (h c + mu w_0) / (h + mu) by the factor 1 - lr (h + mu) a step."""
    h, mu, c, steps = 0.5, 1.5, 2.0, 6
    with jax.enable_x64(True):
        problem = Quadratic.of(np.full((4, 3), c), curvature=h)
        start = jnp.asarray(STARTS, float)
        event = event_of([0, 1, 2, 3], [steps] * 4, [0] * 4)
        ends, _ = local_sgd(
            problem,
            LocalTraining(lr=0.2, batch_size=1),
            Plan(slots_at_once=4),
            KEY,
            start,
            event,
            proximal=mu,
        )
    limit = (h * c + mu * STARTS.astype(float)) / (h + mu)
    np.testing.assert_allclose(
        ends, limit + (1 - 0.2 * (h + mu)) ** steps * (STARTS - limit), rtol=1e-12
    )
