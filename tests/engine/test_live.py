"""Live systems in the engine: budgets, endings, resumed and longer runs, watchers, own loops."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Checkpoints, Keep, Layout, Ticks, Time, Watch
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import EMPTY, Event, Hints, Key, System
from fedjax_sim.engine.program.prepare import Planned
from fedjax_sim.engine.request import Options
from fedjax_sim.engine.shares import listed
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.rules import TrimmedMean
from fedjax_sim.systems import fedavg, fedbuff, oort
from fedjax_sim.timelines.live import Clock, Instant, Live, Received, Sizes, with_clock
from tests.conftest import slow_but

ALONE = Layout(4, False, 1)
RATES = np.geomspace(0.002, 0.05, 8).tolist()
"""Learning rates of 64 lanes with eight seeds each."""


class Count(NamedTuple):
    """What the clock of `paced` carries."""

    tick: jax.Array
    now: Instant
    loss: jax.Array


def paced(
    sizes: Sizes = Sizes(4, 5), can_repeat: bool = False, **wrong: Callable[[Any], Any]
) -> System:
    """FedAvg whose rounds take `2 + loss` units of time, so that lanes end at different ticks.

    wrong: by field of `Received`, a function from tick and value to another value.
    """

    def clock(problem: Any, hyper: Any) -> Clock:
        def init(key: Key) -> Count:
            return Count(jnp.int32(0), Instant.at(0.0), jnp.float32(0))

        def next_tick(key: Key, carried: Count, state: Any) -> tuple[Count, Received]:
            tick, now = carried.tick, carried.now.later(2 + carried.loss)
            clients = (tick + jnp.arange(4, dtype="int32")) % hyper.num_clients
            steps, version = jnp.full(4, hyper.local_steps), jnp.full(4, tick)
            received = Received(now, clients, steps, version, jnp.full(4, 0.25))
            for name, change in wrong.items():
                received = received._replace(**{name: change(tick, getattr(received, name))})
            return Count(tick + 1, received.time, carried.loss), received

        def after(key: Key, carried: Count, event: Event, state: Any, seen: Any) -> Count:
            return carried._replace(loss=problem.evaluate(state.server)["loss"].astype("float32"))

        in_use = (lambda carried: jnp.full(2, EMPTY)) if sizes.versions else None
        return Clock(init, next_tick, after, in_use)

    return with_clock(
        fedavg.system,
        Live(lambda hyper: sizes, clock),
        name="paced",
        can_repeat=can_repeat,
        hints=Hints(lambda hyper, time: 20),
    )


PACED = paced()


@pytest.fixture
def sweep(regression: Callable, small: Callable) -> Callable[..., fedjax_sim.Run]:
    """Return a function that sweeps learning rates of a live system."""

    def run(system: System = PACED, **options: Any) -> fedjax_sim.Run:
        options = {
            "settings": {"lr": [0.01, 0.05]},
            "seeds": 2,
            "budget": Time(30.0, most_ticks=20),
            "num_evals": 10,
            "layout": ALONE,
        } | options
        return fedjax_sim.sweep(system, regression(), small(fedavg.system), **options)

    return run


def same_curves(found: fedjax_sim.Run, expected: fedjax_sim.Run) -> None:
    """Compare everything that two runs return, bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, found.models, expected.models)
    for name in (*expected.curves.coords, *expected.curves.data_vars):
        np.testing.assert_array_equal(found.curves[name], expected.curves[name], err_msg=name)
    for ours, theirs in zip(found.timelines, expected.timelines, strict=True):
        jax.tree.map(np.testing.assert_array_equal, tuple(ours), tuple(theirs))


@pytest.mark.slow
def test_64_lanes_end_when_their_time_is_over(sweep: Callable) -> None:
    """Each in its own tick, as if alone; the one that begins before the end is completed."""
    run = sweep(settings={"lr": RATES}, seeds=8, keep=Keep(models=True))
    ticks = run.curves.ticks.values[..., -1]
    assert ticks.size == len(run.timelines) == 64
    assert len(set(ticks.ravel())) > 3 and ticks.max() < 20
    assert (run.curves.ended == "budget").all()
    for i, timeline in enumerate(run.timelines):
        place = np.unravel_index(i, ticks.shape)
        assert len(timeline.time) == ticks[place]
        assert timeline.time[-2] < 30 <= timeline.time[-1]
        # The clock follows the losses, of which evaluations show every second.
        losses = run.curves.loss.values[place][:-1]
        every = 2 * np.arange(len(losses))
        taken = np.diff(timeline.time, prepend=0.0)
        known = every[(every > 0) & (every < ticks[place])]
        np.testing.assert_allclose(taken[known], 2 + losses[known // 2], rtol=1e-5)
        ends = np.minimum(2 * np.arange(run.curves.sizes["eval"]), ticks[place])
        np.testing.assert_array_equal(run.curves.ticks.values[place], ends)
        times = np.concatenate([[0.0], timeline.time])
        np.testing.assert_array_equal(run.curves.time.values[place], times[ends])
        reports = 4 * ends * 96
        np.testing.assert_array_equal(run.curves.uplink_bits.values[place], reports)
        np.testing.assert_array_equal(run.curves.local_steps.values[place], 20 * ends)
    # The call ended with the longest lane, and what a lane did is what it does with ticks alone.
    assert run.curves.sizes["eval"] == 1 + -(-int(ticks.max()) // 2)
    assert (run.curves.needed.values == 20 * ticks).all()
    for lane, (i, j) in enumerate(np.ndindex(ticks.shape)):
        alone = sweep(settings={"lr": [RATES[i]]}, seeds=[j])
        # What it ended with is repeated until the last lane ends.
        last = alone.curves.sizes["eval"] - 1
        places = np.minimum(np.arange(run.curves.sizes["eval"]), last)
        expected = alone.curves[{"lr": 0, "seed": 0, "eval": places}]
        found = run.curves[{"lr": i, "seed": j}]
        for name in (*expected.data_vars, *expected.coords):
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
        np.testing.assert_array_equal(alone.timelines[0].time, run.timelines[lane].time)
        jax.tree.map(np.testing.assert_array_equal, alone.model(0), run.model(lane))
    first = int(ticks[0, 0])
    exact = sweep(settings={"lr": RATES[:1]}, seeds=[0], budget=Ticks(first), num_evals=1)
    jax.tree.map(np.testing.assert_array_equal, exact.model(0), run.model(0))


@pytest.mark.slow
def test_servers_that_do_not_wait_act_within_their_time(
    live_fedbuff: System, regression: Callable, small: Callable
) -> None:
    given = regression(), small(fedbuff.system, restart="replaced", concurrency=5)
    live = live_fedbuff._replace(overshoot=False)
    run = fedjax_sim.simulate(live, *given, budget=Time(200.0, most_ticks=500), num_evals=50)
    times = run.timelines[0].time
    assert run.curves.ended == "budget" and times[-1] <= 200
    exact = fedjax_sim.simulate(live, *given, budget=Time(float(times[5]), most_ticks=99))
    assert exact.curves.ticks[-1] == 6


@pytest.fixture
def live_fedbuff() -> System:
    """FedBuff on a live clock."""
    from tests.timelines.live.conftest import LIVE

    return LIVE["fedbuff"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("system", "ended", "words"),
    [
        (paced(time=lambda t, time: time.where(t < 3, Instant.at(np.inf))), "idle", "nobody"),
        # It stays ended, although its clock would go on.
        (paced(is_done=lambda t, is_done: t == 3), "done", ""),
        (paced(time=lambda t, time: time.where(t < 3, Instant.at(1.0))), "time", "went back"),
        (paced(time=lambda t, time: time.where(t < 3, Instant.at(np.nan))), "time", "is nan"),
        (paced(time=lambda t, time: time.where(t < 3, Instant.at(-1.0))), "time", "went back"),
        (paced(steps=lambda t, steps: steps + (t == 3)), "steps", "more steps"),
        pytest.param(
            paced(steps=lambda t, steps: steps - 6 * (t == 3)),
            "steps",
            "more steps",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            paced(clients=lambda t, who: who.at[0].set(jnp.where(t == 3, 7, who[0]))),
            "clients",
            "",
            marks=pytest.mark.slow,
        ),
        (paced(clients=lambda t, who: jnp.where(t == 3, who[0], who)), "clients", "twice"),
        pytest.param(
            paced(version=lambda t, version: version - (t == 3)),
            "versions",
            "in use",
            marks=pytest.mark.slow,
        ),
        (
            paced(Sizes(4, 5, 2), version=lambda t, version: version - 3 * (t == 3)),
            "versions",
            "in use",
        ),
        pytest.param(
            paced(Sizes(4, 5, is_full=True), steps=lambda t, k: k - (t == 3)),
            "steps",
            "steps",
            marks=pytest.mark.slow,
        ),
        (
            paced(Sizes(4, 5, is_full=True), clients=lambda t, i: jnp.where(t == 3, EMPTY, i)),
            "clients",
            "client",
        ),
    ],
)
def test_a_lane_ends_instead_of_doing_what_was_not_planned(
    system: System,
    ended: str,
    words: str,
    sweep: Callable,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its model is the one that it had before."""
    options: dict[str, Any] = {"settings": {"lr": [0.05]}, "seeds": [0], "num_evals": 1}
    run = sweep(system, budget=Ticks(6), **options)
    assert run.curves.ended.values.ravel().tolist() == [ended]
    assert run.curves.ticks.values[..., -1] == 3
    assert words in capsys.readouterr().err
    right = sweep(budget=Ticks(3), **options)
    jax.tree.map(np.testing.assert_array_equal, run.models, right.models)


@pytest.mark.slow
def test_the_same_with_a_client_that_may_report_twice(sweep: Callable) -> None:
    system = paced(can_repeat=True, clients=lambda t, who: jnp.where(t == 3, who[0], who))
    run = sweep(system, budget=Ticks(6))
    assert (run.curves.ended == "ticks").all()


def test_more_ticks_than_planned_are_said(
    sweep: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sweep(budget=Time(1e6, most_ticks=7))
    assert (run.curves.ended == "ticks").all() and (run.curves.ticks[..., -1] == 7).all()
    assert "4 of 4 lanes of paced ended early" in (said := capsys.readouterr().err)
    assert "most_ticks = 7" in said


def test_a_clock_may_stand_still(sweep: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    """A server may act several times at one time. A budget of time then ends at most_ticks."""
    still = paced(time=lambda t, time: Instant.at(0.0))
    run = sweep(still, budget=Ticks(5), num_evals=1)
    assert (run.curves.ended == "ticks").all() and (run.curves.ticks[..., -1] == 5).all()
    assert (run.curves.time == 0).all() and capsys.readouterr().err == ""
    run = sweep(still, budget=Time(30.0, most_ticks=7), num_evals=1)
    assert (run.curves.ended == "ticks").all() and (run.curves.ticks[..., -1] == 7).all()
    assert "most_ticks = 7" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", slow_but([Layout(4, True, 1)], [Layout(4, True, 1), Layout(1, False, 2, 2)])
)
def test_layouts_agree(layout: Layout, sweep: Callable) -> None:
    lanes: dict[str, Any] = {"settings": {"lr": RATES}, "seeds": 8}
    run, other = sweep(**lanes), sweep(**lanes, layout=layout)
    assert len(np.unique(run.curves.ticks[..., -1])) > 3
    np.testing.assert_allclose(other.curves.time, run.curves.time, rtol=1e-6)
    np.testing.assert_allclose(other.curves.loss, run.curves.loss, rtol=1e-5)
    np.testing.assert_array_equal(other.curves.ticks, run.curves.ticks)


class KilledError(Exception):
    """In place of a signal."""


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_bits(sweep: Callable, tmp_path: Path) -> None:
    whole = sweep()

    def kill(now: fedjax_sim.Progress) -> None:
        if now.evaluation == 3:
            raise KilledError

    saved = Checkpoints(tmp_path / "run", every=0.0, resume=True)
    with pytest.raises(KilledError):
        sweep(checkpoints=saved, watch=Watch(on_evaluation=kill, progress=False))
    again = sweep(checkpoints=saved, watch=Watch(on_evaluation=lambda now: None, progress=False))
    same_curves(fedjax_sim.Run(again.curves.drop_vars("stopped_at"), *_rest(again)), whole)
    finished = sweep(checkpoints=saved, watch=Watch(on_evaluation=lambda now: None, progress=False))
    same_curves(finished, again)


def _rest(run: fedjax_sim.Run) -> tuple[Any, ...]:
    return run.models, run.timelines, run.hypers


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (Time(30.0, most_ticks=6), "most_ticks"),
        (Time(30.0, most_ticks=40), "most_ticks"),
        (Time(40.0, most_ticks=20), "time_budget"),
    ],
)
def test_another_budget_is_refused(other: Time, name: str, sweep: Callable, tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path / "run", every=0.0, resume=True)
    sweep(budget=Time(30.0, most_ticks=20), num_evals=3, checkpoints=saved)
    with pytest.raises(ConfigError, match=rf"differs in {name} \(.* there, .* here\)"):
        sweep(budget=other, num_evals=3, checkpoints=saved)


def test_lanes_that_are_stopped_are_no_fault(
    sweep: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is over, or has had its ticks, when it is stopped ended before."""

    def stop(now: fedjax_sim.Progress) -> Any:
        return [False, now.evaluation == 2, now.evaluation == 4, True]

    watch, budget = Watch(on_evaluation=stop, progress=False), Time(13.0, most_ticks=20)
    run = sweep(watch=watch, budget=budget)
    assert run.curves.ended.values.ravel().tolist() == ["budget", "stopped", "budget", "stopped"]
    assert run.curves.ticks.values.reshape(4, -1)[2, -1] < 8
    assert "ended early" not in capsys.readouterr().err
    run = sweep(watch=watch, budget=Ticks(4), num_evals=2)
    assert run.curves.ended.values.ravel().tolist() == ["ticks", "ticks", "ticks", "stopped"]


def test_watchers_learn_the_time(sweep: Callable) -> None:
    seen: list[Any] = []
    logged: list[Any] = []

    class Tracker:
        def log(self, lane: Any, ticks: int, values: Any) -> None:
            logged.append((ticks, values["virtual_time"]))

        def close(self) -> None: ...

    def stop(now: fedjax_sim.Progress) -> Any:
        seen.append(now)
        return [lane < 3 and now.evaluation >= 2 + lane for lane in range(4)]

    watch = Watch(on_evaluation=stop, trackers=[Tracker()], progress=False)
    run = sweep(watch=watch)
    times, ticks = (run.curves[name].values.reshape(4, -1) for name in ("time", "ticks"))
    for now in seen:
        np.testing.assert_array_equal(now.time[3], times[3, : now.evaluation + 1])
        np.testing.assert_array_equal(now.ticks[3], ticks[3, : now.evaluation + 1])
    assert run.curves.stopped_at.values.ravel().tolist()[:3] == [2, 3, 4]
    assert run.curves.ticks.values.reshape(4, -1)[:3, -1].tolist() == [4, 6, 8]
    assert {*zip(ticks[3].tolist(), times[3].tolist(), strict=True)} <= set(logged)
    plain = sweep()
    np.testing.assert_array_equal(times[3], plain.curves.time.values.reshape(4, -1)[3])


def test_own_loops(sweep: Callable, regression: Callable, small: Callable) -> None:
    """`bind` gives the run's bits, knows the budget, and the clock freezes no setting."""
    run = sweep(settings={"lr": [0.05]}, seeds=[0])
    given = regression(), small(fedavg.system, lr=0.05)
    bound = fedjax_sim.bind(PACED, *given, budget=Time(30.0, most_ticks=20))
    state, infos = bound.run(bound.init())
    assert bound.frozen == ("local_epochs",)  # From it follows whether there are epochs.
    assert int(state.tick) == run.curves.ticks.values[0, 0, -1] < 20
    assert state.now.to_float64() == run.timelines[0].time[-1]
    jax.tree.map(np.testing.assert_array_equal, bound.model(state), run.model(0))
    assert (infos.event.clients[int(state.tick) :] == EMPTY).all()

    def end(lr: jax.Array) -> jax.Array:
        other = bound.with_settings(lr=lr)
        return other.run(other.init())[0].now.value

    ends = jax.vmap(end)(jnp.array([0.01, 0.05]))
    assert ends[0] != ends[1]
    slope = jax.jvp(end, (0.05,), (1.0,))[1]
    assert np.isfinite(slope) and slope != 0


def test_a_rule_that_a_tick_does_not_allow_is_named(
    regression: Callable, small: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the program knows the ticks; the model is then not finite, and a line says why."""
    hyper = small(
        oort.system, weighting="examples", aggregator=TrimmedMean(share=0.26), local_steps=2
    )
    with pytest.warns(fedjax_sim.LaneWarning):
        fedjax_sim.simulate(oort.system, regression(), hyper, budget=Ticks(3), num_evals=1)
    assert "that weighs messages" in capsys.readouterr().err


def test_sentences(sweep: Callable, regression: Callable, small: Callable) -> None:
    with pytest.raises(ConfigError, match="client_variance"):
        sweep(keep=Keep(client_variance=True))
    with pytest.raises(ConfigError, match="most_ticks"):
        fedjax_sim.simulate(
            fedavg.system, regression(), small(fedavg.system), budget=Time(30.0, most_ticks=9)
        )
    run = sweep(settings={"lr": [0.05]}, seeds=[0])
    with pytest.raises(ConfigError, match="live"):
        fedjax_sim.bind(PACED, regression(), small(fedavg.system), budget=run.timelines[0])
    bound = fedjax_sim.bind(PACED, regression(), small(fedavg.system), budget=Ticks(3))
    with pytest.raises(ConfigError, match="event is 'with other steps'"):
        bound.step(bound.init(), bound.event(0)._replace(steps=1))
    wide = with_clock(fedavg.system, Live(lambda hyper: Sizes(9, 5), PACED.live.clock))
    with pytest.raises(ConfigError, match="slots of a live clock"):
        sweep(wide)
    with pytest.raises(ConfigError, match="in_use"):
        sweep(with_clock(fedavg.system, Live(lambda hyper: Sizes(4, 5, 2), PACED.live.clock)))
    with pytest.raises(ConfigError, match="shape of clients"):
        sweep(with_clock(fedavg.system, Live(lambda hyper: Sizes(3, 5), PACED.live.clock)))


def test_an_estimate_of_the_ticks_is_enough(
    regression: Callable, small: Callable, sweep: Callable
) -> None:
    """Without `most_ticks`: four times what the system's hint says, by which evaluations are."""
    hyper = small(oort.system, local_steps=5)
    run = fedjax_sim.simulate(oort.system, regression(), hyper, budget=Time(500.0), num_evals=20)
    assert run.curves.ended == "budget" and run.timelines[0].time[-1] >= 500
    # Twenty ticks are estimated, and eighty allowed: every second is evaluated, or every fourth.
    for num_evals, every in ((10, 2), (5, 4)):
        options = {"settings": {"lr": [0.05]}, "seeds": [0], "num_evals": num_evals}
        few = sweep(budget=Time(12.0, most_ticks=80), **options)
        assert np.diff(few.curves.ticks)[0, 0, 0] == every
    many = sweep(budget=Time(200.0, most_ticks=80), num_evals=5)
    assert many.curves.sizes["eval"] > 10


def test_ticks_are_estimated_from_all_lanes() -> None:
    """Whichever lane is the first, and whichever run here: lanes may share one live schedule."""
    system, problem = fedjax_sim.SYSTEMS["asyncfeded_adaptive"], Quadratic.of(np.ones((7, 2)))
    hyper = system.Hyper(num_clients=7)

    def planned(*rates: float, first: int = 2, budget: Time = Time(20.0)) -> Planned:
        given: Any = {"settings": {"rate_fast": rates}, "budget": budget, "num_evals": 5}
        lanes = listed(system, problem, hyper, **given).lanes
        return Planned(system, lanes[:first], Options(budget, 5), whole=lanes)

    whole = planned(4.0, 0.2)
    for other in (planned(0.2, 4.0), planned(0.2, 4.0, first=1)):
        assert other.ticks.max() == whole.ticks.max()
        assert other.schedule.shape[1:] == whole.schedule.shape[1:]
    with pytest.raises(ConfigError, match="time_budget is 1e"):
        planned(4.0, 0.2, budget=Time(1e308))
    assert planned(4.0, 0.2, budget=Time(1e308, most_ticks=4)).ticks.max() == 4
