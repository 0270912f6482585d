"""Options of `sweep` and `simulate`: what is not allowed is refused before anything is compiled."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.checking import checked
from fedjax_sim.engine.machine.compiling import CompileMeter
from fedjax_sim.engine.planning.drawing import request_timelines
from fedjax_sim.types import Hints

FEDAVG = fedjax_sim.SYSTEMS["fedavg"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"num_ticks": 2, "time_budget": 3.0},
            "time_budget is 3.0, but must be given, or else num_ticks, but not both",
        ),
        ({}, "time_budget is None"),
        ({"time_budget": -1.0}, "time_budget is -1.0"),
        ({"time_budget": float("nan")}, "time_budget is nan"),
        ({"time_budget": "100"}, "time_budget is '100', but must be a finite number above 0"),
        ({"num_ticks": 2, "trackers": 3}, "trackers is 3, but must be a list"),
        ({"num_ticks": 0}, "num_ticks is 0"),
        ({"num_ticks": 2, "num_evals": 0}, "num_evals is 0"),
        ({"num_ticks": 2, "seeds": []}, "seeds is"),
        (
            {"num_ticks": 2, "seeds": 0},
            "seeds is 0, but must be a whole number of at least 1 or a list, each",
        ),
        ({"num_ticks": 2, "seeds": True}, "seeds is True, but must be a whole number"),
        ({"num_ticks": 2, "seeds": [1, 1]}, "different whole numbers"),
        ({"num_ticks": 2, "seeds": [-1]}, "from 0 to 2147483647"),
        ({"num_ticks": 2, "seeds": [2**31]}, "from 0 to 2147483647"),
        ({"num_ticks": 2, "seeds": [1.5]}, "a list, each a whole number from 0"),
        ({"num_ticks": 2.5}, "num_ticks is 2.5, but must be a whole number of at least 1"),
        ({"num_ticks": 2, "max_lanes": 1.5}, "max_lanes is 1.5"),
        (
            {"num_ticks": 2, "settings": {"optimizer": [abs]}},
            "optimizer is .*gradient transformation",
        ),
        (
            {"num_ticks": 2, "settings": {"learning_rate": [1.0]}},
            "setting name is 'learning_rate', but must be one of batch_size",
        ),
        (
            {"num_ticks": 2, "settings": [("lr", [0.1])]},
            r"settings is \[\('lr', \[0.1\]\)\], but must be a mapping from text to a list",
        ),
        ({"num_ticks": 2, "settings": {"lr": [0.1, 0.1]}}, "values of lr"),
        ({"num_ticks": 2, "settings": {"lr": []}}, "values of lr"),
        # Long arrays that differ in the middle only are different values, of which neither suits.
        (
            {"num_ticks": 2, "settings": {"lr": [np.ones(3000), 1 + np.eye(3000)[1500]]}},
            "lr is .*, but must be a finite number above 0",
        ),
        (
            {"num_ticks": 2, "settings": {"lr": [0.1, -0.1]}},
            "lr is -0.1, but must be a finite number above 0",
        ),
        (
            {"num_ticks": 2, "settings": {"num_clients": [7, 8]}},
            "num_clients is 8, but must be 7, as in the problem",
        ),
        ({"num_ticks": 2, "evals_per_chunk": 0}, "evals_per_chunk is 0"),
        ({"num_ticks": 2, "layout": "wide"}, "layout is 'wide', but must be a Layout"),
        ({"num_ticks": 2, "layout": Layout(lane_devices=99)}, "at most the 8"),
    ],
)
def test_bad_options_are_refused_before_anything_is_compiled(
    regression: Callable, small: Callable, compiled: list[str], options: dict[str, Any], words: str
) -> None:
    problem, hyper = regression(), small(FEDAVG)
    compiled.clear()
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.sweep(FEDAVG, problem, hyper, **options)
    assert compiled == []


def test_a_budget_of_too_many_ticks(regression: Callable, small: Callable) -> None:
    with pytest.raises(
        ConfigError, match=r"time_budget is 1000000000000000.0, but must be short enough"
    ):
        fedjax_sim.sweep(FEDAVG, regression(), small(FEDAVG), budget=fedjax_sim.Time(1e15))


def test_a_misspelt_option_is_refused(
    regression: Callable, small: Callable, compiled: list[str]
) -> None:
    """Options are keywords of the functions, so Python names the one that does not exist."""
    problem, hyper = regression(), small(FEDAVG)
    compiled.clear()
    options: dict[str, Any] = {"num_ticks": 2, "chunks": 3}
    for run in (fedjax_sim.sweep, fedjax_sim.simulate):
        with pytest.raises(TypeError, match="unexpected keyword argument 'chunks'"):
            run(FEDAVG, problem, hyper, **options)
    assert compiled == []


def test_settings_are_an_instance(regression: Callable) -> None:
    """Not the class, nor a mapping, nor settings of another kind."""
    for hyper, name in ((FEDAVG.Hyper, "fedavg.Hyper"), ({"lr": 1.0}, "dict")):
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
    """It has all options of `sweep` that make sense for one lane, with the same defaults."""
    ours = inspect.signature(fedjax_sim.simulate).parameters
    theirs = inspect.signature(fedjax_sim.sweep).parameters
    of_lanes = {"seeds", "settings", "max_lanes", "part", "lanes", "share"}
    options = set(theirs) - of_lanes
    assert set(ours) == options | {"seed"}
    for name in options - {"problem"}:
        assert ours[name].default == theirs[name].default, name
    seen: dict[str, Any] = {}

    class StopError(Exception):
        pass

    def sweep(*inputs: Any, **given: Any) -> None:
        seen.update(dict(zip(theirs, inputs, strict=False)) | given)
        raise StopError

    monkeypatch.setattr("fedjax_sim.engine.sweeps.sweep", checked(sweep))
    values = {name: object() for name in options}
    with pytest.raises(StopError):
        simulate = inspect.unwrap(fedjax_sim.simulate)  # Values of these types are not allowed.
        simulate(values.pop("system"), values.pop("problem"), **values, seed=3)
    assert seen.pop("seeds") == [3]
    assert {name: seen[name] for name in values} == values
    assert set(seen) == options


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


def test_settings_of_another_system_are_refused(regression: Callable, small: Callable) -> None:
    other = small(fedjax_sim.SYSTEMS["favano"])
    with pytest.raises(ConfigError, match=r"favano\.Hyper', but must be settings of fedavg"):
        fedjax_sim.sweep(FEDAVG, regression(), other, budget=fedjax_sim.Ticks(2))


def test_a_system_by_name_is_refused(regression: Callable) -> None:
    name: Any = "fedavg"
    with pytest.raises(ConfigError, match="system is 'fedavg', but must be a System"):
        fedjax_sim.sweep(name, regression(), budget=fedjax_sim.Ticks(2))


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
    hinted, ticks = request_timelines(system, seeds, hypers, fedjax_sim.Time(budget))
    found, found_ticks = request_timelines(bare, seeds, hypers, fedjax_sim.Time(budget))
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


def test_a_sweep_leaves_no_listener(regression: Callable, small: Callable) -> None:
    before = listeners()
    with pytest.raises(ConfigError):
        fedjax_sim.sweep(FEDAVG, regression(), small(FEDAVG), budget=fedjax_sim.Time(1e15))
    assert listeners() == before
