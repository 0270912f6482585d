"""Kinds of covariances, the prior, factor analysis, and what comes after a fit, by scikit-learn."""

import warnings
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.decomposition import FactorAnalysis as ReferenceFactors
from sklearn.mixture import GaussianMixture as Reference

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent import factor_analysis, mixtures
from fedjax_sim.problems.latent.mixtures import FORMS, Mixture
from fedjax_sim.results import summaries
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.systems import fedem
from tests.kept_files import NUM_FLIPS, count_refusals, without_seal

pytestmark = pytest.mark.usefixtures("in_64_bits")

IRIS = load_iris().data
COUNTS = np.array([70, 10, 40, 30])
"""The species follow one another, so that clients differ."""
FIRST = np.concatenate([[0], np.cumsum(COUNTS)[:-1]])
CLIENTS = Partition(np.arange(COUNTS.sum()), COUNTS)
PRIOR = 0.05


@jax.jit
def fit(problem: Any, start: jax.Array, steps: int) -> jax.Array:
    """Take steps of EM in the space of statistics."""

    def step(_: int, statistics: jax.Array) -> jax.Array:
        natural = problem.natural(problem.maximise(statistics))
        return problem.client_statistics(natural).mean(axis=0)

    return jax.lax.fori_loop(0, steps, step, start)


# Compiled whole, which takes less time than their operations one by one.


@jax.jit
def maximised(problem: Any, statistics: jax.Array) -> Any:
    return problem.maximise(statistics)


@jax.jit
def statistics_of(problem: Any, params: Any) -> jax.Array:
    """Compute the mean expected statistics under parameters."""
    return problem.client_statistics(problem.natural(params)).mean(axis=0)


@jax.jit
def naturals(problem: Any, statistics: jax.Array) -> jax.Array:
    """Compute the natural parameters of many statistics, one row each."""
    return jax.vmap(lambda s: problem.natural(problem.maximise(s)))(statistics)


def start_of(kind: str, y: np.ndarray = IRIS) -> tuple[Mixture, dict[str, Any]]:
    """Return equal weights, an iris of each species, and the covariance of all; twice."""
    covariance = np.cov(y.T)
    matrices, variances = np.stack([covariance] * 3), np.stack([np.diag(covariance)] * 3)
    made, precisions = {
        "tied": (covariance, np.linalg.inv(covariance)),
        "full": (matrices, np.linalg.inv(matrices)),
        "diag": (variances, 1 / variances),
        "spherical": (variances.mean(axis=1), 1 / variances.mean(axis=1)),
    }[kind]
    weights, means = np.full(3, 1 / 3), y[[20, 70, 120]]
    given = {"weights_init": weights, "means_init": means, "precisions_init": precisions}
    return Mixture(weights, means, made), given


def problem_of(
    kind: str, y: np.ndarray = IRIS, **options: Any
) -> tuple[latent.Estimation, jax.Array]:
    """Make a problem, and the statistics under `start_of`."""
    model = latent.GaussianMixture(3, covariance_type=kind, **options)
    problem = latent.make_estimation(model, y, CLIENTS)
    return problem, statistics_of(problem, start_of(kind, y)[0])


def reference_of(kind: str, iterations: int, y: np.ndarray = IRIS) -> Reference:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Reference(
            3, covariance_type=kind, max_iter=iterations, tol=0, reg_covar=0, **start_of(kind, y)[1]
        ).fit(y)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", FORMS)
def test_em_is_scikit_learns(kind: str) -> None:
    """Parameters after four iterations, the likelihood after many, and all that follows a fit."""
    problem, start = problem_of(kind)
    four = latent.Fitted(problem.model, maximised(problem, fit(problem, start, 3)), 0, 0.0, True, 4)
    reference = reference_of(kind, 4)
    theirs = reference.weights_, reference.means_, reference.covariances_
    for mine, other in zip(four.params, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-7)
    np.testing.assert_allclose(four.score_samples(IRIS), reference.score_samples(IRIS), rtol=1e-7)
    np.testing.assert_allclose(four.predict_proba(IRIS), reference.predict_proba(IRIS), atol=1e-7)
    np.testing.assert_array_equal(four.predict(IRIS), reference.predict(IRIS))
    assert four.bic(IRIS) == pytest.approx(reference.bic(IRIS), rel=1e-9)
    assert four.aic(IRIS) == pytest.approx(reference.aic(IRIS), rel=1e-9)
    last = four._replace(params=maximised(problem, fit(problem, start, 149)))
    assert last.score(IRIS) == pytest.approx(reference_of(kind, 150).score(IRIS), rel=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["tied", "full"])
def test_prior_is_a_penalty_whose_minimum_t_finds(kind: str) -> None:
    """Where EM stands still, the gradient of F is 0 but for the constraint on the weights."""
    problem, start = problem_of(kind, prior=PRIOR)
    end = fit(problem, start, 1000)
    value_and_slope = jax.jit(jax.value_and_grad(problem.objective))
    _, gradient = value_and_slope(maximised(problem, end))
    assert jnp.abs(gradient.means).max() < 1e-7
    assert jnp.abs(gradient.covariance).max() < 1e-6
    assert jnp.ptp(gradient.weights) < 1e-7
    # And F falls on the way there.
    path = [value_and_slope(maximised(problem, fit(problem, start, k)))[0] for k in (0, 1, 2, 5)]
    assert np.all(np.diff(path) < 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", FORMS)
def test_prior_keeps_t_in_its_domain(kind: str) -> None:
    """T is finite and definite for any statistics, and changes nothing for those of EM."""
    problem, start = problem_of(kind, prior=PRIOR)
    noise = np.random.default_rng(0).normal(size=(50, start.size)) * np.abs(start) * 3
    wild = jax.jit(jax.vmap(problem.maximise))(start[None] + noise)
    assert np.isfinite(naturals(problem, start[None] + noise)).all() and (wild.weights > 0).all()
    np.testing.assert_allclose(wild.weights.sum(axis=1), 1, rtol=1e-12)
    # Statistics of EM are within the bounds: T gives the means of data with a few more examples.
    first, second = np.split(np.asarray(start), [3])
    first, second = first + PRIOR, second.reshape(3, -1)[:, :4] + PRIOR * IRIS.mean(axis=0)
    bound, free = maximised(problem, start), problem.model.replace(mean=problem.model.mean)
    np.testing.assert_allclose(bound.means, second / first[:, None], rtol=1e-12)
    object.__setattr__(free, "_bound", lambda covariance, least, most: covariance)
    unbound = jax.jit(free.maximise)(start)
    np.testing.assert_allclose(bound.covariance, unbound.covariance, rtol=1e-9)
    # Without a prior nearly all of them leave the domain.
    bare, _ = problem_of(kind)
    lost = naturals(bare, start[None] + noise)
    assert np.mean(np.isnan(lost).any(axis=1)) > 0.9


@pytest.mark.slow
def test_fedem_reaches_scikit_learn_and_fitted_takes_the_best_seed(tmp_path: Any) -> None:
    """With all examples, half of the clients and compressed messages; the tolerance is met."""
    y = PCA(2, whiten=True).fit_transform(IRIS)
    problem, start = problem_of("full", y)
    given = problem.replace(start=start)  # type: ignore[attr-defined]
    options = {"participation": 0.5, "batches": "full", "gamma": 0.05, "batch_size": 70}
    hyper = fedem.paper(num_clients=4, compression=parse_compressor("block:block=4"), **options)
    run = fedjax_sim.sweep(
        fedem.system, given, hyper, seeds=2, budget=fedjax_sim.Ticks(3000), num_evals=10
    )
    found = latent.fitted(run, given, tolerance=1e-5)
    assert found.score(y) == pytest.approx(reference_of("full", 400, y).score(y), rel=1e-6)
    assert found.converged_ and 0 < found.n_iter_ < 3000
    assert found.objective == run.curves.objective.values[:, -1].min()
    second = latent.fitted(run, [given, given], lane=1, tolerance=0.0)
    assert second.lane == 1 and not second.converged_ and second.n_iter_ == 3000
    found.save(tmp_path / "fit.npz")
    again = latent.load_fit(tmp_path / "fit.npz")
    np.testing.assert_array_equal(again.predict_proba(y), found.predict_proba(y))
    assert again[2:] == found[2:] and again.bic(y) == found.bic(y)
    sound = (path := tmp_path / "fit.npz").read_bytes()

    def is_as_before(read: latent.Fitted) -> bool:
        chex.assert_trees_all_equal((read.model, read.params), (again.model, again.params))
        return read[2:] == again[2:]

    assert count_refusals(path, lambda: latent.load_fit(path), is_as_before) == NUM_FLIPS
    path.write_bytes(without_seal(sound))
    with pytest.raises(InputError, match=r"fit\.npz does not end with its SHA-256"):
        latent.load_fit(path)
    assert is_as_before(latent.load_fit(path, trust=True))
    path.write_bytes(sound[:-150])
    with pytest.raises(ConfigError, match=r"file of the fit is .*fit\.npz"):
        latent.load_fit(path, trust=True)
    for lane, words in ((2, "lane is 2, but must be from 0 to 1"), (-1, "lane is -1")):
        with pytest.raises(ConfigError, match=words):
            latent.fitted(run, given, lane=lane)


@pytest.mark.slow
def test_prior_saves_lanes_and_the_summary_says_why_the_others_failed() -> None:
    """At gamma = 0.03 with p = 0.5, of 16 lanes."""
    failed = {}
    for prior in (0.0, 1e-3):
        with jax.enable_x64(False):
            model = latent.GaussianMixture(3, prior=prior)
            problem = latent.make_estimation(model, IRIS.astype("float32"), CLIENTS)
            hyper = fedem.paper(num_clients=4, participation=0.5, gamma=0.03, batch_size=5)
            run = fedjax_sim.sweep(
                fedem.system, problem, hyper, seeds=16, budget=fedjax_sim.Ticks(200), num_evals=2
            )
        failed[prior] = int(run.curves.failed.sum())
        if not prior:
            for lane in summaries.flagged({"fedem": run.curves}):
                assert lane["what"] == "failed"
                assert np.isfinite([lane["least_weight"], lane["least_eigenvalue"]]).all()
            with pytest.raises(ConfigError, match="lane is None, but must be given"):
                swept = run.curves.expand_dims(gamma=[0.03, 0.1])
                latent.fitted(run.__class__(swept, run.models, [], []), problem)
    assert failed[0.0] >= 3 and failed[1e-3] == 0


@pytest.mark.slow
def test_one_coordinate_may_have_one_axis() -> None:
    one = Partition(CLIENTS.index, CLIENTS.counts)
    flat = latent.make_estimation(latent.GaussianMixture(2), IRIS[:, 2], one)
    column = latent.make_estimation(latent.GaussianMixture(2), IRIS[:, 2:3], one)
    np.testing.assert_array_equal(flat.init(jax.random.key(1)), column.init(jax.random.key(1)))
    theta = Mixture(jnp.full(2, 0.5), jnp.array([[1.5], [5.0]]), jnp.ones((1, 1)))
    end = fit(flat, statistics_of(flat, theta), 100)
    found = latent.Fitted(flat.model, maximised(flat, end), 0, 0.0, True, 1)
    assert found.params.covariance.shape == (1, 1)
    np.testing.assert_array_equal(
        found.score_samples(IRIS[:, 2]), found.score_samples(IRIS[:, 2:3])
    )
    # Short petals are one component.
    np.testing.assert_array_equal(found.predict(IRIS[:, 2]), IRIS[:, 2] > 3)


@pytest.mark.slow
def test_k_means_plus_plus_draws_by_squared_distances() -> None:
    """Of the points 0, 1 and 3 with equal weights, the second is drawn in proportion to d^2."""
    points, weight = jnp.array([[0.0], [1.0], [3.0]]), jnp.full(3, 1 / 3)
    draws = 4000
    drawn = jax.jit(jax.vmap(lambda key: mixtures.spread_examples(key, points, weight, 2)))(
        jax.random.split(jax.random.key(0), draws)
    )[..., 0]
    expected = {(0, 1): 1 / 10, (0, 3): 9 / 10, (1, 0): 1 / 5, (1, 3): 4 / 5, (3, 0): 9 / 13}
    for (first, second), share in expected.items():
        is_first = drawn[:, 0] == first
        found = float((drawn[is_first, 1] == second).mean())
        error = 5 * np.sqrt(share * (1 - share) / int(is_first.sum()))
        assert abs(found - share) < error
    problem, _ = problem_of("diag", starts="k-means++")
    assert np.isfinite(problem.init(jax.random.key(2))).all()


@pytest.mark.slow
def test_factor_analysis_is_rubin_and_thayers() -> None:
    """A step of EM equals the closed form, and the fit scikit-learn's."""
    centred = IRIS - IRIS.mean(axis=0)
    sample = centred.T @ centred / len(IRIS)
    random = np.random.default_rng(1)
    loadings, noise = random.normal(size=(4, 2)), random.uniform(0.5, 1, 4)
    # Rubin and Thayer 1982, eqs. for Phi = beta with an identity factor covariance.
    beta = loadings.T @ np.linalg.inv(loadings @ loadings.T + np.diag(noise))
    second = np.eye(2) - beta @ loadings + beta @ sample @ beta.T
    expected = sample @ beta.T @ np.linalg.inv(second)
    problem = latent.make_estimation(latent.FactorAnalysis(2), IRIS, CLIENTS)
    theta = factor_analysis.Factors(jnp.asarray(loadings), jnp.asarray(noise))
    found = maximised(problem, statistics_of(problem, theta))
    np.testing.assert_allclose(found.loadings, expected, rtol=1e-9)
    np.testing.assert_allclose(
        found.noise, np.diag(sample - expected @ beta @ sample), rtol=1e-9, atol=1e-12
    )
    y = random.normal(size=(150, 1)) * random.uniform(1, 2, 6) + random.normal(size=(150, 6))
    problem = latent.make_estimation(latent.FactorAnalysis(1), y, CLIENTS)
    start = jax.jit(problem.init)(jax.random.key(0))
    end = maximised(problem, fit(problem, start, 300))
    ours = latent.Fitted(problem.model, end, 0, 0.0, True, 1)
    reference = ReferenceFactors(1, tol=1e-8, max_iter=3000, svd_method="lapack").fit(y)
    assert ours.score(y) == pytest.approx(reference.score(y), rel=1e-6)
    np.testing.assert_allclose(np.abs(ours.transform(y)), np.abs(reference.transform(y)), atol=1e-4)
    # 6 loadings, 6 means and 6 variances.
    assert ours.bic(y) == pytest.approx(18 * np.log(150) - 300 * ours.score(y))
    wild = random.normal(size=(20, 7)) * 9
    assert np.isfinite(naturals(problem, wild)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"covariance": np.eye(2), "prior": 0.1}, "covariance is 'given', but must be None"),
    ],
)
def test_bad_options_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        latent.GaussianMixture(2, **options)
