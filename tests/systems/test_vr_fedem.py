"""VR-FedEM on noisy means with the constant step of its theorem, all in 64 bits."""

import numpy as np
import pytest

from tests.systems.noisy_means import BLOCKS, FEDEM, VR, N, Path, noisy_mean, replay

pytestmark = pytest.mark.usefixtures("in_64_bits")


TOY_B = np.random.default_rng(9).uniform(0.1, 0.9, N * 100)


@pytest.fixture(scope="module")
def variance_reduced() -> dict[str, Path]:
    """VR-FedEM and FedEM on toy B with the constant step of Theorem 2, compressed."""
    problem = noisy_mean(TOY_B, examples=100)
    base = VR.paper(num_clients=N, gamma=0.245, batch_size=5, inner_steps=20.0, compression=BLOCKS)
    half = base.replace(participation=0.5, alpha=0.3)
    vr = replay(VR, problem, base, half)
    frozen = replay(VR, problem, half.replace(offline="freeze"))
    noisy = replay(
        FEDEM,
        problem,
        FEDEM.paper(num_clients=N, gamma=0.245, batch_size=20, compression=BLOCKS),
    )
    return {"all": vr.of(0), "half": vr.of(1), "frozen": frozen.of(0), "fedem": noisy.of(0)}


@pytest.mark.slow
def test_variance_reduction_has_no_noise_floor(variance_reduced: dict[str, Path]) -> None:
    """With all clients, and with half of them, whether absent ones compute or freeze.

    FedEM with the same step size has a floor.
    """
    assert variance_reduced["all"].field[-1] < 1e-25
    for name in ("half", "frozen"):
        assert variance_reduced[name].field[-1] < 1e-16, name
    assert variance_reduced["fedem"].field[100:].mean() > 1e-4


@pytest.mark.slow
def test_oracles_and_memories_of_variance_reduction(variance_reduced: dict[str, Path]) -> None:
    """Oracles are exact at outer steps and inexact in between.

    The server's memory is the mean of the clients' at every tick.
    """
    problem = noisy_mean(TOY_B, examples=100)
    for name in ("all", "half", "frozen"):
        states = variance_reduced[name].states
        np.testing.assert_allclose(
            states.memory.server, np.asarray(states.memory.clients).mean(axis=1), rtol=0, atol=1e-12
        )
        for tick, is_exact in (
            (0, True),
            (1, True),
            (7, False),
            (20, False),
            (21, True),
            (41, True),
        ):
            # The state after a tick holds the oracle of the statistics before that tick.
            exact = problem.client_statistics(
                problem.natural(problem.maximise(states.server[max(tick - 1, 0)]))
            )
            error = np.abs(np.asarray(states.oracle[tick] - exact)).max()
            assert (error < 1e-12) == is_exact, (name, tick, error)
