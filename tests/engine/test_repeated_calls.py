"""A call that repeats an earlier one's shapes and facts asks no program again, and only then.

Dimension letters: `N` clients, `P` parameters.
"""

import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim.core.clocks import Instant
from fedjax_sim.engine.machine import compiling, memory, processes, user_code
from fedjax_sim.engine.planning import placement
from fedjax_sim.engine.program.replay import Replay
from fedjax_sim.timelines.delays.client_table import Trace

FEDAVG, OORT = (fedjax_sim.SYSTEMS[name] for name in ("fedavg", "oort"))
SCALE = 1.0


def scaled(number: jax.Array) -> jax.Array:
    return SCALE * number


@struct.dataclass
class Distances:
    """Squared distances from points.

    Attributes:
      points: `f[N, P]`.
      counts: `i32[N]`.
    """

    points: jax.Array
    counts: jax.Array

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(self.points.shape[1])

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return scaled(jnp.mean(jnp.square(params - self.points[client])))

    def evaluate(self, params: jax.Array) -> dict[str, jax.Array]:
        return {"loss": jnp.mean(jnp.square(params[None] - self.points))}


def distances(kind: Any = Distances, shift: float = 0.0) -> Any:
    points = np.random.default_rng(0).normal(size=(6, 4)) + shift
    return kind(jnp.asarray(points, "float32"), jnp.full(6, 2, "int32"))


def hyper(**settings: Any) -> Any:
    given = {"num_clients": 6, "num_selected": 3, "batch_size": 1, "local_steps": 2}
    return FEDAVG.paper(**given | settings)


def sweep(problem: Any, settings: Any = None, **options: Any) -> fedjax_sim.Run:
    given = {
        "seeds": 2,
        "budget": fedjax_sim.Ticks(6),
        "num_evals": 3,
        "layout": fedjax_sim.Layout(lane_devices=1),
    }
    return fedjax_sim.sweep(FEDAVG, problem, settings or hyper(), **given | options)


def afresh(run: Callable[[], fedjax_sim.Run]) -> fedjax_sim.Run:
    """Run with nothing known from earlier calls."""
    jax.clear_caches()
    compiling.known_sizes.clear()
    placement._traced.cache_clear()
    return run()


def assert_same(run: fedjax_sim.Run, other: fedjax_sim.Run) -> None:
    """Check that all variables and models have the same bits."""
    assert {*run.curves.variables} == {*other.curves.variables}
    for name, values in run.curves.variables.items():
        np.testing.assert_array_equal(values.values, other.curves[name].values)
    jax.tree.map(np.testing.assert_array_equal, run.models, other.models)


def loss_of(run: fedjax_sim.Run) -> list[float]:
    return run.curves["loss"].values.tolist()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a growing list: what is asked about programs."""
    names: list[str] = []

    def listen(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    listen(Replay, "carries")
    for name in ("drop_programs_near_the_limit", "measure_programs"):
        listen(memory, name)
    listen(placement, "_count_products")
    return names


def test_a_repeated_call_asks_nothing(asked: list[str]) -> None:
    """Other seeds, other values of settings and of data need no program either."""
    first = sweep(distances())
    asked.clear()
    again = sweep(distances())
    other = sweep(distances(shift=1.0), hyper(lr=0.1), seeds=[3, 5])
    assert not asked
    assert_same(first, again)
    assert [run.curves.attrs["programs_compiled"] for run in (again, other)] == [0, 0]
    assert loss_of(other) != loss_of(first)


@pytest.fixture(scope="module")
def fresh() -> fedjax_sim.Run:
    """The first call of the tests that make another one after it, with nothing known before."""
    return afresh(lambda: sweep(distances()))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"drop_rate": 0.5}, {}),  # Slots that are not filled.
        ({}, {"layout": fedjax_sim.Layout(packed=True, lane_devices=1)}),
        *(
            pytest.param(*facts, marks=pytest.mark.slow)
            for facts in (
                ({}, {"budget": fedjax_sim.Ticks(5)}),
                ({"local_steps": 3}, {}),
                ({"weighting": "examples"}, {}),
                ({}, {"layout": fedjax_sim.Layout(1, False, 1, 1)}),
                ({}, {"keep": fedjax_sim.Keep(client_variance=True)}),
                ({}, {"keep": fedjax_sim.Keep(models=True)}),
                ({}, {"layout": fedjax_sim.Layout(lane_devices=1, evals_per_chunk=2)}),
            )
        ),
    ],
)
def test_other_facts_give_the_results_of_a_fresh_call(
    settings: dict[str, Any], options: dict[str, Any], fresh: fedjax_sim.Run
) -> None:
    """After a call of equal shapes the other one is what it is alone, and so is the first again."""
    sweep(distances())
    after = sweep(distances(), hyper(**settings), **options)
    assert_same(sweep(distances()), fresh)
    assert_same(after, afresh(lambda: sweep(distances(), hyper(**settings), **options)))


@pytest.mark.slow
def test_other_rows_and_steps_of_an_asynchronous_schedule() -> None:
    """Schedules of equal shapes whose stores have other sizes, and the other way round."""
    system = fedjax_sim.SYSTEMS["fedbuff"]
    slow = {"slow_fraction": 0.5, "rate_slow": 0.01}

    def run(**settings: Any) -> fedjax_sim.Run:
        few = {"num_clients": 6, "buffer_size": 2, "batch_size": 1, "local_steps": 2} | settings
        return fedjax_sim.sweep(
            system,
            distances(),
            system.paper(**few),
            budget=fedjax_sim.Ticks(20),
            num_evals=2,
        )

    run()
    after = run(**slow, local_steps=5)
    assert_same(after, afresh(lambda: run(**slow, local_steps=5)))


@struct.dataclass
class Edited(Distances):
    """A problem whose loss the tests edit."""

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return jnp.mean(jnp.square(params - self.points[client]))


def halved(self: Any, params: Any, client: Any, examples: Any, key: Any) -> jax.Array:
    return jnp.mean(jnp.square(params - self.points[client])) / 2


@pytest.fixture
def by_hand() -> list[float]:
    """Return the losses of a problem that had the edited loss from the start."""
    kind = struct.dataclass(type("Halved", (Distances,), {"loss": halved}))
    return loss_of(sweep(distances(kind)))


def test_a_class_that_is_defined_again(by_hand: list[float]) -> None:
    """A notebook's cell that is run again makes another class of the same name."""
    first = sweep(distances(Edited))
    again = struct.dataclass(type("Edited", (Edited,), {"loss": halved}))
    assert loss_of(sweep(distances(again))) == by_hand != loss_of(first)


def test_a_method_that_is_replaced_in_its_class(
    by_hand: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX would take what it has traced before, as the class is the same."""
    first = sweep(distances(Edited))
    monkeypatch.setattr(Edited, "loss", halved)
    assert loss_of(sweep(distances(Edited))) == by_hand != loss_of(first)
    monkeypatch.undo()
    assert_same(sweep(distances(Edited)), first)


def test_packages_in_other_folders_are_no_code_of_users(tmp_path: Path) -> None:
    """Such as those of the user, or of the system below an environment."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "elsewhere.py").touch()
    words = (
        f"import sys; sys.path.append({str(folder)!r}); import elsewhere; "
        "from fedjax_sim.engine.machine import user_code; print(user_code._is_fixed('elsewhere'))"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_code_of_users_in_many_classes_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each class in which there is some was looked through again from each that leads to it."""
    ours = tuple(each for each in user_code.FIXED if "fedjax_sim" in each)
    monkeypatch.setattr(user_code, "FIXED", ours)
    monkeypatch.setattr(user_code, "_members", weakref.WeakKeyDictionary())
    monkeypatch.setattr(user_code, "_is_fixed", user_code._is_fixed.__wrapped__)
    look_through, calls = user_code._look_through, itertools.count(1)

    def counted(*given: Any) -> tuple[bool, tuple]:
        assert next(calls) < 20_000
        return look_through(*given)

    monkeypatch.setattr(user_code, "_look_through", counted)
    assert user_code._look_through((FEDAVG, OORT))[0]


def test_code_that_is_replaced_in_its_function(
    by_hand: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a notebook that reloads modules edits what is in use."""
    first = sweep(distances(Edited))
    monkeypatch.setattr(Edited.loss, "__code__", halved.__code__)
    assert loss_of(sweep(distances(Edited))) == by_hand != loss_of(first)


def test_functions_and_constants_that_a_loss_names(
    by_hand: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sweep(distances())
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    constant = loss_of(sweep(distances()))
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "scaled", lambda number: number / 2)
    assert constant == loss_of(sweep(distances())) == by_hand != loss_of(first)


class Scale:
    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, number: jax.Array) -> jax.Array:
        return number * self.by


BY: Any = None
"""Where `by_object` and others find what the tests change."""


def by_array(number: jax.Array) -> jax.Array:
    return number * jnp.sum(BY)


def by_object(number: jax.Array) -> jax.Array:
    return number * BY.by


def by_object_within(number: jax.Array) -> jax.Array:
    return number * BY.inner.by


def by_item(number: jax.Array) -> jax.Array:
    return number * BY["by"][0]


def by_method(number: jax.Array) -> jax.Array:
    return BY(number)


def by_bound(number: jax.Array) -> jax.Array:
    return BY.scaled(number)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("function", "first", "edit"),
    [
        (by_array, np.ones(1), lambda held: np.multiply(held, 0.5, out=held)),
        (by_array, jnp.ones(1), lambda _: jnp.full(1, 0.5)),
        (by_array, np.float32(1), lambda _: np.float32(0.5)),
        (by_object, Scale(1.0), lambda held: setattr(held, "by", 0.5)),
        (by_object, SimpleNamespace(by=1.0), lambda held: setattr(held, "by", 0.5)),
        (by_object, Scale(np.ones(())), lambda held: held.by.fill(0.5)),
        (by_object_within, SimpleNamespace(inner=Scale(1)), lambda h: setattr(h.inner, "by", 0.5)),
        (by_item, {"by": [1.0]}, lambda held: held["by"].__setitem__(0, 0.5)),
        (by_method, Scale(1.0), lambda held: setattr(held, "by", 0.5)),
        (
            by_bound,
            SimpleNamespace(scaled=Scale(1.0).__call__),
            lambda held: setattr(held.scaled.__self__, "by", 0.5),
        ),
    ],
)
def test_what_a_loss_reads_may_change(
    by_hand: list[float],
    monkeypatch: pytest.MonkeyPatch,
    function: Callable,
    first: Any,
    edit: Callable[[Any], Any],
) -> None:
    """Arrays, attributes of objects, and items, changed in place or given again."""
    monkeypatch.setitem(globals(), "scaled", function)
    monkeypatch.setitem(globals(), "BY", first)
    before = loss_of(sweep(distances()))
    assert loss_of(sweep(distances())) == before
    changed = edit(first)
    if function is by_array:
        monkeypatch.setitem(globals(), "BY", changed)
    assert loss_of(sweep(distances())) == by_hand != before


PACE = 1.0


def paced(key: Any, settings: Any, num_ticks: int) -> Any:
    timeline = FEDAVG.timeline(key, settings, num_ticks)
    return timeline._replace(time=PACE * timeline.time)


def paced_clock(problem: Any, settings: Any) -> Any:
    clock = OORT.live.clock(problem, settings)

    def following(*given: Any) -> Any:
        after, received = clock.next(*given)
        now = Instant(PACE * received.time.value, PACE * received.time.rest)
        return after, received._replace(time=now)

    return clock._replace(next=following)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "settings"),
    [
        (FEDAVG._replace(timeline=paced), hyper()),
        (
            OORT._replace(live=OORT.live._replace(clock=paced_clock)),
            OORT.paper(num_clients=6, num_selected=3, batch_size=1),
        ),
    ],
    ids=["planned", "live"],
)
def test_what_a_clock_reads_may_change(
    system: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Schedules are drawn again, in a bound program too, and a resumed run is another."""
    budget = fedjax_sim.Ticks(3)

    def times(**options: Any) -> np.ndarray:
        found = fedjax_sim.simulate(system, distances(), settings, budget=budget, **options)
        return found.timelines[0].time

    saved = fedjax_sim.Checkpoints(tmp_path, resume=True)
    before = times(checkpoints=saved)
    np.testing.assert_array_equal(times(), before)
    monkeypatch.setitem(globals(), "PACE", 2.0)
    np.testing.assert_allclose(times(), 2 * before, rtol=1e-6)
    with pytest.raises(fedjax_sim.ConfigError, match="program"):
        times(checkpoints=saved)
    if system.live is None:
        bound = fedjax_sim.bind(system, distances(), settings, budget=budget)
        np.testing.assert_allclose(bound.time, 2 * before, rtol=1e-6)


def test_a_trace_may_change() -> None:
    """In place, and by another array."""
    rows = np.arange(18.0)
    trace = Trace([0, 1, 2, 3, 4, 5] * 3, rows, rows + 2)
    settings = hyper(num_selected=1, trace=trace, server_interact=0.0)

    def times() -> np.ndarray:
        budget = fedjax_sim.Ticks(3)
        found = fedjax_sim.simulate(FEDAVG, distances(), settings, budget=budget)
        return found.timelines[0].time

    before = times()
    trace.start *= 2
    trace.finish *= 2
    np.testing.assert_allclose(times(), 2 * before)
    trace.start, trace.finish = 2 * trace.start, 2 * trace.finish
    np.testing.assert_allclose(times(), 4 * before)


def test_no_data_are_kept_alive() -> None:
    problem = distances()
    points, other = weakref.ref(problem.points), weakref.ref(problem.counts)
    run = sweep(problem)
    sweep(problem)
    del problem
    gc.collect()
    assert points() is None
    assert other() is None
    assert np.isfinite(loss_of(run)).all()


@pytest.mark.slow
def test_several_threads(asked: list[str]) -> None:
    """Calls at the same time return what they return one after another."""
    calls = [{}, {"lr": 0.1}, {"local_steps": 3}, {"drop_rate": 0.5}] * 2

    def run(settings: dict[str, Any]) -> fedjax_sim.Run:
        return sweep(distances(), hyper(**settings))

    compiling.known_sizes.clear()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, calls))
    for settings, found in zip(calls, together, strict=True):
        assert_same(found, run(settings))
    asked.clear()
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(run, calls))
    assert not asked
    for found, before in zip(again, together, strict=True):
        assert_same(found, before)


class BrokenError(Exception):
    """Raised by a problem."""


@pytest.mark.parametrize("method", ["init", "loss", "evaluate"])
def test_after_an_exception(method: str) -> None:
    """A call that fails leaves nothing behind that the next would take."""

    def fail(self: Any, *args: Any) -> Any:
        raise BrokenError

    expected = sweep(distances())
    broken = struct.dataclass(type("Distances", (Distances,), {method: fail}))
    for _ in range(2):
        with pytest.raises(BrokenError):
            sweep(distances(broken))
    assert_same(sweep(distances()), expected)
    # The same class, mended.
    setattr(broken, method, getattr(Distances, method))
    assert_same(sweep(distances(broken)), expected)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a growing list: how many arrays each transfer to the host has."""
    numbers: list[int] = []
    fetch = processes.fetch

    def listen(tree: Any) -> Any:
        numbers.append(len(jax.tree.leaves(tree)))
        return fetch(tree)

    monkeypatch.setattr(processes, "fetch", listen)
    return numbers


def test_one_transfer_for_each_return_to_the_host(fetched: list[int]) -> None:
    """The first evaluation, each chunk, and the final models."""
    sweep(distances())
    assert len(fetched) == 3
    fetched.clear()
    sweep(distances(), layout=fedjax_sim.Layout(lane_devices=1, evals_per_chunk=1))
    assert len(fetched) == 5


@pytest.mark.slow
def test_random_numbers_of_another_implementation() -> None:
    """JAX does not notice the switch; schedule and steps are those of a process that began so."""
    fedavg = fedjax_sim.SYSTEMS["fedavg"]
    problem = fedjax_sim.problems.Quadratic.of(np.eye(5), noise=0.1)
    hyper = fedavg.Hyper(num_clients=5, num_selected=2, local_steps=2)
    given: Any = (fedavg, problem, hyper)
    budget = fedjax_sim.Ticks(3)
    usual = fedjax_sim.simulate(*given, budget=budget, num_evals=1)
    with jax.default_prng_impl("rbg"):
        other = fedjax_sim.simulate(*given, budget=budget, num_evals=1)
    assert (other.models != usual.models).all()
    assert (other.timelines[0].time != usual.timelines[0].time).any()
    again = fedjax_sim.simulate(*given, budget=budget, num_evals=1)
    np.testing.assert_array_equal(again.models, usual.models)
