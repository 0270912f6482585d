"""What every system must keep, whatever it is: one parametrised file over all of them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Event, Layout, Plan, System
from fedjax_sim.compression import BlockQuantization, Identity
from fedjax_sim.problems import Quadratic
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.settings import struct
from fedjax_sim.types import LatentProblem

RATES = [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35]
OTHER_RATES = [0.03, 0.04, 0.07, 0.08, 0.11, 0.12, 0.13, 0.14]
STEPS_PER_LR = 30
"""FedAvg's learning rate is FA-LD's step size times the number of examples, of which `regression` has about so many."""
RUN = {"num_ticks": 6, "num_evals": 3}
GROUPED = "hierarchical"
"""The system whose slots are groups of clients. In schedules made by hand every client is a group of its own."""
WHOLE = Layout(slots_at_once=4, lanes_at_once=False, lane_devices=1)
LAYOUTS = {
    "a slot at a time, lanes batched": Layout(1, True, 1),
    "blocks that do not divide the slots, two devices": Layout(3, False, 2),
    "all slots, lanes batched, both over two devices": Layout(4, True, 2, 2),
    "a slot at a time, lanes over four devices and slots over two": Layout(1, False, 4, 2),
}
ONE_OF_EACH_KIND = ("fedavg", "fedem")
"""For a layout whose parts all systems show in others: one slot at a time, and lanes batched."""


@pytest.fixture(scope="module", params=list(fedjax_sim.SYSTEMS))
def system(request: pytest.FixtureRequest) -> System:
    return fedjax_sim.SYSTEMS[request.param]


class Kind(NamedTuple):
    """What differs between systems of gradients and of expected statistics."""

    make: Callable[..., Any]
    """A small problem."""
    swept: str
    """A number to sweep, over `RATES`."""
    changed: dict[str, Any]
    """Other values of other numbers."""
    metrics: tuple[str, str]
    """Of the model, and of the state."""
    without_start: dict[str, Any]
    """Settings with which a client's data matter from its first step on, not before."""
    quiet: dict[str, Any]
    """Settings with which clients draw nothing of their own but mini-batches."""
    scale: float = 1.0
    """Of the swept numbers to `RATES`."""

    def sweep(self, values: list[float]) -> dict[str, list[float]]:
        """Settings to sweep."""
        return {self.swept: [self.scale * value for value in values]}

    def poisoned(self, problem: Any, clients: Any) -> Any:
        """The problem with data of clients that are not numbers."""
        clients = jnp.asarray(clients)
        if isinstance(problem, LatentProblem):
            rows = problem.index[clients].ravel()
            return problem.replace(
                data=Seen(problem.data.y.at[rows].set(jnp.nan), problem.data.kappa)
            )
        return problem.replace(
            inputs=problem.inputs.at[clients].set(jnp.nan),
            targets=problem.targets.at[clients].set(jnp.nan),
        )


@pytest.fixture(scope="module")
def kind(system: System, regression: Callable, noisy_mean: Callable) -> Kind:
    if system.learns is not LatentProblem:
        changed = {"rate_slow": 0.1, "slow_fraction": 0.6, "lr_scale": 0.9, "server_interact": 2.0}
        if system.name == GROUPED:  # whose clock knows no clients
            changed = {
                "shift": 0.6,
                "mean": 0.1,
                "lr_scale": 0.9,
                "exchange_shift": 1.0,
                "sync_time": 3.0,
            }
        measured = ("loss", "client_variance")
        if system.name == "langevin":
            return Kind(
                regression,
                "step_size",
                changed,
                measured,
                {},
                {"temperature": 0.0},
                1 / STEPS_PER_LR,
            )
        return Kind(regression, "lr", changed, measured, {}, {})
    if system.name == "em":  # which has no numbers but its clock's
        return Kind(noisy_mean, "round_time", {}, ("objective", "mean_field"), {}, {})
    changed = {"participation": 0.3, "alpha": 0.1, "round_time": 2.0} | (
        {"inner_steps": 3.0} if system.name == "vr_fedem" else {}
    )
    start = {"memory_start": "zero"}
    return Kind(
        noisy_mean,
        "gamma",
        changed,
        ("objective", "memory_error"),
        start,
        {**start, "compression": Identity()},
    )


class Grid(NamedTuple):
    """A sweep of 8 numbers x 4 seeds, and what was compiled for it."""

    run: fedjax_sim.Run
    compiled: list[str]


@pytest.fixture(scope="module")
def grid(system: System, kind: Kind, small: Callable, compiled_in_module: list[str]) -> Grid:
    before = len(compiled_in_module)
    run = fedjax_sim.sweep(
        system, kind.make(), small(system), seeds=4, settings=kind.sweep(RATES), layout=WHOLE, **RUN
    )
    return Grid(run, compiled_in_module[before:])


def test_one_compilation_for_a_sweep_and_none_for_the_next(
    system: System, grid: Grid, kind: Kind, small: Callable, compiled: list[str]
) -> None:
    """32 lanes are one program, and other values of anything numeric, other seeds and other data are that same program."""
    assert grid.compiled.count("jit(_advance)") == 1
    assert grid.compiled.count("jit(_draw)") == 1
    changed = small(system, **kind.changed)
    fedjax_sim.sweep(
        system,
        kind.make(seed=3),
        changed,
        seeds=[7, 8, 9, 11],
        settings=kind.sweep(OTHER_RATES),
        layout=WHOLE,
        **RUN,
    )
    assert compiled == []


def test_a_lane_alone_equals_it_in_a_batch(
    system: System, grid: Grid, kind: Kind, small: Callable
) -> None:
    """Schedules are equal bit for bit; models to float32 rounding, as another program may add in another order."""
    alone = fedjax_sim.simulate(
        system,
        kind.make(),
        small(system, **{kind.swept: kind.scale * RATES[5]}),
        seed=2,
        layout=WHOLE,
        **RUN,
    )
    lane = 5 * 4 + 2
    for own, batched in zip(alone.timelines[0], grid.run.timelines[lane], strict=True):
        np.testing.assert_array_equal(own, batched)
    np.testing.assert_allclose(alone.models, grid.run.models[lane], rtol=1e-6, atol=1e-7)
    together = grid.run.curves.isel({kind.swept: 5, "seed": 2})
    for name in alone.curves.data_vars:
        np.testing.assert_allclose(alone.curves[name], together[name], rtol=1e-5, err_msg=name)
    for name in ("time", "ticks", "local_steps", "uplink_bits", "downlink_bits"):
        np.testing.assert_array_equal(alone.curves[name], together[name])


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_agree(system: System, grid: Grid, kind: Kind, small: Callable, name: str) -> None:
    """Layouts are other programs of the same arithmetic, so they agree to float32 rounding: not bit for bit.

    Slot by slot and lane by lane, no gradient or E-step is executed that was not needed; batched, never fewer.
    """
    if name == "a slot at a time, lanes batched" and system.name not in ONE_OF_EACH_KIND:
        pytest.skip("shown by one system of each kind")
    other = fedjax_sim.sweep(
        system,
        kind.make(),
        small(system),
        seeds=4,
        settings=kind.sweep(RATES),
        layout=LAYOUTS[name],
        **RUN,
    )
    np.testing.assert_allclose(other.models, grid.run.models, rtol=1e-5, atol=1e-6)
    of_model, of_state = kind.metrics
    np.testing.assert_allclose(other.curves[of_model], grid.run.curves[of_model], rtol=1e-5)
    np.testing.assert_allclose(
        other.curves[of_state], grid.run.curves[of_state], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(other.curves.needed, grid.run.curves.needed)
    if system.learns is not LatentProblem:
        np.testing.assert_array_equal(other.curves.needed, grid.run.curves.local_steps[..., -1])
    if LAYOUTS[name].slots_at_once == 1 and not LAYOUTS[name].lanes_at_once:
        np.testing.assert_array_equal(other.curves.executed, other.curves.needed)
    else:
        assert (other.curves.executed >= other.curves.needed).all()
    assert not other.curves.failed.any()


def test_the_number_of_devices_changes_nothing(
    system: System, grid: Grid, kind: Kind, small: Callable
) -> None:
    """Bit for bit, as every device runs the same program on its lanes; three devices do not divide 32 lanes.

    But for VR-FedEM: there the compiler fuses products and sums otherwise for several devices than for one, which rounds otherwise.
    """
    other = fedjax_sim.sweep(
        system,
        kind.make(),
        small(system),
        seeds=4,
        settings=kind.sweep(RATES),
        layout=Layout(4, False, 3),
        **RUN,
    )
    rounding = {"rtol": 1e-5, "atol": 1e-6} if system.name == "vr_fedem" else {"rtol": 0}
    np.testing.assert_allclose(other.models, grid.run.models, **rounding)
    for name in grid.run.curves.data_vars:
        np.testing.assert_allclose(
            other.curves[name], grid.run.curves[name], **rounding, err_msg=name
        )


def test_chunks_equal_the_whole(system: System, grid: Grid, kind: Kind, small: Callable) -> None:
    """Bit for bit: the same steps run in the same order, only the host looks in between. The second chunk is padded with empty ticks."""
    options = {
        "seeds": 4,
        "settings": kind.sweep(RATES),
        "layout": WHOLE,
        "evals_per_chunk": 2,
        **RUN,
    }
    chunked = fedjax_sim.sweep(system, kind.make(), small(system), **options)
    np.testing.assert_array_equal(chunked.models, grid.run.models)
    for name in grid.run.curves.data_vars:
        np.testing.assert_array_equal(chunked.curves[name], grid.run.curves[name], err_msg=name)


class Bound(NamedTuple):
    """A system with a problem, and a schedule made by hand for it."""

    system: System
    problem: Any
    hyper: Any
    plan: Plan
    events: Event  # leaves [T, ...]

    @property
    def algorithm(self) -> fedjax_sim.Algorithm:
        return self.system.algorithm(self.problem, self.hyper, self.plan)

    def run(self, key: jax.Array) -> tuple[Any, Any]:
        """The last state, and the Info of every tick."""
        return _replay(self.system, self.plan, self.problem, self.hyper, key, self.events)


def _scan(
    system: System, plan: Plan, problem: Any, hyper: Any, key: jax.Array, events: Event
) -> tuple[Any, Any]:
    algorithm = system.algorithm(problem, hyper, plan)
    return jax.lax.scan(
        lambda state, event: algorithm.step(key, state, event), algorithm.init(key), events
    )


_replay = jax.jit(_scan, static_argnums=(0, 1))


def some_events(clients: Any, steps: Any, *, weight: float = 0.25) -> Event:
    """Ticks whose slots start from the model of the tick before; row 2 of the store is scratch."""
    clients, steps = jnp.asarray(clients, "int32"), jnp.asarray(steps, "int32")
    ticks = jnp.arange(len(clients), dtype="int32")
    version = jnp.broadcast_to(ticks[:, None], clients.shape)
    offset = jnp.cumsum(steps, axis=0, dtype="int32") - steps
    return Event(
        ticks,
        clients,
        steps,
        version,
        jnp.full(clients.shape, weight, "float32"),
        offset,
        version % 2,
        (ticks + 1) % 2,
    )


CLIENTS = [[0, 5, 2, 3], [6, 1, 4, 0], [3, 2, 6, 5]]
STEPS = [[2, 5, 0, 1], [3, 3, 1, 4], [5, 1, 2, 2]]
ONE_BY_ONE = "fedasync"
"""The system whose ticks have a single slot."""


def events_of(system: System, clients: Any, steps: Any) -> Event:
    """Ticks made by hand as the system knows them: of all slots, or of one slot each."""
    shape = (-1, 1) if system.name == ONE_BY_ONE else np.shape(clients)
    return some_events(np.reshape(clients, shape), np.reshape(steps, shape))


@pytest.fixture
def bind(system: System, small: Callable) -> Callable[..., Bound]:
    def make(
        problem: Any, *, plan: Plan | None = None, events: Event | None = None, **changes: Any
    ) -> Bound:
        plan = Plan(rows=3, slots_at_once=4) if plan is None else plan
        changes = ({"num_groups": 7} if system.name == GROUPED else {}) | changes
        dtype = jax.eval_shape(problem.init, jax.random.key(0)).dtype
        hyper = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), small(system, **changes))
        return Bound(
            system,
            problem,
            hyper,
            plan,
            events_of(system, CLIENTS, STEPS) if events is None else events,
        )

    return make


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_keeps_structure_and_types(bind: Callable, kind: Kind, dtype: str) -> None:
    """As `lax.scan` needs, and so that no state widens or loses precision unseen."""
    with jax.enable_x64(dtype == "float64"):
        bound = bind(kind.make(dtype=dtype))
        state = jax.eval_shape(bound.algorithm.init, jax.random.key(0))
        event = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), bound.events
        )
        after, info = jax.eval_shape(bound.algorithm.step, jax.random.key(0), state, event)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert jax.tree.leaves(after) == jax.tree.leaves(state)
        assert {leaf.dtype for leaf in jax.tree.leaves(bound.algorithm.model(after))} == {
            jnp.dtype(dtype)
        }
        assert all(leaf.shape == () for leaf in jax.tree.leaves(info))


def test_jit_equals_no_jit(system: System, bind: Callable, kind: Kind) -> None:
    """Fused arithmetic rounds otherwise than operation by operation: float32 rounding, accumulated over a few steps.

    A mini-batch drawn operation by operation takes a second: two ticks of few steps, and one whose reports are of no steps.
    """
    bound = bind(
        kind.make(), events=events_of(system, CLIENTS, [[2, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]])
    )
    compiled = bound.run(jax.random.key(1))
    with jax.disable_jit():
        plain = bound.run(jax.random.key(1))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), compiled, plain
    )


def test_empty_ticks_change_nothing(system: System, bind: Callable, kind: Kind) -> None:
    """Not at the end of a lane, where they pad it to the length of others, nor anywhere else."""

    def after(order: list[int]) -> Any:
        """The state after two ticks of the schedule, and empty ones (number 2) between."""
        empty = jnp.asarray(order) == 2
        events = jax.tree.map(
            lambda leaf: leaf[jnp.asarray(order)], events_of(system, CLIENTS, STEPS)
        )
        events = events._replace(
            clients=jnp.where(empty[:, None], -1, events.clients),
            steps=jnp.where(empty[:, None], 0, events.steps),
            weight=jnp.where(empty[:, None], 0, events.weight),
            read=jnp.where(empty[:, None], 2, events.read),
            write=jnp.where(empty, 2, events.write),
        )
        bound = bind(kind.make(), events=events)
        state, info = bound.run(jax.random.key(1))
        assert not np.any(np.asarray(info)[:, np.asarray(empty)])
        return (
            state._replace(versions=state.versions[:2]) if hasattr(state, "versions") else state
        )  # Row 2 is scratch.

    untouched = after([2, 2, 2])
    np.testing.assert_array_equal(untouched.server, kind.make().init(jax.random.key(1)))
    last = after([0, 1, 2])
    for order in ([0, 2, 1], [2, 0, 1]):
        jax.tree.map(np.testing.assert_array_equal, last, after(order))


def test_an_empty_slot_counts_for_nothing(system: System, bind: Callable, kind: Kind) -> None:
    """Three clients and an empty slot are three clients. To rounding: a sum with a zero may be added in another order."""
    if system.name == ONE_BY_ONE:
        pytest.skip("a tick of one slot is empty if that is")
    three = some_events([row[:3] for row in CLIENTS], [row[:3] for row in STEPS], weight=1 / 3)
    with_hole = jax.tree.map(
        lambda leaf: jnp.insert(leaf, 1, 0, axis=1) if leaf.ndim == 2 else leaf, three
    )
    with_hole = with_hole._replace(clients=jnp.insert(three.clients, 1, -1, axis=1))
    state, _ = bind(kind.make(), events=three).run(jax.random.key(1))
    other, _ = bind(kind.make(), events=with_hole).run(jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), state, other)


def test_permuting_clients_with_their_data_permutes_rows_and_nothing_else(
    system: System, bind: Callable, kind: Kind
) -> None:
    """Random streams belong to client numbers, so the problem is without noise and every batch is a client's only example.

    The server's model stays bit for bit; what is kept per client moves with it.
    """
    random = np.random.default_rng(5)
    centers, curvature = random.normal(size=(7, 3)).astype("float32"), random.uniform(0.5, 2, 7)
    new_name = random.permutation(7)
    old_name = np.argsort(new_name)
    events = events_of(system, CLIENTS, STEPS)
    renamed = events._replace(clients=jnp.asarray(new_name)[events.clients].astype("int32"))

    def problem(clients: Any) -> Any:
        if system.learns is LatentProblem:
            one = kind.make()
            data = Seen(jnp.asarray(centers), jnp.asarray(curvature / 3, "float32"))
            return one.replace(
                data=data,
                index=jnp.asarray(clients, "int32")[:, None],
                counts=jnp.ones(7, "int32"),
                share=jnp.ones(7),
            )
        return Quadratic.of(centers[clients], curvature=curvature[clients], start=1.0)

    state, _ = bind(problem(np.arange(7)), events=events, **kind.quiet).run(jax.random.key(1))
    other, _ = bind(problem(old_name), events=renamed, **kind.quiet).run(jax.random.key(1))
    np.testing.assert_array_equal(state.server, other.server)
    if hasattr(state, "versions"):
        np.testing.assert_array_equal(state.versions[:2], other.versions[:2])
    for mine, theirs in zip(kept_per_client(state), kept_per_client(other), strict=True):
        np.testing.assert_array_equal(mine, theirs[new_name])
        assert not np.array_equal(mine, theirs)


def kept_per_client(state: Any) -> list[Any]:
    """What the state has of every client: models, memories or oracles, `[N, ...]`."""
    own = [getattr(state, name) for name in ("clients", "groups", "oracle") if hasattr(state, name)]
    return [*own, state.memory.clients] if hasattr(state, "memory") else own


def test_permuting_slots_changes_nothing(system: System, bind: Callable, kind: Kind) -> None:
    """A tick is a set of reports. To rounding: they are added in another order."""
    if system.name == ONE_BY_ONE:
        pytest.skip("a tick has one slot")
    events = some_events(CLIENTS, STEPS)
    order = jnp.array([2, 0, 3, 1])
    moved = jax.tree.map(lambda leaf: leaf[:, order] if leaf.ndim == 2 else leaf, events)
    state, _ = bind(kind.make(), events=events).run(jax.random.key(1))
    other, _ = bind(kind.make(), events=moved).run(jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state, other)


@pytest.mark.parametrize("slots_at_once", [3, 4])
def test_data_of_absent_clients_reach_nobody(
    system: System, bind: Callable, kind: Kind, slots_at_once: int
) -> None:
    """Data that are not numbers poison all they touch: those of clients outside the schedule must touch nothing."""
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
    state, _ = bind(problem, **how).run(jax.random.key(1))
    other, _ = bind(kind.poisoned(problem, absent), **how).run(jax.random.key(1))
    np.testing.assert_array_equal(state.server, other.server)
    if hasattr(state, "versions"):
        np.testing.assert_array_equal(state.versions, other.versions)
    for mine, theirs in zip(kept_per_client(state), kept_per_client(other), strict=True):
        np.testing.assert_array_equal(
            np.delete(mine, absent, axis=0), np.delete(theirs, absent, axis=0)
        )


def test_updates_depend_on_every_client_present(bind: Callable, kind: Kind) -> None:
    """The counterpart of the test above, which shows that it can fail."""
    for client in range(7):
        state, _ = bind(kind.poisoned(kind.make(), [client]), **kind.without_start).run(
            jax.random.key(1)
        )
        assert np.isnan(state.server).all()


@pytest.fixture
def key_reuse_check() -> Iterator[None]:
    with jax.debug_key_reuse(True):
        yield


def trace(system: System, problem: Any, hyper: Any, algorithm: Callable) -> None:
    """Trace both phases of a run, timeline and learning, which is when keys are checked; nothing is compiled."""
    key, plan = jax.random.key(0), Plan(rows=3, slots_at_once=3)
    with jax.enable_x64(True):
        jax.eval_shape(jax.jit(lambda key: system.timeline(key, hyper, 3)), key)
    changed = system._replace(algorithm=algorithm)
    jax.eval_shape(
        jax.jit(
            lambda key: _scan(changed, plan, problem, hyper, key, events_of(system, CLIENTS, STEPS))
        ),
        key,
    )


def test_no_key_is_used_twice(
    system: System, kind: Kind, small: Callable, key_reuse_check: None
) -> None:
    trace(system, kind.make(), small(system), system.algorithm)


def test_a_key_used_twice_is_noticed(
    system: System, kind: Kind, small: Callable, key_reuse_check: None
) -> None:
    """The counterpart of the test above: one draw more from a key that a local step, or a compressor, uses."""
    if system.name == "em":
        pytest.skip("nothing is drawn")

    @struct
    class CarelessCompressor(BlockQuantization):
        def apply(self, key: jax.Array, vector: jax.Array) -> jax.Array:
            return super().apply(key, vector) * jax.random.uniform(key)

    def careless(problem: Any, hyper: Any, plan: Plan) -> fedjax_sim.Algorithm:
        if isinstance(problem, LatentProblem):
            return system.algorithm(problem, hyper.replace(compression=CarelessCompressor()), plan)

        class Careless(type(problem)):
            def loss(
                self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
            ) -> jax.Array:
                return super().loss(params, client, examples, key) * jax.random.uniform(key)

        return system.algorithm(Careless(**vars(problem)), hyper, plan)

    with pytest.raises(jax.errors.KeyReuseError):
        trace(system, kind.make(), small(system), careless)


def test_no_key_is_used_twice_by_the_engine(
    regression: Callable, small: Callable, key_reuse_check: None
) -> None:
    """One run of one lane through everything: the streams of timeline, start and learning."""
    system = fedjax_sim.SYSTEMS["fedavg"]
    fedjax_sim.simulate(
        system, regression(), small(system), seed=1, num_ticks=3, num_evals=3, layout=WHOLE
    )
