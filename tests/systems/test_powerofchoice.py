"""Power-of-Choice against an own loop: who is asked, who trains, when, and what is counted."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim.core.streams import clock_key, shuffle_bits, shuffled_index, stream
from fedjax_sim.engine.program.opened import learning_key
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import powerofchoice
from fedjax_sim.timelines import ClientTable

N, K, LR, TICKS = 9, 4, 0.3, 30
CURVATURE = np.linspace(0.3, 2.0, N)
CENTERS = np.random.default_rng(0).normal(size=(N, 2))
RATES = np.array([1, 2, 4, 8, 0.5, 0.25, 1, 2, 4.0])
START = np.array([2.0, -1.0])


def hyper_of(**changes: Any) -> powerofchoice.Hyper:
    """Return settings of clients with their own constant speeds."""
    own = {"num_selected": 5, "num_chosen": 2, "local_steps": K, "lr": LR, "batch_size": 1}
    clock = {"client_table": ClientTable(RATES), "runtime_law": "runtime_constant"}
    return powerofchoice.Hyper(num_clients=N).replace(**(own | clock | changes))


def simulate(hyper: Any, **options: Any) -> fedjax_sim.Run:
    """Run in float64, with the model of every tick."""
    options = {"budget": fedjax_sim.Ticks(TICKS), "num_evals": TICKS} | options
    keep = fedjax_sim.Keep(models=True)
    with jax.enable_x64(True):
        problem = Quadratic.of(CENTERS, curvature=CURVATURE, start=START)
        return fedjax_sim.simulate(powerofchoice.system, problem, hyper, keep=keep, **options)


def losses_at(model: np.ndarray) -> np.ndarray:
    """Return the loss of each client, which is that of its mini-batches."""
    return CURVATURE / 2 * np.square(model - CENTERS).sum(axis=1)


def test_own_loop() -> None:
    """Two of five candidates train: those with the largest losses; a round waits for them alone."""
    run = simulate(hyper_of(loss_time=0.5, server_interact=1.0))
    bits = shuffle_bits(stream(clock_key(learning_key(0)), "cohorts"))
    model, now, waits_for_others = START, 0.0, 0
    for t in range(TICKS):
        np.testing.assert_allclose(run.samples[t], model, rtol=0, atol=1e-12)
        candidates = np.asarray(shuffled_index(bits, jnp.arange(5), N, t))
        losses = losses_at(model)[candidates]
        chosen = candidates[np.argsort(-losses)[:2]]
        now += 0.5 + (K / RATES[chosen]).max() + 1.0
        waits_for_others += (K / RATES[candidates]).max() > (K / RATES[chosen]).max()
        np.testing.assert_array_equal(run.timelines[0].clients[t], chosen)
        np.testing.assert_allclose(run.timelines[0].time[t], now, rtol=1e-12)
        share = 1 - (1 - LR * CURVATURE[chosen]) ** K
        model = (model + share[:, None] * (CENTERS[chosen] - model)).mean(axis=0)
    assert waits_for_others > TICKS / 4
    assert run.curves.needed == TICKS * (2 * K + 5)
    assert (run.curves.uplink_bits[-1], run.curves.downlink_bits[-1]) == (
        TICKS * (2 * 128 + 5 * 64),
        TICKS * 5 * 128,
    )


@pytest.mark.slow
def test_candidates_by_their_examples() -> None:
    """Clients with twice as many examples are drawn about twice as often if few are drawn."""

    @struct.dataclass
    class Sized(Quadratic):
        @property
        def counts(self) -> jax.Array:
            return jnp.asarray([1, 1, 1, 1, 1, 2, 2, 2, 2], "int32")

    problem = Sized.of(CENTERS, curvature=CURVATURE, start=START)
    hyper = hyper_of(candidates="by_examples", num_selected=1, num_chosen=1)
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(2000), "num_evals": 1}
    run = fedjax_sim.simulate(powerofchoice.system, problem, hyper, **options)
    counts = np.bincount(run.timelines[0].clients[:, 0], minlength=N)
    expected = 2000 * np.array([1, 1, 1, 1, 1, 2, 2, 2, 2]) / 13
    assert np.square((counts - expected) / np.sqrt(expected)).sum() < 26  # chi-square, 0.1 %


@pytest.mark.slow
def test_weights_by_examples() -> None:
    """The chosen count by their examples, if that is asked for."""

    @struct.dataclass
    class Sized(Quadratic):
        @property
        def counts(self) -> jax.Array:
            return jnp.arange(1, N + 1, dtype="int32")

    problem = Sized.of(CENTERS, curvature=CURVATURE, start=START)
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(5), "num_evals": 1}
    hyper = hyper_of(weighting="examples")
    timeline = fedjax_sim.simulate(powerofchoice.system, problem, hyper, **options).timelines[0]
    share = timeline.clients + 1
    expected = share / share.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(timeline.weight, expected, rtol=1e-6)


def test_only_available_clients_are_asked() -> None:
    """One is away all the time but for a moment, so that others are asked in its place."""
    hours = [[(0.0, 0.001)]] + [[(0.0, 1000.0)]] * (N - 1)
    table = ClientTable(RATES, available=hours, period=1000.0)
    run = simulate(hyper_of(client_table=table, num_selected=N, num_chosen=2), num_evals=1)
    assert 0 not in run.timelines[0].clients[1:] and (run.timelines[0].clients >= 0).all()


def test_messages_are_those_of_the_candidates() -> None:
    """At night nobody is one, and by day energy is also that of those who are not chosen."""
    hours, byte = [[(0.0, 12.0)]] * N, np.arange(1.0, N + 1)
    table = ClientTable(RATES, available=hours, period=40.0, energy_byte=byte)
    run = simulate(hyper_of(client_table=table, num_selected=5, num_chosen=2))
    clients = run.timelines[0].clients
    is_day = (clients >= 0).all(axis=1)
    assert 0 < is_day.sum() < TICKS and not (clients[~is_day] >= 0).any()
    # A model has 128 bits and a loss 64: 2 send both, 3 a loss alone, and all 5 get the model.
    np.testing.assert_array_equal(
        run.curves.uplink_bits[1:], np.cumsum(is_day * (2 * 192 + 3 * 64))
    )
    np.testing.assert_array_equal(run.curves.downlink_bits[1:], np.cumsum(is_day * 5 * 128))
    of_others = [(byte.sum() - byte[row].sum()) / (N - 2) for row in clients]
    used = [
        byte[row].sum() * 40 + 3 * 24 * mean for row, mean in zip(clients, of_others, strict=True)
    ]
    np.testing.assert_allclose(run.curves.energy[1:], np.cumsum(is_day * used))
