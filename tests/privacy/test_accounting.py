"""Epsilon and noise multipliers, against dp-accounting called directly and closed forms."""

import builtins
import dataclasses
from typing import Any

import numpy as np
import pytest

from fedjax_sim.core.settings import ConfigError, check
from fedjax_sim.server.accounting import Mechanism
from fedjax_sim.server.privacy import epsilon_after, find_noise, parse_privacy
from fedjax_sim.systems import fedavg, feddyn, fednova, fedprox, scaffold

dp = pytest.importorskip("dp_accounting", reason="epsilon is computed by dp-accounting")
REPLACE = dp.NeighboringRelation.REPLACE_ONE
LARGE = Mechanism("poisson", 100_000, 1000, "rdp", 1e-6)
"""A published setting: 100,000 clients, cohorts of 1,000."""


def test_a_published_setting() -> None:
    """Noise 1.0, 1,000 rounds, delta 1e-6, with either sampling and accountant."""
    poisson = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 1000)
    by_rdp = dp.rdp.RdpAccountant().compose(poisson).get_epsilon(1e-6)
    by_pld = dp.pld.PLDAccountant().compose(poisson).get_epsilon(1e-6)
    # A uniform set of clients: one replaced update changes the sum by twice the bound.
    uniform = dp.SampledWithoutReplacementDpEvent(100_000, 1000, dp.GaussianDpEvent(0.5))
    fixed_size = dp.rdp.RdpAccountant(neighboring_relation=REPLACE)
    replaced = fixed_size.compose(dp.SelfComposedDpEvent(uniform, 1000)).get_epsilon(1e-6)
    found = [
        float(epsilon_after(1000, each, 1.0))
        for each in (
            LARGE,
            LARGE._replace(accountant="pld"),
            LARGE._replace(selection="uniform"),
        )
    ]
    np.testing.assert_allclose(found, [by_rdp, by_pld, replaced], rtol=1e-12)
    np.testing.assert_allclose(found, [2.437, 2.125, 23.29], rtol=1e-3)


@pytest.mark.slow
def test_a_benchmark_of_pfl() -> None:
    """CIFAR-10 of pfl: epsilon 2, delta 1e-6, 1,500 rounds of 1,000 out of 10^7 clients."""
    pfl = Mechanism("poisson", 10_000_000, 1000, "pld", 1e-6)
    event = dp.PoissonSampledDpEvent(1e-4, dp.GaussianDpEvent(0.46743))
    direct = dp.pld.PLDAccountant().compose(event, 1500).get_epsilon(1e-6)
    found = float(epsilon_after(1500, pfl, 0.46743))
    assert found == pytest.approx(direct, rel=1e-12)
    assert found == pytest.approx(2.0, abs=1e-3)
    by_rdp = pfl._replace(accountant="rdp")
    noise = find_noise(2.0, 1500, by_rdp)
    calibrated = dp.calibrate_dp_mechanism(
        dp.rdp.RdpAccountant,
        lambda z: dp.SelfComposedDpEvent(
            dp.PoissonSampledDpEvent(1e-4, dp.GaussianDpEvent(z)), 1500
        ),
        2.0,
        1e-6,
        dp.ExplicitBracketInterval(0.3, 3.0),
        tol=1e-5,
    )
    assert noise == pytest.approx(calibrated, abs=2e-5)
    assert float(epsilon_after(1500, by_rdp, noise)) <= 2.0
    assert float(epsilon_after(1500, by_rdp, noise - 3e-5)) > 2.0


@pytest.mark.parametrize("selection", ["poisson", "uniform"])
def test_everyone_in_every_round(selection: str) -> None:
    """Both accountants agree with the exact epsilon of a Gaussian mechanism of known sensitivity.

    It is C if clients are added or removed, and 2 C if data is replaced.
    """
    whole = Mechanism(selection, 10, 10, "pld", 1e-5)
    noise = 8.0
    change = {"poisson": 1, "uniform": 2}[selection]
    exact = dp.get_epsilon_gaussian(noise / change / np.sqrt(6), 1e-5)
    assert float(epsilon_after(6, whole, noise)) == pytest.approx(exact, rel=1e-3)
    by_rdp = float(epsilon_after(6, whole._replace(accountant="rdp"), noise))
    assert exact < by_rdp < 1.2 * exact


def test_adaptive_clipping_costs_what_is_accounted() -> None:
    """The noise on the updates and on the count together have the multiplier z.

    dp-accounting composes both inside a sampled round.
    """
    privacy: Any = parse_privacy("adaptive:noise=1.0:count_noise=0.01")
    updates, count = float(privacy.update_noise(1000)), 2 * 0.01 * 1000
    assert updates > 1.0
    both = dp.ComposedDpEvent([dp.GaussianDpEvent(updates), dp.GaussianDpEvent(count)])
    accountant = dp.rdp.RdpAccountant().compose(dp.PoissonSampledDpEvent(0.01, both), 50)
    found = float(epsilon_after(50, LARGE, 1.0))
    assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-6)


def test_no_round_and_no_noise() -> None:
    assert epsilon_after([0, 3], LARGE, 0.0).tolist() == [0.0, np.inf]
    curve = epsilon_after([[0, 1], [10, 100]], LARGE, 1.0).ravel()
    assert curve[0] == 0
    assert (np.diff(curve) > 0).all()


PRIVATE = fedavg.paper(sampling="reshuffled", selection="poisson", local_steps=2)


@pytest.mark.parametrize(
    ("privacy", "changes", "words"),
    [
        ("fixed:noise=1:accountant=pld", {"selection": "uniform"}, ["pld", "poisson"]),
        ("fixed:noise=1", {"sampling": "shuffled_epochs"}, ["sampling", "remembers"]),
        ("fixed", {"error_feedback": True}, ["error_feedback", "remembers"]),
        ("adaptive:noise=3", {}, ["noise", "below 2"]),
        ("examples:noise=1", {}, ["example_clip", "above 0"]),
        ("fixed:epsilon=2", {}, ["rounds", "at least 1"]),
        ("fixed:epsilon=2:rounds=9:noise=1", {}, ["noise", "left at 0"]),
        ("laplace", {}, ["laplace", "one of none, fixed, adaptive, examples"]),
    ],
)
def test_what_is_not_covered_is_refused(
    privacy: str, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(dataclasses.replace(PRIVATE, privacy=parse_privacy(privacy), **changes))
    assert all(word in str(caught.value) for word in words), caught.value


def test_other_samplings_are_refused() -> None:
    for selection in ("by_examples", "something new"):
        with pytest.raises(ConfigError, match="no accountant covers it"):
            epsilon_after(3, LARGE._replace(selection=selection), 1.0)


def test_poisson_cohorts_are_for_sums() -> None:
    """Their weights do not sum to 1, so that systems that take means of models refuse them."""
    for system in (scaffold.system, feddyn.system, fednova.system):
        with pytest.raises(ConfigError, match="selection is 'poisson', but must be another"):
            check(system.paper(selection="poisson"))
    check(fedprox.paper(selection="poisson"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipping alone needs no accountant; noise does."""
    load = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    check(dataclasses.replace(PRIVATE, privacy=parse_privacy("fixed")))
    with pytest.raises(ConfigError, match=r"dp-accounting is missing \(pip install"):
        check(dataclasses.replace(PRIVATE, privacy=parse_privacy("fixed:noise=1")))


@pytest.mark.slow
def test_a_target_is_met_by_the_completed_settings() -> None:
    """The noise is found before the run, which may not last longer than it was found for."""
    privacy: Any = parse_privacy("fixed:epsilon=3:rounds=40")
    hyper = dataclasses.replace(PRIVATE, privacy=privacy)
    found = fedavg.system.fit.complete(hyper, None)
    assert found.privacy.noise > 0
    spent = found.privacy.epsilon_of(found, np.array([0, 20, 40]), None)
    assert 2.99 < spent[-1] <= 3.0
    with pytest.raises(ConfigError, match="rounds is 40, but must be at least 41"):
        found.privacy.epsilon_of(found, np.array([0, 41]), None)
    assert parse_privacy(str(privacy)) == privacy
    adaptive = dataclasses.replace(
        PRIVATE, num_selected=2, privacy=parse_privacy("adaptive:epsilon=3:rounds=40")
    )
    with pytest.raises(ConfigError, match=r"below 0\.2, twice count_noise"):
        fedavg.system.fit.complete(adaptive, None)
