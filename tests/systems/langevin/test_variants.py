"""Methods that share FA-LD's kernel: chains against exact laws on Gaussian clients, and reductions.

Three clients in the plane have unequal Hessians, weights and noisy gradients, so that every moment
is asymmetric. Chains start away from the mode and are compared after a few rounds, means and all
covariances, within five standard errors.
"""

from typing import Any

import jax
import numpy as np
import pytest

import fedjax_sim
from experiments.fald.formulas import exact_laws
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation
from fedjax_sim import Layout
from fedjax_sim.problems import GaussianClients
from fedjax_sim.results.diagnostics import Gaussian
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.systems import langevin
from tests.systems.langevin import variant_laws as variants

CHAINS, ETA, TAU = 4000, 0.08, 1.3
HESSIANS = np.array(
    [[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.3], [-0.3, 3.0]], [[4.0, 0.0], [0.0, 0.5]]]
)
CENTERS = np.array([[1.0, -1.0], [0.0, 2.0], [-2.0, 0.5]])
NOISE = np.array([[[0.7, 0.0], [0.4, 0.2]]] * 3)
COUNTS, START = (1, 2, 3), np.array([1.5, -0.5])
SPARSE = parse_compressor("sparsification:keep=0.4")
WIDE = Layout(slots_at_once=3, lanes_at_once=True, lane_devices=1)


def clients(counts: Any = COUNTS) -> GaussianTarget:
    counts = np.asarray(counts, float)
    noise = NOISE @ np.swapaxes(NOISE, 1, 2)
    return GaussianTarget(HESSIANS, CENTERS, counts / counts.sum(), TAU, noise)


def chains(
    ticks: int, counts: Any = COUNTS, num: int = CHAINS, swept: Any = None, **settings: Any
) -> Any:
    """Run chains in float64, and return the run."""
    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS, CENTERS, counts=counts, noise=NOISE, start=START)
        chosen = {"num_clients": 3, "step_size": ETA, "temperature": TAU} | settings
        hyper = langevin.paper(**chosen)
        return fedjax_sim.sweep(
            langevin.system,
            problem,
            hyper,
            seeds=num,
            settings=swept,
            budget=fedjax_sim.Ticks(ticks),
            num_evals=1,
            layout=WIDE,
        )


def assert_law(models: np.ndarray, law: Gaussian) -> None:
    """Compare means and covariances with exact ones; errors come from fourth moments."""
    mean, covariance = law.mean[:2], law.covariance[:2, :2]
    apart = models - models.mean(axis=0)
    products = apart[:, :, None] * apart[:, None, :]
    errors = products.std(axis=0) / np.sqrt(len(models))
    assert (errors < 0.1 * np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))).all()
    off = np.abs(models.mean(axis=0) - mean) / np.sqrt(np.diag(covariance) / len(models))
    np.testing.assert_array_less(off, 5)
    np.testing.assert_array_less(np.abs(products.mean(axis=0) - covariance) / errors, 5)


@pytest.mark.slow
def test_sparse_messages_at_rest() -> None:
    """QLSD (one step, the server's noise, no memory), and with three steps and memories.

    After 80 rounds the laws are at rest. What is lost makes variances larger. With memories and
    three steps tails are heavy (kurtosis 54 in 16,000 chains), so that a few thousand other chains
    may be further off than their standard errors say.
    """
    ticks, num, values = 80, 2000, {"local_steps": [1, 3], "memory": [0.0, 0.4]}
    run = chains(ticks, num=num, swept=values, compression=SPARSE, rho=1.0)
    models = run.models.reshape(2, 2, num, 2)
    for i in np.ndindex(2, 2):
        local_steps, memory = (each[n] for each, n in zip(values.values(), i, strict=True))
        exact = variants.Messages(clients(), ETA, local_steps, 1.0, 0.4, memory)
        law = exact.rounds(exact.first(START), ticks)
        assert_law(models[i], law)
        later = exact.rounds(law, 10)
        np.testing.assert_allclose(later.covariance[:2, :2], law.covariance[:2, :2], rtol=0.01)
        plain = exact._replace(keep=1.0, memory=0.0)
        without = plain.rounds(plain.first(START), ticks)
        assert law.covariance[0, 0] > 1.1 * without.covariance[0, 0]
        taken = exact_laws.one_round(clients(), step_size=ETA, local_steps=local_steps, rho=1.0)
        usual = exact_laws.iterate_rounds(taken, exact_laws.point(START), ticks)
        np.testing.assert_allclose(without.mean[:2], usual.mean[-1], rtol=1e-10)
        np.testing.assert_allclose(without.covariance[:2, :2], usual.covariance[-1], rtol=1e-10)
    # 0.4 of two floats of 64 bits, of every client in every round.
    assert (run.curves.uplink_bits.isel(eval=-1) == ticks * 3 * 51).all()


@pytest.mark.slow
def test_memories_of_some_clients() -> None:
    """The server's memory is of all clients, whoever takes part; nothing is lost here (keep = 1).

    Under partial participation that changes the mean of a round by sum_c (p_c - w_c) h_c, which
    makes the average of clients with memories closer to that of everyone.
    """
    how = {"local_steps": 2, "rho": 1.0, "gradient": "exact", "num_selected": 1, "temperature": 0.1}
    how |= {"participants": "without_replacement", "step_size": 0.02}
    whole = parse_compressor("sparsification:keep=1")
    swept = {"memory": [1e-9, 0.3]}
    models = chains(200, 1, 100, swept=swept, compression=whole, **how).models.reshape(2, 100, 2)
    law = exact_laws.target_law(clients((1, 1, 1))._replace(temperature=0.1))
    spread = [np.trace(np.cov(each.T)) / np.trace(law.covariance) for each in models]
    assert spread[0] > 1.5 and spread[1] < 0.8 * spread[0]
    np.testing.assert_allclose(models[1].mean(axis=0), law.mean, atol=0.15)


@pytest.mark.slow
def test_nothing_lost_is_fald() -> None:
    """Bit for bit without a compressor; to rounding if every number of a message is kept."""
    how = {"local_steps": 3, "rho": 0.6, "num": 3}
    expected = chains(4, **how).models
    none, all_kept = (parse_compressor(text) for text in ("identity", "sparsification:keep=1"))
    np.testing.assert_array_equal(chains(4, compression=none, **how).models, expected)
    swept = {"memory": [1e-9, 0.5]}
    found = chains(4, compression=all_kept, swept=swept, **how).models
    np.testing.assert_allclose(found, np.tile(expected, (2, 1)), rtol=1e-12)


@pytest.mark.slow
def test_sghmc_with_a_constant_preconditioner() -> None:
    """The preconditioner is 1 / (floor + |gradient of the mean loss|) at the start.

    It keeps its first value here. In coordinates x / sqrt(D) the dynamics are those without it.
    """
    ticks, floor, how = 6, 0.5, {"local_steps": 3, "rho": 0.5, "friction": 0.35}
    scaled = {"preconditioner": "rmsprop", "precondition_decay": 1.0, "precondition_floor": floor}
    run = chains(ticks, gradient="exact", **how, **scaled)
    exact = clients()._replace(gradient_noise=0.0)
    slope = np.einsum("c,cij,cj->i", exact.weights, HESSIANS, START - CENTERS) / sum(COUNTS)
    root = (floor + np.abs(slope)) ** -0.5
    assert np.ptp(root) > 0.1
    turned = variants.preconditioned(exact, root**2)
    taken = variants.momentum_round(turned, step_size=ETA, **how)
    first = exact_laws.point(np.concatenate([START / root, np.zeros(2)]))
    laws = exact_laws.iterate_rounds(taken, first, ticks)
    mean, covariance = laws.mean[-1, :2], laws.covariance[-1, :2, :2]
    assert_law(run.models, Gaussian(mean * root, covariance * np.outer(root, root)))
    # A model, a velocity and a gradient of two floats each.
    assert (run.curves.uplink_bits.isel(eval=-1) == ticks * 3 * 384).all()
    heavy = variants.momentum_round(clients(), step_size=ETA, **(how | {"friction": 1.0}))
    usual = exact_laws.one_round(clients(), step_size=ETA, local_steps=3, rho=0.5)
    both = exact_laws.iterate_rounds(heavy, first, 5)
    known = exact_laws.iterate_rounds(usual, exact_laws.point(START / root), 5)
    np.testing.assert_allclose(both.mean[-1][:2], known.mean[-1], rtol=1e-12)
    np.testing.assert_allclose(both.covariance[-1][:2, :2], known.covariance[-1], rtol=1e-12)


@pytest.mark.slow
def test_global_control_variates() -> None:
    """Their mean is that of the target, for any K, and noise of gradients cancels."""
    ticks, how = 6, {"local_steps": 8, "rho": 0.5}
    who = Participation("without_replacement", 2)
    run = chains(ticks, 1, anchor="global", participants=who.scheme, num_selected=2, **how)
    taken = variants.controlled_round(clients((1, 1, 1)), step_size=ETA, participation=who, **how)
    laws = exact_laws.iterate_rounds(taken, exact_laws.point(START), ticks)
    assert_law(run.models, Gaussian(laws.mean[-1], laws.covariance[-1]))
    mode = exact_laws.target_law(clients((1, 1, 1))).mean
    np.testing.assert_allclose(exact_laws.stationary(taken).mean, mode, rtol=1e-10)
    biased = exact_laws.one_round(clients((1, 1, 1)), step_size=ETA, **how)
    assert np.abs(exact_laws.stationary(biased).mean - mode).max() > 0.1
    # Two models and three gradients up; two models, an anchor and three gradients down.
    for bits, messages in ((run.curves.uplink_bits, 5), (run.curves.downlink_bits, 6)):
        assert (bits.isel(eval=-1) == ticks * messages * 128).all()
    assert (run.curves.needed == ticks * (2 * 2 * 8 + 3)).all()


@pytest.mark.slow
def test_client_control_variates_take_away_the_noise_of_gradients() -> None:
    """Nothing else changes: chains are those of exact gradients, with an anchor every 2 rounds."""
    how = {"local_steps": 3, "num": 3}
    found = chains(5, anchor="client", control_rounds=2.0, **how)
    expected = chains(5, gradient="exact", **how)
    np.testing.assert_allclose(found.models, expected.models, rtol=1e-10)
    assert (found.curves.needed == 5 * 2 * 3 * 3 + 3 * 3).all()


@pytest.mark.slow
def test_anchors_wait_for_a_round_with_reports() -> None:
    """Also the first: no round follows slopes that are not known yet, and none counts in vain."""
    how: dict[str, Any] = {"local_steps": 3, "num": 20, "drop_rate": 0.7}
    found = chains(5, anchor="client", control_rounds=2.0, **how)
    expected = chains(5, gradient="exact", **how)
    reports = np.stack([(each.clients >= 0).sum(axis=1) for each in found.timelines])
    assert ((reports[:, 0] == 0) & (reports[:, 1] > 0)).any()
    np.testing.assert_allclose(found.models, expected.models, rtol=1e-10)
    anchors = [(reports[:, i : i + 2] > 0).any(axis=1).sum() for i in (0, 2, 4)]
    assert found.curves.needed.sum() == 2 * 3 * reports.sum() + 3 * sum(anchors)
    # An anchor of two floats to the clients that do not get the model anyway.
    firsts = [next((n for n in row[i : i + 2] if n), 3) for row in reports for i in (0, 2, 4)]
    sent = 128 * (reports.sum() + sum(3 - n for n in firsts))
    assert found.curves.downlink_bits.isel(eval=-1).sum() == sent


def test_a_preconditioner_begins_with_the_first_report() -> None:
    """V is the first known square, whatever rounds went by before, against a loop by hand."""
    ticks, floor, keep = 4, 0.5, 0.9
    scaled: dict[str, Any] = {
        "preconditioner": "rmsprop",
        "precondition_decay": keep,
        "precondition_floor": floor,
    }
    how: dict[str, Any] = {"local_steps": 1, "num": 20, "drop_rate": 0.6, "temperature": 0.0}
    run = chains(ticks, gradient="exact", **how, **scaled)
    assert any((each.clients[0] < 0).all() for each in run.timelines)
    for timeline, found in zip(run.timelines, run.models, strict=True):
        model, square = START, None
        for clients, weight in zip(timeline.clients, timeline.weight, strict=True):
            who = clients[clients >= 0]
            if not len(who):
                continue
            slopes = np.einsum("cij,cj->ci", HESSIANS[who], model - CENTERS[who])
            slope = weight[clients >= 0] @ slopes
            now = np.square(slope / sum(COUNTS))
            square = now if square is None else keep * square + (1 - keep) * now
            model = model - ETA * slope / (floor + np.sqrt(square))
        np.testing.assert_allclose(found, model, rtol=1e-10)
