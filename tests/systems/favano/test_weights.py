"""FAVANO's reweightings: 1 / alpha against sums over the law of the step count."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim import Timeline
from fedjax_sim.core.streams import stream
from fedjax_sim.systems import favano
from fedjax_sim.timelines import ClientTable, draw_client_rates, schedule_contacts

SYSTEM = fedjax_sim.SYSTEMS["favano"]
SMALL = {
    "num_clients": 6,
    "num_selected": 2,
    "local_steps": 4,
    "server_wait": 2.0,
    "server_interact": 1.0,
    "rate_slow": 0.1,
}
PERIOD, K, SHARE = 3, 4, 2 / 6


@pytest.fixture(scope="module")
def scheduled(draw: Callable) -> Callable[[Any], dict[str, np.ndarray]]:
    """Return a function from settings to a schedule of 60 ticks and its 1 / alpha."""

    def facts(hyper: Any) -> dict[str, np.ndarray]:
        schedule, _ = draw(schedule_contacts, contact_settings(hyper), num_ticks=60, seeds=[3])
        schedule = Timeline(*(leaf[0] for leaf in schedule))
        with jax.enable_x64(True):
            rate = draw_client_rates(stream(jax.random.key(3), "timeline"), hyper)
            weight = favano.inverse_alpha(Timeline(*map(jnp.asarray, schedule)), rate, hyper)
        return {
            "weight": weight,
            "steps": schedule.steps,
            "clients": schedule.clients,
            "rate": np.asarray(rate),
        }

    return facts


def contact_settings(hyper: Any) -> Any:
    """Remove the reweighting, so that one program draws the schedules of all of them."""
    return hyper.replace(reweight="none")


def expected_by_round(rate: float, value: Callable[[np.ndarray], np.ndarray], *, law: str) -> float:
    """Compute E[value(E)], a sum over windows of R rounds, R geometric."""
    r = np.arange(1, 401)
    chance = stats.geom.pmf(r, SHARE)
    counts = np.arange(300)[:, None]
    pmf = (
        stats.binom.pmf(counts, PERIOD * r, rate)
        if law == "runtime_geom"
        else stats.poisson.pmf(counts, PERIOD * r * rate)
    )
    return float(value(counts[:, 0]) @ pmf @ chance)


def at_least_one(counts: np.ndarray) -> np.ndarray:
    """Return 1 where a step was done."""
    return (counts > 0).astype(float)


def capped(counts: np.ndarray) -> np.ndarray:
    """Return E ^ K."""
    return np.minimum(counts, K).astype(float)


@pytest.mark.few(1)
@pytest.mark.parametrize("law", ["runtime_geom", "runtime_exp"])
def test_weights_from_the_law(scheduled: Callable, law: str) -> None:
    """Weights are 1 / (P(E > 0) X) and 1 / E[X], and 0 without a step; to float64 rounding."""
    for reweight, function in (("stochastic", at_least_one), ("deterministic", capped)):
        hyper = SYSTEM.paper(**SMALL, runtime_law=law, reweight=reweight)
        found = scheduled(hyper)
        rate = found["rate"][found["clients"]]
        expected = np.empty(rate.shape)
        table: dict[float, float] = {}
        for t, slot in np.ndindex(rate.shape):
            place = float(rate[t, slot])
            if place not in table:
                table[place] = expected_by_round(place, function, law=law)
            expected[t, slot] = table[place]
        alpha = expected * found["steps"] if reweight == "stochastic" else expected
        some = found["steps"] > 0
        np.testing.assert_allclose(found["weight"][some], 1 / alpha[some], rtol=1e-9)
        assert not found["weight"][~some].any()
        assert some.any() and not some.all()


def test_weights_from_a_clients_own_history(scheduled: Callable) -> None:
    """Estimates are running means over the client's contacts so far, this one included."""
    for reweight in ("estimated", "estimated_stochastic"):
        found = scheduled(SYSTEM.paper(**SMALL, reweight=reweight))
        history: dict[int, list[int]] = {}
        for t, slot in np.ndindex(found["steps"].shape):
            steps = int(found["steps"][t, slot])
            counts = history.setdefault(int(found["clients"][t, slot]), [])
            counts.append(steps)
            any_step = np.mean(np.array(counts) > 0)
            alpha = np.mean(counts) if reweight == "estimated" else any_step * steps
            expected = 1 / alpha if steps else 0.0
            np.testing.assert_allclose(found["weight"][t, slot], expected, rtol=1e-12)


def test_no_reweighting(scheduled: Callable) -> None:
    """Every weight is 1, with or without a step."""
    assert (np.asarray(scheduled(SYSTEM.paper(**SMALL, reweight="none"))["weight"]) == 1).all()


def test_reweighting_is_unbiased(draw: Callable) -> None:
    """The mean of X / alpha over contacts is 1 for fast and slow clients under both reweightings.

    With constant gradients, a client's expected contribution is multiplied by this mean. Within 5
    standard errors.
    """
    hyper = SYSTEM.paper(num_clients=20, num_selected=4)
    schedules, _ = draw(schedule_contacts, contact_settings(hyper), num_ticks=1500, seeds=8)
    samples: dict[tuple[str, float], list[np.ndarray]] = {}
    for seed in range(8):
        schedule = Timeline(*(jnp.asarray(leaf[seed]) for leaf in schedules))
        with jax.enable_x64(True):
            rate = draw_client_rates(stream(jax.random.key(seed), "timeline"), hyper)
            for reweight in ("stochastic", "deterministic"):
                weight = favano.inverse_alpha(schedule, rate, hyper.replace(reweight=reweight))
                contribution = np.asarray(schedule.steps * weight)[50:]
                rates = np.asarray(rate)[schedule.clients[50:]]
                for speed in (hyper.delays.rate_fast, hyper.delays.rate_slow):
                    samples.setdefault((reweight, speed), []).append(contribution[rates == speed])
    for each in samples.values():
        sample = np.concatenate(each)
        error = sample.std() / np.sqrt(sample.size)
        assert error < 0.02
        assert abs(sample.mean() - 1) < 5 * error


def test_every_client_of_spread_rates_has_its_own_law(draw: Callable) -> None:
    """Weights are those of a table of clients that has the same rates."""
    hyper = favano.Hyper(num_clients=6, num_selected=2, local_steps=4)
    with jax.enable_x64(True):
        rate = draw_client_rates(stream(jax.random.key(0), "timeline"), hyper)
    assert np.unique(rate).size == 6
    table = hyper.replace(client_table=ClientTable(np.asarray(rate)))
    found, known = (draw(favano.timeline, each, num_ticks=30) for each in (hyper, table))
    np.testing.assert_array_equal(found.steps, known.steps)
    np.testing.assert_allclose(found.weight, known.weight, rtol=1e-12)
