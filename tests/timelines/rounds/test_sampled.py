"""Rounds of sampled clients: weights, epochs, over-selection, deadlines, drop-outs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim import SYSTEMS, ConfigError
from fedjax_sim.core.settings import check
from fedjax_sim.core.streams import stream
from fedjax_sim.core.types import EMPTY
from fedjax_sim.timelines import (
    CohortRounds,
    presets,
    schedule_cohort_rounds,
)
from fedjax_sim.timelines.cohorts import draw_by_share, draw_cohorts, draw_poisson_cohorts
from fedjax_sim.timelines.rounds import draw_work_times

COHORT_ROUNDS = presets.preset(CohortRounds, presets.FAVANO)

SIZES = np.array([3, 1, 8, 2, 5, 100, 4, 6, 9])
CLOCK = {"num_clients": 9, "num_selected": 4, "local_steps": 5}


class Sized:
    """A problem that has nothing but clients' numbers of examples."""

    counts = jnp.asarray(SIZES)


@pytest.fixture
def rounds(draw: Callable) -> Callable:
    """Return a function that draws rounds of FedAvg, completed from the problem above."""

    def make(*, num_ticks: int = 40, seeds: int = 3, **settings: Any) -> Any:
        hyper = SYSTEMS["fedavg"].paper(**(CLOCK | settings))
        check(hyper)
        hyper = SYSTEMS["fedavg"].fit.complete(hyper, Sized())
        return draw(schedule_cohort_rounds, hyper, num_ticks=num_ticks, seeds=seeds)

    return make


@pytest.mark.few(1)
@pytest.mark.parametrize("round_time", ["sum", "mean"])
def test_by_default_everyone_of_a_uniform_cohort_is_waited_for(
    draw: Callable, round_time: str
) -> None:
    """Bit for bit what the draws of cohorts and of times say."""

    def asked(key: jax.Array, hyper: CohortRounds, num_ticks: int) -> tuple[jax.Array, jax.Array]:
        clients = draw_cohorts(stream(key, "cohorts"), 9, 4, num_ticks)
        length = hyper.clock.server_interact + draw_work_times(key, clients, hyper).max(axis=1)
        return clients, jnp.cumsum(length)

    hyper = COHORT_ROUNDS(**CLOCK, round_time=round_time)
    schedule = draw(schedule_cohort_rounds, hyper, num_ticks=40, seeds=3)
    clients, time = draw(asked, hyper, num_ticks=40, seeds=3)
    np.testing.assert_array_equal(schedule.clients, clients)
    np.testing.assert_array_equal(schedule.time, time)
    assert (schedule.weight == 1 / 4).all()
    assert (schedule.steps == 5).all()


EPOCHS = {
    "batch_size": 2,
    "local_steps": 10,
    "weighting": "examples",
    "server_interact": 0.0,
    "num_ticks": 500,
}


def test_epochs_and_weights_follow_the_examples(rounds: Callable) -> None:
    """ceil(E m / b) steps, also where rounding lifts E m / b above a whole number: 1.1 x 100 / 2.

    With one step per unit of time a round lasts exactly as long as the most steps.
    """
    for epochs in (1.0, 1.1, 2 / 3, 0.01):
        schedule = rounds(local_epochs=epochs, rate_fast=1.0, rate_slow=1.0, **EPOCHS)
        steps = [-(-round(600 * epochs) * int(m) // 1200) for m in SIZES]
        np.testing.assert_array_equal(schedule.steps, np.array(steps)[schedule.clients])
        sizes = SIZES[schedule.clients]
        expected = sizes / sizes.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(schedule.weight, expected, rtol=1e-12)
        lengths = np.diff(schedule.time, axis=1, prepend=0.0)
        np.testing.assert_array_equal(lengths, schedule.steps.max(axis=-1))


@pytest.mark.parametrize("epochs", [1.0, 2.5])
def test_an_epoch_may_end_with_a_filled_batch_or_without_one(
    rounds: Callable, epochs: float
) -> None:
    """As in PyTorch, without and with `drop_last`; a client of fewer examples has one batch."""
    of_epoch = {"filled": [-(-m // 3) for m in SIZES], "dropped": [max(m // 3, 1) for m in SIZES]}
    for last_batch, batches in of_epoch.items():
        assert len({*batches}) > 1 and batches != [m / 3 for m in SIZES]
        chosen = EPOCHS | {"batch_size": 3, "last_batch": last_batch}
        schedule = rounds(local_epochs=epochs, **chosen)
        steps = np.ceil(epochs * np.array(batches)).astype(int)
        np.testing.assert_array_equal(schedule.steps, steps[schedule.clients])


@pytest.mark.few(1)
@pytest.mark.parametrize("round_time", ["sum", "one_draw"])
def test_a_round_of_epochs_lasts_as_long_as_its_steps(rounds: Callable, round_time: str) -> None:
    """With geometric times of mean 2, twice the steps on average, if one client is waited for."""
    some = rounds(
        **(EPOCHS | {"num_selected": 1}), local_epochs=2.0, slow_fraction=0.0, round_time=round_time
    )
    excess = np.diff(some.time, axis=1, prepend=0.0) - 2 * some.steps[..., 0]
    assert abs(excess.mean()) < 5 * excess.std() / np.sqrt(excess.size)


def test_clients_are_drawn_by_their_examples(rounds: Callable) -> None:
    """With replacement every draw has the chances m_i / m; without, the first draw has them.

    And the second draw has m_j / (m - m_i) after i. Chi-square tests, p above 1e-3.
    """
    many = rounds(
        selection="by_examples", with_replacement=True, num_selected=3, num_ticks=2000, seeds=1
    )
    np.testing.assert_allclose(many.weight.sum(axis=-1), 1, rtol=1e-12)
    counts = [(3 * many.weight * (many.clients == i)).sum() for i in range(9)]
    assert stats.chisquare(counts, SIZES / SIZES.sum() * 6000).pvalue > 1e-3
    assert (many.clients == EMPTY).any()

    share = np.array([1.0, 2.0, 4.0])
    drawn = np.asarray(draw_by_share(jax.random.key(0), jnp.asarray(share), 2, 6000))
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    chances = [share[i] / 7 * share[j] / (7 - share[i]) for i, j in pairs]
    found = [((drawn == pair).all(axis=1)).sum() for pair in pairs]
    assert stats.chisquare(found, np.array(chances) * 6000).pvalue > 1e-3
    np.testing.assert_array_equal(
        drawn[:7], draw_by_share(jax.random.key(0), jnp.asarray(share), 2, 7)
    )


def test_the_first_to_arrive_are_used(rounds: Callable, draw: Callable) -> None:
    """Of seven asked, the four fastest count, and the round lasts as long as the fourth."""
    settings = {"runtime_law": "runtime_exp", "server_interact": 1.0}
    some = rounds(num_asked=7, **settings)

    def asked(key: jax.Array, hyper: CohortRounds, num_ticks: int) -> tuple[jax.Array, jax.Array]:
        clients = draw_cohorts(stream(key, "cohorts"), 9, 7, num_ticks)
        return clients, draw_work_times(key, clients, hyper)

    hyper = COHORT_ROUNDS(**(CLOCK | settings))
    clients, times = draw(asked, hyper, num_ticks=40, seeds=3)
    order = np.argsort(times, axis=-1)[..., :4]
    np.testing.assert_array_equal(some.clients, np.take_along_axis(clients, order, axis=-1))
    fourth = np.sort(times, axis=-1)[..., 3]
    np.testing.assert_allclose(np.diff(some.time, axis=1, prepend=0.0), 1 + fourth, rtol=1e-9)
    np.testing.assert_allclose(some.weight, 1 / 4)
    assert (some.steps == 5).all()


def test_a_poisson_cohort_is_waited_for(rounds: Callable, draw: Callable) -> None:
    """All its reports are used, so a round lasts as long as its slowest, also beyond S = 4."""
    settings = {"runtime_law": "runtime_exp", "server_interact": 1.0}
    some = rounds(selection="poisson", **settings)

    def members(key: jax.Array, hyper: CohortRounds, num_ticks: int) -> tuple[jax.Array, jax.Array]:
        clients, is_member = draw_poisson_cohorts(stream(key, "cohorts"), 9, 4, num_ticks)
        return is_member, draw_work_times(key, clients, hyper)

    is_member, times = draw(members, COHORT_ROUNDS(**(CLOCK | settings)), num_ticks=40, seeds=3)
    assert (is_member.sum(axis=-1) > 4).any()
    np.testing.assert_array_equal(some.weight, np.where(is_member, 1 / 4, 0))
    last = np.where(is_member, times, 0).max(axis=-1)
    np.testing.assert_allclose(np.diff(some.time, axis=1, prepend=0.0), 1 + last, rtol=1e-9)


def test_a_deadline_cuts_a_round_short(rounds: Callable) -> None:
    """Late reports are not used, and the round lasts until the deadline."""
    settings = {"runtime_law": "runtime_exp", "server_interact": 0.0, "seeds": 2}
    free, cut = rounds(**settings), rounds(deadline=25.0, **settings)
    lengths = np.diff(free.time, axis=1, prepend=0.0)
    assert (lengths > 25).any()
    assert (lengths < 25).any()
    np.testing.assert_allclose(
        np.diff(cut.time, axis=1, prepend=0.0), np.minimum(lengths, 25), rtol=1e-9
    )
    is_used = cut.clients != EMPTY
    np.testing.assert_array_equal(is_used.all(axis=-1), lengths <= 25)
    np.testing.assert_array_equal(cut.clients[is_used], free.clients[is_used])
    np.testing.assert_array_equal(cut.steps, np.where(is_used, 5, 0))
    some = is_used.any(axis=-1)
    np.testing.assert_allclose(cut.weight.sum(axis=-1), some, rtol=1e-12)


def test_clients_drop_out(rounds: Callable) -> None:
    """Each with the given probability; the server waits for the deadline, or the time to come."""
    whole = rounds(num_ticks=1000, seeds=1)
    lost = rounds(drop_rate=0.3, num_ticks=1000, seeds=1)
    np.testing.assert_allclose(lost.time, whole.time, rtol=1e-12)
    is_lost = lost.clients == EMPTY
    assert abs(is_lost.mean() - 0.3) < 5 * np.sqrt(0.21 / 4000)
    np.testing.assert_array_equal(lost.clients, np.where(is_lost, EMPTY, whole.clients))
    np.testing.assert_array_equal(lost.steps, np.where(is_lost, 0, 5))
    for client in range(9):
        of_client = is_lost[whole.clients == client]
        assert abs(of_client.mean() - 0.3) < 5 * np.sqrt(0.21 / of_client.size)
    np.testing.assert_allclose(
        lost.weight.sum(axis=-1), (lost.clients != EMPTY).any(axis=-1), rtol=1e-12
    )
    waiting = rounds(drop_rate=0.3, num_ticks=1000, seeds=1, deadline=1e6, server_interact=0.0)
    is_whole = (waiting.clients != EMPTY).all(axis=-1)
    lengths = np.diff(waiting.time, axis=1, prepend=0.0)
    np.testing.assert_array_equal(lengths[~is_whole], 1e6)
    assert (lengths[is_whole] < 1e4).all()


def test_epochs_need_a_problem() -> None:
    hyper = SYSTEMS["fedavg"].paper(local_epochs=1.0)
    with pytest.raises(ConfigError, match=r"local_epochs is 1\.0, but must be 0 for a"):
        SYSTEMS["fedavg"].fit.complete(hyper, None)


def test_a_schedule_that_users_draw_checks_the_settings() -> None:
    """More clients in a cohort than there are would be drawn without a word."""
    hyper = CohortRounds(num_clients=10, num_selected=20)
    with pytest.raises(ConfigError, match="num_selected is 20, but must be at most num_clients"):
        schedule_cohort_rounds(jax.random.key(0), hyper, 2)
