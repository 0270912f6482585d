"""Contract: a setting that follows a schedule is read nowhere without its schedule.

With a factor c at all times a setting x acts as c x does without a schedule. A system that also
read x itself, as q-FedAvg once did for its L = 1 / lr, would differ. All schedules of a system are
tried in one program: lanes have each setting at x with factor 1/2, and at x / 2 with factor 1.
"""

import typing
from collections.abc import Callable
from operator import attrgetter

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import System, Ticks
from fedjax_sim.core.schedules import CLOCKS, Schedule
from fedjax_sim.core.settings import (
    Above0,
    ConfigError,
    check,
    fixed,
    idle_of,
    names_of,
    setting,
    struct,
)
from tests.systems.conftest import Kind

NUM_TICKS = 5


@struct
class Flat(Schedule):
    """The same factor at all times, which can be swept."""

    name: str = fixed("flat")
    size: Above0 = setting(1.0, "The factor.")

    def factor(self, t: typing.Any) -> typing.Any:
        """Return the factor."""
        return self.size


@pytest.mark.few(2)
@pytest.mark.of_each_kind(7)
def test_a_factor_acts_as_another_value(system: System, kind: Kind, chosen: Callable) -> None:
    known = names_of(system.Hyper)
    names = [name for name in known if f"{name}_schedule" in known and "." not in name]
    if not names:
        pytest.skip("no setting of it has a schedule")
    values = {name: float(attrgetter(known[name])(chosen())) for name in names}
    if "proximal" in values:
        values["proximal"] = 0.25
    idle = idle_of(chosen(**values))
    values = {name: value for name, value in values.items() if known[name] not in idle}
    turn = [*fedjax_sim.SYSTEMS].index(system.name) % len(CLOCKS)
    clocks = (*CLOCKS[turn:], *CLOCKS[:turn])  # the next system of the list begins with another
    schedules = {
        f"{name}_schedule": flat(chosen, values, f"{name}_schedule", clocks) for name in values
    }
    swept = {name: [value, value / 2] for name, value in values.items()}
    swept |= {name: [each, each.replace(size=0.5)] for name, each in schedules.items()}
    losses = fedjax_sim.sweep(
        system,
        kind.make(),
        chosen(**values, **schedules),
        settings=swept,
        budget=Ticks(NUM_TICKS),
        num_evals=1,
    ).curves[kind.metrics[0]]
    losses = losses.isel(eval=-1, seed=0)
    for name in values:
        of = f"{name}_schedule"
        by_factor, by_value = losses.isel({name: 0, of: 1}), losses.isel({name: 1, of: 0})
        np.testing.assert_allclose(by_factor, by_value, rtol=2e-5)
        assert np.abs(losses.isel({name: 0, of: 0}) / by_value - 1).max() > 1e-4


def flat(chosen: Callable, values: dict[str, float], name: str, clocks: tuple[str, ...]) -> Flat:
    """Make a schedule by the first of some clocks that the setting allows."""
    for clock in clocks:
        schedule = Flat(by=clock)
        try:
            check(chosen(**values, **{name: schedule}))
        except ConfigError:
            continue
        return schedule
    raise AssertionError(f"{name} has no clock")
