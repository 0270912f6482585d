"""Options of `sweep` and `simulate`: what is not allowed is refused before anything is compiled."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout, launch
from fedjax_sim.core.types import Hints
from fedjax_sim.engine.machine.compiling import CompileMeter
from fedjax_sim.engine.planning.drawing import Schedules
from fedjax_sim.engine.request import RunOptions

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]


TICKS = fedjax_sim.Ticks(2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"settings": {"optimizer": [abs]}}, "training.optimizer is .*gradient transformation"),
        (
            {"settings": {"learning_rate": [1.0]}},
            "setting name is 'learning_rate', but must be one of aggregator",
        ),
        ({"settings": {"lr": [0.1, 0.1]}}, "values of lr"),
        ({"settings": {"lr": [1, 1.0]}}, "values of lr"),
        ({"settings": {"proximal": [0.0, -0.0]}}, "values of proximal"),
        ({"lanes": {0.5}}, "some of the numbers from 0 to 0"),
        ({"lanes": {-1}}, "some of the numbers from 0 to 0"),
        (
            {"settings": {"delays": [FEDAVG.paper().delays], "rate_slow": [0.1, 0.2]}},
            "setting name is 'rate_slow', but must be left out with `delays`, its group",
        ),
        # Long arrays that differ in the middle only are different values, of which neither suits.
        (
            {"settings": {"lr": [np.ones(3000), 1 + np.eye(3000)[1500]]}},
            "lr is .*, but must be a finite number above 0",
        ),
        ({"settings": {"lr": [0.1, -0.1]}}, "lr is -0.1, but must be a finite number above 0"),
        (
            {"settings": {"num_clients": [7, 8]}},
            "num_clients is 8, but must be 7, as in the problem",
        ),
        ({"layout": Layout(lane_devices=99)}, "at most the 8"),
    ],
)
def test_bad_options_are_refused_before_anything_is_compiled(
    regression: Callable, small: Callable, compiled: list[str], options: dict[str, Any], words: str
) -> None:
    problem, hyper = regression(), small(FEDAVG)
    compiled.clear()
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.sweep(FEDAVG, problem, hyper, **{"budget": TICKS, **options})
    assert compiled == []


@pytest.mark.parametrize("call", [fedjax_sim.sweep, launch.sweep])
def test_what_excludes_each_other_is_one_argument(call: Callable) -> None:
    """A call has few arguments, and the main ones come first."""
    names = list(inspect.signature(call).parameters)
    assert len(names) <= 14
    assert names[:3] == ["system", "problem", "hyper"]
    assert not {"num_ticks", "time_budget", "part", "resume"} & {*names}
    assert [each.name for each in dataclasses.fields(fedjax_sim.Ticks)] == ["num_ticks"]
    names = [each.name for each in dataclasses.fields(fedjax_sim.Time)]
    assert names == ["time_budget", "most_ticks"]


def test_the_docstring_sets_the_main_arguments_apart() -> None:
    """It describes all of them, once."""
    text = inspect.getdoc(fedjax_sim.sweep) or ""
    main, other = text.partition("Other Args:")[::2]
    for name in inspect.signature(fedjax_sim.sweep).parameters:
        assert text.count(f"\n  {name}: ") == 1, name
    assert "\n  budget: " in main and "\n  watch: " in other
    simulate = inspect.getdoc(fedjax_sim.simulate) or ""
    assert "of `sweep`" in simulate and len(simulate) < len(text) / 3


def test_a_budget_is_needed(regression: Callable, small: Callable) -> None:
    for run in (fedjax_sim.sweep, fedjax_sim.simulate):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'budget'"):
            run(FEDAVG, regression(), small(FEDAVG))


def test_a_list_of_a_static_choice_says_what_it_compiles(
    regression: Callable, small: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers, and a list of one, share a program and say nothing. Lanes of one value neither."""
    run = partial(fedjax_sim.sweep, FEDAVG, regression(), small(FEDAVG), budget=TICKS, num_evals=1)
    run(settings={"lr": [0.1, 0.2], "batch_size": [2]})
    assert capsys.readouterr().err == ""
    settings: dict[str, Any] = {"lr": [0.1, 0.2], "batch_size": [1, 2]}
    assert run(settings=settings).curves.attrs["programs_compiled"] >= 2
    said = "fedjax-sim: each of the 2 values of batch_size compiles a program of fedavg.\n"
    assert capsys.readouterr().err == said
    run(settings=settings, lanes=[0, 2])
    assert capsys.readouterr().err == ""


def test_a_misspelt_option_is_refused(
    regression: Callable, small: Callable, compiled: list[str]
) -> None:
    """Options are keywords of the functions, so Python names the one that does not exist."""
    problem, hyper = regression(), small(FEDAVG)
    compiled.clear()
    options: dict[str, Any] = {"budget": TICKS, "chunks": 3}
    for run in (fedjax_sim.sweep, fedjax_sim.simulate):
        with pytest.raises(TypeError, match="unexpected keyword argument 'chunks'"):
            run(FEDAVG, problem, hyper, **options)
    assert compiled == []


def test_settings_are_an_instance(regression: Callable) -> None:
    """Not the class, nor a mapping, nor settings of another kind."""
    other = fedjax_sim.SYSTEMS["favano"].paper()
    for hyper, name in ((FEDAVG.Hyper, "fedavg.Hyper"), ({}, "dict"), (other, "favano.Hyper")):
        with pytest.raises(ConfigError, match=f"hyper is '.*{name}', but must be settings of fed"):
            fedjax_sim.simulate(FEDAVG, regression(), hyper, budget=fedjax_sim.Ticks(2))  # type: ignore[arg-type]


def test_simulate_takes_no_lists(regression: Callable, small: Callable) -> None:
    """It runs one lane; lists of seeds and settings belong to `sweep`."""
    for name, value in (("seeds", [1]), ("settings", {"lr": [0.1]})):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            fedjax_sim.simulate(
                FEDAVG, regression(), small(FEDAVG), budget=fedjax_sim.Ticks(2), **{name: value}
            )


def test_simulate_passes_every_option_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the arguments of `sweep` that make sense for one lane, and so does a launch."""
    theirs = inspect.signature(fedjax_sim.sweep).parameters
    ours = {*inspect.signature(fedjax_sim.simulate).parameters} - {"options"}
    listed = get_type_hints(RunOptions, include_extras=True)
    types = get_type_hints(inspect.unwrap(fedjax_sim.sweep), include_extras=True)
    assert listed == {name: types[name] for name in listed}
    assert {*theirs} == (ours - {"seed"}) | {*listed} | {"seeds", "settings", "lanes"}
    launched = {*inspect.signature(launch.sweep).parameters} - {"options"}
    assert {*theirs} == (launched - {"launcher", "parts"}) | {*listed} | {"lanes"}
    seen: dict[str, Any] = {}

    class StopError(Exception):
        pass

    def list_lanes(*inputs: Any) -> None:
        *named, grid, options, start = inputs
        seen.update(zip(theirs, named, strict=False))
        seen.update({name: value for name, value in vars(options).items() if name in theirs})
        seen.update(start=start, seeds=grid.seeds, settings=grid.settings)
        raise StopError

    monkeypatch.setattr("fedjax_sim.engine.request.list_lanes", list_lanes)
    values = {name: object() for name in {*theirs} - {"seeds", "settings", "lanes"}}
    with pytest.raises(StopError):
        simulate = inspect.unwrap(fedjax_sim.simulate)  # Values of these types are not allowed.
        simulate(**values, seed=3)
    assert seen == {**values, "seeds": [3], "settings": {}}


@pytest.mark.parametrize("name", ["em", "fedem", "vr_fedem"])
def test_systems_of_em_have_no_client_variance(
    name: str, noisy_mean: Callable, small: Callable, compiled: list[str]
) -> None:
    """Their clients hold statistics."""
    system = fedjax_sim.SYSTEMS[name]
    problem, hyper = noisy_mean(), small(system)
    compiled.clear()
    with pytest.raises(ConfigError, match=f"client_variance is True, but must be False for {name}"):
        fedjax_sim.sweep(
            system,
            problem,
            hyper,
            budget=fedjax_sim.Ticks(2),
            keep=fedjax_sim.Keep(client_variance=True),
        )
    assert compiled == []


def test_a_problem_of_the_wrong_kind_is_refused(
    noisy_mean: Callable, regression: Callable, small: Callable
) -> None:
    em = fedjax_sim.SYSTEMS["em"]
    for system, problem in ((FEDAVG, noisy_mean()), (em, regression())):
        kind = system.fit.learns.__name__
        with pytest.raises(ConfigError, match=f"problem is '.*', but must be a {kind}"):
            fedjax_sim.sweep(system, problem, small(system), budget=fedjax_sim.Ticks(2))


@pytest.mark.parametrize(
    ("name", "budget"),
    [pytest.param("fedbuff", 2500.0, marks=pytest.mark.slow), ("quafl", 1400.0)],
)
def test_without_a_hint_the_ticks_of_a_budget_are_found(
    name: str, budget: float, small: Callable
) -> None:
    """A hint sizes the first request only: the schedule is the same, bit for bit."""
    system = fedjax_sim.SYSTEMS[name]
    hypers, seeds = [small(system)], [4]
    bare = system._replace(hints=Hints())
    assert bare.hints.ticks_within(hypers[0], 1e9) == Hints().ticks_within(hypers[0], 1.0)
    hinted, ticks = Schedules(system, seeds, hypers, fedjax_sim.Time(budget)).request()
    found, found_ticks = Schedules(bare, seeds, hypers, fedjax_sim.Time(budget)).request()
    np.testing.assert_array_equal(found_ticks, ticks)
    first = 16 + 1.1 * Hints().ticks_within(hypers[0], budget)
    assert ticks[0] > first, "the first request is too short, and is doubled"
    for ours, theirs in zip(found, hinted, strict=True):
        np.testing.assert_array_equal(ours[:, : ticks[0]], theirs[:, : ticks[0]])


def listeners() -> list[Any]:
    """Return the listeners to durations that are registered with JAX."""
    from jax._src import monitoring

    return list(monitoring.get_event_duration_listeners())


def test_compilations_are_counted_within_a_with_statement_only() -> None:
    """The listener is gone afterwards, even if the body raised an error."""
    before = listeners()
    with CompileMeter() as meter:
        assert len(listeners()) == len(before) + 1
        jax.jit(lambda x: x * 3.0 + 12.5).lower(1.0).compile()
    assert listeners() == before
    assert meter.count == 1
    seconds = meter.seconds
    assert seconds > 0
    jax.jit(lambda x: x * 3.0 + 13.5).lower(1.0).compile()
    assert (meter.count, meter.seconds) == (1, seconds)
    with pytest.raises(KeyError), CompileMeter():
        raise KeyError
    assert listeners() == before


def test_a_budget_of_too_many_ticks_leaves_no_listener(
    regression: Callable, small: Callable
) -> None:
    before = listeners()
    with pytest.raises(ConfigError, match=r"time_budget is 1000000000000000\.0, but must be short"):
        fedjax_sim.sweep(FEDAVG, regression(), small(FEDAVG), budget=fedjax_sim.Time(1e15))
    assert listeners() == before
