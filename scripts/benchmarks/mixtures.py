"""Mixtures of Gaussians against scikit-learn, and how often FedEM fails with and without a prior.

First table: mean log-likelihood of EM and of FedEM (all examples, half of the clients, messages
compressed with omega = 1) next to scikit-learn's from the same start, for four kinds of covariances
on three whitened data sets whose ten clients hold unequal pieces of the data sorted by class.

Second table: lanes of 16 that fail within a number of rounds, by gamma, on the same clients with
mini-batches of five, half of the clients and the same compression: as it is, with `guard`, and with
a prior. Here the data are not whitened, so that covariances are closer to being singular.

    python scripts/benchmarks/mixtures.py likelihood [--rounds 12000]
    python scripts/benchmarks/mixtures.py failures [--rounds 500] [--lanes 16]
"""

import argparse
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture as Reference

import fedjax_sim
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.mixtures import FORMS, Mixture
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.systems import em, fedem

CLIENTS = 10
GAMMAS = (0.01, 0.03, 0.1)
PRIOR = 1e-3
FEDEM: dict[str, Any] = {
    "participation": 0.5,
    "compression": parse_compressor("block:norm=2:block=4"),
}


def data_sets() -> dict[str, tuple[np.ndarray, int]]:
    """Load examples `[n, D]` or `[n]`, sorted by class, with a number of components."""
    iris, wine, cancer = datasets.load_iris(), datasets.load_wine(), datasets.load_breast_cancer()
    scaled = (wine.data - wine.data.mean(axis=0)) / wine.data.std(axis=0)
    return {
        "iris": (iris.data[np.argsort(iris.target)], 3),
        "wine, 3 components of 13": (PCA(3).fit_transform(scaled)[np.argsort(wine.target)], 3),
        "breast cancer, radius": (cancer.data[np.argsort(cancer.target), 0], 2),
    }


def unequal_clients(num_examples: int) -> Partition:
    """Give clients consecutive examples, the last client about four times as many as the first."""
    cuts = np.cumsum(np.linspace(1, 4, CLIENTS))
    cuts = np.concatenate([[0], np.round(cuts / cuts[-1] * num_examples)]).astype(int)
    counts = np.diff(cuts)
    return Partition(np.arange(num_examples, dtype=np.int32), counts.astype(np.int32))


def start_of(y: np.ndarray, components: int, kind: str) -> tuple[Mixture, dict[str, Any]]:
    """Choose parameters to start from, for us and for scikit-learn: examples far apart."""
    rows = y.reshape(len(y), -1)
    means = rows[np.linspace(0, len(y) - 1, 2 * components + 1).astype(int)[1::2]]
    covariance = np.cov(rows.T, bias=True).reshape(rows.shape[1], -1)
    made: dict[str, tuple[Any, Any]] = {
        "tied": (covariance, np.linalg.inv(covariance)),
        "full": (
            np.stack([covariance] * components),
            np.stack([np.linalg.inv(covariance)] * components),
        ),
        "diag": (
            np.stack([np.diag(covariance)] * components),
            np.stack([1 / np.diag(covariance)] * components),
        ),
        "spherical": (
            np.full(components, np.trace(covariance) / len(covariance)),
            np.full(components, len(covariance) / np.trace(covariance)),
        ),
    }
    weights = np.full(components, 1 / components)
    given = {"weights_init": weights, "means_init": means, "precisions_init": made[kind][1]}
    return Mixture(weights, means, made[kind][0]), given


def compare(rounds: int) -> None:
    """Print the first table."""
    print("data, covariances: scikit-learn, EM and FedEM (relative differences), ticks of FedEM")
    for name, (raw, components) in data_sets().items():
        y = PCA(whiten=True).fit_transform(raw.reshape(len(raw), -1))
        part = unequal_clients(len(y))
        for kind in FORMS:
            theta, given = start_of(y, components, kind)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reference = Reference(
                    components, covariance_type=kind, max_iter=2000, tol=1e-12, reg_covar=0, **given
                ).fit(y)
            expected = reference.score(y)
            model = latent.GaussianMixture(components, covariance_type=kind)
            with jax.enable_x64(True):
                problem = latent.make_estimation(model, y, part)
                natural = problem.natural(jax.tree.map(jnp.asarray, theta))
                start = problem.client_statistics(natural).mean(axis=0)
                problem = problem.replace(start=start)  # type: ignore[attr-defined]
                found = []
                for system, options in (
                    (em.system, {}),
                    (fedem.system, FEDEM | {"batches": "full", "gamma": 0.02}),
                ):
                    hyper = system.paper(num_clients=CLIENTS, batch_size=50, **options)
                    run = fedjax_sim.sweep(
                        system,
                        problem,
                        hyper,
                        seeds=1,
                        budget=fedjax_sim.Ticks(rounds),
                        num_evals=10,
                    )
                    if run.curves.failed.any():
                        print(f"{name}, {kind}: {system.name} failed")
                        break
                    found.append(latent.fitted(run, problem, tolerance=1e-8))
            if len(found) < 2:
                continue
            apart = [abs(fit.score(y) / expected - 1) for fit in found]
            print(
                f"{name}, {kind}: {expected:.9f}  {apart[0]:.1e}  {apart[1]:.1e}  "
                f"{found[1].n_iter_ if found[1].converged_ else '-'}"
            )


def count_failures(rounds: int, lanes: int) -> None:
    """Print the second table."""
    print(f"failures of {lanes} lanes in {rounds} rounds at gamma = {GAMMAS}")
    for name, (y, components) in data_sets().items():
        part = unequal_clients(len(y))
        for kind in FORMS:
            for label, options in (
                ("no prior", {}),
                ("guard", {"guard": True}),
                (f"prior {PRIOR:g}", {"prior": PRIOR}),
            ):
                model = latent.GaussianMixture(components, covariance_type=kind, **options)
                problem = latent.make_estimation(model, y.astype("float32"), part)
                hyper = fedem.paper(num_clients=CLIENTS, batch_size=5, **FEDEM)
                run = fedjax_sim.sweep(
                    fedem.system,
                    problem,
                    hyper,
                    settings={"gamma": list(GAMMAS)},
                    seeds=lanes,
                    budget=fedjax_sim.Ticks(rounds),
                    num_evals=10,
                )
                failed = run.curves.failed.values.sum(axis=1).tolist()
                final = np.nanmedian(run.curves.objective.values[..., -1], axis=1).round(3)
                print(f"{name}, {kind}, {label}: {failed}  median objective {final.tolist()}")


def main() -> None:
    """Read the flags and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("likelihood", "failures"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--lanes", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.table == "likelihood":
        compare(arguments.rounds or 12_000)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count_failures(arguments.rounds or 500, arguments.lanes)


if __name__ == "__main__":
    main()
