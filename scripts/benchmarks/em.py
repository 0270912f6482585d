"""Expected statistics per second for a mixture as large as the one fitted to MNIST.

70,000 examples of 20 coordinates, 10 components, 100 clients. Letters: `n` and `N`, `M` examples in
all, and by client; `D` coordinates; `G` components.
"""

from typing import Any

import jax
import numpy as np
from benchmarks.timing import in_turns, wall
from sklearn.mixture import GaussianMixture as Reference

import fedjax_sim
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.systems import em, fedem, vr_fedem

EXAMPLES, DIMENSIONS, COMPONENTS, CLIENTS, BATCH = 70_000, 20, 10, 100, 20
PASSES, ROUNDS = 20, 700
GAMMA = 1e-3


def bench_em(turns: int) -> dict[str, Any]:
    """Measure millions of expected statistics per second, against NumPy and scikit-learn.

    Full passes over the data, and rounds with mini-batches.
    """
    random = np.random.default_rng(0)
    means = 1.5 * random.normal(size=(COMPONENTS, DIMENSIONS))
    y = (
        means[random.integers(0, COMPONENTS, EXAMPLES)] + random.normal(size=(EXAMPLES, DIMENSIONS))
    ).astype("float32")
    partition = Partition(
        np.arange(EXAMPLES, dtype=np.int32).reshape(CLIENTS, -1),
        np.full(CLIENTS, EXAMPLES // CLIENTS),
    )
    problem = latent.make_estimation(latent.GaussianMixture(COMPONENTS), y, partition)
    start = problem.init(jax.random.key(0))
    params = problem.maximise(start)
    natural = np.asarray(problem.natural(params))
    reference = Reference(
        COMPONENTS,
        covariance_type="tied",
        max_iter=1,
        tol=0.0,
        init_params="random_from_data",
        random_state=0,
    )
    reference.weights_, reference.means_ = np.asarray(params.weights), np.asarray(params.means)
    reference.covariances_ = np.asarray(params.covariance)
    reference.precisions_cholesky_ = np.linalg.cholesky(np.linalg.inv(reference.covariances_))
    one_pass = jax.jit(lambda problem, natural: problem.client_statistics(natural).mean(axis=0))
    np.testing.assert_allclose(
        one_pass(problem, natural), numpy_statistics(natural, y) / EXAMPLES, atol=1e-4
    )
    np.testing.assert_allclose(
        reference.predict_proba(y).mean(axis=0), one_pass(problem, natural)[:COMPONENTS], atol=1e-4
    )
    rounds = {"num_clients": CLIENTS, "batch_size": BATCH, "gamma": GAMMA}
    systems = {
        "EM": (
            em.system,
            em.Hyper(num_clients=CLIENTS, batch_size=EXAMPLES // CLIENTS),
            PASSES,
            PASSES * EXAMPLES,
        ),
        "FedEM": (fedem.system, fedem.Hyper(**rounds), ROUNDS, ROUNDS * CLIENTS * BATCH),
        "VR-FedEM": (vr_fedem.system, vr_fedem.Hyper(**rounds, inner_steps=35.0), ROUNDS, None),
    }
    needed = {}

    def run(name: str) -> Any:
        system, hyper, ticks, _ = systems[name]
        result = fedjax_sim.simulate(system, problem, hyper, num_ticks=ticks, num_evals=1)
        needed[name] = int(result.curves.needed)
        return result.models

    contestants = {
        "one pass, ours": lambda: wall(lambda: one_pass(problem, natural)),
        "one pass, NumPy": lambda: wall(lambda: numpy_statistics(natural, y)),
        "one pass, scikit-learn's predict_proba": lambda: wall(lambda: reference.predict_proba(y)),
        **{f"{name}, ours": lambda name=name: wall(lambda: run(name)) for name in systems},
        "FedEM, NumPy": lambda: wall(
            lambda: numpy_fedem(np.asarray(start), y.reshape(CLIENTS, -1, DIMENSIONS), y)
        ),
    }
    seconds = in_turns(contestants, turns)
    assert needed["FedEM"] == systems["FedEM"][3]
    work = {name: EXAMPLES for name in contestants if name.startswith("one pass")}
    work |= {f"{name}, ours": number for name, number in needed.items()} | {
        "FedEM, NumPy": ROUNDS * CLIENTS * BATCH
    }
    speed = {name: work[name] / seconds[name] / 1e6 for name in contestants}
    return {
        "millions of statistics per second": speed,
        "one pass over NumPy": speed["one pass, ours"] / speed["one pass, NumPy"],
        "one pass over scikit-learn": speed["one pass, ours"]
        / speed["one pass, scikit-learn's predict_proba"],
        "FedEM over NumPy": speed["FedEM, ours"] / speed["FedEM, NumPy"],
    }


def numpy_statistics(natural: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sum the expected statistics of examples `f[n, D]`."""
    share = responsibilities(natural, y)
    return np.concatenate([share.sum(axis=0), (share.T @ y).ravel()])


def responsibilities(natural: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the posterior probability of each component given each example: `f[n, G]`."""
    logits = natural[:COMPONENTS] + y @ natural[COMPONENTS:].reshape(COMPONENTS, -1).T
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    return share / share.sum(axis=1, keepdims=True)


def numpy_fedem(start: np.ndarray, data: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Run FedEM with all clients and without compression, vectorised over clients.

    Args:
      start: Initial expected statistics.
      data: `f[N, M, D]`, examples by client.
      y: `f[n, D]`, all examples.
    """
    random = np.random.default_rng(1)
    moment = y.T @ y / EXAMPLES
    server, clients = start.copy(), np.arange(CLIENTS)[:, None]
    memories = np.zeros((CLIENTS, start.size), "float32")
    memory = memories.mean(axis=0)
    for _ in range(ROUNDS):
        first, second = server[:COMPONENTS], server[COMPONENTS:].reshape(COMPONENTS, -1)
        means = second / first[:, None]
        precise = np.linalg.solve(moment - (first[:, None] * means).T @ means, means.T).T
        natural = np.concatenate(
            [np.log(first / first.sum()) - (means * precise).sum(axis=1) / 2, precise.ravel()]
        )
        batch = data[clients, random.integers(0, data.shape[1], (CLIENTS, BATCH))]
        share = responsibilities(natural, batch.reshape(-1, DIMENSIONS)).reshape(
            CLIENTS, BATCH, COMPONENTS
        )
        sums = np.concatenate(
            [share.sum(axis=1), (share.transpose(0, 2, 1) @ batch).reshape(CLIENTS, -1)], axis=1
        )
        delta = sums / BATCH - server - memories
        field = memory + delta.mean(axis=0)
        server, memory, memories = (
            server + GAMMA * field,
            memory + delta.mean(axis=0),
            memories + delta,
        )
    return server
