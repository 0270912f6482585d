"""What one step of every system must keep, on schedules made by hand: types, slots, clients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import Plan, System
from fedjax_sim.core.types import Facts, LatentProblem
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.server import aggregation
from fedjax_sim.systems import fedavg
from tests.systems.conftest import Kind, skip_if_like_another
from tests.systems.hand_made import (
    CLIENTS,
    ONE_BY_ONE,
    STEPS,
    emptied,
    events_of,
    kept_per_client,
    server_of,
    some_events,
    without_scratch,
)

KEY = 1


@pytest.mark.few(30)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_keeps_structure_and_types(bind: Callable, kind: Kind, dtype: str) -> None:
    """`lax.scan` needs it, and no state may silently change its precision."""
    with jax.enable_x64(dtype == "float64"):
        bound = bind(kind.make(dtype=dtype))
        state = jax.eval_shape(bound.algorithm.init, jax.random.key(0))
        event = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), bound.events
        )
        after, info = jax.eval_shape(bound.algorithm.step, jax.random.key(0), state, event)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert jax.tree.leaves(after) == jax.tree.leaves(state)
        model = jax.eval_shape(bound.algorithm.model, after)
        assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype(dtype)}
        counts = {name: leaf for name, leaf in info._asdict().items() if name != "seen"}
        assert all(leaf.shape == () for leaf in jax.tree.leaves(counts))


@pytest.mark.few(2)
@pytest.mark.of_each_kind(1, but=("personal", "adapted", "hierarchical", "buffered", "langevin"))
def test_jit_equals_no_jit(system: System, bind: Callable, kind: Kind) -> None:
    """To float32 rounding over a few steps, because fused operations round differently.

    Shuffling one mini-batch without jit takes a second, so there are two ticks with few steps and
    one with none (of one slot: two with and one without).
    """
    skip_if_like_another(system)
    clients, steps = CLIENTS, [[2, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]]
    if system.name in ONE_BY_ONE:
        clients, steps = [[0, 5, 2]], [[2, 0, 1]]
    bound = bind(
        kind.make(),
        events=events_of(system, clients, steps),
    )
    compiled = bound.run(jax.random.key(KEY))
    with jax.disable_jit():
        plain = bound.run(jax.random.key(KEY))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), compiled, plain
    )


@pytest.mark.few(5)
@pytest.mark.of_each_kind(5)
def test_empty_ticks_change_nothing(system: System, bind: Callable, kind: Kind) -> None:
    """Neither at the end of a lane, where they pad it to the length of others, nor elsewhere."""

    def after(order: list[int]) -> Any:
        """Return the state after ticks of the schedule, of which tick 2 is emptied."""
        ticks, is_empty = jnp.asarray(order), np.asarray(order) == 2
        events = jax.tree.map(lambda leaf: leaf[ticks], events_of(system, CLIENTS, STEPS))
        bound = bind(kind.make(), events=emptied(events, is_empty))
        state, info = bound.run(jax.random.key(KEY))
        assert not np.any(np.asarray(info.needed)[is_empty])
        if system.name not in ("fedem", "vr_fedem"):  # they compute idle slots of a batch as well
            assert not np.any(np.asarray(info.executed)[is_empty])
        return without_scratch(state)

    untouched = after([2, 2, 2])
    first = bind(kind.make()).algorithm.init(jax.random.key(KEY))
    jax.tree.map(
        # Statistics without jit round differently.
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        untouched,
        without_scratch(first),
    )
    jax.tree.map(np.testing.assert_array_equal, untouched.server, first.server)
    last = after([0, 1, 2])
    for order in ([0, 2, 1], [2, 0, 1]):
        jax.tree.map(np.testing.assert_array_equal, last, after(order))


@pytest.mark.few(2)
@pytest.mark.of_each_kind(5)
def test_ticks_whose_steps_are_undone_change_nothing(
    system: System, bind: Callable, kind: Kind
) -> None:
    """Live lanes that have ended run the steps of full ticks, as all others do, for nothing.

    The steps are those of client 0, which has learnt from nan if anything is left of them.
    """
    clients = np.where(np.array(CLIENTS) == 0, [[1], [2], [1]], CLIENTS)
    filled = events_of(system, clients, np.full(clients.shape, 2))
    is_empty = np.arange(len(filled.tick)) == 1
    known = Facts(is_drawn=True, most_steps=2, same_steps=True)
    events = emptied(filled, is_empty).within(facts=known)
    key, problem = jax.random.key(KEY), kind.make()
    if system.fit.learns is not LatentProblem:
        problem = problem.replace(inputs=problem.inputs.at[0].set(jnp.nan))
    state, info = bind(problem, events=events).run(key)
    assert np.asarray(info.needed)[is_empty].sum() == 0
    others = jax.tree.map(lambda leaf: leaf[~is_empty], events).within(facts=known)
    expected, _ = bind(problem, events=others).run(key)
    assert np.isfinite(server_of(expected)).all()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        without_scratch(state),
        without_scratch(expected),
    )


def test_a_step_without_a_guard_for_empty_ticks_is_noticed(
    regression: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counterpart of the test above: unguarded, FedAvg's mean over nobody is 0."""
    problem, key = regression(), jax.random.key(KEY)
    algorithm = fedavg.system.algorithm(problem, small(fedavg.system), Plan(slots_at_once=4))
    event = jax.tree.map(lambda leaf: leaf[0], emptied(some_events(CLIENTS, STEPS), [True] * 3))
    state = algorithm.init(key)

    def stepped() -> jax.Array:
        # A new function each time, so that the step is traced anew.
        return jax.jit(lambda: algorithm.step(key, state, event)[0].server)()

    np.testing.assert_array_equal(stepped(), state.server)
    monkeypatch.setattr(aggregation, "with_missing", lambda event, mean, start: mean)
    np.testing.assert_array_equal(stepped(), np.zeros(3))


@pytest.mark.few(4)
@pytest.mark.parametrize("is_undone", [False, True])
@pytest.mark.of_each_kind(7)
def test_an_empty_slot_counts_for_nothing(
    system: System, bind: Callable, kind: Kind, *, is_undone: bool
) -> None:
    """Three clients and an empty slot equal three clients, to rounding of their sum.

    Also if its steps, as many as all others have, are made and undone, as on an accelerator.
    """
    if system.name in ONE_BY_ONE:
        pytest.skip("a tick has one slot")
    steps = [[2] * 3] * 3 if is_undone else [row[:3] for row in STEPS]
    three = some_events([row[:3] for row in CLIENTS], steps, weight=1 / 3)
    if is_undone:
        known = Facts(is_drawn=True, most_steps=2, same_steps=True)
        three = three.within(facts=known)
    with_hole = jax.tree.map(
        lambda leaf: np.insert(leaf, 1, 0, axis=1) if leaf.ndim == 2 else leaf, three
    )
    with_hole = with_hole.within(facts=three.facts, clients=np.insert(three.clients, 1, -1, axis=1))
    state, _ = bind(kind.make(), events=three).run(jax.random.key(KEY))
    other, _ = bind(kind.make(), events=with_hole).run(jax.random.key(KEY))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), state, other)


@pytest.mark.of_each_kind(2)
def test_permuting_clients_with_their_data_permutes_rows_and_nothing_else(
    system: System, bind: Callable, kind: Kind
) -> None:
    """The server's model is equal bit for bit; what is kept per client moves with the client.

    Random streams belong to client numbers, so the problem has no noise, and every client has one
    example, which is every batch.
    """
    random = np.random.default_rng(5)
    first, second = random.normal(size=(7, 3)).astype("float32"), random.uniform(0.5, 2, 7)
    new_name = random.permutation(7)
    old_name = np.argsort(new_name)
    events = events_of(system, CLIENTS, STEPS)
    new_clients = jnp.asarray(new_name)[events.clients].astype("int32")
    renamed = events.within(facts=events.facts, clients=new_clients)

    def problem(clients: Any) -> Any:
        # Of the shape of the other tests' problems, whose programs it shares.
        made: Any = kind.make()
        rows, scales = jnp.asarray(first[clients]), jnp.asarray(second[clients], "float32")
        if system.fit.learns is LatentProblem:
            at = made.held.index[made.held.offsets]
            y, kappa = made.data.y.at[at].set(rows), made.data.kappa.at[at].set(scales / 3)
            held = made.held.replace(counts=jnp.ones_like(made.counts))
            return made.replace(data=Seen(y, kappa), held=held, share=jnp.ones_like(made.share))
        return made.replace(
            inputs=made.inputs.at[:, 0].set(rows),
            targets=made.targets.at[:, 0].set(scales),
            counts=jnp.ones_like(made.counts),
            noise=jnp.zeros_like(made.noise),
        )

    state, _ = bind(problem(np.arange(7)), events=events, **kind.quiet).run(jax.random.key(KEY))
    other, _ = bind(problem(old_name), events=renamed, **kind.quiet).run(jax.random.key(KEY))
    # SAFA's server sums what it has of all clients, in the order of their numbers.
    exact = 1e-6 if system.name == "safa" else 0
    np.testing.assert_allclose(server_of(state), server_of(other), rtol=exact)
    if hasattr(state, "versions"):
        np.testing.assert_allclose(state.versions[:2], other.versions[:2], rtol=exact)
    for mine, theirs in zip(kept_per_client(state), kept_per_client(other), strict=True):
        np.testing.assert_array_equal(mine, theirs[new_name])
        assert not np.array_equal(mine, theirs)


@pytest.mark.few(12)
def test_permuting_slots_changes_nothing(system: System, bind: Callable, kind: Kind) -> None:
    """A tick is a set of reports. Sums in another order agree to rounding."""
    if system.name in ONE_BY_ONE:
        pytest.skip("a tick has one slot")
    events = some_events(CLIENTS, STEPS)
    order = jnp.array([2, 0, 3, 1])
    moved = jax.tree.map(lambda leaf: leaf[:, order] if leaf.ndim == 2 else leaf, events)
    state, _ = bind(kind.make(), events=events).run(jax.random.key(KEY))
    other, _ = bind(kind.make(), events=moved).run(jax.random.key(KEY))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state, other)


@pytest.mark.few(15)
@pytest.mark.parametrize("slots_at_once", [pytest.param(3, marks=pytest.mark.of_each_kind(4)), 4])
def test_data_of_absent_clients_reach_nobody(
    system: System, bind: Callable, kind: Kind, slots_at_once: int
) -> None:
    """NaN poisons everything that it touches: as data of absent clients it must touch nothing."""
    if slots_at_once == 3:
        skip_if_like_another(system)
    events = events_of(
        system,
        [[0, 5, 2, 3], [5, 2, 3, 0], [2, 3, 0, 5]],
        [[2, 5, 0, 1], [3, 3, 1, 4], [1, 1, 2, 5]],
    )
    problem = kind.make()
    absent = [1, 4, 6]
    how = {
        "events": events,
        "plan": Plan(rows=3, slots_at_once=slots_at_once),
        **kind.without_start,
    }
    state, _ = bind(problem, **how).run(jax.random.key(KEY))
    other, _ = bind(kind.poisoned(problem, absent), **how).run(jax.random.key(KEY))
    np.testing.assert_array_equal(server_of(state), server_of(other))
    if hasattr(state, "versions"):
        np.testing.assert_array_equal(state.versions, other.versions)
    for mine, theirs in zip(kept_per_client(state), kept_per_client(other), strict=True):
        np.testing.assert_array_equal(
            np.delete(mine, absent, axis=0), np.delete(theirs, absent, axis=0)
        )


def test_updates_depend_on_every_client_present(bind: Callable, kind: Kind) -> None:
    """The counterpart of the test above, which shows that it can fail."""
    for client in range(7):
        bound = bind(kind.poisoned(kind.make(), [client]), **kind.without_start)
        state, _ = bound.run(jax.random.key(KEY))
        assert np.isnan(server_of(state)).all()


def test_data_of_a_client_reach_no_other_clients_update(
    system: System, bind: Callable, kind: Kind
) -> None:
    """The server adds updates, so the effects of changing two clients' data add up.

    If one client's data reached the other's update, the effect of changing both would differ from
    the sum of the two effects. To float32 rounding; in one tick, after which every client starts
    from all updates. What is kept per client shows the same without any sum, bit for bit.
    """
    events = emptied(events_of(system, CLIENTS, STEPS), np.arange(_num_ticks(system)) > 0)
    first, second = int(events.clients[0, 0]), int(events.clients[0, -1])

    def after(*changed: int) -> Any:
        problem = kind.make()
        if changed:
            problem = kind.with_data(problem, list(changed), lambda data: 1.5 * data + 1)
        return bind(problem, events=events, **kind.quiet).run(jax.random.key(KEY))[0]

    plain, one, other = after(), after(first), after(second)
    effect, other_effect = (np.asarray(server_of(each) - server_of(plain)) for each in (one, other))
    assert np.abs(effect).max() > 1e-3
    if first != second:
        assert np.abs(other_effect).max() > 1e-3
        both = np.asarray(server_of(after(first, second)) - server_of(plain))
        np.testing.assert_allclose(both, effect + other_effect, rtol=1e-5, atol=2e-6)
    for mine, theirs in zip(kept_per_client(plain), kept_per_client(one), strict=True):
        np.testing.assert_array_equal(
            np.delete(mine, first, axis=0), np.delete(theirs, first, axis=0)
        )
        # The number of a client's cluster may be the same.
        assert mine.dtype == "int32" or not np.array_equal(mine[first], theirs[first])


def _num_ticks(system: System) -> int:
    return np.size(CLIENTS) if system.name in ONE_BY_ONE else len(CLIENTS)
