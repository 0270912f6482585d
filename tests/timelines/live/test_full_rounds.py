"""Rounds of live systems are full where nobody can be missing, and only there."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.timelines.delays.client_table import ClientTable
from tests.conftest import slow_but

HOURS = [[(i / 2, i / 2 + 6.0)] for i in range(7)]
RATES = {"server_interact": 0.5, "rate_fast": 1.0, "rate_slow": 0.5}
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "nobody is missing": ({}, True),
    "speeds of a table": ({"client_table": ClientTable([1.0] * 7), "server_interact": 0.5}, True),
    "losses": ({"drop_rate": 0.4}, False),
    "losses of a table": ({"client_table": ClientTable(drop_rate=[0.4] * 7)}, False),
    "breaks": ({"on_time": 3.0, "off_time": 4.0}, False),
    "hours": ({"client_table": ClientTable(available=HOURS, period=9.0), **RATES}, False),
    "a deadline": ({"deadline": 2.0}, False),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["oort", "tifl"])
@pytest.mark.parametrize("case", slow_but(["nobody is missing", "losses"], CASES))
def test_full_rounds(case: str, name: str, regression: Callable, small: Callable) -> None:
    changes, is_full = CASES[case]
    system = fedjax_sim.SYSTEMS[name]
    own = {"num_selected": 2, "num_tiers": 2} if name == "tifl" else {}
    hyper = small(system, runtime_law="runtime_exp", **own, **changes)
    assert system.live.sizes(hyper).is_full == is_full
    run = fedjax_sim.simulate(system, regression(), hyper, budget=fedjax_sim.Ticks(25))
    assert run.curves.ended == "ticks"
    is_filled = (run.timelines[0].clients >= 0).all()
    assert is_filled if is_full else not is_filled or case == "hours"


@pytest.mark.slow
def test_full_rounds_are_not_packed(regression: Callable, small: Callable) -> None:
    """Lanes that are computed together ask different clients, whose steps no table has."""
    system = fedjax_sim.SYSTEMS["oort"]
    inputs = system, regression(), small(system, runtime_law="runtime_exp")
    options: dict[str, Any] = {"seeds": 3, "budget": fedjax_sim.Ticks(9), "num_evals": 1}
    plain = fedjax_sim.sweep(*inputs, **options)
    layout = fedjax_sim.Layout(None, True, 1, packed=True)
    packed = fedjax_sim.sweep(*inputs, **options, layout=layout)
    np.testing.assert_allclose(packed.models, plain.models, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "changes"),
    [("oort", {}), ("powerofchoice", {"num_chosen": 2}), ("powerofchoice", {"loss_time": 15.0})],
)
def test_a_server_waits_for_the_morning(
    name: str, changes: dict[str, Any], regression: Callable, small: Callable
) -> None:
    """Everyone is there for the first 20 of 38 units of time; a night takes one empty round."""
    table = ClientTable(rate=[1.0] * 7, available=[[(0.0, 20.0)]] * 7, period=38.0)
    system, law = fedjax_sim.SYSTEMS[name], {"runtime_law": "runtime_constant"}
    given = law | {"client_table": table, "server_interact": 9.0, "num_selected": 3} | changes
    run = fedjax_sim.simulate(
        system, regression(), small(system, **given), budget=fedjax_sim.Ticks(25)
    )
    assert run.curves.ended == "ticks"
    time, is_empty = run.timelines[0].time, (run.timelines[0].clients < 0).all(axis=1)
    begins = np.concatenate([[0.0], time[:-1]])
    np.testing.assert_array_equal(is_empty, begins % 38 >= 20)
    assert 0 < is_empty.sum() < 13
    mornings = np.maximum(np.ceil(begins / 38) * 38, begins + changes.get("loss_time", 0.0))
    np.testing.assert_allclose(time[is_empty], mornings[is_empty], rtol=1e-6)
    assert ("loss_time" in changes) == bool((time[is_empty] % 38 > 1).any())
