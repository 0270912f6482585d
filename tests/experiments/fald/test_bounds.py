"""Test FA-LD's bounds as inequalities against exact laws, and the rounds to an accuracy.

The bounds are checked from the start to the stationary law, under every scheme of participation,
on R1 (two clients of unequal curvature), R2 (five of equal curvature) and 300 random problems per
scheme.

Under partial participation laws are mixtures. `wasserstein2` of their moments is then a lower bound
of the true distance (Gelbrich), so for Theorem C.3 and (38) these tests are necessary conditions
only. One test estimates the true distance from samples.

Dimension letters: `B` problems, `N` clients, `P` parameters.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import ndtri

from experiments.fald.formulas import bounds, exact_laws
from experiments.fald.formulas import rounds as counting
from experiments.fald.formulas.exact_laws import FULL, GaussianTarget, Participation, Real
from fedjax_sim.results.diagnostics import Gaussian, wasserstein2

Numbers = npt.NDArray[np.float64]
R1 = GaussianTarget(np.array([1.0, 4.0])[:, None, None], np.array([[-1.0], [1.0]]), np.full(2, 0.5))
R2 = GaussianTarget(np.full((5, 1, 1), 2.0), np.linspace(-1, 1, 5)[:, None], np.full(5, 0.2))
TINY = 1e-9
"""Rounding error, relative and absolute, by which an inequality may be violated."""


class Case(NamedTuple):
    """A batch of problems of equal shape, with one number of local steps and one participation.

    Attributes:
        target: The clients and the temperatures of B problems.
        start: `f64[B, P]`, first models.
        rho: `f64[B]`.
        step_size: `f64[B]`, at most 1 / (2 L).
        local_steps: K.
        participation: Which clients are averaged.
    """

    target: GaussianTarget
    start: Numbers
    rho: Numbers
    step_size: Numbers
    local_steps: int
    participation: Participation

    @property
    def setup(self) -> bounds.LangevinSetup:
        """The constants of the problems."""
        return bounds.setup_of(self.target, self.start, self.rho)

    def follow(self, start: Gaussian, step_sizes: Sequence[Real]) -> tuple[Gaussian, Gaussian]:
        """Compute joint laws of all clients' models, stacked over time.

        The first result has the laws before any synchronisation of each step. The second has the
        start and the laws after each step.
        """
        n, how = (
            self.target.shape[0],
            {"local_steps": self.local_steps, "rho": self.rho, "participation": self.participation},
        )
        taken = list(exact_laws.steps(self.target, start, step_sizes=step_sizes, **how))
        first = Gaussian(np.tile(start.mean, n), np.tile(start.covariance, (n, n)))
        return stacked([step.local for step in taken]), stacked(
            [first, *(step.synced for step in taken)]
        )


def stacked(laws: Sequence[Gaussian]) -> Gaussian:
    """Stack laws on a new first axis."""
    return Gaussian(
        np.stack([law.mean for law in laws]), np.stack([law.covariance for law in laws])
    )


def tables(
    target: GaussianTarget, local_steps: int = 5, participation: Participation = FULL
) -> Case:
    """Build the case of R1 or R2 at three step sizes and three values of rho."""
    eta, rho = (x.ravel() for x in np.meshgrid([0.01, 0.05, 0.125], [0.0, 0.5, 1.0]))
    repeated = GaussianTarget(*(np.broadcast_to(leaf, (9, *leaf.shape)) for leaf in target[:3]))
    return Case(repeated, np.zeros((9, 1)), rho, eta, local_steps, participation)


def random_case(seed: int, num: int, scheme: str = "full") -> Case:
    """Draw problems that meet the assumptions, some with stochastic gradients.

    Each problem has its own L and m, and is there twice: with some shared noise and without.
    """
    random = np.random.default_rng(seed)
    n, dim, selected = (
        int(random.integers(2, 6)),
        int(random.integers(1, 4)),
        int(random.integers(1, 6)),
    )
    participation = FULL if scheme == "full" else Participation(scheme, 1 + selected % n)
    turns, _ = np.linalg.qr(random.normal(size=(num, n, dim, dim)))
    values = np.exp(random.uniform(-1, 1.5, (num, n, 1, dim)))
    weights = random.dirichlet(np.full(n, 3.0), num)
    noise = random.choice([0.0, 1.0], (num, n, 1, 1)) * np.eye(dim)
    hessians = (turns * values) @ np.swapaxes(turns, -1, -2)
    centers = random.normal(size=(num, n, dim)) * random.choice([0.1, 1.0, 5.0], (num, 1, 1))
    if scheme == "without_replacement":
        weights = np.full((num, n), 1 / n)
    target = GaussianTarget(hessians, centers, weights, random.uniform(0, 2, num), noise)
    step_size = random.uniform(0.05, 1, num) / (2 * values.max(axis=(1, 2, 3)))
    rho = np.concatenate([random.choice([0.5, 0.9, 1.0], num), np.zeros(num)])
    twice = GaussianTarget(*(np.concatenate([leaf, leaf]) for leaf in target))
    start, local_steps = random.normal(size=(num, dim)), int(random.integers(1, 11))
    return Case(
        twice, np.tile(start, (2, 1)), rho, np.tile(step_size, 2), local_steps, participation
    )


SEEDS = range(12)
PROBLEMS = {
    "R1": tables(R1),
    "R2": tables(R2),
    **{f"random {seed}": random_case(seed, 25) for seed in SEEDS},
}
"""Cases of full participation."""


def every_case() -> dict[str, Case]:
    """Build the cases of all schemes."""
    cases = {}
    for name, target in (("R1", R1), ("R2", R2)):
        sizes = range(1, target.shape[0] + 1)
        for who in (
            FULL,
            *(Participation(scheme, size) for scheme in exact_laws.SCHEMES[1:] for size in sizes),
        ):
            cases |= {
                f"{name} {who.scheme} {who.num_selected} K={k}": tables(target, k, who)
                for k in (1, 5, 20)
            }
    return cases | {
        f"random {seed} {scheme}": random_case(seed, 25, scheme)
        for seed in SEEDS
        for scheme in exact_laws.SCHEMES
    }


CASES = every_case()


class Moments(NamedTuple):
    """Second moments of the clients' models at a step; leading axes are a batch.

    Attributes:
        distance: `f64[..., B, N]`, E||theta^c - theta_*||^2.
        gradient: `f64[..., B, N]`, E||gradient of f^c at theta^c||^2, its noise included.
        divergence: `f64[..., B]`, sum_c p_c E||theta^c - theta||^2.
    """

    distance: Numbers
    gradient: Numbers
    divergence: Numbers


def moments(target: GaussianTarget, law: Gaussian) -> Moments:
    """Compute second moments from the joint law of the clients' models."""
    n, dim = target.shape
    goal = exact_laws.target_law(target).mean
    means = law.mean.reshape(*law.mean.shape[:-1], n, dim)
    covariances = np.einsum(
        "...cicj->...cij", law.covariance.reshape(*law.covariance.shape[:-2], n, dim, n, dim)
    )
    traces = np.trace(covariances, axis1=-2, axis2=-1)
    distance = traces + np.sum((means - goal[:, None]) ** 2, axis=-1)
    turned = target.hessians @ covariances @ target.hessians
    slopes = np.einsum("...cij,...cj->...ci", target.hessians, means - target.centers)
    noise = np.trace(
        np.broadcast_to(target.gradient_noise, target.hessians.shape), axis1=-2, axis2=-1
    )
    gradient = np.trace(turned, axis1=-2, axis2=-1) + np.sum(slopes**2, axis=-1) + noise
    centre = exact_laws.average(target, law)
    spread = np.einsum("...c,...c->...", target.weights, traces + np.sum(means**2, axis=-1))
    divergence = (
        spread - np.trace(centre.covariance, axis1=-2, axis2=-1) - np.sum(centre.mean**2, axis=-1)
    )
    return Moments(distance, gradient, divergence)


def holds(left: Numbers, right: Real) -> bool:
    """Tell whether left <= right everywhere, up to rounding."""
    return bool((left <= right * (1 + TINY) + TINY).all())


def check(case: Case, start: Gaussian, num_steps: int, before: int = 0) -> None:
    """Check all bounds for constant step sizes at every step.

    `start` is the law of the model after a synchronisation, `before` steps after the first model.
    """
    setup, eta, who = case.setup, case.step_size, case.participation
    goal, how = (
        exact_laws.target_law(case.target),
        {"step_size": eta, "local_steps": case.local_steps},
    )
    local_laws, laws = case.follow(start, [eta] * num_steps)
    local, synced = moments(case.target, local_laws), moments(case.target, laws)
    assert holds(synced.distance, bounds.moment_bound(setup, step_size=eta)[:, None])
    for at in (local, synced):
        assert holds(at.gradient, bounds.gradient_bound(setup, step_size=eta)[:, None])
    assert holds(synced.divergence, bounds.divergence_bound(setup, **how))
    at_sync = np.arange(1, num_steps + 1) % case.local_steps == 0
    excess = who.excess(case.target.weights)
    assert holds(excess * local.divergence[at_sync], bounds.selection_bound(setup, who, **how))
    distance = wasserstein2(*exact_laws.average(case.target, laws), *goal)
    for is_chosen, taking_part in ((at_sync, who), (~at_sync, FULL)):
        allowed = bounds.one_step_bound(
            setup, distance[:-1][is_chosen] ** 2, participation=taking_part, **how
        )
        assert holds(distance[1:][is_chosen] ** 2, allowed)
    k = before + np.arange(num_steps + 1)[:, None]
    assert holds(distance, bounds.bound(setup, k, participation=who, **how))
    if who == FULL:
        first = wasserstein2(*exact_laws.point(case.start), *goal)
        assert holds(distance**2, bounds.squared_bound(setup, k, first**2, **how))


@pytest.mark.few(30)
@pytest.mark.parametrize("name", CASES)
def test_bounds_at_every_step(name: str) -> None:
    """Bounds hold in 90 steps from the start, after 0 to 200 rounds, and in the stationary law."""
    case = CASES[name]
    setup, goal = case.setup, exact_laws.target_law(case.target)
    start, how = (
        exact_laws.point(case.start),
        {"step_size": case.step_size, "local_steps": case.local_steps},
    )
    assert holds(wasserstein2(*start, *goal), bounds.start_bound(setup))
    check(case, start, 90)
    taken = exact_laws.one_round(case.target, **how, rho=case.rho, participation=case.participation)
    distance = wasserstein2(*exact_laws.iterate_rounds(taken, start, 200), *goal)
    k = case.local_steps * np.arange(201)[:, None]
    assert holds(distance, bounds.bound(setup, k, participation=case.participation, **how))
    check(case, exact_laws.stationary(taken), case.local_steps, before=10**12)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("local_steps", [1, 5, 20])
def test_bounds_at_decreasing_step_sizes(name: str, local_steps: int) -> None:
    case = PROBLEMS[name]._replace(local_steps=local_steps)
    setup, goal = case.setup, exact_laws.target_law(case.target)
    sizes = bounds.decreasing_step_size(setup, np.arange(120)[:, None])
    _, laws = case.follow(exact_laws.point(case.start), list(sizes))
    k = np.arange(121)[:, None]
    distance = wasserstein2(*exact_laws.average(case.target, laws), *goal)
    assert holds(distance, bounds.decreasing_bound(setup, k, local_steps=local_steps))
    apart = moments(case.target, laws).divergence[1:]
    assert holds(
        apart,
        bounds.divergence_bound(setup, step_size=sizes, local_steps=local_steps, is_constant=False),
    )


@pytest.mark.parametrize(("local_steps", "rho"), [(1, 1.0), (5, 0.0), (5, 1.0)])
def test_bounds_of_the_true_distance_of_a_mixture(local_steps: int, rho: float) -> None:
    """Theorem C.3 and (38) hold for the true W2 on R1 with one client selected.

    The law is then not Gaussian. W2 is estimated from exact draws, coupled to the target by
    quantiles; ten groups of chains give the estimate and its standard error. The distance of a
    sample is too large on average, so the test errs on the safe side.
    """
    random = np.random.default_rng(local_steps)
    groups, size, eta, who = 10, 4000, 0.05, Participation("without_replacement", 1)
    setup, goal, how = (
        bounds.setup_of(R1, np.zeros(1), rho),
        exact_laws.target_law(R1),
        {"step_size": eta, "local_steps": local_steps},
    )
    quantiles = goal.mean.item() + np.sqrt(goal.covariance.item()) * ndtri(
        (np.arange(size) + 0.5) / size
    )
    models = np.zeros((groups, size, 2))
    exact = exact_laws.steps(
        R1,
        exact_laws.point(np.zeros(1)),
        step_sizes=[eta] * 60,
        rho=rho,
        local_steps=local_steps,
        participation=who,
    )
    before, widest = wasserstein2(*exact_laws.point(np.zeros(1)), *goal).item(), 0.0
    for k, step in enumerate(exact, start=1):
        injected = rho * random.normal(size=(groups, size, 1)) + np.sqrt(
            2 * (1 - rho**2)
        ) * random.normal(size=models.shape)
        models = (
            models
            - eta * R1.hessians[:, 0, 0] * (models - R1.centers[:, 0])
            + np.sqrt(2 * eta) * injected
        )
        is_synced = k % local_steps == 0
        if is_synced:
            chosen = random.integers(2, size=(groups, size, 1))
            models = np.repeat(np.take_along_axis(models, chosen, axis=2), 2, axis=2)
        each = np.sqrt(np.mean((np.sort(models.mean(axis=2)) - quantiles) ** 2, axis=1))
        distance, error = each.mean(), each.std(ddof=1) / np.sqrt(groups)
        low, high = max(distance - 5 * error, 0), distance + 5 * error
        assert high <= bounds.bound(setup, k, participation=who, **how)
        assert high**2 <= bounds.one_step_bound(
            setup, before**2, participation=who if is_synced else FULL, **how
        )
        gaussian = wasserstein2(*exact_laws.average(R1, step.synced), *goal).item()
        assert high >= gaussian
        before, widest = low, max(widest, low / gaussian)
    # The normal law with the same moments is significantly closer to the target.
    assert widest > 1


@pytest.mark.parametrize("name", PROBLEMS)
def test_contraction_of_any_two_models(name: str) -> None:
    """Lemma B.1 holds at points near and far."""
    random = np.random.default_rng(2)
    case = PROBLEMS[name]
    setup, target = case.setup, case.target
    num, draws, (n, dim) = len(case.rho), 8, target.shape

    def slope(models: Numbers) -> Numbers:
        """Average the clients' gradients, each at its model: `[..., N, P]` to `[..., P]`."""
        return np.einsum(
            "...c,...cij,...cj->...i", target.weights, target.hessians, models - target.centers
        )

    for scale in (0.01, 1.0, 100.0):
        one, models = (
            random.normal(size=(draws, num, dim)),
            scale * random.normal(size=(draws, num, n, dim)),
        )
        centre = np.einsum("...c,...ci->...i", target.weights, models)
        gap = slope(one[..., None, :]) - slope(models)
        divergence = np.einsum(
            "...c,...c->...", target.weights, np.sum((models - centre[..., None, :]) ** 2, axis=-1)
        )
        apart = np.sum((one - centre) ** 2, axis=-1)
        for share in (0.1, 0.5, 1.0):
            eta = share / (setup.smoothness + setup.strong_convexity)
            after = np.sum((one - centre - eta[:, None] * gap) ** 2, axis=-1)
            assert holds(
                after,
                bounds.contraction_bound(
                    setup, step_size=eta, squared_distance=apart, divergence=divergence
                ),
            )


def test_contraction_needs_a_bounded_step_size() -> None:
    """Lemma B.1 fails just above 2 / (L + m), where the code refuses it.

    The two models differ along the steeper of two curvatures, and all clients hold one model.
    """
    curvatures, apart = np.array([1.0, 40.0]), np.array([0.0, 1.0])
    target = GaussianTarget(
        np.broadcast_to(np.diag(curvatures), (2, 2, 2)), np.zeros((2, 2)), np.full(2, 0.5)
    )
    setup = bounds.setup_of(target, np.zeros(2), 0.0)

    def after(eta: float) -> float:
        return float(np.sum((apart - eta * curvatures * apart) ** 2))

    for share in (0.1, 0.5, 1.0):
        eta = share / curvatures.sum()
        assert after(eta) <= bounds.contraction_bound(
            setup, step_size=eta, squared_distance=1.0, divergence=0.0
        )
    beyond = 1.05 * 2 / curvatures.sum()
    assert after(beyond) > 1 - beyond * curvatures[0]
    with pytest.raises(ValueError, match=r"1 / \(L \+ m\)"):
        bounds.contraction_bound(setup, step_size=beyond, squared_distance=1.0, divergence=0.0)


@pytest.mark.parametrize("name", PROBLEMS)
def test_diffusion_within_a_step(name: str) -> None:
    """Lemma B.2 holds for the stationary diffusion of Gaussian clients.

    Along an eigenvector of the mean Hessian with eigenvalue h, its mean squared movement in a time
    s is 2 tau / h (1 - exp(-h s)).
    """
    target, setup = PROBLEMS[name].target, PROBLEMS[name].setup
    eta = np.geomspace(1e-4, 1.999, 30)[:, None] / setup.strong_convexity
    curvatures = np.linalg.eigvalsh(np.einsum("bc,bcij->bij", target.weights, target.hessians))
    moved = (
        np.sum(-2 * np.expm1(-eta[..., None] * curvatures) / curvatures, axis=-1)
        * target.temperature
    )
    assert holds(moved, bounds.discretisation_bound(setup, step_size=eta))


def test_the_discretisation_bound_is_for_step_sizes_below_its_limit() -> None:
    setup = bounds.setup_of(R1, np.zeros(1), 0.0)
    assert bounds.discretisation_bound(setup, step_size=np.nextafter(2, 0)) > 0
    with pytest.raises(ValueError, match="step_size is 2, but must be above 0 and below 2 / m = 2"):
        bounds.discretisation_bound(setup, step_size=2.0)
    # The limit of the theorems is allowed.
    assert bounds.bound(setup, 1, step_size=0.125, local_steps=2) > 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_noise(name: str) -> None:
    """Lemma B.4 holds; R1 and R2 get noise of unequal size."""
    case = PROBLEMS[name]
    if name in ("R1", "R2"):
        noise = np.arange(case.target.shape[0])[:, None, None] * np.ones((9, 1, 1, 1))
        case = case._replace(target=case.target._replace(gradient_noise=noise))
    averaged = np.trace(
        np.asarray(exact_laws.centralised(case.target).gradient_noise)[:, 0], axis1=-2, axis2=-1
    )
    assert averaged.max() > 0
    assert holds(averaged, bounds.gradient_noise_bound(case.setup))


def test_lemmas_are_false_at_the_step_sizes_printed() -> None:
    """Models can diverge at step sizes between 2 / L and 2 / m, where the moment bound is refused.

    All clients have the curvature L.
    """
    target = R2._replace(hessians=np.full((5, 1, 1), 4.0))
    setup = bounds.setup_of(target, np.ones(1), 0.0)._replace(strong_convexity=1.0)
    eta = 1.5
    assert 2 / setup.smoothness < eta < 2 / setup.strong_convexity
    law = exact_laws.iterate_rounds(
        exact_laws.one_round(target, step_size=eta, local_steps=1, rho=0.0),
        exact_laws.point(np.ones(1)),
        30,
    )
    allowed = bounds.moment_bound(setup, step_size=0.1)
    assert law.covariance[-1].item() > 1e6 * allowed
    with pytest.raises(ValueError, match=r"1 / \(L \+ m\)"):
        bounds.moment_bound(setup, step_size=eta)
    with pytest.raises(ValueError, match="2 / m"):
        bounds.discretisation_bound(setup, step_size=2.1)
    for refused in (0.126, 0.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"step_size .* 1 / \(2 L\)"):
            bounds.bound(setup, 1, step_size=refused, local_steps=2)


def test_printed_constants_and_values() -> None:
    for rho, spread in ((0.0, 4.92), (0.5, 4.67), (1.0, 3.92)):
        np.testing.assert_allclose(bounds.setup_of(R1, np.zeros(1), rho).spread, spread, rtol=1e-12)
    setup = bounds.setup_of(R1, np.zeros(1), 0.0)
    assert (setup.strong_convexity, setup.smoothness, setup.condition_number) == (1, 4, 4)
    np.testing.assert_allclose(setup.dissimilarity, 1.6, rtol=1e-12)
    np.testing.assert_allclose(
        bounds.bound(setup, [0, 400], step_size=0.05, local_steps=5), [268.44, 266.19], atol=5e-3
    )
    one = Participation("with_replacement", 1)
    wide = bounds.setup_of(
        GaussianTarget(R1.hessians, R1.centers, np.array([0.2, 0.8])), np.zeros(1), 0.5
    )
    np.testing.assert_allclose(wide.local_temperature, 0.25 + 0.75 / 0.2, rtol=1e-12)
    np.testing.assert_allclose(wide.client_noise, 0.25 + 0.75 * 2, rtol=1e-12)
    # C_K tends to 2 for small steps, so the floor stays.
    floor = bounds.participation_floor(setup, one, step_size=1e-9, local_steps=7)
    np.testing.assert_allclose(floor, 2 * np.sqrt(2 * 2.0), rtol=1e-6)
    almost = bounds.bound(
        setup,
        50,
        step_size=0.05,
        local_steps=5,
        participation=Participation("without_replacement", 2),
    )
    np.testing.assert_allclose(
        almost,
        bounds.bound(setup, 50, step_size=0.05, local_steps=5) + bias_gap(setup),
        rtol=1e-12,
    )


def test_every_term_of_the_bounds() -> None:
    """All bounds equal the paper's formulas, in two dimensions with all constants different."""
    n, d, big, m, tau, rho, least, start, gamma, sigma = (
        3,
        2,
        5.0,
        0.5,
        0.7,
        0.6,
        0.2,
        0.3,
        1.1,
        0.4,
    )
    setup = bounds.LangevinSetup(n, d, big, m, tau, rho, least, start, gamma, sigma**2)
    eta, k, kappa = 0.05, 4, big / m
    warmest = tau * (rho**2 + (1 - rho**2) / least)
    spread = start + warmest / m + gamma**2 / (m**2 * d) + sigma**2 / m**2
    noise = tau * (rho**2 + n * (1 - rho**2))
    # Drawing without replacement needs equal weights.
    even = setup._replace(least_weight=1 / n)
    wide = start + noise / m + gamma**2 / (m**2 * d) + sigma**2 / m**2
    who, factor, size = Participation("without_replacement", 2), (3 - 2) / (3 - 1), 2
    how = {"step_size": eta, "local_steps": k}
    whole = eta * m * k
    floor = 2 * math.sqrt(whole / (1 - math.exp(-whole / 2)) * d * noise / (size * m) * factor)
    decay = (1 - eta * m / 4) ** 7 * math.sqrt(2 * d) * (math.sqrt(start) + math.sqrt(tau / m))
    expected = {
        bounds.contraction_bound(setup, step_size=eta, squared_distance=2.0, divergence=3.0): (
            1 - eta * m
        )
        * 2
        + 4 * eta * big * 3,
        bounds.discretisation_bound(setup, step_size=eta): 2 * eta**2 * d * kappa * big * tau
        + 16 * eta * d * tau,
        bounds.moment_bound(setup, step_size=eta): d * start
        + 6 * d / m * (warmest + sigma**2 / m + gamma**2 / (m * d)),
        bounds.gradient_bound(setup, step_size=eta): 14 * d * big**2 * spread,
        bounds.divergence_bound(setup, **how): 28 * 9 * eta**2 * d * big**2 * spread
        + 4 * 3 * eta * d * noise,
        bounds.divergence_bound(setup, is_constant=False, **how): 112
        * 9
        * eta**2
        * d
        * big**2
        * spread
        + 8 * 3 * eta * d * noise,
        float(bounds.gradient_noise_bound(setup)): d * sigma**2,
        bounds.selection_bound(even, who, **how): factor
        / size
        * (28 * 16 * eta**2 * d * big**2 * wide + 4 * 4 * eta * d * noise),
        bounds.one_step_bound(setup, 1e6, **how): (1 - eta * m / 2) * 1e6
        + 400 * eta**2 * d * big**2 * spread * (9 + kappa),
        bounds.one_step_bound(even, 1e6, participation=who, **how): (1 - eta * m / 2) * 1e6
        + 450 * eta**2 * d * big**2 * wide * (16 + kappa)
        + 4 * k * d * eta / size * noise * factor,
        bounds.bound(setup, 7, **how): decay
        + 30 * kappa * math.sqrt(eta * m * d * (9 + kappa) * spread),
        bounds.bound(even, 7, participation=who, **how): decay
        + 30 * kappa * math.sqrt(eta * m * d * (16 + kappa) * wide)
        + floor,
        bounds.squared_bound(setup, 7, 2.0, **how): (1 - eta * m / 2) ** 7 * 2
        + 800 * kappa**2 * eta * m * d * (9 + kappa) * spread,
        bounds.decreasing_bound(setup, 7, local_steps=k): 45
        * kappa
        * math.sqrt((9 + kappa) * spread * m * d / (2 * big + m * 7 / 12)),
    }
    np.testing.assert_allclose(list(expected), list(expected.values()), rtol=1e-12)
    assert len(expected) == 14


def bias_gap(setup: bounds.LangevinSetup) -> float:
    """Compute what K^2 in place of (K - 1)^2 adds at K = 5 and eta = 0.05, with all selected."""
    scale = 30 * 4 * np.sqrt(0.05 * 4.92)
    return float(scale * (np.sqrt(25 + 4) - np.sqrt(16 + 4)))


def test_decreasing_step_sizes_halve_within_a_long_round() -> None:
    setup = bounds.setup_of(R1, np.zeros(1), 0.0)
    bounds.decreasing_bound(setup, 3, local_steps=97)
    with pytest.warns(UserWarning, match="24 kappa"):
        bounds.decreasing_bound(setup, 3, local_steps=98)
    assert bounds.decreasing_step_size(setup, 0) == 1 / 8
    ratio = bounds.decreasing_step_size(setup, 0) / bounds.decreasing_step_size(setup, 96)
    np.testing.assert_allclose(ratio, 2, rtol=1e-12)


# Rounds to an accuracy ----------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [4.0, 34.0])
def test_sufficient_steps_reach_the_accuracy(kappa: float) -> None:
    setup = bounds.LangevinSetup(10, 2, kappa, 1.0, 1.0, 0.0, 0.1, start=0.5, dissimilarity=1.5)
    for local_steps in range(1, 40):
        eta = counting.sufficient_step_size(setup, 0.1, local_steps=local_steps)
        num = counting.sufficient_steps(setup, 0.1, local_steps=local_steps)
        reached = bounds.bound(setup, [num, 0.95 * num], step_size=eta, local_steps=local_steps)
        assert reached[0] <= 0.1 * (1 + 1e-12) < reached[1]
    assert counting.sufficient_step_size(setup, 1e9, local_steps=1) == setup.largest_step_size
    assert counting.sufficient_steps(bounds.setup_of(R1, np.zeros(1), 0.0), 1e9, local_steps=5) == 0


@pytest.mark.parametrize(
    ("noise", "printed"),
    [
        (0, (22, 27, 33, 36, 38, 39, 39, 39)),
        (10, (458, 241, 112, 71, 52, 43, 41, 40)),
        (30, (808, 416, 221, 105, 68, 46)),  # for K from 5
    ],
)
def test_rounds_at_the_best_step_size(noise: float, printed: tuple[int, ...]) -> None:
    """With exact gradients K = 1 is best; with noisy ones rounds fall with K to a plateau."""
    target = R1._replace(gradient_noise=np.full((2, 1, 1), float(noise**2)))
    found = [
        counting.tuned_rounds(
            target,
            exact_laws.point(np.zeros(1)),
            0.03,
            local_steps=k,
            between=(1e-6, 0.4),
            most_rounds=5000,
        )
        for k in (1, 2, 5, 10, 20, 50, 100, 300)[-len(printed) :]
    ]
    np.testing.assert_allclose([rounds for rounds, _ in found], printed, rtol=0.002, atol=0)
    if noise == 0:
        assert abs(found[0][1] - 0.063) < 0.002
        # Larger steps would be faster, but are outside the given interval.
        bounded = counting.tuned_rounds(
            target,
            exact_laws.point(np.zeros(1)),
            0.03,
            local_steps=1,
            between=(1e-3, 0.02),
            most_rounds=500,
        )
        assert bounded[0] > printed[0] and bounded[1] <= 0.02 * (1 + 1e-12)


def test_rounds_at_a_fixed_step_size() -> None:
    """Rounds fall like 1 / K until the bias exceeds the accuracy, and are infinite for larger K."""
    start = exact_laws.point(np.zeros(1))
    found = [
        counting.rounds_to(R1, start, 0.01, step_size=0.002, local_steps=k, most_rounds=3000)
        for k in (1, 2, 5, 10, 20, 50)
    ]
    np.testing.assert_array_equal(found, [818, 420, 185, 135, np.inf, np.inf])
    sizes = np.array([0.002, 0.004])
    both = counting.rounds_to(R1, start, 0.01, step_size=sizes, local_steps=5, most_rounds=3000)
    one = counting.rounds_to(R1, start, 0.01, step_size=0.004, local_steps=5, most_rounds=3000)
    np.testing.assert_array_equal(both, [185, one])
    laws = exact_laws.iterate_rounds(
        exact_laws.one_round(R1, step_size=0.002, local_steps=5, rho=0.0), start, 185
    )
    distance = wasserstein2(*laws, *exact_laws.target_law(R1))
    assert distance[184] > 0.01 >= distance[185]
    assert (
        counting.rounds_to(R1, start, 0.01, step_size=0.002, local_steps=5, most_rounds=184)
        == np.inf
    )
    assert (
        counting.tuned_rounds(R1, start, 1e-4, local_steps=2, between=(0.1, 0.2), most_rounds=100)[
            0
        ]
        == np.inf
    )


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_step_sizes_that_diverge_are_never_best() -> None:
    """Step sizes that have overflowed by the time the best one arrives change nothing."""
    start, how = exact_laws.point(np.zeros(1)), {"local_steps": 5, "most_rounds": 50_000}
    stable = counting.tuned_rounds(R1, start, 1e-3, between=(1e-4, 0.4), **how)
    wide = counting.tuned_rounds(R1, start, 1e-3, between=(1e-4, 1.0), **how)
    assert np.isfinite(stable).all()
    assert abs(wide[0] / stable[0] - 1) < 0.002 and abs(wide[1] / stable[1] - 1) < 0.01


@pytest.mark.parametrize(
    "bound",
    [
        bounds.bound,
        bounds.one_step_bound,
        bounds.participation_floor,
        bounds.selection_bound,
    ],
)
def test_unequal_weights_without_replacement(bound: Callable[..., Real]) -> None:
    """Scheme II is refused, because it is biased and nothing is proved; scheme I is allowed."""
    target = R1._replace(weights=np.array([0.4, 0.6]))
    setup = bounds.setup_of(target, np.zeros(1), 0.0)
    first = (1.0,) if bound in (bounds.bound, bounds.one_step_bound) else ()
    assert (
        bound(
            setup,
            *first,
            step_size=0.05,
            local_steps=5,
            participation=Participation("with_replacement", 1),
        )
        > 0
    )
    with pytest.raises(ValueError, match=r"least_weight is 0\.4, but must be 0\.5"):
        bound(
            setup,
            *first,
            step_size=0.05,
            local_steps=5,
            participation=Participation("without_replacement", 1),
        )
