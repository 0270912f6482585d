"""Times as pairs of floats of 32 bits: the order and the values of 64 bits, without these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core import targets
from fedjax_sim.timelines.live import Instant


def test_a_million_arrivals_have_the_order_and_times_of_64_bits() -> None:
    """A thousand queues of a thousand durations, compared where they were merged."""
    drawn = np.random.default_rng(0).exponential(size=(1000, 1000)) * np.logspace(-2, 2, 1000)
    durations = drawn.astype("float32")
    expected = np.cumsum(durations.astype("float64"), axis=0)

    @jax.jit
    def summed(durations: jax.Array) -> Instant:
        def add(now: Instant, taken: jax.Array) -> tuple[Instant, Instant]:
            now = now.later(taken)
            return now, now

        return jax.lax.scan(add, Instant.at(np.zeros(1000)), durations)[1]

    found = summed(durations)
    assert found.value.dtype == found.rest.dtype == jnp.float32
    np.testing.assert_allclose(found.to_float64(), expected, rtol=1e-12)
    flat = Instant(found.value.ravel(), found.rest.ravel())
    order = np.lexsort((np.asarray(flat.rest), np.asarray(flat.value)))
    np.testing.assert_array_equal(order, np.argsort(expected.ravel(), kind="stable"))
    # One float of 32 bits has neither.
    plain = np.asarray(flat.value)
    assert (np.argsort(plain, kind="stable") != order).sum() > 1000


def test_one_clock_for_a_million_arrivals() -> None:
    """Errors of the sum do not pile up."""
    durations = np.random.default_rng(1).exponential(size=10**6).astype("float32")

    @jax.jit
    def last(durations: jax.Array) -> Instant:
        step = lambda now, taken: (now.later(taken), None)  # noqa: E731
        return jax.lax.scan(step, Instant.at(0.0), durations)[0]

    expected = durations.astype("float64").sum()
    np.testing.assert_allclose(last(durations).to_float64(), expected, rtol=1e-12)


def test_a_number_of_python_is_kept_to_48_bits() -> None:
    for number in (0.1, 1e9 + 1 / 3, 2.0**40 + 1, 0.0):
        np.testing.assert_allclose(Instant.at(number).to_float64(), number, rtol=4e-15)


@pytest.mark.parametrize("start", [0.0, 1e8 + 0.3])
def test_differences_comparisons_and_selections(start: float) -> None:
    early, late = Instant.at(start), Instant.at(start).later(jnp.float32(1e-3))
    assert early.is_before(late) and not late.is_before(early) and not early.is_before(early)
    np.testing.assert_allclose(late.since(early), 1e-3, rtol=1e-4)
    assert early.or_later(late) == late == late.or_later(early)
    both = Instant(*(jnp.stack(pair) for pair in zip(early, late, strict=True)))
    assert both.take(1) == late
    assert targets.put(both, jnp.int32(0), late).take(0) == late


def test_never_is_after_everything_and_stays_so() -> None:
    never = Instant.at(np.inf)
    assert Instant.at(1e30).is_before(never) and not never.is_before(never)
    assert not never.is_finite and not never.later(jnp.float32(1.0)).is_finite
    assert Instant.at(1.0).later(never).to_float64() == np.inf
