"""Tables and traces in any unit of time: no default in another unit has an effect."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, System
from fedjax_sim.core.settings import check, fields
from fedjax_sim.core.types import Timeline
from fedjax_sim.timelines import ClientTable, Trace
from tests.conftest import slow_but

UNIT = 1024.0
"""Units of the second schedule in one of the first: a power of 2, so that products are exact."""
PLANNED = [system for system in fedjax_sim.SYSTEMS.values() if system.live is None]
"""Systems whose schedules are drawn. Live ones have the same delays."""
WITH_A_TABLE = [s for s in PLANNED if "delays.client_table" in fields(s.Hyper)]
WITH_A_TRACE = [
    s for s in WITH_A_TABLE if "delays.trace" in fields(s.Hyper) and s.name != "gen_async"
]


def table(unit: float = 1.0, **changes: Any) -> ClientTable:
    """Make a table of seven clients in a unit of time."""
    columns = {
        "rate": np.linspace(0.25, 1.0, 7) / unit,
        "up": np.full(7, 64.0 / unit),
        "available": [[(0.0, 20 * unit), (30 * unit, 40 * unit)]] * 7,
    }
    return ClientTable(**(columns | changes))


def trace(unit: float = 1.0) -> Trace:
    """Make a trace of seven clients, each always as fast, and each as fast as no other."""
    finish = unit * np.outer(np.arange(1, 9), 1 + np.arange(7) / 8)
    start = np.concatenate([np.zeros((1, 7)), finish[:-1]])
    return Trace(np.tile(np.arange(7), 8), start.ravel(), finish.ravel())


GROUPED = ("hierarchical", "async_hierarchical")
OF_COINS = ("em", "fedem", "vr_fedem")
"""Systems of EM with coins for clients by default, here run with cohorts."""


def settings_of(system: System, small: Callable, **changes: Any) -> Any:
    """Make settings of a system for seven clients that have delays of their own."""
    own: dict[str, Any] = {"favano": {"reweight": "estimated"}}.get(system.name, {})
    if system.name in OF_COINS:
        own = {"rounds": "cohorts", "num_selected": 4}
    if system.name in GROUPED:
        own = {"num_clients": 7, "batch_size": 2, "delays_of": "client"}
        return system.paper(**own, **changes)
    return small(system, **own, **changes)


def given(make: Callable[..., Any], unit: float = 1.0) -> tuple[Any, dict[str, float]]:
    """Give one time after another, as the sentences ask for it, until settings are allowed.

    Returns the settings, and the times that had to be given.
    """
    times: dict[str, float] = {}
    while True:
        try:
            check(hyper := make(**times))
            return hyper, times
        except ConfigError as error:
            name, says = str(error).split(" is ", 1)[0], str(error)
            assert "must be given in the unit of time of the" in says, says
            assert name not in times
            default = float(fields(type(make()))[name].default)
            times[name] = default / unit if "rate" in name else default * unit


def compare(make: Callable[..., Any], timeline: Callable, draw: Callable) -> None:
    """Compare schedules in two units of time."""

    def schedule(unit: float) -> Timeline:
        return draw(timeline, given(partial(make, unit), unit)[0], num_ticks=6)

    first, second = schedule(1.0), schedule(UNIT)
    np.testing.assert_allclose(second.time, UNIT * first.time, rtol=1e-12)
    for name in ("clients", "steps", "version", "holds", "weight"):
        np.testing.assert_array_equal(getattr(second, name), getattr(first, name), err_msg=name)


def ids(systems: Iterable[System]) -> list[str]:
    """Name systems."""
    return [system.name for system in systems]


@pytest.mark.parametrize(
    "name",
    slow_but(["fedbuff"], ["fedavg", "quafl", "fedbuff", "gen_async", "hierarchical"]),
)
def test_schedules_of_a_table_have_its_unit(name: str, small: Callable, draw: Callable) -> None:
    """One system for each kind of clock."""
    system = fedjax_sim.SYSTEMS[name]

    def make(unit: float, **times: float) -> Any:
        own = {"client_table": table(unit), "bits_up": 96.0, "bits_down": 96.0}
        return settings_of(system, small, runtime_law="runtime_exp", **own, **times)

    compare(make, system.timeline, draw)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["fedavg", "quafl", "fedbuff", "langevin"])
def test_schedules_of_a_trace_have_its_unit(name: str, small: Callable, draw: Callable) -> None:
    """One system for each kind of clock."""
    system = fedjax_sim.SYSTEMS[name]

    def make(unit: float, **times: float) -> Any:
        return settings_of(system, small, trace=trace(unit), **times)

    compare(make, system.timeline, draw)


INTERACT = "clock.server_interact"
EXCHANGES = {
    f"exchange.exchange_{name}" for name in ("shift_per_group", "shift", "mean_per_group", "mean")
}
NEEDED = {
    "quafl": {"clock.server_wait", INTERACT},
    "favano": {"clock.server_wait", INTERACT},
    "fedbuff": set(),
    "fedstaleweight": set(),
    "ca2fl": set(),
    "asyncfeded": set(),
    "fedasync": set(),
    "langevin": set(),
    "gen_async": set(),
    **{name: set() for name in OF_COINS},
    **{name: {"sync_time", *EXCHANGES} for name in GROUPED},
}
"""Times that must be given with a table of rates, by system; of others the exchange alone."""


@pytest.mark.parametrize("system", WITH_A_TABLE, ids=ids(WITH_A_TABLE))
def test_times_must_be_given_in_the_unit_of_a_table(system: System, small: Callable) -> None:
    """Rates too, if the table has only hours. Losses have no unit."""
    make = partial(settings_of, system, small)
    needed = NEEDED.get(system.name, {INTERACT})
    rated = partial(make, client_table=table(), runtime_law="runtime_exp")
    assert set(given(rated)[1]) == needed
    hours = ClientTable(available=[[(0.0, 20.0)]] * 7)
    # All clients of FA-LD and of EM systems in cohorts have one speed.
    rates = {"delays.rate_fast"}
    if system.name not in ("langevin", *OF_COINS):
        rates |= {"delays.rate_slow"}
    assert set(given(partial(make, client_table=hours))[1]) == needed | rates
    if system.name != "favano":
        assert not given(partial(make, client_table=ClientTable(drop_rate=np.full(7, 0.1))))[1]
    if system.name == "fedbuff":
        waiting = partial(rated, restart="after_interaction")
        assert set(given(waiting)[1]) == {INTERACT}


@pytest.mark.parametrize("system", WITH_A_TRACE, ids=ids(WITH_A_TRACE))
def test_times_must_be_given_in_the_unit_of_a_trace(system: System, small: Callable) -> None:
    """Arrivals have no other times than those of the trace."""
    make = partial(settings_of, system, small, trace=trace())
    # A trace has the times between the updates of an asynchronous FedEM.
    needed = set() if system.name == "async_fedem" else NEEDED.get(system.name, {INTERACT})
    assert set(given(make)[1]) == needed


def test_a_number_that_is_given_may_equal_the_default(small: Callable) -> None:
    """Sweeping the setting gives it too, and so does the command line's text."""
    system = fedjax_sim.SYSTEMS["fedavg"]
    check(small(system, trace=trace(), server_interact=3.0))
    with pytest.raises(ConfigError) as error:
        check(small(fedjax_sim.SYSTEMS["quafl"], trace=trace()))
    assert str(error.value) == (
        "clock.server_wait is 4.0, but must be given in the unit of time of the trace, and so must "
        "clock.server_interact: defaults are in another unit."
    )


@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "langevin"])
def test_a_long_budget_in_a_small_unit_is_not_refused(name: str, small: Callable) -> None:
    """How many ticks fit is estimated from the trace, and not from rates that have no effect."""
    system, nanoseconds = fedjax_sim.SYSTEMS[name], 1e9
    hyper, _ = given(partial(settings_of, system, small, trace=trace(nanoseconds)), nanoseconds)
    expected = system.hints.ticks_within(hyper, 100 * nanoseconds)
    assert 5 < expected < 100
