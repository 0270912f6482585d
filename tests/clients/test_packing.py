"""Slots laid end to end in rows: every step once and in order, and the same results as without.

Dimension letters: those of `fedjax_sim.clients.packing`.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import Layout, Plan, datasets
from fedjax_sim.clients import (
    LastingTraining,
    LocalTraining,
    first_optimizers,
    lasting_training,
    local_training,
    packing,
)
from fedjax_sim.clients.packing import lay_in_rows, run_in_rows
from fedjax_sim.core.events import PackedRows
from fedjax_sim.core.types import Event, Facts
from fedjax_sim.engine.planning.placement import Placement
from fedjax_sim.engine.program import prepare
from fedjax_sim.models import MLP
from fedjax_sim.partition import iid
from fedjax_sim.problems import make_classifications

LISTS = [
    [5, 0, 2, 3, 1],
    [5, 5, 5],
    [0, 0, 4, 4, 4, 4, 0],
    [1, 4, 1, 4],
    [0, 0, 0],
    [3],
]


places_of = jax.jit(lay_in_rows, static_argnums=(1, 2))


@pytest.mark.few(8)
@pytest.mark.parametrize("steps", LISTS)
@pytest.mark.parametrize("length", [5, 7])
@pytest.mark.parametrize("spare", [0, 1])
def test_every_step_has_one_place_and_they_are_in_order(
    steps: list[int], length: int, spare: int
) -> None:
    """Found as a loop would meet them: time first, then row. Parts begin and end where they say."""
    num_rows = -(-sum(steps) // length) + spare
    if num_rows == 0:
        return
    found = places_of(jnp.array(steps, "int32"), num_rows, length)
    places, after = jax.tree.map(np.asarray, found)
    for now, later in zip(places, after, strict=True):
        np.testing.assert_array_equal(now[1:], later[:-1])
        np.testing.assert_array_equal(now[0, 1:], later[-1, :-1])
    assert places.slot.shape == (length, num_rows)
    seen: list[list[int]] = [[] for _ in steps]
    for row in range(num_rows):
        open_slot = None
        for t in range(length):
            if row * length + t >= sum(steps):
                assert not places.is_first[t, row] and not places.is_last[t, row]
                continue
            slot = int(places.slot[t, row])
            assert bool(places.is_first[t, row]) == (open_slot is None)
            open_slot = slot if open_slot is None else open_slot
            assert slot == open_slot
            if places.is_last[t, row]:
                open_slot = None
        assert open_slot is None
    for t in range(length):
        now = [
            int(s)
            for s, row in zip(places.slot[t], range(num_rows), strict=True)
            if row * length + t < sum(steps)
        ]
        assert len(now) == len(set(now))
        for row in range(num_rows):
            if row * length + t < sum(steps):
                seen[int(places.slot[t, row])].append(int(places.number[t, row]))
    assert seen == [list(range(num)) for num in steps]


def written(steps: jax.Array, name: jax.Array, scale: jax.Array) -> tuple[Any, Any]:
    """Begin a slot whose result depends on its name, and on the number and order of its steps."""

    def step(q: jax.Array, carry: Any) -> Any:
        value, count = carry
        return value * scale + jnp.sin(name + q), count + 1

    return (name * jnp.ones(3), jnp.int32(0)), step


def reference(steps: Any, names: Any, scale: float) -> np.ndarray:
    """Compute what `written` carries in the end, slot by slot: `[S, 3]`."""
    results = []
    for num, name in zip(steps, names, strict=True):
        value = np.full(3, name)
        for q in range(num):
            value = value * scale + np.sin(name + q)
        results.append(value)
    return np.stack(results)


def in_rows(
    rows: PackedRows, steps: jax.Array, names: jax.Array, scale: jax.Array
) -> tuple[Any, jax.Array]:
    begin = lambda name: written(steps, name, scale)  # noqa: E731
    return run_in_rows(begin, rows, 5, steps, names)


@pytest.mark.parametrize("steps", LISTS)
def test_slots_of_one_lane(steps: list[int]) -> None:
    """Slots without steps keep what they begin with, and idle steps are dealt to the slots."""
    num_rows = max(1, -(-sum(steps) // 5))
    names = jnp.arange(len(steps)) * 1.5
    (found, counts), executed = jax.jit(
        partial(in_rows, PackedRows(num_rows, num_rows, len(steps), len(steps)))
    )(jnp.array(steps, "int32"), names, 0.5)
    np.testing.assert_allclose(found, reference(steps, np.asarray(names), 0.5), rtol=1e-5)
    assert counts.tolist() == steps
    assert executed.sum() == 5 * num_rows
    spread = np.asarray(executed) - np.array(steps)
    assert spread.min() >= 0 and spread.max() - spread.min() <= 1


LANES = np.array([[5, 0, 2], [1, 1, 0], [3, 4, 5], [0, 0, 0]], np.int32)
NAMES = np.arange(12.0).reshape(4, 3).astype(np.float32)
SCALES = np.array([0.5, 0.25, 0.75, 1.0], np.float32)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("is_scale_of_lane", [False, True])
def test_lanes_share_rows(
    is_large: bool, is_scale_of_lane: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """21 steps take five rows of five; rows of each lane's own, of which the fullest has three.

    Lanes have rows of their own if a step reads large arrays that differ between lanes.
    """
    if is_large:
        monkeypatch.setattr(packing, "LARGEST_COPIED", 3)
    scale = jnp.array(SCALES) if is_scale_of_lane else jnp.float32(0.5)
    run = jax.vmap(
        partial(in_rows, PackedRows(5, 3, 12, 3)), in_axes=(0, 0, 0 if is_scale_of_lane else None)
    )
    (found, counts), executed = jax.jit(run)(LANES, NAMES, scale)
    for i, steps in enumerate(LANES):
        expected = reference(steps, NAMES[i], float(SCALES[i]) if is_scale_of_lane else 0.5)
        np.testing.assert_allclose(found[i], expected, rtol=1e-5)
    np.testing.assert_array_equal(counts, LANES)
    has_own = is_large and is_scale_of_lane
    assert executed.sum() == (4 * 3 * 5 if has_own else 5 * 5)
    if has_own:
        assert executed.sum(axis=1).tolist() == [15] * 4


def test_rows_serve_no_more_slots_than_they_were_counted_for() -> None:
    """The steps of others might not fit, and would be lost."""
    with pytest.raises(ValueError, match="3 rows were counted for 2 slots, not for 3"):
        in_rows(PackedRows(3, 3, 2, 3), jnp.asarray(LANES[2]), jnp.asarray(NAMES[2]), 0.5)


def test_lanes_whose_equal_steps_were_counted_once_share_rows_for_all() -> None:
    """Rows were counted for the steps of one lane, and `vmap` gives each lane a copy of them."""
    steps = np.array([LANES[2]] * 4)
    run = jax.vmap(partial(in_rows, PackedRows(3, 3, 3, 3)), in_axes=(0, 0, None))
    (found, counts), executed = jax.jit(run)(steps, NAMES, 0.5)
    for names, each in zip(NAMES, found, strict=True):
        np.testing.assert_allclose(each, reference(LANES[2], names, 0.5), rtol=1e-5)
    np.testing.assert_array_equal(counts, steps)
    assert executed.sum() == 4 * 3 * 5


def test_members_of_families_share_places() -> None:
    """Three members in each of four families: rows are counted once for the members."""
    names = np.stack([NAMES, NAMES + 20, NAMES + 40], axis=1)
    members = jax.vmap(partial(in_rows, PackedRows(5, 3, 12, 3)), in_axes=(None, 0, 0))
    families = jax.vmap(members, in_axes=(0, 0, None))
    (found, counts), executed = jax.jit(families)(LANES, names, SCALES[:3])
    for i, steps in enumerate(LANES):
        for j in range(3):
            expected = reference(steps, names[i, j], float(SCALES[j]))
            np.testing.assert_allclose(found[i, j], expected, rtol=1e-5)
            np.testing.assert_array_equal(counts[i, j], steps)
    assert executed.shape == (4, 3, 3)
    assert executed[:, 0].sum() == 5 * 5


OPTIONS: dict[str, Any] = {
    "seeds": [5, 2, 9],
    "budget": fedjax_sim.Ticks(12),
    "num_evals": 3,
    "keep": fedjax_sim.Keep(models=True),
}
WIDE = Layout(slots_at_once=7, lanes_at_once=False, lane_devices=1)


def assert_same(packed: fedjax_sim.Run, wide: fedjax_sim.Run) -> None:
    """Assert that runs are equal up to float32 rounding, and that neither missed a step."""
    np.testing.assert_allclose(packed.samples, wide.samples, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(packed.curves.loss, wide.curves.loss, rtol=1e-5)
    np.testing.assert_array_equal(packed.curves.needed, wide.curves.needed)
    assert (packed.curves.executed.sum() >= packed.curves.needed.sum()).all()


LAYOUTS = {
    "lanes one after another": Layout(None, False, 1, 1, packed=True),
    "one device of two": Layout(None, True, 1, 1, packed=True),
    "lanes over two devices and slots over three": Layout(None, True, 2, 3, packed=True),
}
WIDEST = "lanes over two devices and slots over three"


@pytest.fixture(scope="module")
def in_layout(regression: Callable, small: Callable) -> Callable[[str, Layout], fedjax_sim.Run]:
    """Return a function that runs a system in a layout, once.

    Lanes of FedBuff and of FedAsync last for some time, and so have different numbers of ticks.
    """

    @cache
    def run(name: str, layout: Layout) -> fedjax_sim.Run:
        system = fedjax_sim.SYSTEMS[name]
        length = {"budget": fedjax_sim.Time(60.0)} if name in ("fedbuff", "fedasync") else {}
        options = OPTIONS | length
        return fedjax_sim.sweep(system, regression(), small(system), layout=layout, **options)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("favano", LAYOUTS),
        ("hierarchical", ["lanes one after another", WIDEST]),
        pytest.param("langevin", ["lanes one after another", WIDEST], marks=pytest.mark.slow),
        *(
            pytest.param(name, [WIDEST], marks=pytest.mark.slow)
            for name in ("fedbuff", "fedavg", "fedasync")
        ),
    ],
)
def test_systems(name: str, layouts: Iterable[str], in_layout: Callable) -> None:
    """FAVANO runs in all layouts, and systems with other local work in the two extreme ones.

    Systems with the local work of FAVANO run in the one that cuts lanes and slots.
    """
    wide = in_layout(name, WIDE)
    for layout in layouts:
        assert_same(in_layout(name, LAYOUTS[layout]), wide)


def event_of(clients: Any, steps: Any) -> Event:
    """Make a tick with these slots."""
    clients, steps = jnp.asarray(clients, "int32"), jnp.asarray(steps, "int32")
    zero = jnp.zeros_like(clients)
    weight, offset = zero.astype("float32"), jnp.arange(clients.shape[0], dtype="int32")
    return Event(jnp.int32(0), clients, steps, zero, weight, offset, zero, jnp.int32(0))


def made_up(
    problem: Any, hyper: Any, key: Any, client: Any, offset: Any, extra: Any
) -> Callable[..., Any]:
    """Make a gradient that depends on an extra input."""
    return lambda model, q: model * extra + q + client


def of_matrices(problem: Any, hyper: Any, key: Any, client: Any, offset: Any) -> Callable[..., Any]:
    """Make a gradient of models with several leaves."""
    return lambda model, q: jax.tree.map(lambda leaf: leaf * client + q, model)


KINDS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {},
    "proximal": {"proximal": 0.3},
    "extras": {"gradient": made_up},
    "matrices": {"gradient": of_matrices},
    "direction": {"direction": lambda g, w, q, start, other: g + 0.3 * (w - other) + q * start},
}


@partial(jax.jit, static_argnums=(0, 1))
def trained(kind: str, plan: Plan, problem: Any, event: Event, starts: Any, extras: Any) -> Any:
    """Train the slots of a tick; equal plans share a program."""
    hyper = LocalTraining(
        lr=0.05, batch_size=2, optimizer=optax.adam if kind == "adam" else optax.sgd
    )
    train = local_training(problem, hyper, plan, **KINDS[kind])
    return train(jax.random.key(0), event, starts=starts, extras=extras)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "steps", "most"),
    [
        *((kind, [3, 0, 5, 0, 1, 2], 5) for kind in KINDS),
        ("sgd", [1, 0, 1, 0, 1, 1], 1),
        ("sgd", [0] * 6, 3),
        pytest.param("adam", [1, 0, 1, 0, 1, 1], 1, marks=pytest.mark.slow),
        pytest.param("adam", [0] * 6, 3, marks=pytest.mark.slow),
    ],
)
def test_local_training(kind: str, steps: list[int], most: int, regression: Callable) -> None:
    """The fourth slot is empty. The state of adam moves with the model from row to row."""
    starts: Any = jax.random.normal(jax.random.key(1), (6, 3))
    extras: Any = (jnp.arange(6.0),) if kind == "extras" else ()
    if kind == "direction":
        extras = (starts[::-1],)
    if kind == "matrices":
        starts = {"a": jax.random.normal(jax.random.key(1), (6, 4, 2)), "b": starts}
    event = event_of([4, 2, 6, -1, 0, 4], steps)
    rows = max(1, -(-sum(steps) // most))

    def train(facts: Facts) -> Any:
        plan, tick = Plan(slots_at_once=6, narrow=8), event.within(facts=facts)
        return trained(kind, plan, regression(), tick, starts, extras)

    wide, _ = train(Facts(most_steps=5))
    packed, work = train(Facts(most_steps=most, packed=PackedRows(rows, rows, 6, 6)))
    for ours, theirs in zip(jax.tree.leaves(packed), jax.tree.leaves(wide), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (int(work.executed), int(work.needed)) == (rows * most, sum(steps))


@pytest.mark.slow
def test_optimizers_that_remember() -> None:
    """Packed, over two devices or masked: all states are those of slots that run alone.

    Two updates follow each other. Matrices are transposed during local steps, and so are moments.
    """
    first = {"a": jax.random.normal(jax.random.key(1), (4, 2)), "b": jnp.arange(3.0)}
    hyper = LastingTraining(batch_size=2, optimizer=optax.adam, optimizer_state="kept")

    class Squares:
        counts = jnp.full(7, 5)

        def loss(self, params: Any, client: Any, examples: Any, key: Any) -> Any:
            return sum((leaf**2 * (1 + client)).sum() for leaf in jax.tree.leaves(params))

    event = event_of([4, 2, 6, -1, 0, 1], [3, 0, 5, 0, 1, 2])

    def train(plan: Plan, facts: Facts = Facts()) -> Any:
        tick = event.within(facts=facts)

        def updates(_: Any) -> Any:
            update = lasting_training(Squares(), hyper, plan)
            states = first_optimizers(Squares(), hyper, first)
            _, states, _ = update(jax.random.key(0), tick, states, start=first)
            return update(jax.random.key(0), tick, states, start=first)[:2]

        split = jax.shard_map(
            updates,
            mesh=jax.make_mesh((plan.client_devices,), ("clients",)),
            in_specs=jax.P(),
            out_specs=jax.P(),
            check_vma=False,
        )
        return jax.jit(split)(0)

    alone = train(Plan(slots_at_once=1, client_devices=1))
    wide, known = Plan(slots_at_once=6, narrow=8, static_trips=True), Facts(most_steps=5)
    packed = Facts(most_steps=5, packed=PackedRows(3, 3, 6, 6))
    for plan, facts in ((wide, known), (wide, packed), (wide._replace(client_devices=2), packed)):
        for ours, theirs in zip(*map(jax.tree.leaves, (train(plan, facts), alone)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    count = np.zeros(7)
    count[[4, 2, 6, 0, 1]] = [6, 0, 10, 2, 4]
    np.testing.assert_array_equal(alone[1][0].count, count)


@pytest.mark.slow
def test_families_of_lanes(
    regression: Callable, small: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three step sizes are batched as a family, on one device and over two."""
    system = fedjax_sim.SYSTEMS["favano"]
    sweep = partial(
        fedjax_sim.sweep,
        system,
        regression(),
        small(system),
        settings={"lr": [0.02, 0.05, 0.1]},
        **OPTIONS,
    )
    wide = sweep(layout=WIDE)
    for lanes_at_once, lane_devices in ((False, 1), (True, 2)):
        placement = Placement(
            1, lanes_at_once, lane_devices, 1, family_size=3, members=3, packed=True
        )
        monkeypatch.setattr(prepare, "choose", lambda *_, placement=placement, **__: placement)
        assert_same(sweep(), wide)


@pytest.mark.slow
def test_executed_steps_are_those_of_the_rows(in_layout: Callable) -> None:
    """Counted from the schedules: K times the rows of the fullest tick, at every tick."""
    run = in_layout("favano", LAYOUTS["one device of two"])
    totals = np.stack([each.steps.sum(axis=-1) for each in run.timelines])
    length = max(int(each.steps.max()) for each in run.timelines)
    of_lanes = run.curves.executed
    assert of_lanes.sum() == 12 * length * -(-totals.sum(axis=0).max() // length)
    run = in_layout("favano", LAYOUTS["lanes one after another"])
    of_lanes = run.curves.executed
    assert (of_lanes == 12 * length * -(-totals.max() // length)).all()
    run = in_layout("favano", Layout(None, False, 1, 2, packed=True))
    of_devices = np.stack(
        [each.steps.reshape(12, 2, 2).sum(axis=-1).max() for each in run.timelines]
    )
    rows = -(-of_devices.max() // length)
    assert (run.curves.executed == 12 * length * 2 * rows).all()


@pytest.mark.slow
def test_a_problem_of_each_seed(regression: Callable, small: Callable) -> None:
    """Lanes read different arrays at every step: copies for slots, or rows of each lane's own."""
    system = fedjax_sim.SYSTEMS["favano"]
    problems = [regression(seed=seed) for seed in range(3)]
    sweep = partial(fedjax_sim.sweep, system, problems, small(system), **OPTIONS)
    wide, packed = sweep(layout=WIDE), Layout(lanes_at_once=True, lane_devices=1, packed=True)
    assert_same(sweep(layout=packed), wide)
    large = [regression(60, examples=200, dim=3, seed=seed) for seed in range(3)]
    sweep = partial(fedjax_sim.sweep, system, large, small(system, num_clients=60), **OPTIONS)
    assert_same(sweep(layout=packed), sweep(layout=WIDE))


@pytest.mark.slow
def test_a_partition_of_each_seed(small: Callable) -> None:
    """The steps of a classification read no array that differs between lanes."""
    digits = datasets.load("digits")
    partitions = [iid(digits.train_labels, num_clients=7, seed=seed) for seed in range(3)]
    problems = make_classifications(MLP((8,), 10), digits, partitions)
    system = fedjax_sim.SYSTEMS["favano"]
    sweep = partial(
        fedjax_sim.sweep,
        system,
        problems,
        small(system),
        seeds=3,
        budget=fedjax_sim.Ticks(8),
        num_evals=2,
    )
    wide = sweep(layout=WIDE)
    packed = sweep(layout=Layout(lanes_at_once=True, lane_devices=1, packed=True))
    np.testing.assert_allclose(packed.curves.loss, wide.curves.loss, rtol=1e-5)
    totals = np.stack([each.steps.sum(axis=-1) for each in packed.timelines]).sum(axis=0)
    length = max(int(each.steps.max()) for each in packed.timelines)
    assert packed.curves.executed.sum() == 8 * length * -(-totals.max() // length)
