"""Test FA-LD's exact laws against pinned values, each other, plain sums, enumeration and limits.

R1 is two clients of unequal curvature, R2 five clients of equal curvature. "Claim n" is number n
of `experiments/fald/claims.toml`.
"""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from experiments.fald.formulas import equal_hessians as shared
from experiments.fald.formulas import exact_laws
from experiments.fald.formulas.exact_laws import FULL, GaussianTarget, Participation
from fedjax_sim.results.diagnostics import Gaussian, wasserstein2

Numbers = npt.NDArray[np.float64]
RHOS = (0.0, 0.5, 1.0)
R1 = GaussianTarget(np.array([1.0, 4.0])[:, None, None], np.array([[-1.0], [1.0]]), np.full(2, 0.5))
R2 = GaussianTarget(np.full((5, 1, 1), 2.0), np.linspace(-1, 1, 5)[:, None], np.full(5, 0.2))
UNEQUAL = np.array([0.1, 0.15, 0.2, 0.25, 0.3])
ONE = Participation("with_replacement", 1)
ALL = (FULL, Participation("with_replacement", 2), Participation("without_replacement", 2))


def of_client(stacked: Gaussian, client: int, dim: int) -> Gaussian:
    """Return the marginal law of one client's model."""
    places = slice(client * dim, (client + 1) * dim)
    return Gaussian(stacked.mean[..., places], stacked.covariance[..., places, places])


def random_target(
    random: np.random.Generator,
    n: int,
    dim: int,
    *,
    batch: tuple[int, ...] = (),
    equal: bool = False,
) -> GaussianTarget:
    """Draw clients with curvatures from 0.5 to 4, random centers and random gradient noise."""
    turns, _ = np.linalg.qr(random.normal(size=(*batch, n, dim, dim)))
    values = random.uniform(0.5, 4, (*batch, n, 1, dim))
    factors = random.normal(size=(*batch, n, dim, dim))
    weights = np.full((*batch, n), 1 / n) if equal else random.dirichlet(np.full(n, 4.0), batch)
    noise = factors @ np.swapaxes(factors, -1, -2)
    return GaussianTarget(
        (turns * values) @ np.swapaxes(turns, -1, -2),
        random.normal(size=(*batch, n, dim)),
        weights,
        0.7,
        noise,
    )


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)


def settled(
    target: GaussianTarget,
    *,
    local_steps: int,
    rho: float,
    participation: Participation = FULL,
    step_size: float = 0.05,
) -> Gaussian:
    """Compute the stationary law."""
    return exact_laws.stationary(
        exact_laws.one_round(
            target,
            step_size=step_size,
            local_steps=local_steps,
            rho=rho,
            participation=participation,
        )
    )


# Printed values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local_steps", "mean", "full", "distance", "one"),
    [
        (1, 0.600000, (0.426667, 0.426667, 0.426667), 0.020742, (0.902295, 0.793005, 0.465137)),
        (5, 0.496474, (0.473308, 0.469947, 0.459865), 0.117473, (1.196558, 1.069132, 0.686852)),
        (20, 0.212859, (0.606548, 0.584436, 0.518099), 0.413882, (1.899117, 1.742603, 1.273060)),
        (100, 0.002969, (0.651697, 0.622319, 0.534184), 0.622100, (2.297494, 2.134568, 1.645791)),
    ],
)
def test_two_clients(
    local_steps: int, mean: float, full: tuple[float, ...], distance: float, one: tuple[float, ...]
) -> None:
    """The stationary laws of R1 have the pinned moments.

    The average of the local modes draws the mean away from the target's 0.6, and rho narrows the
    law.
    """
    for participation, variances in (
        (FULL, full),
        (ONE, one),
        (Participation("without_replacement", 1), one),
    ):
        laws = [
            settled(R1, local_steps=local_steps, rho=rho, participation=participation)
            for rho in RHOS
        ]
        np.testing.assert_allclose([law.mean[0] for law in laws], mean, atol=6e-7)
        np.testing.assert_allclose([law.covariance[0, 0] for law in laws], variances, atol=6e-7)
    goal = exact_laws.target_law(R1)
    np.testing.assert_allclose((goal.mean[0], goal.covariance[0, 0]), (0.6, 0.4), rtol=1e-14)
    np.testing.assert_allclose(
        wasserstein2(*settled(R1, local_steps=local_steps, rho=0.0), *goal), distance, atol=6e-7
    )


@pytest.mark.parametrize(
    ("weights", "participation", "variances"),
    [
        (R2.weights, FULL, (0.526316, 0.526316, 0.526316)),
        (R2.weights, Participation("with_replacement", 2), (1.630862, 1.115072, 0.578230)),
        (UNEQUAL, Participation("with_replacement", 2), (1.624372, 1.108583, 0.571741)),
        (R2.weights, Participation("without_replacement", 2), (1.354725, 0.967883, 0.565251)),
        (R2.weights, Participation("without_replacement", 4), (0.664384, 0.599910, 0.532805)),
    ],
)
def test_five_clients_of_one_curvature(
    weights: Numbers, participation: Participation, variances: tuple[float, ...]
) -> None:
    target = R2._replace(weights=weights)
    for rho, variance in zip((0.0, 0.7, 1.0), variances, strict=True):
        law = settled(target, local_steps=4, rho=rho, participation=participation)
        closed = shared.shared_hessian_stationary(
            target, step_size=0.05, local_steps=4, rho=rho, participation=participation
        )
        np.testing.assert_allclose(law.covariance[0, 0], variance, atol=6e-7)
        np.testing.assert_allclose(closed.covariance, law.covariance, rtol=1e-12)
        np.testing.assert_allclose(
            (closed.mean[0], law.mean[0]), weights @ R2.centers[:, 0], atol=1e-12
        )


@pytest.mark.parametrize(("rho", "variance"), [(0.0, 1.25), (0.7, 0.8825), (1.0, 0.5)])
def test_partial_participation_keeps_a_bias_unless_all_noise_is_shared(
    rho: float, variance: float
) -> None:
    law = settled(
        R2,
        local_steps=4,
        rho=rho,
        participation=Participation("without_replacement", 2),
        step_size=1e-7,
    )
    np.testing.assert_allclose(law.covariance[0, 0], variance, atol=1e-6)
    phi = shared.inflation(5, rho, Participation("without_replacement", 2))
    np.testing.assert_allclose(phi * 0.5, variance, atol=1e-12)


@pytest.mark.parametrize(
    ("step_size", "distance"), [(0.05, 0.2408), (0.02, 0.0966), (0.01, 0.0475), (0.001, 0.00465)]
)
def test_bias_is_proportional_to_the_step_size(step_size: float, distance: float) -> None:
    law = settled(R1, local_steps=10, rho=0.0, step_size=step_size)
    np.testing.assert_allclose(wasserstein2(*law, *exact_laws.target_law(R1)), distance, rtol=2e-3)


# One recursion against another --------------------------------------------------------------------


@pytest.mark.parametrize("participation", ALL)
def test_rounds_agree_with_steps(random: np.random.Generator, participation: Participation) -> None:
    """Both recursions give the same laws.

    They are batched over problems, step sizes, rho and temperatures, with gradient noise.
    """
    target = random_target(
        random, 3, 2, batch=(4,), equal=participation.scheme == "without_replacement"
    )
    target = target._replace(temperature=random.uniform(0.3, 2, 4))
    eta, rho = np.array([0.01, 0.05, 0.1, 0.2]), np.array([0.0, 0.4, 0.9, 1.0])
    start = Gaussian(random.normal(size=2), 0.3 * np.eye(2) + 0.1)
    followed = list(
        exact_laws.steps(
            target,
            start,
            step_sizes=[eta] * 21,
            local_steps=7,
            rho=rho,
            participation=participation,
        )
    )
    taken = exact_laws.one_round(
        target, step_size=eta, local_steps=7, rho=rho, participation=participation
    )
    laws = exact_laws.iterate_rounds(taken, start, 3)
    for r in range(1, 4):
        synced = followed[7 * r - 1].synced
        for client in range(3):
            marginal = of_client(synced, client, 2)
            np.testing.assert_allclose(marginal.mean, laws.mean[r], atol=1e-12)
            np.testing.assert_allclose(marginal.covariance, laws.covariance[r], atol=1e-12)
    rested = exact_laws.stationary(taken)
    np.testing.assert_allclose(exact_laws.advance(rested, taken).mean, rested.mean, atol=1e-10)
    np.testing.assert_allclose(
        exact_laws.advance(rested, taken).covariance, rested.covariance, atol=1e-10
    )
    alone = GaussianTarget(*(np.asarray(leaf)[2] for leaf in target))
    single = exact_laws.one_round(
        alone, step_size=0.1, local_steps=7, rho=0.9, participation=participation
    )
    np.testing.assert_allclose(
        exact_laws.stationary(single).covariance, rested.covariance[2], atol=1e-12
    )


def test_a_round_is_the_sum_over_its_steps(random: np.random.Generator) -> None:
    """A round has the law of the formula, summed term by term.

    The covariance is
    M V M^T + 2 eta tau sum_j [rho^2 B_j B_j^T + (1 - rho^2) sum_c p_c A_c^j (A_c^j)^T],
    where B_j is the sum of p_c A_c^j.
    """
    target = random_target(random, 4, 2)._replace(gradient_noise=0.0)
    eta, rho, num = 0.07, 0.6, 6
    factors = np.eye(2) - eta * target.hessians
    noise = np.zeros((2, 2))
    for j in range(num):
        powers = [np.linalg.matrix_power(factor, j) for factor in factors]
        together = sum(p * power for p, power in zip(target.weights, powers, strict=True))
        apart = sum(p * power @ power.T for p, power in zip(target.weights, powers, strict=True))
        noise += (
            2 * eta * target.temperature * (rho**2 * together @ together.T + (1 - rho**2) * apart)
        )
    taken = exact_laws.one_round(target, step_size=eta, local_steps=num, rho=rho)
    np.testing.assert_allclose(taken.noise, noise, atol=1e-14)
    powers = [np.linalg.matrix_power(factor, num) for factor in factors]
    start = Gaussian(np.array([1.0, -2.0]), np.array([[1.0, 0.2], [0.2, 0.5]]))
    moved = exact_laws.advance(start, taken)
    transition = sum(p * power for p, power in zip(target.weights, powers, strict=True))
    pull = sum(
        p * (np.eye(2) - power) @ b
        for p, power, b in zip(target.weights, powers, target.centers, strict=True)
    )
    np.testing.assert_allclose(moved.mean, transition @ start.mean + pull, atol=1e-14)
    np.testing.assert_allclose(
        moved.covariance, transition @ start.covariance @ transition.T + noise, atol=1e-14
    )


@pytest.mark.parametrize("rho", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    ("scheme", "num_selected"),
    [("with_replacement", 1), ("with_replacement", 3), ("without_replacement", 2)],
)
def test_partial_average_by_enumeration(
    random: np.random.Generator, scheme: str, num_selected: int, rho: float
) -> None:
    """The average has the mean and the covariance over all outcomes of the draw."""
    target = random_target(random, 3, 2, equal=scheme == "without_replacement")
    participation = Participation(scheme, num_selected)
    start = Gaussian(np.array([1.0, -2.0]), 0.1 * np.eye(2))
    local = next(
        iter(exact_laws.steps(target, start, step_sizes=[0.2], local_steps=9, rho=rho))
    ).local
    second, mean = np.zeros((2, 2)), np.zeros(2)
    moment = local.covariance + np.outer(local.mean, local.mean)
    for weights, probability in outcomes(target.weights, participation):
        pick = np.kron(weights, np.eye(2))
        mean += probability * pick @ local.mean
        second += probability * pick @ moment @ pick.T
    law = exact_laws.average(target, local, participation.excess(target.weights))
    np.testing.assert_allclose(law.mean, mean, atol=1e-13)
    np.testing.assert_allclose(law.covariance, second - np.outer(mean, mean), atol=1e-13)


def outcomes(weights: Numbers, participation: Participation) -> list[tuple[Numbers, float]]:
    """List all averaging weights that a draw can give, with their probabilities."""
    n, size = len(weights), participation.num_selected
    assert size is not None
    if participation.scheme == "without_replacement":
        sets = list(itertools.combinations(range(n), size))
        return [(np.bincount(each, minlength=n) / size, 1 / len(sets)) for each in sets]
    draws = itertools.product(range(n), repeat=size)
    return [
        (np.bincount(each, minlength=n) / size, math.prod(weights[c] for c in each))
        for each in draws
    ]


@pytest.mark.parametrize("scheme", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_weights_of_a_draw(random: np.random.Generator, n: int, scheme: str) -> None:
    """Averaging weights have the mean p and the covariance C_S / S (diag(p) - p p^T).

    Hence E||theta - beta||^2 is C_S / S times the weighted spread of the models (Lemma C.2).
    """
    models = random.normal(size=(n, 3))
    for size in range(1, min(n, 4) + 1):
        weights = (
            np.full(n, 1 / n)
            if scheme == "without_replacement"
            else random.dirichlet(np.full(n, 3.0))
        )
        drawn = outcomes(weights, participation := Participation(scheme, size))
        mean = sum(probability * w for w, probability in drawn)
        second = sum(probability * np.outer(w, w) for w, probability in drawn)
        excess = participation.excess(weights)
        np.testing.assert_allclose(mean, weights, atol=1e-14)
        np.testing.assert_allclose(
            second - np.outer(mean, mean),
            excess * (np.diag(weights) - np.outer(weights, weights)),
            atol=1e-14,
        )
        centre = weights @ models
        moved = sum(probability * np.sum((w @ models - centre) ** 2) for w, probability in drawn)
        np.testing.assert_allclose(
            moved, excess * weights @ np.sum((models - centre) ** 2, axis=1), atol=1e-13
        )


# Properties ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", RHOS)
def test_one_local_step_is_sgld(random: np.random.Generator, rho: float) -> None:
    """K = 1 is SGLD for any rho and any weights (claim 1), by SGLD's recursion written out."""
    target = random_target(random, 4, 3)
    goal, eta = exact_laws.target_law(target), 0.1
    precision = np.linalg.inv(goal.covariance) * target.temperature
    noise = 2 * eta * target.temperature * np.eye(3)
    noise = noise + eta**2 * np.einsum("c,cij->ij", target.weights**2, target.gradient_noise)
    mean, covariance = np.zeros(3), np.zeros((3, 3))
    laws = exact_laws.iterate_rounds(
        exact_laws.one_round(target, step_size=eta, local_steps=1, rho=rho),
        exact_laws.point(np.zeros(3)),
        40,
    )
    gathered = exact_laws.iterate_rounds(
        exact_laws.one_round(exact_laws.centralised(target), step_size=eta, local_steps=1, rho=rho),
        exact_laws.point(np.zeros(3)),
        40,
    )
    for k in range(41):
        for law in (laws, gathered):
            np.testing.assert_allclose(law.mean[k], mean, atol=1e-12)
            np.testing.assert_allclose(law.covariance[k], covariance, atol=1e-12)
        step = np.eye(3) - eta * precision
        mean, covariance = (
            mean - eta * precision @ (mean - goal.mean),
            step @ covariance @ step.T + noise,
        )


def test_averaged_noise_does_not_depend_on_rho_or_weights(random: np.random.Generator) -> None:
    """With flat energies only the injected noise is left (claim 2).

    Its variance is 2 eta tau for the average and 2 eta T_c for a client; its covariance between two
    clients is 2 eta tau rho^2.
    """
    target = random_target(random, 3, 2)._replace(gradient_noise=0.0)
    flat = target._replace(hessians=np.zeros_like(target.hessians))
    for rho in RHOS:
        (step,) = exact_laws.steps(
            flat, exact_laws.point(np.zeros(2)), step_sizes=[0.1], local_steps=1, rho=rho
        )
        np.testing.assert_allclose(
            of_client(step.synced, 1, 2).covariance, 0.2 * 0.7 * np.eye(2), atol=1e-14
        )
        temperatures = exact_laws.local_temperature(target, rho)
        for client in range(3):
            covariance = of_client(step.local, client, 2).covariance
            np.testing.assert_allclose(
                covariance, 0.2 * temperatures[client] * np.eye(2), atol=1e-14
            )
        np.testing.assert_allclose(
            step.local.covariance[:2, 2:4], 0.2 * 0.7 * rho**2 * np.eye(2), atol=1e-14
        )


@pytest.mark.parametrize("local_steps", [1, 5, 8])
@pytest.mark.parametrize("rho", RHOS)
def test_one_hessian_hides_all_but_the_step_size(
    random: np.random.Generator, local_steps: int, rho: float
) -> None:
    """The law at each synchronisation is that of SGLD after as many steps (claim 17)."""
    target = random_target(random, 4, 2)._replace(gradient_noise=0.0)
    target = target._replace(hessians=np.broadcast_to(target.hessians[0], (4, 2, 2)))
    start = np.array([2.0, -1.0])
    taken = exact_laws.one_round(target, step_size=0.1, local_steps=local_steps, rho=rho)
    laws = exact_laws.iterate_rounds(taken, exact_laws.point(start), 5)
    for r in range(6):
        closed = shared.shared_hessian(target, start, step_size=0.1, num_steps=r * local_steps)
        np.testing.assert_allclose(laws.mean[r], closed.mean, atol=1e-12)
        np.testing.assert_allclose(laws.covariance[r], closed.covariance, atol=1e-12)
    closed = shared.shared_hessian_stationary(
        target, step_size=0.1, local_steps=local_steps, rho=rho
    )
    np.testing.assert_allclose(
        exact_laws.stationary(taken).covariance, closed.covariance, atol=1e-12
    )


@pytest.mark.parametrize(
    "participation", [Participation("with_replacement", 3), Participation("without_replacement", 3)]
)
def test_one_hessian_under_partial_participation(
    random: np.random.Generator, participation: Participation
) -> None:
    target = random_target(
        random, 4, 2, equal=participation.scheme == "without_replacement"
    )._replace(gradient_noise=0.0)
    target = target._replace(hessians=np.broadcast_to(target.hessians[0], (4, 2, 2)))
    for rho in RHOS:
        law = settled(target, local_steps=6, rho=rho, participation=participation, step_size=0.1)
        closed = shared.shared_hessian_stationary(
            target, step_size=0.1, local_steps=6, rho=rho, participation=participation
        )
        np.testing.assert_allclose(law.mean, closed.mean, atol=1e-12)
        np.testing.assert_allclose(law.covariance, closed.covariance, atol=1e-12)
    with pytest.raises(ValueError, match="hessians"):
        shared.shared_hessian(R1, np.zeros(1), step_size=0.1, num_steps=1)


def test_many_local_steps_average_the_modes(random: np.random.Generator) -> None:
    """Long rounds average the modes of the clients (claim 19).

    A client that is never synchronised samples its own energy at its local temperature (claim 20).
    """
    target = random_target(random, 3, 2)._replace(gradient_noise=0.0)
    eta, rho = 1e-3, 0.3
    law = settled(target, local_steps=100_000, rho=rho, step_size=eta)
    np.testing.assert_allclose(law.mean, target.weights @ target.centers, atol=1e-12)
    assert np.abs(law.mean - exact_laws.target_law(target).mean).max() > 0.05
    alone = exact_laws.local_target(target, rho)
    stacked = exact_laws.one_round(target, step_size=eta, local_steps=100_000, rho=rho)
    np.testing.assert_allclose(stacked.shifts, alone.mean, atol=1e-12)
    for c, temperature in enumerate(exact_laws.local_temperature(target, rho)):
        single = GaussianTarget(target.hessians[[c]], target.centers[[c]], np.ones(1), temperature)
        settled_alone = exact_laws.stationary(
            exact_laws.one_round(single, step_size=eta, local_steps=1, rho=0.0)
        )
        np.testing.assert_allclose(settled_alone.covariance, alone.covariance[c], rtol=3e-3)
    at_zero = exact_laws.local_target(target, 0.0).covariance
    np.testing.assert_allclose(
        at_zero,
        target.temperature * np.linalg.inv(target.weights[:, None, None] * target.hessians),
        rtol=1e-12,
    )


def test_scheme_order() -> None:
    """More clients, no repetition and more shared noise all narrow the law (claim 10)."""
    target = GaussianTarget(
        np.array([1.0, 2.0, 3.0, 4.0, 5.0])[:, None, None],
        np.array([[-1.0], [1.0], [0.5], [2.0], [0.0]]),
        np.full(5, 0.2),
    )

    def variance(scheme: str, size: int, rho: float = 0.0) -> float:
        return settled(
            target, local_steps=5, rho=rho, participation=Participation(scheme, size)
        ).covariance.item()

    full = settled(target, local_steps=5, rho=0.0).covariance.item()
    for scheme in ("with_replacement", "without_replacement"):
        falling = [variance(scheme, size) for size in range(1, 6)]
        assert (np.diff(falling) < 0).all()
        assert (np.diff([variance(scheme, 2, rho) for rho in (0.0, 0.3, 0.6, 0.9, 1.0)]) < 0).all()
    for size in range(2, 6):
        assert variance("without_replacement", size) < variance("with_replacement", size)
    np.testing.assert_allclose(
        variance("without_replacement", 1), variance("with_replacement", 1), rtol=1e-13
    )
    np.testing.assert_allclose(variance("without_replacement", 5), full, rtol=1e-13)
    assert variance("with_replacement", 5) > 1.1 * full


@pytest.mark.parametrize(
    ("participation", "word"),
    [
        (Participation("partial", 2), "scheme"),
        (Participation("with_replacement"), "num_selected"),
        (Participation("without_replacement", 6), "num_selected"),
        (Participation("with_replacement", 0), "num_selected"),
    ],
)
def test_impossible_participation(participation: Participation, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        participation.excess(R2.weights)


def test_without_replacement_needs_equal_weights() -> None:
    with pytest.raises(ValueError, match="unequal"):
        Participation("without_replacement", 2).excess(UNEQUAL)


@pytest.mark.parametrize("participation", [FULL, ONE])
def test_no_law_is_stationary_where_second_moments_grow(participation: Participation) -> None:
    """The recursion and the closed form refuse step sizes at which second moments grow.

    This includes one at which they grow under partial participation only, though the mean settles.
    """
    for step_size in (0.7, math.nan):
        with pytest.raises(ValueError, match="step_size"):
            settled(R1, local_steps=5, rho=0.0, step_size=step_size, participation=participation)
    batch = GaussianTarget(*(np.stack([leaf, leaf]) for leaf in R1[:3]))
    with pytest.raises(ValueError, match="step_size"):
        exact_laws.stationary(
            exact_laws.one_round(
                batch,
                step_size=np.array([0.05, 0.7]),
                local_steps=5,
                rho=0.0,
                participation=participation,
            )
        )
    # M = (0.4 - 1.4) / 2 = -0.5, but (0.4^2 + 1.4^2) / 2 is above 1.
    between = 0.6
    assert settled(R1, local_steps=1, rho=0.0, step_size=between).covariance.item() > 0
    with pytest.raises(ValueError, match=r"second moments by 1\.06"):
        settled(R1, local_steps=1, rho=0.0, step_size=between, participation=ONE)
    assert (
        shared.shared_hessian_stationary(
            R2, step_size=0.99, local_steps=3, rho=0.0, participation=participation
        ).covariance.item()
        > 0
    )
    with pytest.raises(ValueError, match="step_size is 1, but must be above 0 and less than 1"):
        shared.shared_hessian_stationary(
            R2, step_size=1.0, local_steps=3, rho=0.0, participation=participation
        )


@pytest.mark.parametrize("rho", [-0.1, 1.1, math.nan, np.array([0.5, 1.1])])
def test_shares_of_noise_beyond_one(rho: exact_laws.Real) -> None:
    how = {"local_steps": 2, "rho": rho}
    with pytest.raises(ValueError, match="rho is"):
        exact_laws.one_round(R1, step_size=0.1, **how)
    with pytest.raises(ValueError, match="rho is"):
        next(exact_laws.steps(R1, exact_laws.point(np.zeros(1)), step_sizes=[0.1], **how))
    with pytest.raises(ValueError, match="rho is"):
        exact_laws.local_temperature(R1, rho)
    with pytest.raises(ValueError, match="rho is"):
        shared.inflation(5, rho, ONE)


@pytest.mark.parametrize(
    ("participation", "rho", "floors"),
    [
        (FULL, 0.0, (1.5e-4, 4.2e-5, 1.4e-5, 1.4e-6)),
        (Participation("with_replacement", 40), 0.0, (7.3e-3, 6.1e-3, 5.7e-3, 5.4e-3)),
        (Participation("without_replacement", 40), 0.0, (1.9e-3, 1.5e-3, 1.4e-3, 1.3e-3)),
        (Participation("with_replacement", 30), 0.0, (9.1e-3, 7.7e-3, 7.2e-3, 6.9e-3)),
        (Participation("without_replacement", 30), 0.0, (4.4e-3, 3.65e-3, 3.4e-3, 3.2e-3)),
        (Participation("with_replacement", 40), 1.0, (2.6e-3, 1.25e-3, 8.9e-4, 1.6e-4)),
        (Participation("without_replacement", 40), 1.0, (6.6e-4, 3.1e-4, 2.2e-4, 3.5e-5)),
    ],
)
def test_floors_of_the_simulation(
    participation: Participation, rho: float, floors: tuple[float, ...]
) -> None:
    """The paper's simulation has the pinned floors at four step sizes, as means over draws of data.

    There are 50 clients of 1000 points in the plane, and K = 100. The tolerance is the digits of
    the pinned values and five standard errors.
    """
    random, sigma = np.random.default_rng(11), np.array([[5.0, -2.0], [-2.0, 1.0]])
    centers = random.normal(size=(40, 50, 2)) @ np.linalg.cholesky(sigma).T / np.sqrt(1000)
    draws = [
        GaussianTarget(
            np.broadcast_to(50_000 * np.linalg.inv(sigma), (50, 2, 2)), of_draw, np.full(50, 0.02)
        )
        for of_draw in centers
    ]
    for step_size, floor in zip((1e-6, 3e-7, 1e-7, 1e-8), floors, strict=True):
        how = {
            "step_size": step_size,
            "local_steps": 100,
            "rho": rho,
            "participation": participation,
        }
        laws = [shared.shared_hessian_stationary(target, **how) for target in draws]
        found = np.array(
            [
                wasserstein2(*law, *exact_laws.target_law(target))
                for law, target in zip(laws, draws, strict=True)
            ]
        )
        assert abs(found.mean() - floor) < 0.03 * floor + 5 * found.std(ddof=1) / np.sqrt(40)
