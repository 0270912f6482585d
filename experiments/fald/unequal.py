"""FA-LD with unequal Hessians: what K, heterogeneity and rho do where they can (claims 6 to 8).

See arXiv 2112.05120, Sec. 5. In the paper's Gaussian simulation all clients have one Hessian, so
that with everyone averaged none of the three can matter. Here each client's covariance is turned
and scaled; everything else is as there. Rounds to an accuracy are counted in two protocols, at a
fixed step size and at the best one for each K, the latter with exact and with noisy gradients.
Exact laws are drawn next to the chains. Ten sets of 300 chains are run, as for Figs. 1 and 2.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.formulas import bounds as formulas
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation
from experiments.fald.formulas.rounds import rounds_to, sufficient_steps, tuned_rounds
from experiments.fald.gaussian import Cell
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, rule, statistics
from fedjax_sim.results.plots import OPEN, look, styled

STEP_SIZE, ACCURACY = 1e-7, 5e-4
ALPHAS = (0.0, 0.1, 1.0, 10.0)
RHOS = (0.0, 0.25, 0.5, 0.75, 1.0)
COUNTED = (1, 2, 5, 10, 20, 50, 100)
"""Numbers of local steps for which rounds are counted exactly."""
SEVERAL = ("10", "100")
"""Numbers of several local steps for which floors are computed, as names of floors."""
NOISE = 7.5e9
"""Variance per coordinate of a noisy gradient of f^c in the tuned protocol, as of mini-batches
of one of a client's 1000 points."""
BETWEEN = (1e-10, 2e-6)
MOST_ROUNDS = 30_000
SCHEMES = {
    "everyone": oracle.FULL,
    "S = 40, with replacement": Participation("with_replacement", 40),
    "S = 40, without replacement": Participation("without_replacement", 40),
}


STUDY = Study(
    full=Sizes(seeds=300, sets=10, runs={1: 400, 10: 80, 100: 20}, tuned=20, counted=COUNTED),
    smoke=Sizes(seeds=100, sets=2, runs={10: 3}, tuned=3, counted=(1, 10, 100)),
)
"""Seeds are chains per set, at least three to fit a law. `runs` has the number of rounds by number
of local steps, for rho = 0 and 1 and alpha = 0 and 1; `tuned` is the number of rounds at the best
step size for each of these numbers of local steps, for rho = 0 and alpha = 0."""
PROTOCOLS = {
    "fixed": f"step size {STEP_SIZE:g}",
    "tuned": "best step size for each K",
    "tuned, noisy gradients": "the same, noisy gradients",
    "bound": "bound of Theorem 5.7",
}
"""Names in the picture of the ways to count rounds."""
DECIDING = ("fixed step size", "the bound")
"""The deciding parts of claim 7, which the paper's argument and figure are about."""
RUN_ALPHAS, RUN_RHOS = (0.0, 1.0), (0.0, 1.0)


class Runs(NamedTuple):
    """Cells of chains by number of local steps."""

    fixed: dict[int, list[Cell]]  # for each alpha, and each rho within
    tuned: dict[int, Cell]

    def off(self) -> float:
        """Return the largest deviation of chains from exact laws, in standard errors."""
        every = itertools.chain(*self.fixed.values(), self.tuned.values())
        return gaussian.largest(*(cell.off() for cell in every))


def run_chains(sizes: Sizes, arguments: Arguments, step_sizes: dict[int, float]) -> Runs:
    """Run all chains; different rho share their noise, all other runs share none."""
    problems = [gaussian.unequal_problem(alpha) for alpha in RUN_ALPHAS]
    seeds = itertools.count(0, len(problems) * sizes.seeds * sizes.sets)
    common: dict[str, Any] = {
        "sets": sizes.sets,
        "num_chains": sizes.seeds,
        "options": arguments.kept,
    }
    fixed = {
        k: gaussian.cells(
            problems,
            num_rounds=num_rounds,
            first_seed=next(seeds),
            name=f"K = {k}",
            vary={"rho": RUN_RHOS},
            step_size=STEP_SIZE,
            local_steps=k,
            **common,
        )
        for k, num_rounds in sizes.runs.items()
    }
    tuned = {
        k: gaussian.cells(
            problems[:1],
            num_rounds=sizes.tuned,
            first_seed=next(seeds),
            name=f"K = {k}, tuned",
            step_size=step_sizes[k],
            local_steps=k,
            **common,
        )[0]
        for k in sizes.runs
    }
    return Runs(fixed, tuned)


KINDS = {"unequal": gaussian.unequal_problem, "equal": gaussian.equal_problem}
"""Makers of problems by the clients' Hessians."""


def floors_of(choices: Sequence[tuple[float, float]]) -> dict[str, dict[str, list[float]]]:
    """Compute exact floors by kind of Hessians and K, at pairs of alpha and rho."""
    return {
        kind: {
            f"{k}": [
                gaussian.floor(
                    gaussian.clients_of(make(alpha)), step_size=STEP_SIZE, local_steps=k, rho=rho
                )
                for alpha, rho in choices
            ]
            for k in (1, 10, 100)
        }
        for kind, make in KINDS.items()
    }


def judge_heterogeneity(found: Found) -> Verdict:
    """Judge claim 6."""
    floors, far = found["floors"], found["largest deviation of chains"]
    marks, rising = CLAIMS[6].criterion, floors["unequal"]["10"]
    flat = np.max([largest_change(values) for values in unbiased(floors)])
    why = (
        f"unequal Hessians, K = 10: floor {rising[0]:.1e} at alpha = 0 to {rising[-1]:.1e} at 10; "
        f"in the paper's own simulation, and at K = 1, it does not change (by {flat:.0e} of it); "
        f"chains up to {far:.1f} standard errors from exact laws"
    )
    ruling = rule(parts_by_floors(floors)) if far < marks.far else False
    return verdict(6, found, ruling, why)


def unbiased(floors: Found) -> list[Sequence[float]]:
    """Return the floors of one Hessian or of one local step, by kind of Hessians and K."""
    return [*floors["equal"].values(), floors["unequal"]["1"]]


def largest_change(values: Sequence[float]) -> float:
    """Return how far apart floors are, relative to the first of them."""
    return float(np.ptp(values) / values[0])


def parts_by_floors(floors: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, bool]:
    """Judge the parts of claim 6 by floors for growing alpha.

    W2 comes from a difference of traces, which loses half the digits, so that changes are compared
    with a share of the floor.
    """
    flat = CLAIMS[6].criterion.flat
    changes = [largest_change(each["1"]) for each in floors.values()]
    return {
        "unequal Hessians": bool(np.min([np.diff(floors["unequal"][k]) for k in SEVERAL]) > 0),
        "no change with K = 1": bool(np.max(changes) < flat),
    }


def count_rounds(sizes: Sizes) -> tuple[dict[str, dict[int, float]], dict[int, float]]:
    """Count the rounds of exact laws in both protocols, and those of the bound.

    Returns:
      The rounds to the accuracy by protocol and K, and the best step size by K.
    """
    clients, start = gaussian.clients_of(gaussian.unequal_problem(0.0)), oracle.point(np.zeros(2))
    noise = np.broadcast_to(NOISE * np.eye(2), clients.hessians.shape)
    setup = formulas.setup_of(clients, np.zeros(2), 0.0)
    fixed: dict[str, Any] = {"step_size": STEP_SIZE, "most_rounds": MOST_ROUNDS}
    free: dict[str, Any] = {"between": BETWEEN, "most_rounds": MOST_ROUNDS, "refinements": 1}
    exact, noisy = (
        {k: tuned_rounds(each, start, ACCURACY, local_steps=k, **free) for k in sizes.counted}
        for each in (clients, clients._replace(gradient_noise=noise))
    )
    rounds = {
        "fixed": {
            k: float(rounds_to(clients, start, ACCURACY, local_steps=k, **fixed))
            for k in sizes.counted
        },
        "tuned": {k: found[0] for k, found in exact.items()},
        "tuned, noisy gradients": {k: found[0] for k, found in noisy.items()},
        "bound": {k: sufficient_steps(setup, ACCURACY, local_steps=k) / k for k in sizes.counted},
    }
    return rounds, {k: found[1] for k, found in exact.items()}


def judge_rounds(found: Found) -> Verdict:
    """Judge claim 7 in both protocols and by the bound."""
    by_steps = found["rounds"]["fixed"]
    # JSON keeps an infinite number of rounds as null.
    fixed, tuned, loud, bound = (
        [np.inf if value is None else value for value in each.values()]
        for each in found["rounds"].values()
    )
    protocols = {
        "fixed step size": fixed,
        "the bound": bound,
        "best step size for each K": tuned,
        "best step size, noisy gradients": loud,
    }
    parts = {
        name: None if statistics.has_nan(r) else np.min([r[0], r[-1]]) > np.min(r)
        for name, r in protocols.items()
    }
    steps, shown = ", ".join(map(str, by_steps)), ", ".join(f"{value:g}" for value in fixed)
    why = (
        f"rounds at the fixed step size {STEP_SIZE:g}: {shown} for K = {steps}; with the best step "
        f"size for each K {tuned[0]:g} to {tuned[-1]:g}, with noisy gradients {loud[0]:g} to "
        f"{loud[-1]:g}"
    )
    return verdict(7, found, rule(parts, deciding=harness.begins(*DECIDING)), why)


def judge_rho(found: Found) -> Verdict:
    """Judge claim 8."""
    floors, far = found["floors"], found["largest deviation of chains"]
    marks = CLAIMS[8].criterion
    every = [values for each in floors.values() for values in each.values()]
    rises = np.max([np.diff(values).max() / values[0] for values in every])
    flat = np.max([largest_change(values) for values in unbiased(floors)])
    parts = {
        "no harm": rises < marks.flat,
        "less error with unequal Hessians": all(
            bool((np.diff(floors["unequal"][k]) < 0).all()) for k in SEVERAL
        ),
    }
    gain = [1 - floors["unequal"][k][-1] / floors["unequal"][k][0] for k in SEVERAL]
    why = (
        f"unequal Hessians, from rho = 0 to 1: floor lower by {gain[0]:.1%} at K = 10 and "
        f"{gain[1]:.1%} at K = 100; no change with one "
        f"Hessian or K = 1 (by {flat:.0e} of it); chains up to {far:.1f} standard errors from "
        "exact laws"
    )
    return verdict(8, found, rule(parts) if far < marks.far else False, why)


JUDGES: Judges = {6: judge_heterogeneity, 7: judge_rounds, 8: judge_rho}


@styled()
def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw the figure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=3)
    rounds, step_sizes = count_rounds(sizes)
    ran = run_chains(sizes, arguments, step_sizes)
    by_chains = {"largest deviation of chains": ran.off(), "chains": sizes.seeds}
    gammas = {
        kind: [gaussian.dissimilarity(gaussian.clients_of(make(alpha))) for alpha in ALPHAS]
        for kind, make in KINDS.items()
    }
    floors, widths = (
        floors_of(list(choices))
        for choices in (itertools.product(ALPHAS, (0.0,)), itertools.product((0.0,), RHOS))
    )
    by_alpha = {"floors": floors, "alphas": ALPHAS, "gamma": gammas, **by_chains}
    by_rho = {"floors": widths, "rhos": RHOS, **by_chains}
    by_steps = {
        "rounds": rounds,
        "best step sizes": step_sizes,
        "chains, fixed": {
            k: gaussian.first_within(cells[0].distance, ACCURACY) for k, cells in ran.fixed.items()
        },
        "accuracy": ACCURACY,
    }
    verdicts = [judge_heterogeneity(by_alpha), judge_rounds(by_steps), judge_rho(by_rho)]
    figure = Figure(figsize=(20, 9))
    panels = figure.subplots(2, 4).ravel()
    gaussian.explain(panels[-1], "panels of W2 against steps and rounds:\n")
    for i, (axes, alpha) in enumerate(zip(panels, RUN_ALPHAS, strict=False)):
        for c, (k, cells) in enumerate(ran.fixed.items()):
            for j, rho in enumerate(RUN_RHOS):
                cell = cells[i * len(RUN_RHOS) + j]
                cell.draw(axes, 2 * c + j, f"K = {k}, rho = {rho:g}", every=k)
        axes.set_xscale("symlog", linthresh=10)
        axes.set(xlabel="local steps", ylabel="W2", title=f"alpha = {alpha:g}")
        axes.legend()
    shown = [max(alpha, 0.02) for alpha in ALPHAS]
    for c, steps in enumerate(("1", *SEVERAL)):
        panels[2].loglog(shown, floors["unequal"][steps], label=f"K = {steps}", **look(c, "all"))
        panels[2].loglog(shown, floors["equal"][steps], **look(c, "all", **OPEN))
        relative = np.array(widths["unequal"][steps]) / widths["unequal"][steps][0]
        panels[3].plot(RHOS, relative, label=f"K = {steps}", **look(c, "all"))
    panels[2].set(xlabel="alpha (0 at the left end)", ylabel="exact floor of W2")
    panels[2].set_title("open marks: one Hessian")
    panels[2].legend()
    panels[3].set(xlabel="rho", ylabel="exact floor over that at rho = 0", title="alpha = 0")
    panels[3].legend()
    for c, (name, values) in enumerate(rounds.items()):
        scale = 1.0 if name != "bound" else values[1] / rounds["fixed"][1]
        scaled = np.array([*values.values()]) / scale
        panels[4].loglog([*values], scaled, label=PROTOCOLS[name], **look(c, "all"))
    panels[4].set(xlabel="local steps K", ylabel=f"rounds to W2 ≤ {ACCURACY:g}")
    panels[4].set_title("bound scaled to the first line at K = 1")
    panels[4].legend()
    _participation(panels[5])
    for c, (k, cell) in enumerate(ran.tuned.items()):
        cell.draw(panels[6], c, f"K = {k}, {step_sizes[k]:.1e}")
    best = f"best step sizes for W2 ≤ {ACCURACY:g}, alpha = 0"
    panels[6].set(xlabel="rounds", ylabel="W2", title=best)
    panels[6].legend()
    config: dict[str, Any] = {**sizes.config(), "step_size": STEP_SIZE, "noise": NOISE}
    return Outcome({}, {"unequal.png": figure}, verdicts, config)


def _participation(axes: Any) -> None:
    """Draw exact floors against the step size with partial participation, K = 100, as in Fig. 2."""
    clients: GaussianTarget = gaussian.clients_of(gaussian.unequal_problem(0.0))
    sizes = np.geomspace(1e-9, 1e-6, 13)
    for c, (name, who) in enumerate(SCHEMES.items()):
        for rho, style in ((0.0, {}), (1.0, OPEN)):
            how: dict[str, Any] = {"local_steps": 100, "rho": rho, "participation": who}
            floors = [gaussian.floor(clients, step_size=eta, **how) for eta in sizes]
            label = name if rho == 0 else None
            axes.loglog(sizes, floors, label=label, **look(c, "all", **style))
    axes.set(xlabel="step size", ylabel="exact floor of W2")
    axes.set_title("K = 100, alpha = 0; open marks: rho = 1")
    axes.legend()
