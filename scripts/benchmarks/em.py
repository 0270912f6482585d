"""Expected statistics per second for a mixture as large as the one fitted to MNIST.

70,000 examples of 20 coordinates, 10 components, 100 clients; then FedEM and VR-FedEM for other
sizes of mini-batches and examples. Letters: `n` and `N`, `M` examples in all, and by client; `D`
coordinates; `G` components; `B` examples of a mini-batch; `q` numbers of a statistic.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from benchmarks.timing import in_turns, wall
from sklearn.mixture import GaussianMixture as Reference

import fedjax_sim
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.systems import em, fedem, vr_fedem

EXAMPLES, DIMENSIONS, COMPONENTS, CLIENTS = 70_000, 20, 10, 100
PASSES, GAMMA, INNER = 20, 1e-3, 35
LONGER = 4
"""How many times as long the longer run is."""


class Size(NamedTuple):
    """A size of FedEM. All take about as much arithmetic.

    Attributes:
      batch: Examples of a client's mini-batch.
      dimensions: Coordinates of an example.
      rounds: Number of rounds.
    """

    batch: int
    dimensions: int
    rounds: int


SIZES = (
    Size(20, 20, 700),
    Size(20, 5, 1400),
    Size(100, 5, 350),
    Size(100, 20, 210),
    Size(20, 100, 210),
    Size(100, 100, 70),
)


def bench_em(turns: int) -> dict[str, Any]:
    """Measure millions of expected statistics per second, against NumPy and scikit-learn.

    Full passes over the data, and rounds with mini-batches. NumPy takes part twice: as one usually
    writes it, and with components ahead of examples, which is its fastest order.
    """
    y, problem = make_problem(DIMENSIONS)
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
    for sums in (example_rows, component_rows):
        np.testing.assert_allclose(
            one_pass(problem, natural), sums(natural, y[None])[0] / EXAMPLES, atol=1e-4
        )
    np.testing.assert_allclose(
        reference.predict_proba(y).mean(axis=0), one_pass(problem, natural)[:COMPONENTS], atol=1e-4
    )
    hyper = em.paper(num_clients=CLIENTS, batch_size=EXAMPLES // CLIENTS)
    contestants = {
        "one pass, ours": lambda: wall(lambda: one_pass(problem, natural)),
        "one pass, NumPy": lambda: wall(lambda: example_rows(natural, y[None])),
        "one pass, NumPy, components first": lambda: wall(lambda: component_rows(natural, y[None])),
        "one pass, scikit-learn's predict_proba": lambda: wall(lambda: reference.predict_proba(y)),
        "EM, ours": lambda: wall(
            lambda: (
                fedjax_sim.simulate(
                    em.system, problem, hyper, budget=fedjax_sim.Ticks(PASSES), num_evals=1
                ).models
            )
        ),
    }
    seconds = in_turns(contestants, turns)
    work = dict.fromkeys(contestants, EXAMPLES) | {"EM, ours": PASSES * EXAMPLES}
    speed = {name: work[name] / seconds[name] / 1e6 for name in contestants}
    ours = speed["one pass, ours"]
    return {
        "millions of statistics per second": speed,
        "one pass over NumPy": ours / speed["one pass, NumPy"],
        "one pass over NumPy, components first": ours / speed["one pass, NumPy, components first"],
        "one pass over scikit-learn": ours / speed["one pass, scikit-learn's predict_proba"],
        "rounds": [bench_rounds(size, turns) for size in SIZES],
    }


def bench_rounds(size: Size, turns: int) -> dict[str, Any]:
    """Measure FedEM and VR-FedEM of one size: milliseconds of a round, and ratios of them.

    We run two lengths, and their difference tells the cost of a round from what a run does once:
    its schedule, and an evaluation over all examples before and after. NumPy does nothing once.
    """
    y, problem = make_problem(size.dimensions)
    start = np.asarray(problem.init(jax.random.key(0)))
    rounds = {"num_clients": CLIENTS, "batch_size": size.batch, "gamma": GAMMA}
    systems = {
        "FedEM": (fedem.system, fedem.paper(**rounds), 0),
        "VR-FedEM": (vr_fedem.system, vr_fedem.paper(**rounds, inner_steps=float(INNER)), INNER),
    }
    contestants: dict[str, Callable[[], float]] = {}
    for name, (system, hyper, inner) in systems.items():
        for times in (1, LONGER):
            contestants[f"{name}, ours x {times}"] = (
                lambda system=system, hyper=hyper, ticks=times * size.rounds: wall(
                    lambda: (
                        fedjax_sim.simulate(
                            system, problem, hyper, budget=fedjax_sim.Ticks(ticks), num_evals=1
                        ).models
                    )
                )
            )
        for label, sums in (("NumPy", example_rows), ("NumPy, components first", component_rows)):
            contestants[f"{name}, {label}"] = lambda sums=sums, inner=inner: wall(
                lambda: numpy_rounds(start, y, size, sums=sums, inner=inner)
            )
    seconds = in_turns(contestants, turns)
    once = {}
    for name in systems:
        short, long = (seconds.pop(f"{name}, ours x {times}") for times in (1, LONGER))
        seconds[f"{name}, ours"] = (long - short) / (LONGER - 1)
        once[name] = 1e3 * (short - seconds[f"{name}, ours"])
    ratios = {
        f"{name} over {label}": seconds[f"{name}, {label}"] / seconds[f"{name}, ours"]
        for name in systems
        for label in ("NumPy", "NumPy, components first")
    }
    of_round = {name: 1e3 * value / size.rounds for name, value in seconds.items()}
    return {
        **size._asdict(),
        "milliseconds a round": of_round,
        "milliseconds of ours once": once,
        **ratios,
    }


def make_problem(dimensions: int) -> tuple[np.ndarray, latent.Estimation]:
    """Draw examples `f32[n, D]` of a mixture, and share them evenly among the clients."""
    random = np.random.default_rng(0)
    means = 1.5 * random.normal(size=(COMPONENTS, dimensions))
    noise = random.normal(size=(EXAMPLES, dimensions))
    y = (means[random.integers(0, COMPONENTS, EXAMPLES)] + noise).astype("float32")
    partition = Partition(
        np.arange(EXAMPLES, dtype=np.int32),
        np.full(CLIENTS, EXAMPLES // CLIENTS),
    )
    return y, latent.make_estimation(latent.GaussianMixture(COMPONENTS), y, partition)


def example_rows(natural: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Sum the expected statistics of each client's examples, with a row per example.

    Args:
      natural: `f[q]`, phi.
      examples: `f[N, B, D]`.

    Returns:
      `f[N, q]`.
    """
    num, size, dimensions = examples.shape
    flat = examples.reshape(-1, dimensions)
    logits = natural[:COMPONENTS] + flat @ natural[COMPONENTS:].reshape(COMPONENTS, -1).T
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    share = share.reshape(num, size, COMPONENTS)
    products = share.transpose(0, 2, 1) @ examples
    return np.concatenate([share.sum(axis=1), products.reshape(num, -1)], axis=1)


def component_rows(natural: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Sum the same with a row per component, in place where possible. As `example_rows`."""
    num, size, dimensions = examples.shape
    flat = examples.reshape(-1, dimensions)
    share = natural[COMPONENTS:].reshape(COMPONENTS, -1) @ flat.T
    share += natural[:COMPONENTS, None]
    share -= share.max(axis=0)
    np.exp(share, out=share)
    share /= share.sum(axis=0)
    share = share.reshape(COMPONENTS, num, size)
    products = share.transpose(1, 0, 2) @ examples
    return np.concatenate([share.sum(axis=2).T, products.reshape(num, -1)], axis=1)


def numpy_rounds(
    start: np.ndarray,
    y: np.ndarray,
    size: Size,
    *,
    sums: Callable[[np.ndarray, np.ndarray], np.ndarray],
    inner: int = 0,
) -> np.ndarray:
    """Run FedEM or VR-FedEM with all clients and without compression, vectorised over clients.

    Args:
      start: Initial expected statistics, `f[q]`.
      y: `f[n, D]`, all examples, client by client.
      size: Size of the mini-batches, and number of rounds.
      sums: From phi and examples to the sums of each client's statistics.
      inner: Inner steps of VR-FedEM; 0 for FedEM.

    Returns:
      The server's statistics after the last round, `f[q]`.
    """
    random = np.random.default_rng(1)
    moment = y.T @ y / EXAMPLES
    each = EXAMPLES // CLIENTS
    firsts = each * np.arange(CLIENTS)[:, None]
    server, natural = start.copy(), np.zeros_like(start)
    oracle = memories = np.zeros((CLIENTS, start.size), "float32")
    memory = memories.mean(axis=0)
    for tick in range(size.rounds):
        first, second = server[:COMPONENTS], server[COMPONENTS:].reshape(COMPONENTS, -1)
        means = second / first[:, None]
        precise = np.linalg.solve(moment - (first[:, None] * means).T @ means, means.T).T
        before, natural = (
            natural,
            np.concatenate(
                [np.log(first / first.sum()) - (means * precise).sum(axis=1) / 2, precise.ravel()]
            ),
        )
        if inner and tick % inner == 0:
            oracle = sums(natural, y.reshape(CLIENTS, each, -1)) / each
        else:
            places = firsts + random.integers(0, each, (CLIENTS, size.batch))
            batch = y.take(places.ravel(), axis=0).reshape(CLIENTS, size.batch, -1)
            mean = sums(natural, batch) / size.batch
            oracle = oracle + mean - sums(before, batch) / size.batch if inner else mean
        delta = oracle - server - memories
        change = delta.mean(axis=0)
        server, memory, memories = (
            server + GAMMA * (memory + change),
            memory + change,
            memories + delta,
        )
    return server
