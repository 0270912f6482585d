"""Noise that schedules account for, against dense matrices, dp-accounting and jax_privacy."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Event, Plan, Timeline
from fedjax_sim.core.settings import check
from fedjax_sim.server import Wire
from fedjax_sim.server.attacks import parse_attack
from fedjax_sim.server.privacy import (
    gaussian_epsilon,
    parse_local_privacy,
    parse_privacy,
    sensitivities,
    separated_sensitivity,
    square_root_bands,
)
from fedjax_sim.server.rules import parse_rule
from fedjax_sim.systems import fedavg, fedbuff

dp = pytest.importorskip("dp_accounting", reason="epsilon is computed by dp-accounting")


def matrix(bands: np.ndarray, size: int) -> np.ndarray:
    """Write B out."""
    full = np.concatenate([bands, np.zeros(size)])[:size]
    return np.array([[full[i - j] if i >= j else 0.0 for j in range(size)] for i in range(size)])


def test_coefficients() -> None:
    """B times B sums all ticks; the first six coefficients by jax_privacy 2.0.0."""
    known = [1.0, 0.5, 0.375, 0.3125, 0.2734375, 0.24609375]
    np.testing.assert_allclose(square_root_bands(6), known, rtol=1e-15)
    whole = matrix(square_root_bands(40), 40)
    np.testing.assert_allclose(whole @ whole, np.tril(np.ones((40, 40))), rtol=1e-13)


@pytest.mark.parametrize(
    ("num_ticks", "bands", "separation", "most", "public"),
    [
        (100, 8, 10, 5, 2.931193663944347),
        (64, 16, 20, 3, 2.4148781628625304),
        (1000, 1, 50, 20, 4.47213595499958),
        (30, 30, 30, 1, 1.4650145076844),
        (200, 12, 5, 10, 5.833203428651016),
    ],
)
def test_sensitivities_by_separation(
    num_ticks: int, bands: int, separation: int, most: int, public: float
) -> None:
    """The values are those of `toeplitz.minsep_sensitivity_squared` of jax_privacy 2.0.0."""
    found = separated_sensitivity(
        square_root_bands(bands), num_ticks, separation=separation, most=most
    )
    assert found == pytest.approx(public, rel=1e-12)


def test_no_schedule_with_this_separation_has_more() -> None:
    """All patterns of nine ticks."""
    for bands, separation, most in ((1, 1, 3), (3, 2, 3), (9, 3, 9), (4, 1, 9)):
        coefficients = square_root_bands(bands)
        whole, largest = matrix(coefficients, 9), 0.0
        for pattern in itertools.product([0.0, 1.0], repeat=9):
            places = np.flatnonzero(pattern)
            if len(places) <= most and (np.diff(places) >= separation).all():
                largest = max(largest, float(np.linalg.norm(whole @ pattern)))
        found = separated_sensitivity(coefficients, 9, separation=separation, most=most)
        assert found == pytest.approx(largest)


def dense(timeline: Timeline, bands: np.ndarray, ticks: int) -> float:
    """Compute the largest ||B a|| of seven clients with whole matrices, over ticks with reports."""
    rows = [t for t in range(ticks) if (timeline.clients[t] >= 0).any()]
    share = np.zeros((len(rows), 7))
    for row, t in enumerate(rows):
        for client, weight in zip(timeline.clients[t], timeline.weight[t], strict=True):
            if client >= 0:
                share[row, client] += weight
    return float(np.linalg.norm(matrix(bands, len(rows)) @ share, axis=0).max(initial=0.0))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedavg", {}),
        ("fedbuff", {"restart": "after_interaction"}),
        ("fedbuff", {"restart": "free"}),
    ],
)
@pytest.mark.parametrize("bands", [1, 4, 30])
def test_sensitivities_of_schedules(
    name: str, changes: dict[str, Any], bands: int, small: Callable, draw: Callable
) -> None:
    system, coefficients = fedjax_sim.SYSTEMS[name], square_root_bands(bands)
    schedules = draw(system.timeline, small(system, **changes), num_ticks=30, seeds=[3])
    timeline = Timeline(*(leaf[0, :30] for leaf in schedules))
    ticks = [30, 0, 11]
    expected = [dense(timeline, coefficients, t) for t in ticks]
    np.testing.assert_allclose(sensitivities(timeline, 7, coefficients, ticks), expected)
    # Ticks without reports have no noise, and do not count.
    clients = timeline.clients.copy()
    clients[[2, 3, 9, 29]] = -1
    sparse = timeline._replace(clients=clients)
    expected = [dense(sparse, coefficients, t) for t in ticks]
    np.testing.assert_allclose(sensitivities(sparse, 7, coefficients, ticks), expected)


@pytest.mark.parametrize(
    ("noise", "k", "delta"), [(2.0, 4, 1e-6), (8.0, 100, 1e-5), (0.7, 1, 1e-3)]
)
def test_epsilon_of_participations(noise: float, k: int, delta: float) -> None:
    """With one band it is that of k Gaussian mechanisms, which dp-accounting composes."""
    slots = np.zeros((k, 1), "int32")
    timeline = Timeline(np.arange(k) * 1.0, slots, slots, slots, slots + 0.25, slots)
    change = 4 * sensitivities(timeline, 1, square_root_bands(1), [k])
    found = gaussian_epsilon(change, noise, delta)[0]
    by_pld = dp.pld.PLDAccountant().compose(dp.GaussianDpEvent(noise), k).get_epsilon(delta)
    by_rdp = dp.rdp.RdpAccountant().compose(dp.GaussianDpEvent(noise), k).get_epsilon(delta)
    assert found == pytest.approx(by_pld, rel=1e-3)
    assert found < by_rdp


@pytest.mark.parametrize(("bands", "k", "noise"), [(8, 5, 4.0), (16, 3, 2.0), (1, 10, 6.0)])
def test_epsilon_of_correlated_noise(bands: int, k: int, noise: float) -> None:
    """It is that of one Gaussian mechanism with the sensitivity of B, by dp-accounting."""
    num_ticks = 20 * k
    clients = np.full((num_ticks, 1), -1, "int32")
    clients[::20] = 0
    other = np.ones_like(clients)
    clients = np.concatenate([clients, other], axis=1)
    weight = np.array([1.0, 0.0]) * np.ones((num_ticks, 1))
    timeline = Timeline(np.arange(num_ticks) * 1.0, clients, clients, clients, weight, clients)
    change = sensitivities(timeline, 2, square_root_bands(bands), [num_ticks])
    assert change[0] == pytest.approx(
        separated_sensitivity(square_root_bands(bands), num_ticks, separation=20, most=k)
    )
    event = dp.GaussianDpEvent(noise / change[0])
    by_pld = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-6)
    assert gaussian_epsilon(change, noise, 1e-6)[0] == pytest.approx(by_pld, rel=1e-3)


def test_nothing_and_no_noise() -> None:
    assert gaussian_epsilon([0.0, 1.0], 0.0, 1e-6).tolist() == [0, np.inf]
    assert gaussian_epsilon([0.0], 1.0, 1e-6).tolist() == [0]


# In steps


def tick_of(tick: int, clients: list[int]) -> Event:
    slots = jnp.asarray(clients, "int32")
    zero, weight = jnp.zeros_like(slots), jnp.where(slots >= 0, 0.25, 0.0)
    return Event(jnp.int32(tick), slots, zero + 2, zero, weight, zero, zero, jnp.int32(0))


def test_noises_are_what_is_accounted_for(regression: Callable, small: Callable) -> None:
    """B times the noises are independent, of deviation z C / m; empty ticks change nothing."""
    with jax.enable_x64(True):
        privacy = parse_privacy("correlated:clip=0.5:noise=2:bands=3")
        hyper = small(fedavg.system, privacy=privacy)
        wire = Wire(regression(), hyper, Plan(rows=2))
        memo, still = wire.first(jnp.zeros(5000)), jnp.zeros((4, 5000))
        assert memo.privacy.shape == (2, 5000)
        rows = []
        for tick in range(6):
            event = tick_of(tick, [-1] * 4 if tick == 2 else [0, 1, 2, 3])
            noise, after = wire.noisy_sum(jax.random.key(1), event, still, memo)
            if tick == 2:
                assert (noise == 0).all()
                assert (after.privacy == memo.privacy).all()
            else:
                rows.append(np.asarray(noise))
            memo = after
    z = matrix(square_root_bands(3), 5) @ np.array(rows)
    np.testing.assert_allclose(z.std(axis=1), 2 * 0.5 / 4, rtol=5 / np.sqrt(2 * 5000))
    assert np.abs(np.corrcoef(z)[np.triu_indices(5, 1)]).max() < 5 / np.sqrt(5000)
    # The noises themselves are correlated.
    assert np.corrcoef(np.array(rows))[0, 1] < -0.3


def test_what_one_client_can_change(regression: Callable, small: Callable) -> None:
    """Without its updates a sum changes by at most C times its weights, both slots together."""
    with jax.enable_x64(True):
        hyper = small(fedbuff.system, privacy=parse_privacy("correlated:clip=0.5:noise=1"))
        wire = Wire(regression(), hyper, Plan(rows=2), can_repeat=True)
        updates = 100 * jax.random.normal(jax.random.key(0), (4, 50))
        updates = updates.at[2].set(updates[0])
        event = tick_of(0, [3, 1, 3, 2])

        def total(updates: jax.Array) -> np.ndarray:
            return np.asarray(
                wire.noisy_sum(jax.random.key(1), event, updates, wire.first(updates[0]))[0]
            )

        without = total(updates.at[jnp.array([0, 2])].set(0))
        assert np.linalg.norm(total(updates) - without) == pytest.approx(0.5 * (0.25 + 0.25))
        lost = total(updates.at[jnp.array([0, 2])].set(jnp.nan))
        np.testing.assert_array_equal(lost, without)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fedavg", marks=pytest.mark.slow),
        "fedbuff",
        pytest.param("fedadam", marks=pytest.mark.slow),
    ],
)
def test_epsilon_of_runs(name: str, regression: Callable, small: Callable) -> None:
    """Lanes have the epsilon of their schedules; the model moves as with a slow loop's noise."""
    system = fedjax_sim.SYSTEMS[name]
    texts = ["correlated:noise=3", "correlated:noise=3:bands=4", "correlated"]
    run = fedjax_sim.sweep(
        system,
        regression(),
        small(system, error_feedback=True),
        settings={"privacy": [parse_privacy(text) for text in texts]},
        seeds=2,
        budget=fedjax_sim.Ticks(12),
        num_evals=3,
    )
    spent = np.asarray(run.curves.epsilon)
    for seed in range(2):
        for place, bands in enumerate((1, 4)):
            change = 4 * np.array(
                [dense(run.timelines[seed], square_root_bands(bands), t) for t in (0, 4, 8, 12)]
            )
            expected = gaussian_epsilon(change, 3.0, 1e-6)
            np.testing.assert_allclose(spent[place, seed], expected, rtol=1e-5)
    assert np.isnan(spent[2:]).all()
    assert not np.asarray(run.curves.failed).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("fedavg", marks=pytest.mark.slow), "fedbuff"])
def test_what_clips_nothing_changes_nothing(
    name: str, regression: Callable, small: Callable
) -> None:
    """Without noise, with a large bound of either kind, runs are as without privacy."""
    system = fedjax_sim.SYSTEMS[name]

    def final(**changes: Any) -> np.ndarray:
        run = fedjax_sim.simulate(
            system, regression(), small(system, **changes), budget=fedjax_sim.Ticks(6)
        )
        return np.asarray(jax.tree.leaves(run.models)[0])

    plain = final()
    for changes in (
        {"privacy": parse_privacy("correlated:clip=1e6:bands=3")},
        {"local_privacy": parse_local_privacy("gaussian:clip=1e6")},
    ):
        np.testing.assert_allclose(final(**changes), plain, rtol=1e-5, atol=1e-6)
    clipped = final(privacy=parse_privacy("correlated:clip=0.01:bands=3"))
    assert np.abs(clipped - plain).max() > 1e-2


def test_one_band_draws_what_fixed_clipping_draws(regression: Callable, small: Callable) -> None:
    """The mechanisms are the same bit for bit, and differ in what is assumed of the sampling."""
    final = {}
    for kind in ("fixed", "correlated"):
        hyper = small(
            fedavg.system,
            sampling="reshuffled",
            privacy=parse_privacy(f"{kind}:clip=0.1:noise=2"),
        )
        run = fedjax_sim.simulate(fedavg.system, regression(), hyper, budget=fedjax_sim.Ticks(6))
        final[kind] = np.asarray(jax.tree.leaves(run.models)[0])
    np.testing.assert_array_equal(final["fixed"], final["correlated"])


CORRELATED = parse_privacy("correlated:noise=3")


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (
            "fedbuff",
            {"privacy": parse_privacy("fixed:noise=1")},
            ["privacy", "how clients are sampled"],
        ),
        ("fedbuff", {"privacy": parse_privacy("adaptive")}, ["privacy", "how clients are sampled"]),
        ("fedbuff", {"aggregator": parse_rule("median")}, ["aggregator", "clipped sum only"]),
        (
            "fedavg",
            {"attack": parse_attack("mimic"), "malicious": 0.2},
            ["adversary.attack", "reads no messages"],
        ),
        (
            "fedavg",
            {"local_privacy": parse_local_privacy("gaussian:noise=3")},
            ["local_privacy", "one epsilon"],
        ),
    ],
)
def test_what_is_not_covered_is_refused(
    name: str, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(fedjax_sim.SYSTEMS[name].paper(**({"privacy": CORRELATED} | changes)))
    assert all(word in str(caught.value) for word in words), caught.value
