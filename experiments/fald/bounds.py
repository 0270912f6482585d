"""FA-LD's bounds against exact laws on Gaussian problems (claims 3 to 5).

See arXiv 2112.05120, Sec. 5. Nothing is simulated. R1 has two clients with curvatures 1 and 4 and
centers -1 and 1; R2 has five with curvature 2 and centers -1 to 1. The other problems are random,
with unequal weights and noisy gradients. Under partial participation laws are mixtures, and the W2
of their moments is a lower bound of their W2 (Gelbrich): for Theorem C.3 and (38) the check is
necessary, not sufficient. Lemma B.1 holds for any models and is checked at random ones.

Dimension letters: `B` problems of a batch, `T` steps.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.formulas import bounds as formulas
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import FULL as EVERYONE
from experiments.fald.formulas.exact_laws import GaussianTarget, Numbers, Participation, Real
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, judge_all
from fedjax_sim.results.diagnostics import Gaussian, wasserstein2
from fedjax_sim.results.plots import look, styled

RHOS = (0.0, 0.5, 1.0)
LOCAL_STEPS = (1, 5, 20)
FOREVER = 10**12
"""A number of steps after which the start has no influence."""


STUDY = Study(
    full=Sizes(problems=300, followed=200, steps=20_000),
    smoke=Sizes(problems=40, followed=40, steps=4000),
)
"""Random problems, steps followed at a constant step size, and steps of decreasing size."""


class Case(NamedTuple):
    """A batch of problems with equal numbers of clients and local steps, and one participation."""

    clients: GaussianTarget  # leaves [B, ...]
    rho: Numbers  # f64[B]
    step_size: Numbers  # f64[B]
    local_steps: int
    who: Participation


class Decreasing(NamedTuple):
    """A run at decreasing step sizes, by step from 0."""

    distance: Numbers  # f64[T + 1, B]  W2 to the target
    bound: Numbers  # f64[T + 1, B]


def cases(num_problems: int) -> Iterator[Case]:
    """Make R1 and R2 in every way at three step sizes and every rho, and random problems.

    Random problems are taken with everyone averaged, and in both schemes of partial participation.
    """
    of_largest, rho = (x.ravel() for x in np.meshgrid((0.08, 0.4, 1.0), RHOS))
    for problem in (gaussian.r1(), gaussian.r2()):
        clients = gaussian.clients_of(problem)
        sizes = range(1, clients.shape[0] + 1)
        some = itertools.starmap(Participation, itertools.product(oracle.SCHEMES[1:], sizes))
        for who, local_steps in itertools.product((EVERYONE, *some), LOCAL_STEPS):
            yield case_of([clients] * len(rho), rho, of_largest, local_steps, who)
    random = np.random.default_rng(3)
    groups: dict[tuple[int, int, Participation], list[tuple[GaussianTarget, float, float]]] = {}
    for clients, scheme in itertools.product(
        map(gaussian.random_clients, range(num_problems)), oracle.SCHEMES
    ):
        n, who = clients.shape[0], EVERYONE
        if scheme != "full":
            who = Participation(scheme, int(random.integers(1, n + 1)))
        if scheme == "without_replacement":
            clients = clients._replace(weights=np.full(n, 1 / n))
        drawn = clients, float(random.choice(RHOS)), float(random.uniform(0.05, 1))
        groups.setdefault((n, int(random.choice(LOCAL_STEPS)), who), []).append(drawn)
    for (_, local_steps, who), group in groups.items():
        together, rhos, shares = zip(*group, strict=True)
        yield case_of(together, np.array(rhos), np.array(shares), local_steps, who)


def case_of(
    problems: Sequence[GaussianTarget],
    rho: Numbers,
    of_largest: Numbers,
    local_steps: int,
    who: Participation,
) -> Case:
    """Stack problems with equal numbers of clients.

    Step sizes are shares of the largest one allowed, `of_largest`.
    """
    noisy = (
        each._replace(gradient_noise=np.broadcast_to(each.gradient_noise, each.hessians.shape))
        for each in problems
    )
    clients = GaussianTarget(*(np.stack(leaf) for leaf in zip(*noisy, strict=True)))
    start = np.zeros(clients.shape[1])
    allowed = np.asarray(formulas.setup_of(clients, start, rho).largest_step_size)
    return Case(clients, rho, of_largest * allowed, local_steps, who)


def share(value: Real, bound: Real) -> float:
    """Return the largest ratio of a value to its bound, or NaN if one of them is not finite."""
    value, bound = np.broadcast_arrays(value, bound)
    if not (np.isfinite(value).all() and np.isfinite(bound).all()):
        return float("nan")
    return float(np.max(value / bound, initial=0.0))


def largest(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest ratio for each bound; NaN stays NaN."""
    worst: dict[str, float] = {}
    for shares in found:
        for name, ratio in shares.items():
            worst[name] = float(np.maximum(worst.get(name, 0.0), ratio))
    return worst


def tightest(case: Case, num_steps: int) -> dict[str, float]:
    """Return the largest ratio for each bound in a case.

    Runs are followed from the start and, for one round, from the law at rest. Lemmas that need no
    run are included.
    """
    clients = case.clients
    start = oracle.point(np.ones((len(case.rho), clients.shape[1])))
    setup, goal = formulas.setup_of(clients, start.mean, case.rho), oracle.target_law(clients)
    precision = np.einsum("bc,bcij->bij", clients.weights, clients.hessians)
    curvatures = np.linalg.eigvalsh(precision)
    eta = np.geomspace(1e-4, 1.999, 30)[:, None] / setup.strong_convexity
    # How far the stationary diffusion moves, along eigenvectors of the mean Hessian.
    shares = -2 * np.expm1(-eta[..., None] * curvatures) / curvatures
    moved = shares.sum(axis=-1) * clients.temperature
    noise = np.asarray(oracle.centralised(clients).gradient_noise)[:, 0]
    averaged = np.trace(noise, axis1=1, axis2=2)
    is_noisy = np.asarray(setup.gradient_variance) > 0
    alone = {
        "F.1": share(wasserstein2(*start, *goal), formulas.start_bound(setup)),
        "B.1": contraction(clients, setup),
        "B.2": share(moved, formulas.discretisation_bound(setup, step_size=eta)),
        "B.4": share(
            averaged[is_noisy], np.asarray(formulas.gradient_noise_bound(setup))[is_noisy]
        ),
    }
    how: dict[str, Any] = {"step_size": case.step_size, "local_steps": case.local_steps}
    rest = gaussian.at_rest(clients, rho=case.rho, participation=case.who, **how)
    at_rest = followed(case, setup, rest, case.local_steps, before=FOREVER)
    return largest([alone, followed(case, setup, start, num_steps), at_rest])


def contraction(clients: GaussianTarget, setup: formulas.LangevinSetup) -> float:
    """Return the largest ratio of Lemma B.1, at models of three scales and three step sizes."""
    random, (num, n, dim) = np.random.default_rng(0), clients.centers.shape
    found = 0.0
    for scale in (0.01, 1.0, 100.0):
        one = random.normal(size=(8, num, dim))
        models = scale * random.normal(size=(8, num, n, dim))
        centre = np.einsum("bc,kbci->kbi", clients.weights, models)
        away = one[:, :, None] - models
        gap = np.einsum("bc,bcij,kbcj->kbi", clients.weights, clients.hessians, away)
        divergence = np.einsum("bc,kbci->kb", clients.weights, (models - centre[:, :, None]) ** 2)
        apart = np.sum((one - centre) ** 2, axis=-1)
        for part in (0.1, 0.5, 1.0):
            eta = part / (setup.smoothness + setup.strong_convexity)
            allowed = formulas.contraction_bound(
                setup, step_size=eta, squared_distance=apart, divergence=divergence
            )
            after = np.sum((one - centre - np.reshape(eta, (-1, 1)) * gap) ** 2, axis=-1)
            found = float(np.maximum(found, share(after, allowed)))
    return found


def followed(
    case: Case, setup: formulas.LangevinSetup, start: Gaussian, num_steps: int, before: int = 0
) -> dict[str, float]:
    """Return the largest ratio for each bound on the way from a law at a synchronisation.

    `before` is the number of steps taken before it.
    """
    clients, eta, who = case.clients, case.step_size, case.who
    how: dict[str, Any] = {"step_size": eta, "local_steps": case.local_steps}
    goal, excess = oracle.target_law(clients), who.excess(clients.weights)
    beta, theta = follow(clients, start, [eta] * num_steps, case.local_steps, case.rho, who)
    local, synced = moments(clients, beta), moments(clients, theta)
    distance = wasserstein2(*oracle.average(clients, theta), *goal)
    at_sync = np.arange(1, num_steps + 1) % case.local_steps == 0
    k = before + np.arange(num_steps + 1)[:, None]

    def one_step(is_chosen: np.ndarray, taking_part: Participation) -> float:
        allowed = formulas.one_step_bound(
            setup, distance[:-1][is_chosen] ** 2, participation=taking_part, **how
        )
        return share(distance[1:][is_chosen] ** 2, allowed)

    gradient = formulas.gradient_bound(setup, step_size=eta)
    shares = {
        "E.1": share(synced.distance, formulas.moment_bound(setup, step_size=eta)),
        "E.2": float(np.maximum(share(local.gradient, gradient), share(synced.gradient, gradient))),
    }
    if case.local_steps > 1:
        shares["B.3"] = share(synced.divergence, formulas.divergence_bound(setup, **how))
    whole = share(distance, formulas.bound(setup, k, participation=who, **how))
    if who == EVERYONE:
        first = wasserstein2(*oracle.point(np.ones(goal.mean.shape)), *goal)
        return shares | {
            "B.5": one_step(np.full(num_steps, True), who),
            "B.6, B.8": whole,
            "(29)": share(distance**2, formulas.squared_bound(setup, k, first**2, **how)),
        }
    if excess > 0:
        shares["C.2"] = share(
            excess * local.divergence[at_sync], formulas.selection_bound(setup, who, **how)
        )
    return shares | {
        "B.5": one_step(~at_sync, EVERYONE),
        "(38)": one_step(at_sync, who),
        "C.3": whole,
    }


def follow(
    clients: GaussianTarget,
    start: Gaussian,
    step_sizes: Sequence[Real],
    local_steps: int,
    rho: Real,
    who: Participation,
) -> tuple[Gaussian, Gaussian]:
    """Follow the joint law of all clients' models.

    Returns:
      The laws after the local part of each step, and the laws after 0, 1, ... steps; time first.
    """
    n = clients.shape[0]
    how: dict[str, Any] = {"local_steps": local_steps, "rho": rho, "participation": who}
    taken = list(oracle.steps(clients, start, step_sizes=step_sizes, **how))
    first = Gaussian(np.tile(start.mean, n), np.tile(start.covariance, (n, n)))
    local, synced = [step.local for step in taken], [first, *(step.synced for step in taken)]
    beta, theta = (
        Gaussian(*(np.stack(leaf) for leaf in zip(*laws, strict=True))) for laws in (local, synced)
    )
    return beta, theta


class Moments(NamedTuple):
    """Moments of all clients' models by step: the largest of any client, or a weighted mean."""

    distance: Numbers  # f64[T, B]  of E||theta^c - theta_*||^2
    gradient: Numbers  # f64[T, B]  of E||gradient of f^c at theta^c||^2, its noise included
    divergence: Numbers  # f64[T, B]  sum_c p_c E||theta^c - theta||^2


def moments(clients: GaussianTarget, law: Gaussian) -> Moments:
    """Compute the moments that the lemmas bound, from joint laws by step."""
    n, dim = clients.shape
    mean = law.mean.reshape(*law.mean.shape[:-1], n, dim)
    blocks = np.einsum(
        "...cicj->...cij", law.covariance.reshape(*law.covariance.shape[:-2], n, dim, n, dim)
    )
    variance, centre = np.trace(blocks, axis1=-2, axis2=-1), oracle.average(clients, law)
    distance = variance + np.sum((mean - oracle.target_law(clients).mean[:, None]) ** 2, axis=-1)
    slope = np.einsum("bcij,tbcj->tbci", clients.hessians, mean - clients.centers)
    curved = np.trace(clients.hessians @ blocks @ clients.hessians, axis1=-2, axis2=-1)
    noise = np.trace(np.asarray(clients.gradient_noise), axis1=-2, axis2=-1)
    gradient = curved + np.sum(slope**2, axis=-1) + noise
    apart = variance + np.sum((mean - centre.mean[..., None, :]) ** 2, axis=-1)
    spread = np.einsum("bc,tbc->tb", clients.weights, apart)
    divergence = spread - np.trace(centre.covariance, axis1=-2, axis2=-1)
    return Moments(distance.max(axis=-1), gradient.max(axis=-1), divergence)


def measure_bounds(sizes: Sizes, late: Mapping[str, Decreasing]) -> Found:
    """Return the largest share of every bound on R1, R2 and random problems (claim 3)."""
    found = [{"B.7": share(*each)} for each in late.values()]
    for case in cases(sizes.problems):
        found.append(tightest(case, sizes.followed))
        if case.who == EVERYONE:
            # The bound is proved up to K - 1 = 24 kappa, and kappa is at least 1.
            found.append(
                {"B.7": share(*decreasing_run(case.clients, case.local_steps, sizes.followed))}
            )
    return dict(sorted(largest(found).items(), key=lambda item: -item[1]))


def decreasing_run(clients: GaussianTarget, local_steps: int, num_steps: int) -> Decreasing:
    """Follow a batch of problems from 0 at decreasing step sizes.

    Everyone is averaged, and no noise is shared.
    """
    start, steps = np.zeros_like(clients.centers[:, 0]), np.arange(num_steps + 1)[:, None]
    setup, goal = formulas.setup_of(clients, start, 0.0), oracle.target_law(clients)
    sizes = np.asarray(formulas.decreasing_step_size(setup, steps[:-1]))
    _, theta = follow(clients, oracle.point(start), list(sizes), local_steps, 0.0, EVERYONE)
    distance = wasserstein2(*oracle.average(clients, theta), *goal)
    return Decreasing(
        distance, np.asarray(formulas.decreasing_bound(setup, steps, local_steps=local_steps))
    )


def long_runs(num_steps: int) -> dict[str, Decreasing]:
    """Follow R1 and R2 at decreasing step sizes with K = 5."""
    alone = {
        name: case_of([gaussian.clients_of(problem)], np.zeros(1), np.ones(1), 5, EVERYONE)
        for name, problem in (("R1", gaussian.r1()), ("R2", gaussian.r2()))
    }
    return {name: decreasing_run(case.clients, 5, num_steps) for name, case in alone.items()}


def measure_constant() -> Found:
    """Compute the excess over the floor, and floors at smaller and smaller step sizes (claim 4)."""
    sizes = 0.1 / 4.0 ** np.arange(5)
    floors, slowest = {}, 0.0
    for name, problem in (("R1", gaussian.r1()), ("R2", gaussian.r2())):
        clients = gaussian.clients_of(problem)
        goal, setup = oracle.target_law(clients), formulas.setup_of(clients, np.zeros(1), 0.0)
        floors[name] = [gaussian.floor(clients, step_size=eta, local_steps=5) for eta in sizes]
        for eta in sizes:
            how: dict[str, Any] = {"step_size": eta, "local_steps": 5}
            rest, laws = (
                gaussian.at_rest(clients, **how),
                gaussian.laws(clients, 40, start=3.0, **how),
            )
            # By the triangle inequality, W2 to the target exceeds the floor by at most W2 to the
            # law at rest.
            excess = wasserstein2(*laws, *rest)
            allowed = (1 - eta * setup.strong_convexity / 4) ** (5 * np.arange(41)) * excess[0]
            reached = wasserstein2(*laws, *goal)
            least = allowed + floors[name][list(sizes).index(eta)]
            both = share(excess[1:], allowed[1:]), share(reached, least)
            slowest = float(np.max([slowest, *both]))
    return {"floors": floors, "step sizes": sizes, "largest share": slowest}


def judge_constant(found: Found) -> Verdict:
    """Judge claim 4."""
    slowest, floors, marks = found["largest share"], found["floors"], CLAIMS[4].criterion
    ratios = np.array([np.array(values)[:-1] / values[1:] for values in floors.values()])
    why = (
        f"distance to the law at rest at most {slowest:.3f} of what (1 - eta m / 4)^k allows; "
        "floors fall by "
        f"{ratios.min():.1f} to {ratios.max():.1f} for every fourth of the "
        f"step size, from 0.1 to 0.0004"
    )
    holds = slowest <= 1 + marks.slack and (ratios > marks.factor).all()
    return verdict(4, found, holds, why)


def measure_decreasing(late: Mapping[str, Decreasing]) -> Found:
    """Fit the powers of k by which W2 falls in long runs (claim 5)."""
    slopes, num_steps = {}, len(late["R1"].distance) - 1
    k = np.arange(num_steps + 1)
    is_late = (k % 5 == 0) & (k > num_steps // 10)
    for name, each in late.items():
        slopes[name] = float(
            np.polyfit(np.log(k[is_late]), np.log(each.distance[is_late, 0]), 1)[0]
        )
    return slopes


@styled()
def picture(late: Decreasing) -> Figure:
    """Draw W2 and its bounds on R1 with K = 5, at constant and at decreasing step sizes."""
    figure = Figure(figsize=(11, 4.2))
    left, right = figure.subplots(1, 2, sharey=True)
    clients = gaussian.clients_of(gaussian.r1())
    setup = formulas.setup_of(clients, np.zeros(1), 0.0)
    rounds = np.arange(81)
    for i, eta in enumerate((0.1, 0.02, 0.004)):
        distance = gaussian.exact_distances(clients, 80, step_size=eta, local_steps=5)
        allowed = formulas.bound(setup, 5 * rounds, step_size=eta, local_steps=5)
        left.semilogy(5 * rounds, distance, label=f"{eta:g}", **look(i))
        left.semilogy(5 * rounds, allowed, **look(i, "none", linewidth=1))
    k = np.arange(1, 2001)
    right.loglog(k, late.distance[k, 0], label="W2", **look(0))
    right.loglog(k, late.bound[k, 0], label="bound", **look(1))
    title = "R1, K = 5, constant step size; without marks: bounds"
    left.set(xlabel="steps", ylabel="W2", title=title)
    left.legend(title="step size")
    right.legend()
    right.set(xlabel="steps", title="R1, K = 5, decreasing step size")
    return figure


JUDGES: Judges = {**CLAIMS.declared(3, 5), 4: judge_constant}


def run(arguments: Arguments) -> Outcome:
    """Compute and judge the claims."""
    sizes = STUDY.choose(arguments)
    late = long_runs(sizes.steps)
    measured = {
        3: measure_bounds(sizes, late),
        4: measure_constant(),
        5: measure_decreasing(late),
    }
    figures = {"bounds.png": picture(late["R1"])}
    return Outcome({}, figures, judge_all(JUDGES, measured), sizes.config())
