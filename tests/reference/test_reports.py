"""Compressed and private messages against a slow loop with the same draws, in float64."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.streams import stream
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.server.privacy import parse_privacy
from fedjax_sim.systems import fedavg
from tests.reference import cohort_loops, reports_loop
from tests.reference.draws import LR, SEED, TICKS, Gradient, K, N, simulate


def members(timeline: Any) -> list[list[int]]:
    """List the clients of each round that do steps, in slot order."""
    return [
        [c for c, k in zip(clients.tolist(), steps.tolist(), strict=True) if k > 0]
        for clients, steps in zip(timeline.clients, timeline.steps, strict=True)
    ]


def models_of(run: Any) -> np.ndarray:
    """Stack the models after each round: `f64[T, 3]`."""
    return np.stack([run.curves[f"w{i}"].values[1:] for i in range(3)], axis=-1)


def test_error_feedback_up_and_signs_down(
    small: Callable, problem: Any, gradient: Gradient, start: np.ndarray
) -> None:
    """The largest entries with EF21, and a compressed downlink.

    `client_variance` is that of the models that clients received, and not of the server's.
    """
    hyper = small(
        fedavg.system,
        lr=LR,
        compression=parse_compressor("top_k:kept=2"),
        error_feedback=True,
        downlink=parse_compressor("sign"),
    )
    run = simulate(fedavg.system, problem, hyper)
    cohorts = members(run.timelines[0])
    wire = cohort_loops.Compressed(start, N, kept=2)
    rounds = cohort_loops.Rounds(
        start, cohorts, [[K] * 4] * TICKS, [[1 / 4] * 4] * TICKS, np.full(N, 1 / N), LR, gradient
    )
    held, variances, known = np.stack([start] * N), [], start
    expected = []
    for cohort, model in zip(cohorts, cohort_loops.fedavg(rounds, wire), strict=True):
        expected.append(model)
        held[cohort] = known  # as much as the client knew when it began
        known = wire.heard
        variances.append(np.square(held - model).sum())
    np.testing.assert_allclose(models_of(run), expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.curves.client_variance[1:], variances, rtol=1e-9)
    # Three numbers: two with their places up; three signs and a scale down, or all of them.
    up, down = run.curves.uplink_bits.values, run.curves.downlink_bits.values
    assert np.diff(up).tolist() == [4 * 2 * (64 + 2)] * TICKS
    assert np.diff(down)[0] == 4 * 3 * 64
    assert 4 * 67 <= np.diff(down).min() < 4 * 3 * 64


def test_poisson_cohorts_with_adaptive_clipping(
    small: Callable, problem: Any, gradients: Callable[..., Gradient], start: np.ndarray
) -> None:
    """Clipping, the count, and both noises, with cohorts of changing size.

    The slots are split over two devices; noise is added once.
    """
    hyper = small(
        fedavg.system,
        lr=LR,
        sampling="reshuffled",
        selection="poisson",
        privacy=parse_privacy("adaptive:clip=0.3:noise=0.4:count_noise=0.2:quantile=0.6"),
    )
    with jax.enable_x64(True):
        run = fedjax_sim.simulate(
            fedavg.system,
            problem,
            hyper,
            seed=SEED,
            budget=fedjax_sim.Ticks(TICKS),
            num_evals=TICKS,
            layout=Layout(1, False, 1, client_devices=2),
        )
    cohorts = members(run.timelines[0])
    assert len({len(cohort) for cohort in cohorts}) > 2

    def draw(number: int) -> tuple[np.ndarray, float]:
        with jax.enable_x64(True):
            key = stream(jax.random.key(SEED), "learning")
            noise, count = (
                jax.random.fold_in(stream(key, f"privacy {name}"), number)
                for name in ("noise", "count")
            )
            return (
                np.asarray(jax.random.normal(noise, (3,), "float64")),
                float(jax.random.normal(count, (), "float64")),
            )

    models, bounds = reports_loop.run_private(
        start=start,
        num_clients=N,
        cohorts=cohorts,
        expected=4,
        num_steps=K,
        lr=LR,
        gradient=gradients(reshuffled=True),
        privacy=reports_loop.Adaptive(
            0.3, 0.6, 0.2, (0.4**-2 - (2 * 0.8) ** -2) ** -0.5, 0.8, draw
        ),
    )
    np.testing.assert_allclose(models_of(run), models, rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.curves.clip_norm.values[1:], bounds, rtol=1e-11)
    assert min(bounds) < 0.3 < max(bounds) or len(set(bounds)) == TICKS
