"""FA-LD's laws on small Gaussian problems (claims 1, 2, 9 to 11, 17 to 20, 22).

See arXiv 2112.05120. Chains run through the engine and are compared with exact laws after eight
rounds, by means and variances in standard errors; what concerns laws alone is computed. R1 has two
clients with curvatures 1 and 4 and centers -1 and 1; R2 has five with curvature 2 and centers -1 to
1. The step size is 0.05 and the temperature 1, unless a claim varies them.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

import fedjax_sim
from experiments import harness
from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.formulas import bounds as formulas
from experiments.fald.formulas import equal_hessians as shared
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import FULL as EVERYONE
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation
from experiments.fald.gaussian import Cell, largest, line
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, rule
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.problems import GaussianClients
from fedjax_sim.systems import langevin

STEP_SIZE, ROUNDS = 0.05, 8
RHOS = (0.0, 0.5, 1.0)
COUNTS = (2, 3, 4, 5, 6)
"""Unequal numbers of examples of R2's clients, which give weights of 0.1 to 0.3."""


STUDY = Study(full=Sizes(seeds=10_000), smoke=Sizes(seeds=1000))
"""Seeds are chains, at least three."""


def run_chains(
    problem: GaussianClients, num_chains: int, *, local_steps: int, who: Participation = EVERYONE
) -> list[Cell]:
    """Run chains of a problem, a cell for each rho."""
    return gaussian.cells(
        [problem],
        num_chains=num_chains,
        num_rounds=ROUNDS,
        vary={"rho": RHOS},
        step_size=STEP_SIZE,
        local_steps=local_steps,
        participation=who,
    )


def off(cells: Iterable[Cell]) -> float:
    """Return how far chains are from the exact laws after 1, 2, 4 and 8 rounds."""
    return largest(*(cell.off((1, 2, 4, 8)) for cell in cells))


# With everyone averaged: claims 1, 2, 17, 19, 20 -------------------------------------------------


def measure_sgld(sizes: Sizes) -> Found:
    """Compare laws exactly, with gradient noise and unequal weights, and chains of R1 (claim 1)."""
    apart = 0.0
    for seed, rho in itertools.product(range(5), RHOS):
        clients = gaussian.random_clients(seed)
        eta = 0.5 * float(formulas.setup_of(clients, np.zeros(2), rho).largest_step_size)
        how = {"step_size": eta, "local_steps": 1}
        several = gaussian.laws(clients, 100, rho=rho, **how)
        whole = gaussian.laws(oracle.centralised(clients), 100, **how)
        both = zip(several, whole, strict=True)
        apart = largest(apart, *(float(np.abs(a - b).max()) for a, b in both))
    far = off(run_chains(gaussian.r1(), sizes.seeds, local_steps=1))
    return {"largest difference": apart, "largest deviation": far, "chains": sizes.seeds}


def measure_noise(sizes: Sizes) -> Found:
    """Measure variances of increments on flat energies with unequal weights (claim 2).

    The average is checked, and single clients by drawing one of them.
    """
    flat = line(0.0, np.zeros(5), COUNTS)
    weights = np.array(COUNTS) / sum(COUNTS)
    options: dict[str, Any] = {
        "settings": {"rho": RHOS},
        "budget": fedjax_sim.Ticks(ROUNDS),
        "num_evals": ROUNDS,
        "keep": fedjax_sim.Keep(models=True),
        "seeds": sizes.seeds,
    }
    hyper: Any = langevin.paper(num_clients=5, gradient="exact", step_size=STEP_SIZE, local_steps=4)
    far = 0.0
    one = {"participants": "with_replacement", "num_selected": 1}
    for who in ({}, one):
        run = fedjax_sim.sweep(langevin.system, flat, hyper.replace(**who), **options)
        moved = np.diff(np.asarray(run.samples, float)[..., 0]).reshape(3, sizes.seeds, ROUNDS)
        drawn = np.stack([timeline.clients[:, 0] for timeline in run.timelines])
        drawn = drawn.reshape(moved.shape)
        for j, rho in enumerate(RHOS):
            groups = [(moved[j].ravel(), 1.0)]
            if who:
                groups = [
                    (moved[j][drawn[j] == c], rho**2 + (1 - rho**2) / weights[c]) for c in range(5)
                ]
            for increments, temperature in groups:
                square = increments**2 / (2 * STEP_SIZE * 4 * temperature)
                far = largest(far, abs(square.mean() - 1) / np.sqrt(2 / len(square)))
    return {"largest deviation": far, "chains": sizes.seeds}


TOTAL = 600
"""Local steps after which laws are compared for claim 17."""


def measure_invariance() -> Found:
    """Compare laws of the paper's simulation, with centers moved about their mean (claim 17)."""
    clients = gaussian.clients_of(gaussian.equal_problem(10.0))
    mode = oracle.target_law(clients).mean
    gathered = clients._replace(centers=np.broadcast_to(mode, clients.centers.shape))
    off = 0.0
    reference = shared.shared_hessian(clients, np.ones(2), step_size=1e-7, num_steps=TOTAL)
    scale = float(np.sqrt(np.trace(reference.covariance)))
    for problem, local_steps, rho in itertools.product((clients, gathered), (1, 10, 300), RHOS):
        how = {"step_size": 1e-7, "local_steps": local_steps, "rho": rho}
        law = gaussian.laws(problem, TOTAL // local_steps, start=1.0, **how)
        off = largest(off, np.abs(law.mean[-1] - reference.mean).max() / scale)
        off = largest(off, np.abs(law.covariance[-1] - reference.covariance).max() / scale**2)
    return {"largest relative difference": off}


def measure_modes(sizes: Sizes) -> Found:
    """Compute the stationary mean of R1 with many local steps, and run its chains (claim 19)."""
    clients = gaussian.clients_of(gaussian.r1())
    law = gaussian.at_rest(clients, step_size=STEP_SIZE, local_steps=100)
    far = off(run_chains(gaussian.r1(), sizes.seeds, local_steps=100))
    return {"mean": float(law.mean[0]), "largest deviation": far, "chains": sizes.seeds}


def measure_alone(sizes: Sizes) -> Found:
    """Run one round of many steps of one client of R1, drawn at random (claim 20).

    At rho = 0 it has to sample that client's posterior.
    """
    problem, eta, num_steps = gaussian.r1(), 0.01, 1000
    one = {"participants": "with_replacement", "num_selected": 1}
    hyper = langevin.paper(
        num_clients=2, gradient="exact", step_size=eta, local_steps=num_steps, **one
    )
    run = fedjax_sim.sweep(
        langevin.system,
        problem,
        hyper,
        seeds=sizes.seeds,
        settings={"rho": RHOS},
        budget=fedjax_sim.Ticks(1),
        num_evals=1,
    )
    models = np.asarray(run.models, float).reshape(3, sizes.seeds)
    drawn = np.array([timeline.clients[0, 0] for timeline in run.timelines]).reshape(3, sizes.seeds)
    clients = gaussian.clients_of(problem)
    far, wide = 0.0, 0.0
    for (j, rho), c in itertools.product(enumerate(RHOS), range(2)):
        of_client = models[j][drawn[j] == c]
        goal = oracle.local_target(clients, rho)
        curvature = clients.hessians[c, 0, 0]
        variance = goal.covariance[c, 0, 0] / (1 - eta * curvature / 2)
        num, ratio = len(of_client), of_client.var(ddof=1) / variance
        off_mean = abs(of_client.mean() - goal.mean[c, 0]) / np.sqrt(variance / num)
        far = largest(far, off_mean, abs(ratio - 1) / np.sqrt(2 / (num - 1)))
        wide = largest(wide, variance / goal.covariance[c, 0, 0] - 1)
    found = {"largest deviation": far, "step size": eta, "largest excess": wide}
    return {**found, "chains": sizes.seeds}


# Under partial participation: claims 9 to 11, 18 -------------------------------------------------


def uneven() -> GaussianTarget:
    """Make five clients of unequal curvature and equal weight."""
    return gaussian.clients_of(line([1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, 1.0, 0.5, 2.0, 0.0]))


def measure_floor() -> Found:
    """Compute W2 as the step size goes to 0, at K = 5, for rho below 1 and rho = 1 (claim 9)."""
    sizes = (1e-3, 1e-5, 1e-7)
    distances = {}
    for scheme, rho in itertools.product(oracle.SCHEMES[1:], (0.0, 0.5, 0.9, 1.0)):
        who = Participation(scheme, 2)
        distances[f"{scheme.replace('_', ' ')}, rho = {rho:g}"] = [
            gaussian.floor(uneven(), step_size=eta, local_steps=5, rho=rho, participation=who)
            for eta in sizes
        ]
    return {"step sizes": sizes, "W2": distances}


def judge_floor(found: Found) -> Verdict:
    """Judge claim 9."""
    distances, marks = found["W2"], CLAIMS[9].criterion

    def remains(values: list[float]) -> bool | None:
        if values[-1] > marks.share * values[-2] and values[-2] > marks.least:
            return True
        return False if values[-1] < marks.vanished * values[0] else None

    shared = {name: values for name, values in distances.items() if name.endswith("rho = 1")}
    private = {name: values for name, values in distances.items() if name not in shared}
    parts = {
        "rho below 1": harness.all_of(map(remains, private.values())),
        "rho = 1": harness.all_of(map(remains, shared.values())),
    }
    shown = "; ".join(f"{name} {values[-1]:.1e}" for name, values in distances.items())
    why = f"W2 at step size {found['step sizes'][-1]:g}: {shown} (K = 5, S = 2 of 5)"
    return verdict(9, found, rule(parts, deciding=harness.begins("rho below 1")), why)


def measure_order() -> Found:
    """Compute how W2 of exact stationary laws differs by S, rho and scheme (claim 10)."""
    rhos = (0.0, 0.3, 0.6, 0.9, 1.0)

    def bias(clients: GaussianTarget, who: Participation, rho: float) -> float:
        return gaussian.floor(clients, step_size=1e-3, local_steps=5, rho=rho, participation=who)

    by_size, by_rho, by_scheme, same, none = np.inf, np.inf, np.inf, 0.0, 0.0
    for clients in (uneven(), gaussian.clients_of(gaussian.r2())):
        both = [
            np.array(
                [
                    [bias(clients, Participation(scheme, n), rho) for n in range(1, 6)]
                    for rho in rhos
                ]
            )
            for scheme in oracle.SCHEMES[1:]
        ]
        by_size = np.minimum(by_size, -np.diff(both, axis=2).max())
        # Without replacement rho makes no difference at S = N where curvatures are equal.
        for each in (both[0], both[1][:, :4]):
            by_rho = np.minimum(by_rho, -np.diff(each, axis=0).max())
        by_scheme = np.minimum(by_scheme, (both[0] - both[1])[:, 1:].min())
        same = largest(same, np.abs(both[0][:, 0] - both[1][:, 0]).max())
        full = [bias(clients, EVERYONE, rho) for rho in rhos]
        none = largest(none, np.abs(both[1][:, -1] - full).max())
    return {
        "least fall in S": by_size,
        "least fall in rho": by_rho,
        "least gain without replacement": by_scheme,
        "difference at S = 1": same,
        "difference at S = N": none,
    }


def measure_mean(sizes: Sizes, cells: list[Cell]) -> Found:
    """Measure means of R2 with unequal weights, drawn with replacement (claim 11).

    The mean that averaging a uniform subset would have is computed for comparison.
    """
    clients = cells[0].clients
    mean = [float(cell.models[:, -1, 0].astype(float).mean()) for cell in cells]
    after = gaussian.laws(clients, ROUNDS, step_size=STEP_SIZE, local_steps=4)
    pairs = itertools.combinations(range(5), 2)
    subsets = [np.mean(clients.centers[list(pair), 0]) for pair in pairs]
    try:
        who = Participation("without_replacement", 2)
        run_chains(gaussian.r2(COUNTS), 3, local_steps=1, who=who)
        refused = False
    except ConfigError:
        refused = True
    return {
        "means": mean,
        "expected": float(after.mean[-1, 0]),
        "without replacement": float(np.mean(subsets)),
        "target": float(oracle.target_law(clients).mean[0]),
        "largest deviation": off(cells),
        "refuses unequal weights": refused,
        "chains": sizes.seeds,
    }


def judge_mean(found: Found) -> Verdict:
    """Judge claim 11."""
    far, marks = found["largest deviation"], CLAIMS[11].criterion
    uniform, right = found["without replacement"], found["target"]
    why = (
        f"means with replacement {', '.join(f'{x:.3f}' for x in found['means'])} for three rho "
        f"where {found['expected']:.3f} is exact, up to "
        f"{far:.1f} standard errors off; without, models would be drawn to "
        f"{uniform:.3f} instead of {right:.3f}, and the system "
        f"{'refuses' if found['refuses unequal weights'] else 'takes'} unequal weights"
    )
    moves = abs(uniform - right) > marks.apart
    holds = far < marks.far and found["refuses unequal weights"] and moves
    return verdict(11, found, holds, why)


def measure_inflation(sizes: Sizes, unequal: list[Cell]) -> Found:
    """Compare the closed form with phi with the recursion, and chains of R2 (claim 18).

    `unequal` are the chains with unequal weights.
    """
    two, distinct = (Participation(scheme, 2) for scheme in oracle.SCHEMES[1:])
    cases = {
        "with replacement": (gaussian.r2(), two),
        "with replacement, unequal weights": (gaussian.r2(COUNTS), two),
        "without replacement": (gaussian.r2(), distinct),
    }
    apart, far = 0.0, {}
    variances: dict[str, list[float]] = {}
    for name, (problem, who) in cases.items():
        clients = gaussian.clients_of(problem)
        variances[name] = []
        for rho in (0.0, 0.7, 1.0):
            how: dict[str, Any] = {"step_size": STEP_SIZE, "local_steps": 4, "rho": rho}
            closed = shared.shared_hessian_stationary(clients, participation=who, **how)
            rest = gaussian.at_rest(clients, participation=who, **how)
            apart = largest(apart, np.abs(rest.covariance - closed.covariance).max())
            variances[name].append(float(closed.covariance[0, 0]))
        is_run = name.endswith("weights")
        cells = unequal if is_run else run_chains(problem, sizes.seeds, local_steps=4, who=who)
        far[name] = off(cells)
    printed = {
        "with replacement": (1.630862, 1.115072, 0.578230),
        "with replacement, unequal weights": (1.624372, 1.108583, 0.571741),
        "without replacement": (1.354725, 0.967883, 0.565251),
    }
    table = largest(*(np.abs(np.array(variances[name]) - printed[name]).max() for name in cases))
    return {
        "variances": variances,
        "largest deviation": far,
        "closed form off the recursion": apart,
        "variances off those printed": table,
        "chains": sizes.seeds,
    }


JUDGES: Judges = {
    **CLAIMS.declared(1, 2, 10, 17, 18, 19, 20, 22),
    9: judge_floor,
    11: judge_mean,
}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=3)
    who = Participation("with_replacement", 2)
    cells = run_chains(gaussian.r2(COUNTS), sizes.seeds, local_steps=4, who=who)
    invariance = measure_invariance()
    measured = {
        1: measure_sgld(sizes),
        2: measure_noise(sizes),
        9: measure_floor(),
        10: measure_order(),
        11: measure_mean(sizes, cells),
        17: invariance,
        18: measure_inflation(sizes, cells),
        19: measure_modes(sizes),
        20: measure_alone(sizes),
        22: invariance,
    }
    return Outcome({}, {}, harness.judge_all(JUDGES, measured), sizes.config())
