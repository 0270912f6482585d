"""FA-LD's bounds against exact laws: as inequalities, at every step, on 300 random problems; and rounds to an accuracy, exactly."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from fedjax_sim.gaussians import Gaussian, wasserstein2
from fedjax_sim.theory import langevin as theory
from fedjax_sim.theory import langevin_oracle as oracle
from fedjax_sim.theory import langevin_rounds as counting
from fedjax_sim.theory.langevin_oracle import FULL, Clients, Participation, Real

Numbers = npt.NDArray[np.float64]
R1 = Clients(np.array([1.0, 4.0])[:, None, None], np.array([[-1.0], [1.0]]), np.full(2, 0.5))
R2 = Clients(np.full((5, 1, 1), 2.0), np.linspace(-1, 1, 5)[:, None], np.full(5, 0.2))
TINY = 1e-9
"""Relative rounding that an inequality may be off by where its two sides are equal."""


class Case(NamedTuple):
    """A batch of problems with one number of clients, dimension, number of local steps and way to select."""

    clients: Clients
    start: Numbers  # f64[B, P]
    rho: Numbers  # f64[B]
    step_size: Numbers  # f64[B]  up to 1 / (2 L)
    local_steps: int
    participation: Participation

    @property
    def setting(self) -> theory.Setting:
        return theory.setting_of(self.clients, self.start, self.rho)

    def steps(self, step_sizes: list[Numbers]) -> Iterator[oracle.Step]:
        how = {"local_steps": self.local_steps, "rho": self.rho, "participation": self.participation}
        return oracle.steps(self.clients, oracle.point(self.start), step_sizes=step_sizes, **how)


def tables(clients: Clients) -> Case:
    """R1 or R2 at three step sizes and three values of rho, K = 5, everyone averaged."""
    eta, rho = (x.ravel() for x in np.meshgrid([0.01, 0.05, 0.125], [0.0, 0.5, 1.0]))
    stacked = Clients(*(np.broadcast_to(leaf, (9, *leaf.shape)) for leaf in clients[:3]))
    return Case(stacked, np.zeros((9, 1)), rho, eta, 5, FULL)


def random_case(seed: int, num: int) -> Case:
    """Problems that meet the assumptions with constants L and m of their own, some with stochastic gradients."""
    random = np.random.default_rng(seed)
    n, dim = int(random.integers(2, 6)), int(random.integers(1, 4))
    scheme = ("full", "with_replacement", "without_replacement")[seed % 3]
    participation = FULL if scheme == "full" else Participation(scheme, int(random.integers(1, n + 1)))
    turns, _ = np.linalg.qr(random.normal(size=(num, n, dim, dim)))
    values = np.exp(random.uniform(-1, 1.5, (num, n, 1, dim)))
    weights = np.full((num, n), 1 / n) if scheme == "without_replacement" else random.dirichlet(np.full(n, 3.0), num)
    noise = random.choice([0.0, 1.0], (num, n, 1, 1)) * np.eye(dim)
    hessians = (turns * values) @ np.swapaxes(turns, -1, -2)
    centers = random.normal(size=(num, n, dim)) * random.choice([0.1, 1.0, 5.0], (num, 1, 1))
    clients = Clients(hessians, centers, weights, random.uniform(0, 2, num), noise)
    step_size = random.uniform(0.05, 1, num) / (2 * values.max(axis=(1, 2, 3)))
    rho = random.choice([0.0, 0.5, 1.0, 0.9], num)
    return Case(clients, random.normal(size=(num, dim)), rho, step_size, int(random.integers(1, 11)), participation)


CASES = {"R1": tables(R1), "R2": tables(R2), **{f"random {seed}": random_case(seed, 25) for seed in range(12)}}


class Moments(NamedTuple):
    """Of all clients' models at a step, `f64[B]` or `f64[B, N]`."""

    distance: Numbers  # E||theta^c - theta_*||^2
    gradient: Numbers  # E||gradient of f^c at theta^c||^2, its noise included
    divergence: Numbers  # sum_c p_c E||theta^c - theta||^2


def moments(clients: Clients, stacked: Gaussian) -> Moments:
    n, dim = clients.shape
    goal = oracle.target(clients).mean
    means = stacked.mean.reshape(-1, n, dim)
    blocks = stacked.covariance.reshape(-1, n, dim, n, dim)
    own = np.einsum("bcicj->bcij", blocks)
    traces = np.trace(own, axis1=-2, axis2=-1)
    distance = traces + np.sum((means - goal[:, None]) ** 2, axis=-1)
    turned = clients.hessians @ own @ clients.hessians
    slopes = np.einsum("bcij,bcj->bci", clients.hessians, means - clients.centers)
    noise = np.trace(np.broadcast_to(clients.gradient_noise, own.shape), axis1=-2, axis2=-1)
    gradient = np.trace(turned, axis1=-2, axis2=-1) + np.sum(slopes**2, axis=-1) + noise
    centre = oracle.average(clients, stacked)
    spread = np.einsum("bc,bc->b", clients.weights, traces + np.sum(means**2, axis=-1))
    divergence = spread - np.trace(centre.covariance, axis1=-2, axis2=-1) - np.sum(centre.mean**2, axis=-1)
    return Moments(distance, gradient, divergence)


def holds(left: Numbers, right: Numbers) -> bool:
    return bool((left <= right * (1 + TINY) + TINY).all())


@pytest.mark.parametrize("name", CASES)
def test_bounds_at_every_step(name: str) -> None:
    case = CASES[name]
    setting, eta = case.setting, case.step_size
    goal, how = oracle.target(case.clients), {"step_size": eta, "local_steps": case.local_steps}
    excess = case.participation.excess(case.clients.weights)
    distance = wasserstein2(*oracle.point(case.start), *goal)
    assert holds(distance, theory.start_bound(setting))
    first = distance
    for k, step in enumerate(case.steps([eta] * 90), start=1):
        local, synced = moments(case.clients, step.local), moments(case.clients, step.synced)
        assert holds(synced.distance, theory.moment_bound(setting, step_size=eta)[:, None])
        for at in (local, synced):
            assert holds(at.gradient, theory.gradient_bound(setting, step_size=eta)[:, None])
        assert holds(synced.divergence, theory.divergence_bound(setting, **how))
        is_synced = k % case.local_steps == 0
        if is_synced:
            assert holds(excess * local.divergence, theory.selection_bound(setting, case.participation, **how))
        law = oracle.average(case.clients, step.synced)
        before, distance = distance, wasserstein2(*law, *goal)
        taking_part = case.participation if is_synced else FULL
        assert holds(distance**2, theory.one_step_bound(setting, before**2, participation=taking_part, **how))
        assert holds(distance, theory.bound(setting, k, participation=case.participation, **how))
        if case.participation == FULL:
            assert holds(distance**2, theory.squared_bound(setting, k, first**2, **how))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].participation == FULL])
@pytest.mark.parametrize("local_steps", [1, 5, 20])
def test_bounds_at_decreasing_step_sizes(name: str, local_steps: int) -> None:
    case = CASES[name]._replace(local_steps=local_steps)
    setting, goal = case.setting, oracle.target(case.clients)
    sizes = [theory.decreasing_step_size(setting, k) for k in range(120)]
    assert holds(wasserstein2(*oracle.point(case.start), *goal), theory.decreasing_bound(setting, 0, local_steps=local_steps))
    for k, step in enumerate(case.steps(sizes), start=1):
        law = oracle.average(case.clients, step.synced)
        assert holds(wasserstein2(*law, *goal), theory.decreasing_bound(setting, k, local_steps=local_steps))
        local = moments(case.clients, step.synced)
        now = {"step_size": sizes[k - 1], "local_steps": local_steps, "is_constant": False}
        assert holds(local.divergence, theory.divergence_bound(setting, **now))


def test_contraction_of_any_two_models() -> None:
    """Lemma B.1, at points of any kind."""
    random = np.random.default_rng(2)
    case = random_case(4, 200)
    setting, clients = case.setting, case.clients
    n, dim = clients.shape
    at_most = 1 / (setting.smoothness + setting.strong_convexity)
    for scale in (0.01, 1.0, 100.0):
        one, models = random.normal(size=(200, dim)), scale * random.normal(size=(200, n, dim))
        centre = np.einsum("bc,bci->bi", clients.weights, models)
        goal = oracle.target(clients)
        precision = np.linalg.inv(goal.covariance) * np.asarray(clients.temperature)[:, None, None]
        slope = np.einsum("bij,bj->bi", precision, one - goal.mean)
        mean_slope = np.einsum("bc,bcij,bcj->bi", clients.weights, clients.hessians, models - clients.centers)
        divergence = np.einsum("bc,bc->b", clients.weights, np.sum((models - centre[:, None]) ** 2, axis=-1))
        apart = np.sum((one - centre) ** 2, axis=-1)

        def after(eta: Numbers, one: Numbers = one, centre: Numbers = centre, gap: Numbers = slope - mean_slope) -> Numbers:
            return np.sum((one - centre - eta[:, None] * gap) ** 2, axis=-1)

        for share in (0.1, 0.5, 1.0):
            eta = share * at_most
            assert holds(after(eta), theory.contraction_bound(setting, step_size=eta, squared_distance=apart, divergence=divergence))


def test_contraction_needs_a_bounded_step_size() -> None:
    """Two models apart along the steeper of two curvatures, all clients' in one point: it fails just above 2 / (L + m), and is refused."""
    curvatures, apart = np.array([1.0, 40.0]), np.array([0.0, 1.0])
    clients = Clients(np.broadcast_to(np.diag(curvatures), (2, 2, 2)), np.zeros((2, 2)), np.full(2, 0.5))
    setting = theory.setting_of(clients, np.zeros(2), 0.0)

    def after(eta: float) -> float:
        return float(np.sum((apart - eta * curvatures * apart) ** 2))

    for share in (0.1, 0.5, 1.0):
        eta = share / curvatures.sum()
        assert after(eta) <= theory.contraction_bound(setting, step_size=eta, squared_distance=1.0, divergence=0.0)
    beyond = 1.05 * 2 / curvatures.sum()
    assert after(beyond) > 1 - beyond * curvatures[0]
    with pytest.raises(ValueError, match=r"1 / \(L \+ m\)"):
        theory.contraction_bound(setting, step_size=beyond, squared_distance=1.0, divergence=0.0)


def test_diffusion_within_a_step() -> None:
    """Lemma B.2: the stationary diffusion moves by sum_i 2 tau / lambda_i (1 - exp(-lambda_i s)), squared, in a time s."""
    for clients in (R1, R2):
        setting = theory.setting_of(clients, np.zeros(1), 0.0)
        eta = np.geomspace(1e-4, 1.9, 30) / float(setting.strong_convexity)
        variances = np.linalg.eigvalsh(oracle.target(clients).covariance)
        moved = np.sum(2 * variances * (1 - np.exp(-eta[:, None] / variances)), axis=-1)
        assert holds(moved, theory.discretisation_bound(setting, step_size=eta))


def test_gradient_noise() -> None:
    case = random_case(7, 50)
    noise = oracle.centralised(case.clients).gradient_noise
    averaged = np.trace(np.asarray(noise)[:, 0], axis1=-2, axis2=-1)
    assert averaged.max() > 0
    assert holds(averaged, theory.gradient_noise_bound(case.setting))


def test_lemmas_are_false_at_the_step_sizes_printed() -> None:
    """Curvature L for all: a step size between 2 / L and 2 / m makes models diverge, and the moment bound is refused there."""
    clients = R2._replace(hessians=np.full((5, 1, 1), 4.0))
    setting = theory.setting_of(clients, np.ones(1), 0.0)._replace(strong_convexity=1.0)
    eta = 1.5
    assert 2 / setting.smoothness < eta < 2 / setting.strong_convexity
    law = oracle.rounds(oracle.one_round(clients, step_size=eta, local_steps=1, rho=0.0), oracle.point(np.ones(1)), 30)
    allowed = theory.moment_bound(setting, step_size=0.1)
    assert law.covariance[-1].item() > 1e6 * allowed
    with pytest.raises(ValueError, match=r"1 / \(L \+ m\)"):
        theory.moment_bound(setting, step_size=eta)
    with pytest.raises(ValueError, match="2 / m"):
        theory.discretisation_bound(setting, step_size=2.1)
    for refused in (0.126, 0.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"step_size .* 1 / \(2 L\)"):
            theory.bound(setting, 1, step_size=refused, local_steps=2)


def test_printed_constants_and_values() -> None:
    for rho, spread in ((0.0, 4.92), (0.5, 4.67), (1.0, 3.92)):
        np.testing.assert_allclose(theory.setting_of(R1, np.zeros(1), rho).spread, spread, rtol=1e-12)
    setting = theory.setting_of(R1, np.zeros(1), 0.0)
    assert (setting.strong_convexity, setting.smoothness, setting.condition_number) == (1, 4, 4)
    np.testing.assert_allclose(setting.dissimilarity, 1.6, rtol=1e-12)
    np.testing.assert_allclose(theory.bound(setting, [0, 400], step_size=0.05, local_steps=5), [268.44, 266.19], atol=5e-3)
    one = Participation("with_replacement", 1)
    wide = theory.setting_of(Clients(R1.hessians, R1.centers, np.array([0.2, 0.8])), np.zeros(1), 0.5)
    np.testing.assert_allclose(wide.local_temperature, 0.25 + 0.75 / 0.2, rtol=1e-12)
    np.testing.assert_allclose(wide.client_noise, 0.25 + 0.75 * 2, rtol=1e-12)
    # C_K is 2 for small steps, so that the floor stays.
    floor = theory.participation_floor(setting, one, step_size=1e-9, local_steps=7)
    np.testing.assert_allclose(floor, 2 * np.sqrt(2 * 2.0), rtol=1e-6)
    almost = theory.bound(setting, 50, step_size=0.05, local_steps=5, participation=Participation("without_replacement", 2))
    np.testing.assert_allclose(almost, theory.bound(setting, 50, step_size=0.05, local_steps=5) + bias_gap(setting), rtol=1e-12)


def test_every_term_of_the_bounds() -> None:
    """Against the formulas as they stand in the paper, in two dimensions, with all constants different."""
    n, d, big, m, tau, rho, least, start, gamma, sigma = 3, 2, 5.0, 0.5, 0.7, 0.6, 0.2, 0.3, 1.1, 0.4
    setting = theory.Setting(n, d, big, m, tau, rho, least, start, gamma, sigma**2)
    eta, k, kappa = 0.05, 4, big / m
    warmest = tau * (rho**2 + (1 - rho**2) / least)
    spread = start + warmest / m + gamma**2 / (m**2 * d) + sigma**2 / m**2
    noise = tau * (rho**2 + n * (1 - rho**2))
    # Drawn without replacement, weights are equal.
    even = setting._replace(least_weight=1 / n)
    wide = start + noise / m + gamma**2 / (m**2 * d) + sigma**2 / m**2
    who, factor, size = Participation("without_replacement", 2), (3 - 2) / (3 - 1), 2
    how = {"step_size": eta, "local_steps": k}
    whole = eta * m * k
    floor = 2 * math.sqrt(whole / (1 - math.exp(-whole / 2)) * d * noise / (size * m) * factor)
    decay = (1 - eta * m / 4) ** 7 * math.sqrt(2 * d) * (math.sqrt(start) + math.sqrt(tau / m))
    expected = {
        theory.contraction_bound(setting, step_size=eta, squared_distance=2.0, divergence=3.0): (1 - eta * m) * 2 + 4 * eta * big * 3,
        theory.discretisation_bound(setting, step_size=eta): 2 * eta**2 * d * kappa * big * tau + 16 * eta * d * tau,
        theory.moment_bound(setting, step_size=eta): d * start + 6 * d / m * (warmest + sigma**2 / m + gamma**2 / (m * d)),
        theory.gradient_bound(setting, step_size=eta): 14 * d * big**2 * spread,
        theory.divergence_bound(setting, **how): 28 * 9 * eta**2 * d * big**2 * spread + 4 * 3 * eta * d * noise,
        theory.divergence_bound(setting, is_constant=False, **how): 112 * 9 * eta**2 * d * big**2 * spread + 8 * 3 * eta * d * noise,
        float(theory.gradient_noise_bound(setting)): d * sigma**2,
        theory.selection_bound(even, who, **how): factor / size * (28 * 16 * eta**2 * d * big**2 * wide + 4 * 4 * eta * d * noise),
        theory.one_step_bound(setting, 1e6, **how): (1 - eta * m / 2) * 1e6 + 400 * eta**2 * d * big**2 * spread * (9 + kappa),
        theory.one_step_bound(even, 1e6, participation=who, **how): (1 - eta * m / 2) * 1e6
        + 450 * eta**2 * d * big**2 * wide * (16 + kappa)
        + 4 * k * d * eta / size * noise * factor,
        theory.bound(setting, 7, **how): decay + 30 * kappa * math.sqrt(eta * m * d * (9 + kappa) * spread),
        theory.bound(even, 7, participation=who, **how): decay + 30 * kappa * math.sqrt(eta * m * d * (16 + kappa) * wide) + floor,
        theory.squared_bound(setting, 7, 2.0, **how): (1 - eta * m / 2) ** 7 * 2 + 800 * kappa**2 * eta * m * d * (9 + kappa) * spread,
        theory.decreasing_bound(setting, 7, local_steps=k): 45 * kappa * math.sqrt((9 + kappa) * spread * m * d / (2 * big + m * 7 / 12)),
    }
    np.testing.assert_allclose(list(expected), list(expected.values()), rtol=1e-12)
    assert len(expected) == 14


def bias_gap(setting: theory.Setting) -> float:
    """What K^2 in place of (K - 1)^2 adds where everyone is selected, at K = 5 and eta = 0.05."""
    scale = 30 * 4 * np.sqrt(0.05 * 4.92)
    return float(scale * (np.sqrt(25 + 4) - np.sqrt(16 + 4)))


def test_decreasing_step_sizes_halve_within_a_long_round() -> None:
    setting = theory.setting_of(R1, np.zeros(1), 0.0)
    theory.decreasing_bound(setting, 3, local_steps=97)
    with pytest.warns(UserWarning, match="24 kappa"):
        theory.decreasing_bound(setting, 3, local_steps=98)
    assert theory.decreasing_step_size(setting, 0) == 1 / 8
    ratio = theory.decreasing_step_size(setting, 0) / theory.decreasing_step_size(setting, 96)
    np.testing.assert_allclose(ratio, 2, rtol=1e-12)


# Rounds to an accuracy ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [4.0, 34.0])
def test_sufficient_steps_reach_the_accuracy_and_have_a_best_k(kappa: float) -> None:
    setting = theory.Setting(10, 2, kappa, 1.0, 1.0, 0.0, 0.1, start=0.5, dissimilarity=1.5)
    needed = {}
    for local_steps in range(1, 40):
        eta = counting.sufficient_step_size(setting, 0.1, local_steps=local_steps)
        num = counting.sufficient_steps(setting, 0.1, local_steps=local_steps)
        reached = theory.bound(setting, [num, 0.95 * num], step_size=eta, local_steps=local_steps)
        assert reached[0] <= 0.1 * (1 + 1e-12) < reached[1]
        needed[local_steps] = num / local_steps
        late = counting.sufficient_decreasing_steps(setting, 0.1, local_steps=local_steps)
        ends = theory.decreasing_bound(setting, [late, 0.99 * late], local_steps=local_steps)
        assert ends[0] <= 0.1 * (1 + 1e-12) < ends[1]
    best = min(needed, key=needed.__getitem__)
    assert abs(best - counting.best_local_steps(kappa)) < 1
    assert all(needed[k] > needed[k + 1] for k in range(1, best)) and all(needed[k] < needed[k + 1] for k in range(best, 39))
    assert counting.sufficient_step_size(setting, 1e9, local_steps=1) == setting.largest_step_size


@pytest.mark.parametrize(
    ("noise", "printed"),
    [
        (0, (22, 27, 33, 36, 38, 39, 39, 39)),
        (10, (458, 241, 112, 71, 52, 43, 41, 40)),
        (30, (3943, 1984, 808, 416, 221, 105, 68, 46)),
    ],
)
def test_rounds_at_the_best_step_size(noise: float, printed: tuple[int, ...]) -> None:
    """Exact gradients: K = 1 is best. Noisy ones: rounds fall with K to a plateau, and never rise."""
    clients = R1._replace(gradient_noise=np.full((2, 1, 1), float(noise**2)))
    found = [
        counting.tuned_rounds(clients, oracle.point(np.zeros(1)), 0.03, local_steps=k, between=(1e-6, 0.4), most_rounds=5000)
        for k in (1, 2, 5, 10, 20, 50, 100, 300)
    ]
    np.testing.assert_allclose([rounds for rounds, _ in found], printed, rtol=0.002, atol=0)
    if noise == 0:
        assert abs(found[0][1] - 0.063) < 0.002
        # Larger steps would be faster, but are not among those to be tried.
        bounded = counting.tuned_rounds(clients, oracle.point(np.zeros(1)), 0.03, local_steps=1, between=(1e-3, 0.02), most_rounds=500)
        assert bounded[0] > printed[0] and bounded[1] <= 0.02 * (1 + 1e-12)


def test_rounds_at_a_fixed_step_size() -> None:
    """They fall like 1 / K until the bias exceeds the accuracy, and no number is enough from there on."""
    start = oracle.point(np.zeros(1))
    found = [counting.rounds_to(R1, start, 0.01, step_size=0.002, local_steps=k, most_rounds=3000) for k in (1, 2, 5, 10, 20, 50)]
    np.testing.assert_array_equal(found, [818, 420, 185, 135, np.inf, np.inf])
    sizes = np.array([0.002, 0.004])
    both = counting.rounds_to(R1, start, 0.01, step_size=sizes, local_steps=5, most_rounds=3000)
    one = counting.rounds_to(R1, start, 0.01, step_size=0.004, local_steps=5, most_rounds=3000)
    np.testing.assert_array_equal(both, [185, one])
    laws = oracle.rounds(oracle.one_round(R1, step_size=0.002, local_steps=5, rho=0.0), start, 185)
    distance = wasserstein2(*laws, *oracle.target(R1))
    assert distance[184] > 0.01 >= distance[185]
    assert counting.rounds_to(R1, start, 0.01, step_size=0.002, local_steps=5, most_rounds=184) == np.inf
    assert counting.tuned_rounds(R1, start, 1e-4, local_steps=2, between=(0.1, 0.2), most_rounds=100)[0] == np.inf


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_step_sizes_that_diverge_are_never_best() -> None:
    """By the time that the best one arrives, large ones have left the numbers: they change nothing."""
    start, how = oracle.point(np.zeros(1)), {"local_steps": 5, "most_rounds": 50_000}
    stable = counting.tuned_rounds(R1, start, 1e-3, between=(1e-4, 0.4), **how)
    wide = counting.tuned_rounds(R1, start, 1e-3, between=(1e-4, 1.0), **how)
    assert np.isfinite(stable).all()
    assert abs(wide[0] / stable[0] - 1) < 0.002 and abs(wide[1] / stable[1] - 1) < 0.01


def test_no_steps_are_needed_where_the_start_is_within_the_accuracy() -> None:
    setting = theory.setting_of(R1, np.zeros(1), 0.0)
    assert counting.sufficient_steps(setting, 1e9, local_steps=5) == counting.sufficient_decreasing_steps(setting, 1e9, local_steps=5) == 0


@pytest.mark.parametrize("bound", [theory.bound, theory.one_step_bound, theory.participation_floor, theory.selection_bound])
def test_unequal_weights_without_replacement(bound: Callable[..., Real]) -> None:
    """Scheme II is biased there, and nothing is proved; scheme I may have any weights."""
    clients = R1._replace(weights=np.array([0.4, 0.6]))
    setting = theory.setting_of(clients, np.zeros(1), 0.0)
    first = (1.0,) if bound in (theory.bound, theory.one_step_bound) else ()
    assert bound(setting, *first, step_size=0.05, local_steps=5, participation=Participation("with_replacement", 1)) > 0
    with pytest.raises(ValueError, match=r"least_weight is 0\.4, but must be 0\.5"):
        bound(setting, *first, step_size=0.05, local_steps=5, participation=Participation("without_replacement", 1))
