"""Claim 3 of FA-LD is judged by every bound on all problems, and fails by missing numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments.fald import bounds as fald_bounds
from experiments.fald.formulas import bounds as formulas
from experiments.fald.formulas.exact_laws import FULL as EVERYONE
from experiments.fald.formulas.exact_laws import Participation
from experiments.harness import Sizes, Verdict
from experiments.harness.statistics import FAILS, UNDECIDED

NUM_PROBLEMS = fald_bounds.STUDY.full.problems
BOUNDS = {
    "start_bound": {"F.1"},
    "contraction_bound": {"B.1"},
    "discretisation_bound": {"B.2"},
    "gradient_noise_bound": {"B.4"},
    "moment_bound": {"E.1"},
    "gradient_bound": {"E.2"},
    "divergence_bound": {"B.3"},
    "selection_bound": {"C.2"},
    "one_step_bound": {"B.5", "(38)"},
    "bound": {"B.6, B.8", "C.3"},
    "squared_bound": {"(29)"},
    "decreasing_bound": {"B.7"},
}
"""The functions of the theory, and the names under which their bounds are judged."""


def missing(found: Any) -> Any:
    """Replace the last of the numbers by NaN."""
    found = np.array(found, float)
    found.flat[-1] = np.nan
    return found


def too_small(found: Any) -> Any:
    return np.asarray(found) / 1e4


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    """Choose few of the cases and steps, but some of each kind."""
    ways = (EVERYONE, Participation("with_replacement", 1))
    chosen = [case for case in fald_bounds.cases(8) if case.local_steps == 5 and case.who in ways]
    monkeypatch.setattr(fald_bounds, "cases", lambda num: chosen)
    return Sizes(problems=8, followed=10, steps=60)


def judged(few: Sizes) -> Verdict:
    shares = fald_bounds.measure_bounds(few, fald_bounds.long_runs(few.steps))
    return fald_bounds.JUDGES[3](shares)


def test_every_share_is_below_one(few: Sizes) -> None:
    verdict = judged(few)
    assert verdict.holds
    assert set(verdict.measured) == set.union(*BOUNDS.values())
    assert all(0 < ratio < 1 for ratio in verdict.measured.values())


@pytest.mark.few(10)
@pytest.mark.parametrize("spoil", [missing, too_small])
@pytest.mark.parametrize("name", BOUNDS)
def test_one_bound_that_fails_is_enough(
    name: str, spoil: Callable, few: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(formulas, name)
    monkeypatch.setattr(formulas, name, lambda *args, **how: spoil(honest(*args, **how)))
    verdict = judged(few)
    assert verdict.verdict == (UNDECIDED if spoil is missing else FAILS)
    assert not any(verdict.measured[each] <= 1 for each in BOUNDS[name])


def test_a_share_that_is_not_a_number_stays() -> None:
    for value, bound in ((np.nan, 1.0), (1.0, np.nan), (1.0, np.inf), (np.inf, np.inf)):
        assert np.isnan(fald_bounds.share(np.array([0.5, value]), np.array([1.0, bound])))
    assert fald_bounds.share(np.array([0.5, 3.0]), 4.0) == 0.75
    assert fald_bounds.share(np.zeros(0), np.zeros(0)) == 0
    for found in ([{"a": np.nan}, {"a": 0.5}], [{"a": 0.5}, {"a": np.nan}, {"b": 0.5}]):
        worst = fald_bounds.largest(found)
        assert np.isnan(worst["a"]) and fald_bounds.JUDGES[3](worst).verdict == UNDECIDED
    assert fald_bounds.JUDGES[3]({"a": 1.0, "b": 0.2}).holds
    assert fald_bounds.JUDGES[3]({"a": 1.1}).verdict == FAILS


def test_a_rate_that_is_not_a_number_is_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = fald_bounds.wasserstein2
    assert fald_bounds.judge_constant(fald_bounds.measure_constant()).holds
    monkeypatch.setattr(fald_bounds, "wasserstein2", lambda *laws: missing(honest(*laws)))
    assert fald_bounds.judge_constant(fald_bounds.measure_constant()).verdict == UNDECIDED


def test_every_problem_is_judged_in_every_way() -> None:
    """R1 and R2 have 5 and 11 selections, each at three K, step sizes and rho.

    Random problems are taken with everyone and in both schemes.
    """
    cases = list(fald_bounds.cases(NUM_PROBLEMS))
    assert sum(len(case.rho) for case in cases) == (5 + 11) * 3 * 9 + 3 * NUM_PROBLEMS
    on_line = [
        (case.clients.shape[0], case.who, case.local_steps)
        for case in cases
        if case.clients.shape[1] == 1
    ]
    assert len(set(on_line)) == len(on_line) == (5 + 11) * 3
    in_plane = [(case.who.scheme, len(case.rho)) for case in cases if case.clients.shape[1] == 2]
    for scheme in ("full", "with_replacement", "without_replacement"):
        assert sum(num for each, num in in_plane if each == scheme) == NUM_PROBLEMS
    assert {case.who.num_selected for case in cases} == {None, 1, 2, 3, 4, 5}
