"""Leaving costly contracts to halves of the systems leaves out no kind and no system."""

import os
from collections.abc import Iterator

import pytest

import fedjax_sim
from fedjax_sim import System
from tests.systems import test_bound, test_changed_events, test_contract, test_contract_steps
from tests.systems.conftest import LIKE_ANOTHER, LIKE_FEDAVGM
from tests.systems.halves import KINDS, systems_of

MODULES = (test_bound, test_changed_events, test_contract, test_contract_steps)
NAMES = {name for name in fedjax_sim.SYSTEMS if name not in LIKE_FEDAVGM}


def halves() -> dict[str, str]:
    """Return the half of each contract that has one, of all its cases or of some."""
    return {
        name: mark.args[0]
        for module in MODULES
        for name, test in vars(module).items()
        if name.startswith("test_")
        for mark in marks(getattr(test, "pytestmark", []))
        if mark.name == "half"
    }


def marks(given: list[pytest.Mark]) -> Iterator[pytest.Mark]:
    """Iterate over the marks of a test, and those of its parameters."""
    for mark in given:
        yield mark
        if mark.name == "parametrize":
            for value in mark.args[1]:
                yield from getattr(value, "marks", ())


def test_every_system_has_one_kind_and_about_half_of_the_contracts() -> None:
    chosen = list(halves().values())
    for name in NAMES:
        kinds = [kind for kind, each in KINDS.items() if name in (*each.first, *each.second)]
        assert len(kinds) == 1, name
        met = sum(name in systems_of(half) for half in chosen)
        assert met / len(chosen) >= 0.4, name
    assert systems_of("first") | systems_of("second") == NAMES


def test_every_contract_is_met_by_every_kind() -> None:
    """Also where systems that are like another are left out altogether."""
    assert len(halves()) >= 10
    for contract, half in halves().items():
        for kind, each in KINDS.items():
            assert set(each._asdict()[half]) - set(LIKE_ANOTHER), (contract, kind)


@pytest.mark.half("first")
def test_the_other_half_is_slow(system: System) -> None:
    """A contract as the others, which shows that the mark works."""
    assert system.name in systems_of("first") or os.environ.get("FEDJAX_SIM_SLOW_TESTS")
