"""Draws of cohorts and the look-up of earlier visits."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedjax_sim.core.types import EMPTY
from fedjax_sim.timelines.cohorts import (
    draw_cohorts,
    draw_poisson_cohorts,
    draw_with_replacement,
    previous_visits,
)

jitted = jax.jit(previous_visits)


def test_cohorts_are_uniform_without_replacement() -> None:
    """Each of the 20 ordered pairs of 5 clients is equally likely (chi-square, p above 1e-3)."""
    drawn = np.asarray(draw_cohorts(jax.random.key(0), 5, 2, 10_000))
    assert (drawn[:, 0] != drawn[:, 1]).all()
    counts = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25)
    assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3
    assert (counts > 0).sum() == 20


def test_consecutive_cohorts_are_independent() -> None:
    """Whether a client is contacted says nothing about the next tick.

    Chi-square test over the four cases, for every client.
    """
    drawn = np.asarray(draw_cohorts(jax.random.key(1), 5, 2, 10_000))
    for client in range(5):
        present = (drawn == client).any(axis=1)
        # Take every second pair, so that pairs do not overlap.
        both = np.bincount(2 * present[0:-1:2] + present[1::2], minlength=4)
        expected = np.array([0.36, 0.24, 0.24, 0.16]) * both.sum()
        assert stats.chisquare(both, expected).pvalue > 1e-3 / 5


def test_a_row_depends_on_key_and_tick_alone() -> None:
    long = draw_cohorts(jax.random.key(2), 50, 6, 40)
    np.testing.assert_array_equal(draw_cohorts(jax.random.key(2), 50, 6, 9), long[:9])
    np.testing.assert_array_equal(draw_cohorts(jax.random.key(2), 50, 2, 40), long[:, :2])
    assert not np.array_equal(draw_cohorts(jax.random.key(3), 50, 6, 40), long)


def test_a_cohort_of_everyone_is_everyone() -> None:
    drawn = np.sort(draw_cohorts(jax.random.key(0), 7, 7, 20), axis=1)
    np.testing.assert_array_equal(drawn, np.broadcast_to(np.arange(7), (20, 7)))


def test_poisson_cohorts_are_independent_coins() -> None:
    """All 16 subsets of 4 clients, each present with probability 1/2 (chi-square, p above 1e-3).

    The next cohort does not depend on the last. A client stands in for an empty cohort.
    """
    with jax.enable_x64(True):
        clients, is_member = jax.tree.map(
            np.asarray, draw_poisson_cohorts(jax.random.key(0), 4, 2, 8000)
        )
    assert clients.shape == (8000, 4)
    subsets = np.where(is_member, 2 ** np.maximum(clients, 0), 0).sum(axis=1)
    assert stats.chisquare(np.bincount(subsets, minlength=16)).pvalue > 1e-3
    pairs = np.bincount(subsets[0::2] * 16 + subsets[1::2], minlength=256)
    assert stats.chisquare(pairs).pvalue > 1e-3
    is_empty = ~is_member.any(axis=1)
    assert (clients[is_empty, 0] >= 0).all()
    np.testing.assert_array_equal((clients != EMPTY).sum(1), np.maximum(is_member.sum(1), 1))


def test_sizes_of_poisson_cohorts_are_binomial() -> None:
    """With 2,000 clients and 12 expected, up to sizes of a probability that no double can draw."""
    law = stats.binom(2000, 0.006)
    with jax.enable_x64(True):
        clients, is_member = draw_poisson_cohorts(jax.random.key(1), 2000, 12, 4000)
        first, _ = draw_poisson_cohorts(jax.random.key(1), 2000, 12, 9)
    assert law.sf(clients.shape[1]) <= 2.0**-53 < law.sf(clients.shape[1] - 1)
    np.testing.assert_array_equal(first, clients[:9])
    counts = np.bincount(is_member.sum(axis=1), minlength=30)
    edges = np.arange(5, 22)
    seen = np.concatenate([[counts[:5].sum()], counts[edges], [counts[22:].sum()]])
    expected = np.concatenate([[law.cdf(4)], law.pmf(edges), [law.sf(21)]]) * 4000
    assert stats.chisquare(seen, expected).pvalue > 1e-3


@given(
    st.sampled_from([1, 3]).flatmap(
        lambda slots: st.lists(
            st.lists(st.integers(0, 4), min_size=slots, max_size=slots), min_size=8, max_size=8
        )
    )
)
def test_previous_visits_are_those_of_a_loop(rows: list[list[int]]) -> None:
    """If a client fills several slots of a tick, the earlier slots count as earlier visits."""
    previous, visit = map(np.asarray, jitted(jnp.array(rows, "int32")))
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    for t, row in enumerate(rows):
        for slot, client in enumerate(row):
            assert previous[t, slot] == last.get(client, -1)
            assert visit[t, slot] == count.get(client, 0)
            last[client], count[client] = t, count.get(client, 0) + 1


SHARE = np.array([0.1, 0.2, 0.3, 0.4])


def shares_drawn(num_draws: int, num_ticks: int) -> np.ndarray:
    """Compute how often each client was drawn in each tick, as a share of the draws: `[T, N]`."""
    drawn = draw_with_replacement(jax.random.key(4), jnp.asarray(SHARE), num_draws, num_ticks)
    clients, times = map(np.asarray, drawn)
    assert ((clients == EMPTY) == (times == 0)).all()
    found = np.zeros((num_ticks, len(SHARE) + 1))
    np.add.at(found, (np.arange(num_ticks)[:, None], clients), times)
    # Every client fills at most one slot, and all draws are counted.
    assert all(len(set(row[row != EMPTY].tolist())) == (row != EMPTY).sum() for row in clients)
    np.testing.assert_array_equal(found.sum(axis=1), num_draws)
    return found[:, :-1] / num_draws


def test_draws_are_multinomial() -> None:
    """Shares have means p and covariances (diag(p) - p p') / S, and ticks are uncorrelated.

    All within five standard errors.
    """
    num = 10_000
    found = shares_drawn(3, num)
    covariance = (np.diag(SHARE) - np.outer(SHARE, SHARE)) / 3
    centred = found - SHARE
    np.testing.assert_array_less(
        np.abs(centred.mean(axis=0)), 5 * np.sqrt(np.diag(covariance) / num)
    )
    products = centred[:, :, None] * centred[:, None, :]
    np.testing.assert_array_less(
        np.abs(products.mean(axis=0) - covariance), 5 * products.std(axis=0) / np.sqrt(num)
    )
    lagged = centred[1:, :, None] * centred[:-1, None, :]
    np.testing.assert_array_less(np.abs(lagged.mean(axis=0)), 5 * lagged.std(axis=0) / np.sqrt(num))


def test_more_draws_than_clients() -> None:
    assert (shares_drawn(9, 200) > 1 / 9).any()


def test_draws_of_a_tick_depend_on_key_and_tick_alone() -> None:
    long = draw_with_replacement(jax.random.key(2), jnp.asarray(SHARE), 3, 40)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b[:9]),
        draw_with_replacement(jax.random.key(2), jnp.asarray(SHARE), 3, 9),
        long,
    )
