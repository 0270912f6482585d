"""The E-steps of the clients in the slots of a tick, against the problem's own statistics.

Dimension letters: `S` slots, `q` numbers of an expected statistic.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, Event, Plan
from fedjax_sim.clients.e_steps import Expectation, check_batch_size, local_expectation

KEY = jax.random.key(7)
CLIENTS, WORKS = [3, 0, 6, -1], [True, True, False, False]
HERE, ELSEWHERE = np.array([0.5, -1.0, 2.0], "float32"), np.array([1.0, 0.0, -0.5], "float32")


def event_of(offset: int = 0) -> Event:
    """Make a tick of four slots whose clients have done `offset` steps before."""
    clients = jnp.array(CLIENTS, "int32")
    zero = jnp.zeros_like(clients)
    before = zero + offset
    return Event(jnp.int32(0), clients, zero, zero, zero.astype(float), before, zero, jnp.int32(0))


def expected_of(
    problem: Any, plan: Plan, *, offset: int = 0, batches: str = "with_replacement", **inputs: Any
) -> tuple[np.ndarray, Any]:
    """Compute mean statistics at HERE, with mini-batches of two: `f[S, q]`, and the work."""
    expect = local_expectation(problem, Expectation(batch_size=2, batches=batches), plan)
    return jax.jit(
        lambda problem: expect(
            KEY, event_of(offset), jnp.asarray(HERE), works=jnp.array(WORKS), **inputs
        )
    )(problem)


@pytest.mark.parametrize("slots_at_once", [1, 4])
def test_a_full_pass_is_the_mean_over_all_examples(
    noisy_mean: Callable, slots_at_once: int
) -> None:
    """Slots that do not work have statistics 0 and cost nothing that is needed."""
    problem = noisy_mean()
    plan = Plan(slots_at_once=slots_at_once)
    found, work = expected_of(problem, plan, is_full=True)
    of_all = np.asarray(problem.client_statistics(jnp.asarray(HERE)))
    expected = np.where(np.array(WORKS)[:, None], of_all[CLIENTS], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    counts = np.asarray(problem.counts)[CLIENTS]
    assert int(work.needed) == counts[WORKS].sum()
    trips = np.where(WORKS, -(-counts // 2), 0)
    executed = trips.sum() if slots_at_once == 1 else 4 * trips.max()
    assert int(work.executed) == 2 * executed


@pytest.mark.few(1)
@pytest.mark.parametrize("per_slot", [False, True])
def test_a_difference_uses_the_same_mini_batch(noisy_mean: Callable, per_slot: bool) -> None:
    """Statistics at two parameters are subtracted; a reference may be common or one per slot."""
    problem, plan = noisy_mean(), Plan(slots_at_once=4)
    here, work = expected_of(problem, plan, offset=5, is_full=False)
    reference = jnp.asarray(np.stack([ELSEWHERE] * 4) if per_slot else ELSEWHERE)
    found, twice = expected_of(problem, plan, offset=5, is_full=False, subtracted=reference)
    expect = local_expectation(problem, Expectation(batch_size=2), plan)
    inputs = {"is_full": False, "works": jnp.array(WORKS)}
    there, _ = expect(KEY, event_of(5), jnp.asarray(ELSEWHERE), **inputs)
    np.testing.assert_allclose(found, here - there, rtol=1e-5, atol=1e-6)
    assert np.abs(found[:2]).max() > 1e-3
    np.testing.assert_array_equal(found[2:], 0)
    assert (int(work.needed), int(twice.needed)) == (4, 8)


def test_mini_batches_depend_on_the_steps_done_before(noisy_mean: Callable) -> None:
    """Without replacement a batch of two out of two examples is all of them at every step."""
    problem, plan = noisy_mean(), Plan(slots_at_once=4)
    draws = [expected_of(problem, plan, offset=k, is_full=False)[0][:2] for k in range(4)]
    assert len({draw.tobytes() for draw in map(np.asarray, draws)}) > 1
    again = expected_of(problem, plan, offset=0, is_full=False)[0][:2]
    np.testing.assert_array_equal(again, draws[0])
    of_all = np.asarray(problem.client_statistics(jnp.asarray(HERE)))
    pairs = np.asarray(problem.counts)[CLIENTS[:2]] == 2
    assert pairs.any()
    whole = expected_of(problem, plan, offset=3, batches="without_replacement", is_full=False)[0]
    np.testing.assert_allclose(
        np.asarray(whole)[:2][pairs], of_all[CLIENTS[:2]][pairs], rtol=1e-5, atol=1e-6
    )


def test_batches_without_replacement_must_fit_every_client(noisy_mean: Callable) -> None:
    problem = noisy_mean()
    fewest = int(np.min(problem.counts))
    fits = Expectation(batch_size=fewest, batches="without_replacement")
    assert check_batch_size(fits, problem) is fits
    large = fits.replace(batch_size=fewest + 1)
    assert check_batch_size(large, None) is large
    other = large.replace(batches="with_replacement")
    assert check_batch_size(other, problem) is other
    words = f"batch_size is {fewest + 1}, but must be at most {fewest}"
    with pytest.raises(ConfigError, match=words):
        check_batch_size(large, problem)


def test_wrong_shapes_are_refused(noisy_mean: Callable) -> None:
    expect = local_expectation(noisy_mean(), Expectation(batch_size=2), Plan())
    works = jnp.array(WORKS)
    with pytest.raises(AssertionError):
        expect(KEY, event_of(), jnp.ones((1, 4, 3)), is_full=False, works=works)
    with pytest.raises(AssertionError):
        expect(KEY, event_of(), jnp.ones((3, 3)), is_full=False, works=works)
    with pytest.raises(AssertionError):
        expect(KEY, event_of(), jnp.asarray(HERE), is_full=False, works=works[:3])
