"""EM systems on clocks: their schedules, reductions and refusals, in 64 bits."""

from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Ticks
from fedjax_sim.core.settings import check
from fedjax_sim.core.streams import stream
from fedjax_sim.problems import latent
from fedjax_sim.timelines import live
from tests.systems.noisy_means import BLOCKS, KAPPA, N, noisy_mean

pytestmark = pytest.mark.usefixtures("in_64_bits")
SYSTEMS = fedjax_sim.SYSTEMS
COHORTS = {"num_selected": 4, "num_asked": 6, "deadline": 9.0, "drop_rate": 0.2}
COHORTS |= {"server_interact": 0.5, "slow_fraction": 0.3, "rate_slow": 0.2}

HOURS = {"on_time": 5.0, "off_time": 3.0}


@pytest.fixture(scope="module")
def toy() -> latent.Estimation:
    return noisy_mean(KAPPA)


def simulate(name: str, toy: latent.Estimation, ticks: int = 30, **settings: Any) -> Any:
    """Run one lane, evaluated at every tick."""
    hyper = SYSTEMS[name].Hyper(num_clients=N, **settings)
    return fedjax_sim.simulate(SYSTEMS[name], toy, hyper, budget=Ticks(ticks), num_evals=ticks)


def schedule(name: str, hyper: Any, toy: Any = None) -> Any:
    """Draw a schedule of 40 rounds."""
    system = SYSTEMS[name]
    whole = system.fit.complete(hyper, toy)
    return system.timeline(stream(jax.random.key(0), "timeline"), whole, 40)


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [{}, HOURS, {"selection": "poisson", "num_asked": 0}])
def test_rounds_of_cohorts_are_those_of_fedavg(more: dict[str, Any], toy: Any) -> None:
    """With one local step; a whole pass takes as long as an epoch of FedAvg."""
    given = {"num_clients": N, "batch_size": 6} | COHORTS | more
    fedavg, epochs = ({"local_steps": 1}, {"local_epochs": 1.0})
    for name, same in (("fedem", fedavg), ("em", epochs)):
        ours = schedule(name, SYSTEMS[name].Hyper(rounds="cohorts", **given), toy)
        other = schedule("fedavg", SYSTEMS["fedavg"].Hyper(**given, **same), toy)
        for field in ("time", "clients", "version", "weight"):
            np.testing.assert_array_equal(getattr(ours, field), getattr(other, field))
        np.testing.assert_array_equal(ours.steps, np.minimum(other.steps, 1))
    assert len(set(np.diff(np.asarray(ours.time)).tolist())) > 5
    if more.get("selection") == "poisson":
        assert set(np.unique(ours.weight)) == {0, 1 / 4}  # 1 / (n p) with p = S / n


def test_vr_fedem_takes_longer_for_whole_passes(toy: Any) -> None:
    """Without chance a round takes two steps, and a whole pass of 20 examples in sixes four."""
    even = {"rate_spread": 0.0, "round_time": "mean", "batch_size": 6, "inner_steps": 5}
    hyper = SYSTEMS["vr_fedem"].Hyper(num_clients=N, rounds="cohorts", num_selected=4, **even)
    lengths = np.diff(np.asarray(schedule("vr_fedem", hyper, toy).time), prepend=0)
    is_pass = (np.arange(40) % 5 == 0) & (np.arange(40) > 0)
    np.testing.assert_allclose(lengths, np.where(is_pass, 4, 2), rtol=1e-12)


@pytest.mark.slow
def test_async_fedem_of_everyone_is_fedem(toy: Any) -> None:
    """With equal times and a buffer for all, nothing is stale; by chance clients differ."""
    given = {"batch_size": 5, "gamma": 0.3, "compression": BLOCKS}
    fixed = {"runtime_law": "runtime_geom", "rate_fast": 1.0, "rate_spread": 0.0}
    fedem = simulate("fedem", toy, **given)
    ours = simulate("async_fedem", toy, buffer_size=N, **given, **fixed)
    np.testing.assert_allclose(ours.models, fedem.models, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.curves.mean_field, fedem.curves.mean_field, rtol=1e-9)
    stale = simulate("async_fedem", toy, buffer_size=N // 2, **given)
    assert np.abs(stale.models - fedem.models).max() > 1e-3


def on_live_clock(name: str) -> fedjax_sim.System:
    """A system on a live clock that draws uniform cohorts."""

    def clock(problem: Any, hyper: Any) -> live.Clock:
        uniform = live.Selector(
            lambda key, now: live.Asked(now.drawn), draw=live.uniform_cohort(hyper)
        )
        return live.live_rounds(hyper, uniform, num_used=hyper.num_selected)

    sizes = live.Sizes(COHORTS["num_selected"], 1)
    return live.with_clock(SYSTEMS[name], live.Live(lambda hyper: sizes, clock), name="live")


@pytest.mark.slow
def test_fedem_on_a_live_clock_is_fedem_on_the_schedule_that_it_made(toy: Any) -> None:
    system = on_live_clock("fedem")
    hyper = system.Hyper(
        num_clients=N, rounds="cohorts", batch_size=5, gamma=0.3, compression=BLOCKS, **COHORTS
    )
    ours = fedjax_sim.simulate(system, toy, hyper, budget=Ticks(30), num_evals=1)
    assert (np.diff(ours.timelines[0].time) > 0).all()
    planned = live.replayed(SYSTEMS["fedem"], ours.timelines[0])
    again = fedjax_sim.simulate(planned, toy, hyper, budget=Ticks(30), num_evals=1)
    np.testing.assert_allclose(ours.models, again.models, rtol=0, atol=1e-12)
    start = fedjax_sim.simulate(system, toy, hyper, budget=Ticks(1), num_evals=1)
    assert np.abs(ours.models - start.models).max() > 0.1


@pytest.mark.parametrize("name", ["em", "vr_fedem"])
def test_live_clocks_have_no_times_of_whole_passes(name: str, toy: Any) -> None:
    system = on_live_clock(name)
    hyper = system.Hyper(num_clients=N, rounds="cohorts", batch_size=5, **COHORTS)
    with pytest.raises(ConfigError, match="whole passes in live', but must be local_steps long"):
        fedjax_sim.simulate(system, toy, hyper, budget=Ticks(3))


def test_what_does_not_fit_is_refused() -> None:
    def fedem(**settings: Any) -> Any:
        return SYSTEMS["fedem"].Hyper(num_clients=N, **settings)

    check(fedem(rounds="cohorts", num_selected=4))
    check(SYSTEMS["fedem"].Hyper(num_clients=4))  # Fewer than the default cohort.
    for hyper, words in (
        (fedem(drop_rate=0.2), r"delays.drop_rate"),
        (fedem(rounds="cohorts", participation=0.5), r"participation"),
        (fedem(rounds="cohorts", num_selected=N + 1), r"num_selected"),
        (fedem(rounds="cohorts", selection="by_examples"), r"uniform or poisson, because"),
        (SYSTEMS["async_fedem"].Hyper(restart="free"), r"after_interaction, fresh"),
    ):
        with pytest.raises(ConfigError, match=words):
            check(hyper)
