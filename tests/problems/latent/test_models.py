"""Latent-variable models: EM is monotone, T is a minimiser, other code gives the same values."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from sklearn.mixture import GaussianMixture as Reference

from fedjax_sim import ConfigError
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.missing_values import FAMILIES, LowRank, Matrix, truncated
from fedjax_sim.problems.latent.mixtures import FORMS
from fedjax_sim.problems.latent.noisy_mean import Seen
from tests.reference import mixture

pytestmark = pytest.mark.usefixtures("in_64_bits")

N, M = 4, 30
COUNTS = np.array([30, 12, 5, 21])
EVERYTHING = Partition(np.flatnonzero(np.arange(N * M) % M < np.repeat(COUNTS, M)), COUNTS)
COVARIANCE = np.array([[1.0, 0.3], [0.3, 1.0]])
KINDS = [
    "fitted covariance",
    "known covariance",
    "bernoulli mixture",
    "gaussian cells",
    "gram",
    "alternating",
    "poisson cells",
    "bernoulli cells",
]


def cells(family: str, seed: int = 0) -> Matrix:
    """Draw four servers' matrices of 9 x 6 cells, half of them seen, whose theta has rank 2."""
    random = np.random.default_rng(seed)
    theta = random.normal(size=(9, 2)) @ random.normal(size=(2, 6)) / 2
    draw: dict[str, Callable[[], np.ndarray]] = {
        "gaussian": lambda: theta + random.normal(size=(N, 9, 6)),
        "poisson": lambda: random.poisson(np.exp(theta), (N, 9, 6)).astype(float),
        "bernoulli": lambda: (random.random((N, 9, 6)) < 1 / (1 + np.exp(-theta))).astype(float),
    }
    return Matrix(draw[family](), (random.random((N, 9, 6)) < 0.5).astype(float))


def problem_of(kind: str, seed: int = 0, **options: Any) -> latent.Estimation:
    """Make a small problem of each kind, with arbitrary examples in the padding."""
    random = np.random.default_rng(seed)
    # Examples in the padding must not be used.
    padding = (np.arange(M)[None] >= COUNTS[:, None]).ravel()
    if kind.endswith("covariance"):
        y = (
            random.normal(size=(N * M, 2))
            + np.array([[-1, -0.5], [1.5, 1], [0, 2]])[random.integers(0, 3, N * M)]
        )
        y[padding] = 1e3
        return latent.make_estimation(
            latent.GaussianMixture(3, COVARIANCE if kind.startswith("known") else None),
            y,
            EVERYTHING,
            **options,
        )
    if kind == "bernoulli mixture":
        y = (
            random.random((N * M, 5))
            < np.array([[0.1, 0.2, 0.8, 0.9, 0.5], [0.9, 0.7, 0.3, 0.1, 0.5]])[
                random.integers(0, 2, N * M)
            ]
        ).astype(float)
        y[padding] = 1 - y[padding].mean(axis=0).round()
        return latent.make_estimation(
            latent.BernoulliMixture(2, smoothing=0.01), y, EVERYTHING, **options
        )
    whole = Partition(np.arange(N), np.ones(N, int))
    family = kind.split()[0] if kind.endswith("cells") else "gaussian"
    method = (
        kind if not kind.endswith("cells") else "svd" if family == "gaussian" else "alternating"
    )
    model = latent.MissingValues((9, 6), 2, family=family, method=method, ridge=0.3, iterations=60)
    return latent.make_estimation(model, cells(family), whole, **options)


# Compiled whole, which takes less time than their operations one by one.


@jax.jit
def first_of(problem: Any) -> jax.Array:
    """Draw the first statistics."""
    return problem.init(jax.random.key(2))


@jax.jit
def statistics_of(problem: Any, params: Any) -> jax.Array:
    """Compute the mean expected statistics under parameters."""
    return problem.client_statistics(problem.natural(params)).mean(axis=0)


@jax.jit
def field_of(problem: Any, statistics: jax.Array) -> jax.Array:
    return problem.mean_field(statistics)


@jax.jit
def maximised(problem: Any, statistics: jax.Array) -> Any:
    return problem.maximise(statistics)


@jax.jit
def objective_of(problem: Any, params: Any) -> jax.Array:
    return problem.objective(params)


@jax.jit
def em_path(problem: Any, start: jax.Array) -> Any:
    """Take 40 steps of EM in the space of statistics and in that of parameters.

    Returns:
      The last statistics, the objective of theta_0 = T(S_0), and along the path the statistics S_k,
      the statistics made from theta_k, and the objectives F(theta_k).
    """

    def step(carry: Any, _: None) -> Any:
        statistics, params = carry
        mean = problem.client_statistics(problem.natural(problem.maximise(statistics))).mean(axis=0)
        of_params = problem.client_statistics(problem.natural(params)).mean(axis=0)
        params_after = problem.maximise(of_params)
        return (mean, params_after), (mean, of_params, problem.objective(params_after))

    params = problem.maximise(start)
    (last, _), path = jax.lax.scan(step, (start, params), None, length=40)
    return last, problem.objective(params), path


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_em_is_monotone_and_the_same_in_both_spaces(kind: str) -> None:
    """The objective never increases, and both spaces give the same statistics."""
    problem = problem_of(kind)
    _, first, (statistics, of_params, objective) = em_path(problem, first_of(problem))
    np.testing.assert_allclose(statistics, of_params, rtol=1e-9, atol=1e-12)
    objective = np.concatenate([[first], objective])
    # The alternating M-steps are exact to 1e-9 of the objective.
    assert np.all(np.diff(objective) <= 1e-9 * np.abs(objective).max())
    assert objective[-1] < objective[0] - 1e-3


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "kind", ["fitted covariance", "known covariance", "bernoulli mixture", "gaussian cells"]
)
def test_roots_of_the_field_are_fixed_points_of_em(kind: str) -> None:
    """Where EM has converged the mean field is 0 and another step changes nothing."""
    problem = problem_of(kind)
    statistics = first_of(problem)
    for _ in range(100):
        statistics = em_path(problem, statistics)[0]
    assert jnp.linalg.norm(field_of(problem, statistics)) < 1e-10
    params = maximised(problem, statistics)
    again = maximised(problem, statistics_of(problem, params))
    # U and V are determined up to signs.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.abs(a), np.abs(b), rtol=1e-7, atol=1e-9),
        params,
        again,
    )


@jax.jit
def lyapunov_gradient(problem: Any, statistics: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute grad W(s) with W(s) = F(T(s)), and B(s), the Jacobian of phi(T(s))."""
    gradient = jax.grad(lambda s: problem.objective(problem.maximise(s)))(statistics)
    return gradient, jax.jacobian(lambda s: problem.natural(problem.maximise(s)))(statistics)


@pytest.mark.parametrize("kind", ["fitted covariance", "known covariance", "bernoulli mixture"])
def test_the_field_is_a_preconditioned_gradient(kind: str) -> None:
    """Away from the fixed points, grad W(s) = -B(s) h(s) with a symmetric B.

    B is positive definite if the covariance is fitted, and B s = 0 if it is known.
    """
    problem = problem_of(kind)
    statistics = first_of(problem) * 1.02
    gradient, matrix = lyapunov_gradient(problem, statistics)
    field = field_of(problem, statistics)
    assert jnp.linalg.norm(field) > 1e-2
    np.testing.assert_allclose(
        gradient, -matrix @ field, rtol=0, atol=1e-9 * float(jnp.linalg.norm(gradient))
    )
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)
    least = float(jnp.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
    if kind == "known covariance":
        np.testing.assert_allclose(matrix @ statistics, 0, atol=1e-9)
    elif kind == "fitted covariance":
        assert least > 1e-3


def test_the_gaussian_mixture_agrees_with_scikit_learn() -> None:
    """Objective and parameters are equal after 1, 2 and 10 iterations from the same start."""
    problem = problem_of("fitted covariance")
    used = np.concatenate(
        [np.asarray(problem.data).reshape(N, M, 2)[i, : COUNTS[i]] for i in range(N)]
    )
    second = np.einsum("nd,ne->de", used, used) / len(used)
    np.testing.assert_allclose(problem.model.second_moment, second, rtol=1e-12)
    start = latent.mixtures.Mixture(
        jnp.array([0.5, 0.2, 0.3]),
        jnp.array([[-1.0, 0], [1, 1], [0, 1.5]]),
        jnp.asarray(COVARIANCE),
    )
    statistics = statistics_of(problem, start)
    step = jax.jit(
        lambda s: problem.client_statistics(problem.natural(problem.maximise(s))).mean(axis=0)
    )
    for iterations in (1, 2, 10):
        given = {
            "weights_init": start.weights,
            "means_init": start.means,
            "precisions_init": np.linalg.inv(COVARIANCE),
        }
        reference = Reference(
            3,
            covariance_type="tied",
            max_iter=iterations,
            tol=0.0,
            reg_covar=0.0,
            **{k: np.asarray(v) for k, v in given.items()},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference.fit(used)
        ours = statistics
        for _ in range(iterations - 1):
            ours = step(ours)
        params = maximised(problem, ours)
        np.testing.assert_allclose(params.weights, reference.weights_, rtol=1e-10)
        np.testing.assert_allclose(params.means, reference.means_, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(params.covariance, reference.covariances_, rtol=1e-9)
        assert float(objective_of(problem, params)) == pytest.approx(
            -reference.score(used) - np.log(2 * np.pi), rel=1e-12
        )


def test_gaussian_statistics_and_loss_by_densities() -> None:
    """Also far away, where densities underflow to 0 but their logarithms do not."""
    random = np.random.default_rng(3)
    theta = mixture.Mixture(np.array([0.3, 0.7]), random.normal(size=(2, 2)), COVARIANCE)
    ours = latent.mixtures.Mixture(*(jnp.asarray(leaf) for leaf in theta))
    model, y = latent.GaussianMixture(2), random.normal(size=(7, 2)) * 2
    weight = random.random(7)
    np.testing.assert_allclose(
        model.statistics(model.natural(ours), y, weight),
        weight @ mixture.e_step(theta, y),
        rtol=1e-12,
    )
    assert float(model.loss(ours, y).mean()) == pytest.approx(mixture.loss(theta, y), rel=1e-12)
    assert np.isfinite(model.loss(ours, np.full((1, 2), 1e3))).all()
    np.testing.assert_allclose(
        model.statistics(model.natural(ours), np.full((1, 2), 1e3), np.ones(1))[:2].sum(),
        1,
        rtol=1e-12,
    )


def test_outside_its_domain_a_mixture_is_nan() -> None:
    """A negative s1 gives nan in both mixtures."""
    statistics = jnp.array([-0.01, 1.01, 0.0, 0.0, 1.0, 1.0])
    moment = jnp.eye(2) * 3
    assert np.isnan(
        latent.GaussianMixture(2, second_moment=moment).maximise(statistics).weights
    ).any()
    assert np.isnan(latent.BernoulliMixture(2).maximise(statistics).means).any()


def test_bernoulli_mixture_by_enumeration() -> None:
    """Responsibilities equal Bayes' rule, and T equals a numerical minimiser of the surrogate."""
    random = np.random.default_rng(4)
    weights, means = np.array([0.4, 0.6]), random.uniform(0.1, 0.9, (2, 3))
    y = (random.random((6, 3)) < 0.5).astype(float)
    model = latent.BernoulliMixture(2, smoothing=0.05)
    params = latent.mixtures.Mixture(jnp.asarray(weights), jnp.asarray(means))
    joint = weights * np.prod(np.where(y[:, None, :] == 1, means, 1 - means), axis=2)
    share = joint / joint.sum(axis=1, keepdims=True)
    expected = np.concatenate([share.mean(axis=0), (share.T @ y / 6).ravel()])
    statistics = model.statistics(model.natural(params), y, np.full(6, 1 / 6))
    np.testing.assert_allclose(statistics, expected, rtol=1e-12)
    np.testing.assert_allclose(model.loss(params, y), -np.log(joint.sum(axis=1)), rtol=1e-12)

    def surrogate(free: jax.Array) -> jax.Array:
        theta = latent.mixtures.Mixture(
            jax.nn.softmax(free[:2]), jax.nn.sigmoid(free[2:].reshape(2, 3))
        )
        return model.penalty(theta) - statistics @ model.natural(theta)

    both = jax.jit(jax.value_and_grad(surrogate))
    best = optimize.minimize(both, np.zeros(8), jac=True, method="BFGS", options={"gtol": 1e-9})
    found = model.maximise(statistics)
    np.testing.assert_allclose(found.weights, jax.nn.softmax(best.x[:2]), rtol=1e-6)
    np.testing.assert_allclose(found.means, jax.nn.sigmoid(best.x[2:].reshape(2, 3)), rtol=1e-6)


def test_weights_of_clients() -> None:
    """With "pooled" every example has the same weight, with "equal" every client has.

    Padding does not count in either.
    """
    for weighting in ("pooled", "equal"):
        problem = problem_of("known covariance", weighting=weighting)
        y = np.asarray(problem.data).reshape(N, M, 2)
        theta = mixture.Mixture(
            np.full(3, 1 / 3), np.array([[-1.0, 0], [1, 1], [0, 1.5]]), COVARIANCE
        )
        params = latent.mixtures.Mixture(*(jnp.asarray(leaf) for leaf in theta))
        ours = statistics_of(problem, params)
        expected_statistics = [mixture.e_step(theta, y[i, : COUNTS[i]]) for i in range(N)]
        losses = [mixture.loss(theta, y[i, : COUNTS[i]]) for i in range(N)]
        expected = (
            np.concatenate(expected_statistics).mean(axis=0)
            if weighting == "pooled"
            else np.mean([each.mean(axis=0) for each in expected_statistics], axis=0)
        )
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
        assert float(objective_of(problem, params)) == pytest.approx(
            np.average(losses, weights=COUNTS if weighting == "pooled" else None), rel=1e-12
        )
        places = jnp.array([3, 0, 0])
        part = problem.statistics(
            problem.natural(params), jnp.int32(1), places, jnp.array([0.5, 0.25, 0.25])
        )
        share = N * COUNTS[1] / COUNTS.sum() if weighting == "pooled" else 1
        np.testing.assert_allclose(
            part,
            share * np.array([0.5, 0.25, 0.25]) @ expected_statistics[1][[3, 0, 0]],
            rtol=1e-12,
        )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("rank", "ridge", "shape"),
    [(2, 0.4, (7, 5)), (1, 0.0, (5, 7)), pytest.param(3, 1.5, (12, 4), marks=pytest.mark.slow)],
)
def test_the_low_rank_closed_form_is_a_minimum(
    rank: int, ridge: float, shape: tuple[int, int]
) -> None:
    """Its value is the one known from the singular values.

    Alternating steps from random starts reach the same value and never a lower one, and both
    decompositions agree.
    """
    random = np.random.default_rng(5)
    matrix = jnp.asarray(random.normal(size=shape))
    model = latent.MissingValues(shape, rank, ridge=ridge, method="alternating")
    best = truncated(matrix, rank, ridge)
    values = np.linalg.svd(matrix, compute_uv=False)
    kept = np.maximum(values[:rank] - ridge, 0)
    exact = (
        (np.sum((values[:rank] - kept) ** 2) + np.sum(values[rank:] ** 2)) / 2
        + ridge * kept.sum()
        - np.sum(values**2) / 2
    )
    assert float(model.surrogate(matrix.ravel(), best)) == pytest.approx(exact, rel=1e-12)
    alternate = jax.jit(
        lambda theta: jax.lax.fori_loop(
            0, 300, lambda _, theta: model._alternate(matrix, theta), theta
        )
    )
    for seed in range(5):
        random = np.random.default_rng(seed)
        start = LowRank(
            jnp.asarray(random.normal(size=(shape[0], rank))),
            jnp.asarray(random.normal(size=(shape[1], rank))),
        )
        reached = float(model.surrogate(matrix.ravel(), alternate(start)))
        assert reached >= exact - 1e-9
        assert reached == pytest.approx(exact, rel=1e-4)
    gram = truncated(matrix, rank, ridge, by_gram=True)
    np.testing.assert_allclose(model.natural(gram), model.natural(best), atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["poisson", "bernoulli"])
def test_alternating_steps_reach_a_stationary_point(family: str) -> None:
    """The gradient of the surrogate vanishes there.

    With almost no ridge, T of the exact means of a low-rank theta gives these means back.
    """
    model = latent.MissingValues(
        (9, 6), 2, family=family, method="alternating", ridge=0.3, iterations=60
    )
    statistics = jnp.asarray(
        np.where(cells(family).seen[0] > 0, cells(family).values[0], 0.5)
    ).ravel()
    params = model.maximise(statistics)
    gradient = jax.grad(lambda theta: model.surrogate(statistics, theta))(params)
    assert max(float(jnp.abs(leaf).max()) for leaf in gradient) < 1e-6
    free = latent.MissingValues(
        (9, 6), 2, family=family, method="alternating", ridge=1e-9, iterations=200
    )
    random = np.random.default_rng(6)
    truth = LowRank(
        jnp.asarray(random.normal(size=(9, 2)) / 2), jnp.asarray(random.normal(size=(6, 2)))
    )
    means = free.means(truth)
    np.testing.assert_allclose(free.means(free.maximise(means.ravel())), means, rtol=1e-5)


def test_missing_cells_are_filled_with_their_expected_values() -> None:
    """Statistics are y where a cell is seen and psi'(theta) elsewhere.

    The loss is the sum of psi(theta) - y theta over the cells seen.
    """
    theta = np.random.default_rng(7).normal(size=(9, 6))
    laws = {
        "gaussian": (theta**2 / 2, theta),
        "poisson": (np.exp(theta), np.exp(theta)),
        "bernoulli": (np.log1p(np.exp(theta)), 1 / (1 + np.exp(-theta))),
    }
    params = LowRank(jnp.asarray(theta), jnp.eye(6))
    for family, (partition, mean) in laws.items():
        data = cells(family)
        model = latent.MissingValues((9, 6), 2, family=family, method="alternating")
        filled = np.where(data.seen > 0, data.values, mean)
        ours = model.statistics(model.natural(params), data, jnp.full(N, 1 / N))
        np.testing.assert_allclose(ours.reshape(9, 6), filled.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(
            model.loss(params, data),
            (data.seen * (partition - data.values * theta)).sum(axis=(1, 2)),
            rtol=1e-10,
        )


def test_visits_are_gathered_into_matrices() -> None:
    """Values of one cell are averaged; a row beyond the matrix is refused."""
    made = latent.make_matrices(
        [0, 0, 1, 0], [1, 1, 0, 0], [2, 2, 0, 1], [3.0, 5.0, 7.0, 1.0], (2, 2, 3)
    )
    np.testing.assert_array_equal(made.values, [[[0, 1, 0], [0, 0, 4]], [[7, 0, 0], [0, 0, 0]]])
    np.testing.assert_array_equal(made.seen, [[[0, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, 0]]])
    with pytest.raises(ConfigError, match="row of the visits"):
        latent.make_matrices([0], [2], [0], [1.0], (2, 2, 3))
    with pytest.raises(ConfigError, match="client of the visits is '2 numbers from 0 to 1', but"):
        latent.make_matrices([0, 1], [1], [0], [1.0], (2, 2, 3))
    assert not latent.make_matrices([], [], [], [], (2, 2, 3)).seen.any()


def test_the_noisy_mean_in_closed_form() -> None:
    """h(s) = mean(kappa y) - a s, where a is the mean of (ridge + kappa) / (1 + ridge).

    If all kappas are equal, W is quadratic.
    """
    random = np.random.default_rng(8)
    y, kappa = random.normal(size=(N * M, 3)), random.uniform(0.1, 0.9, N * M)
    full = Partition(np.arange(N * M), np.full(N, M))
    problem = latent.make_estimation(latent.NoisyMean(ridge=0.25), Seen(y, kappa), full)
    s = jnp.asarray(random.normal(size=3))
    slope = np.mean((0.25 + kappa) / 1.25)
    np.testing.assert_allclose(
        problem.mean_field(s), (kappa[:, None] * y).mean(axis=0) - slope * np.asarray(s), rtol=1e-12
    )
    equal = latent.make_estimation(latent.NoisyMean(ridge=0.25), Seen(y, np.full(N * M, 0.5)), full)
    best = 0.5 * y.mean(axis=0) / 0.6
    gap = equal.objective(equal.maximise(s)) - equal.objective(equal.maximise(jnp.asarray(best)))
    assert float(gap) == pytest.approx(
        0.5 * 0.6 / 1.25 * np.sum((np.asarray(s) - best) ** 2), rel=1e-10
    )


MODELS = [
    *(latent.GaussianMixture(2, covariance_type=kind, prior=0.1) for kind in FORMS),
    latent.GaussianMixture(2, COVARIANCE),
    latent.BernoulliMixture(2),
    latent.FactorAnalysis(1),
    latent.NoisyMean(0.1),
    *(latent.MissingValues((9, 6), 2, family=f, method="alternating", ridge=0.3) for f in FAMILIES),
    latent.MissingValues((9, 6), 2),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_32_bits_stay_so_where_64_are_on(model: Any) -> None:
    examples: Any = np.random.default_rng(0).random((4, 2))
    if isinstance(model, latent.MissingValues):
        examples = cells(model.family)
    elif isinstance(model, latent.NoisyMean):
        examples = Seen(examples, examples[:, 0])
    examples = jax.tree.map(np.float32, examples)
    problem = latent.make_estimation(model, examples, Partition(np.arange(4), np.ones(4, int)))

    def all_of_it() -> Any:
        statistics = problem.init(jax.random.key(0))
        params = problem.maximise(statistics)
        natural = problem.natural(params)
        means = problem.client_statistics(natural)
        return statistics, params, natural, means, problem.evaluate(statistics)

    found = jax.tree.leaves(jax.eval_shape(all_of_it))
    assert {str(leaf.dtype) for leaf in found} == {"float32"}


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_whole_numbers_and_bools_are_data_like_floats(dtype: type) -> None:
    """Their type is not that of the clients' shares and of the model's numbers."""
    data = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 0]])
    split = Partition(np.array([0, 1, 2, 3]), np.array([1, 3]))
    ours, floats = (
        latent.make_estimation(latent.BernoulliMixture(2), data.astype(kind), split)
        for kind in (dtype, np.float32)
    )
    np.testing.assert_allclose(ours.share, [0.5, 1.5])
    starts = [jax.jit(problem.init)(jax.random.key(0)) for problem in (ours, floats)]
    assert np.isfinite(starts[0]).all()
    jax.tree.map(np.testing.assert_array_equal, (ours, starts[0]), (floats, starts[1]))
    given = latent.make_estimation(
        latent.BernoulliMixture(2), data.astype(dtype), split, start=np.full(8, 0.5)
    )
    np.testing.assert_array_equal(given.start, np.full(8, 0.5))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: latent.MissingValues((9, 6), 6), "rank is 6"),
        (
            lambda: latent.MissingValues((9, 6), 2, family="poisson", method="svd"),
            "method is 'svd'",
        ),
        (
            lambda: latent.make_estimation(
                latent.NoisyMean(), Seen(np.zeros((3, 2)), np.ones(2)), EVERYTHING
            ),
            "data is",
        ),
        (
            lambda: latent.make_estimation(
                latent.GaussianMixture(2), np.full((120, 2), np.nan), EVERYTHING
            ),
            "data is 'an array with nan",
        ),
        (
            lambda: latent.make_estimation(
                latent.GaussianMixture(2), np.zeros((100, 2)), EVERYTHING
            ),
            "partition.index is 110",
        ),
        *(
            (partial(latent.make_estimation, model, np.ones((120, 2)), EVERYTHING), words)
            for model, words in (
                (latent.BernoulliMixture(2, smoothing=0.0), "smoothing is 0.0, but must .* above"),
                (latent.NoisyMean(ridge=-1.0), "ridge is -1.0, but must be .* of at least 0"),
                (latent.MissingValues((9, 6), 2, ridge=np.nan), "ridge is nan"),
            )
        ),
    ],
)
def test_bad_input_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
