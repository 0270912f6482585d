"""Leaving costly contracts to one system of each kind leaves out no system."""

import os
from collections.abc import Iterator

import pytest

import fedjax_sim
from fedjax_sim import System
from tests.systems import (
    test_bound,
    test_changed_events,
    test_contract,
    test_contract_keys,
    test_contract_steps,
)
from tests.systems.conftest import LIKE_ANOTHER, LIKE_FEDAVGM, LIKE_FEDPER, LIKE_OORT
from tests.systems.kinds import KINDS, systems_of

MODULES = (
    test_bound,
    test_changed_events,
    test_contract,
    test_contract_keys,
    test_contract_steps,
)
WITHOUT_THOSE_ALIKE = (test_contract,)
"""Modules whose contracts leave out systems that are like another."""


def chosen_in(*modules: object) -> dict[str, set[str]]:
    """Return the systems of each costly contract, of all its cases or of some."""
    return {
        name: systems_of(*mark.args, **mark.kwargs)
        for module in modules
        for name, test in vars(module).items()
        if name.startswith("test_")
        for mark in marks(getattr(test, "pytestmark", []))
        if mark.name == "of_each_kind"
    }


def marks(given: list[pytest.Mark]) -> Iterator[pytest.Mark]:
    """Iterate over the marks of a test, and those of its parameters."""
    for mark in given:
        yield mark
        if mark.name == "parametrize":
            for value in mark.args[1]:
                yield from getattr(value, "marks", ())


def test_every_system_has_one_kind_and_meets_costly_contracts() -> None:
    chosen = chosen_in(*MODULES)
    assert len(chosen) >= 10
    for name in {*fedjax_sim.SYSTEMS} - {*LIKE_FEDAVGM, *LIKE_OORT, *LIKE_FEDPER}:
        assert sum(name in names for names in KINDS.values()) == 1, name
        assert any(name in met for met in chosen.values()), name


def test_contracts_that_leave_out_systems_have_others() -> None:
    for contract, met in chosen_in(*WITHOUT_THOSE_ALIKE).items():
        assert not met & LIKE_ANOTHER.keys(), contract


def test_a_kind_that_a_contract_leaves_out_meets_others() -> None:
    for kind, names in KINDS.items():
        assert sum(bool(met & {*names}) for met in chosen_in(*MODULES).values()) >= 5, kind


@pytest.mark.of_each_kind(1)
def test_others_of_a_kind_are_slow(system: System) -> None:
    """A contract as the others, which shows that the mark works."""
    assert system.name in systems_of(1) or os.environ.get("FEDJAX_SIM_SLOW_TESTS")
