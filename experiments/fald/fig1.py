"""FA-LD's Fig. 1: rounds to an accuracy, distances and samples (claims 12, 21 and 23).

See arXiv 2112.05120. Everyone is averaged. (a) rounds until W2 is at most 1e-3 against the number K
of local steps; (b) W2 at K = 10, for clients' means of different variance alpha; (c) W2 at K = 100
for different rho; (d, e) the target's density and samples at K = 10. The step size is 1e-7
throughout, and exact laws are drawn next to the chains.

Runs of panels (a) and (b) are 1.3 times as long as the slowest exact law needs at K = 1, plus a
round. The curves share no noise. As 300 chains show W2 with an error as large as the accuracy,
everything is run ten times (three times at K = 30,000): the first set of 300 is the paper's figure,
and all sets give means and standard deviations. Last models of the first set at K = 10 are compared
with as many exact draws by the energy distance.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import GaussianTarget
from experiments.fald.formulas.rounds import rounds_to
from experiments.fald.gaussian import Cell
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, rule
from fedjax_sim.results import plots
from fedjax_sim.results.diagnostics import Gaussian, wasserstein2

STEP_SIZE, ACCURACY = 1e-7, 1e-3
MIXED_STEPS, MOST_STEPS = 100, 100_000
"""Local steps of panel (c), and the steps after which an exact law that is not within the
accuracy never will be."""
LONG = 10_000
"""Local steps beyond which there are at most three sets of chains: two rounds take as many steps
as the runs of five smaller K."""
RHOS = (0.0, 0.25, 0.5, 0.75, 1.0)
BEST = "the best K is 3000"
"""The deciding part of claim 12."""


STUDY = Study(
    full=Sizes(
        seeds=300,
        sets=10,
        alphas=gaussian.ALPHAS,
        local_steps=(10, 30, 100, 300, 1000, 3000, 10_000, 30_000),
        rhos=RHOS,
        rounds=60,
        longest=np.inf,
    ),
    smoke=Sizes(
        seeds=100,
        sets=2,
        alphas=(0.0, 100.0),
        local_steps=(10,),
        rhos=(0.0, 1.0),
        rounds=3,
        longest=200,
    ),
    reduced=Sizes(
        seeds=300,
        words="two sets of chains in place of ten, five K in place of eight",
        sets=2,
        alphas=gaussian.ALPHAS,
        local_steps=(10, 100, 1000, 3000, 10_000),
        rhos=(0.0, 0.5, 1.0),
        rounds=60,
        longest=np.inf,
    ),
)
"""Seeds are chains per set, at least three to fit a law. Local steps are those of panel (a), 10
being panel (b)'s; rounds are those of panel (c); `longest` limits a run, in local steps."""


def rounds_needed(clients: GaussianTarget, local_steps: int) -> float:
    """Count the rounds until the exact law is within the accuracy."""
    how: dict[str, Any] = {"step_size": STEP_SIZE, "local_steps": local_steps}
    start = oracle.point(np.zeros(2))
    return float(rounds_to(clients, start, ACCURACY, **how, most_rounds=MOST_STEPS // local_steps))


class Panels(NamedTuple):
    """What was run."""

    sizes: Sizes
    ran: dict[int, list[Cell]]  # panels (a) and (b): by K, a cell for each alpha
    mixed: list[Cell]  # panel (c): a cell for each rho

    def exact(self) -> dict[float, dict[int, float]]:
        """Rounds of the exact laws to the accuracy, by alpha and K."""
        return {
            alpha: {k: rounds_needed(cells[i].clients, k) for k, cells in self.ran.items()}
            for i, alpha in enumerate(self.sizes.alphas)
        }

    def found(self) -> dict[float, dict[int, np.ndarray]]:
        """Rounds of the chains to the accuracy, by alpha and K: `f64[sets]`."""
        return {
            alpha: {
                k: gaussian.first_within(cells[i].distance, ACCURACY)
                for k, cells in self.ran.items()
            }
            for i, alpha in enumerate(self.sizes.alphas)
        }


def run_panels(sizes: Sizes, arguments: Arguments) -> Panels:
    """Run the chains of panels (a) and (b) by K, and of panel (c) by rho, all with other seeds."""
    problems = [gaussian.equal_problem(alpha) for alpha in sizes.alphas]
    # One round more: the first model within the accuracy may miss it by its sampling error.
    slowest = max(rounds_needed(gaussian.clients_of(problem), 1) for problem in problems)
    length = min(1.3 * slowest, sizes.longest)
    seeds = itertools.count(0, len(problems) * sizes.seeds * sizes.sets)
    common: dict[str, Any] = {
        "num_chains": sizes.seeds,
        "options": arguments.kept,
        "step_size": STEP_SIZE,
    }
    ran = {
        k: gaussian.cells(
            problems,
            sets=sizes.sets if k <= LONG else min(3, sizes.sets),
            num_rounds=int(np.ceil(length / k)) + 1,
            name=f"K = {k}",
            first_seed=next(seeds),
            local_steps=k,
            **common,
        )
        for k in sizes.local_steps
    }
    mixed = [
        gaussian.cells(
            problems[:1],
            sets=sizes.sets,
            num_rounds=sizes.rounds,
            name=f"rho = {rho:g}",
            first_seed=next(seeds),
            local_steps=MIXED_STEPS,
            rho=rho,
            **common,
        )[0]
        for rho in sizes.rhos
    ]
    return Panels(sizes, ran, mixed)


def measure(panels: Panels) -> Found:
    """Return the rounds of exact laws and chains, and how far chains are off (claim 12).

    Means are taken over the sets that reach the accuracy. Deviations are the largest over all K,
    alphas and rho at three rounds.
    """
    exact, chains = (
        {alpha: {f"{k}": x for k, x in each.items()} for alpha, each in rounds.items()}
        for rounds in (panels.exact(), panels.found())
    )
    means = {
        alpha: {k: gaussian.mean_of_finite(values) for k, values in by_steps.items()}
        for alpha, by_steps in chains.items()
    }
    rounds: dict[str, Any] = {"exact": exact, "chains": means}
    return {
        "gain": {
            kind: {alpha: by_steps["100"] / by_steps["3000"] for alpha, by_steps in each.items()}
            for kind, each in rounds.items()
        },
        "rounds": rounds,
        "chains' rounds": chains,
        "standard errors off": gaussian.largest(
            *(cell.off() for cell in itertools.chain(*panels.ran.values(), panels.mixed))
        ),
        "chains": panels.sizes.seeds,
        "reduced": panels.sizes.words,
    }


def judge(found: Found) -> Verdict:
    """Judge claim 12 on the exact laws and on the chains.

    The chains have to follow the exact laws, and most sets have to reach the accuracy.
    """
    far, exact = found["standard errors off"], found["rounds"]["exact"].values()
    arrived = min(
        float(np.isfinite(np.array(rounds, float)).mean())
        for by_steps in found["chains' rounds"].values()
        for rounds in by_steps.values()
    )
    has_optimum = all(
        np.min([by_steps["1000"], by_steps["10000"]]) > by_steps["3000"] for by_steps in exact
    )
    still_falls = all(by_steps["10000"] <= by_steps["3000"] for by_steps in exact)
    highest = {kind: np.max([*each.values()]) for kind, each in found["gain"].items()}
    lowest = {kind: np.min([*each.values()]) for kind, each in found["gain"].items()}
    marks = CLAIMS[12].criterion
    parts = {
        "about 30 times fewer rounds": marks.least
        <= lowest["exact"]
        <= highest["exact"]
        <= marks.most,
        BEST: has_optimum,
    }
    follow = far < marks.far and arrived > marks.arrived
    why = (
        f"rounds at K = 100 over those at K = 3000: exactly {lowest['exact']:.1f} to "
        f"{highest['exact']:.1f}, means of chains "
        f"{lowest['chains']:.1f} to {highest['chains']:.1f}, as about 3000 / 100 steps make it; "
        f"exact rounds at K = 10000 are {'never more' if still_falls else 'more'} than at 3000, as "
        f"one Hessian leaves no bias to many steps; chains up to {far:.1f} "
        "standard errors from exact laws, at least "
        f"{arrived:.0%} of the sets arrive"
    )
    ruling = rule(parts, found["reduced"], harness.begins(BEST))
    return verdict(12, found, ruling if follow else False, why)


def judge_heterogeneity(found: Found) -> Verdict:
    """Judge claim 21 on the rounds at K = 10."""
    far, exact, chains = (found[name] for name in ("standard errors off", "exact", "arrived"))
    parts = {
        "slower with alpha": bool((np.diff([*exact.values()]) > 0).all()),
        "all sets arrive": all(each == 1 for each in chains.values()),
    }
    follow = far < CLAIMS[21].criterion.far
    shown = ", ".join(f"{rounds:g} at alpha = {float(a):g}" for a, rounds in exact.items())
    why = f"exact rounds at K = 10: {shown}; chains up to {far:.1f} standard errors from exact laws"
    ruling = rule(parts, deciding=harness.begins("slower"))
    return verdict(21, found, ruling if follow else False, why)


JUDGES: Judges = {12: judge, 21: judge_heterogeneity, **CLAIMS.declared(23)}


@plots.styled()
def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw all panels and judge the claims; a smoke run does not get there."""
    sizes = STUDY.choose(arguments, least_seeds=3)
    panels = run_panels(sizes, arguments)
    exact, reached, drawn = panels.exact(), panels.found(), measure_samples(panels)
    if arguments.smoke:
        short = "not judged: a smoke run is too short to reach the accuracy"
        verdicts = [verdict(number, {"exact": exact}, None, short) for number in JUDGES]
    else:
        found = measure(panels)
        verdicts = [judge(found), judge_heterogeneity(by_alpha(found)), JUDGES[23](drawn)]
    first_cells = panels.ran[10]
    squares = {
        alpha: gaussian.dissimilarity(cell.clients) ** 2
        for alpha, cell in zip(sizes.alphas, first_cells, strict=True)
    }
    figure = Figure(figsize=(16, 9))
    (first, second, third), (fourth, fifth, last) = figure.subplots(2, 3)
    steps = list(sizes.local_steps)
    for i, alpha in enumerate(sizes.alphas):
        label, shown = f"{alpha:g} ({squares[alpha]:.0e})", [*reached[alpha].values()]
        first.loglog(steps, [*exact[alpha].values()], **plots.look(i, "none", linewidth=1))
        means = [gaussian.mean_of_finite(rounds) for rounds in shown]
        good = [x[np.isfinite(x)] for x in shown]
        errors = [np.std(x, ddof=1) if x.size > 1 else 0.0 for x in good]
        first.errorbar(steps, means, errors, label=label, **plots.look(i, "only"))
        first_cells[i].draw(second, i, label)
    for j, (rho, cell) in enumerate(zip(sizes.rhos, panels.mixed, strict=True)):
        cell.draw(third, j, f"{rho:g}")
    first.set(
        xlabel="local steps K",
        ylabel=f"rounds to W2 ≤ {ACCURACY:g}",
        title="(a) mean and std",
        xlim=(steps[0] / 1.3, steps[-1] * 1.3),  # of all K, those that were not enough too
    )
    if not any(np.isfinite(x).any() for each in reached.values() for x in each.values()):
        middle = {"transform": first.transAxes, "ha": "center", "va": "center"}
        first.text(0.5, 0.5, "not reached by any chain", **middle)
    second.set(xlabel="rounds", ylabel="W2", title="(b) K = 10")
    by_rho = f"(c) K = {MIXED_STEPS}, alpha = {sizes.alphas[0]:g}, by rho"
    third.set(xlabel="rounds", ylabel="W2", title=by_rho)
    for axes in (second, third):
        axes.locator_params(axis="x", integer=True)
    third.legend(title="rho")
    second.axhline(ACCURACY, color=plots.GREY, linewidth=0.6)
    _densities(fourth, fifth, samples_of(panels), oracle.target_law(first_cells[0].clients))
    gaussian.explain(last)
    named = first.get_legend_handles_labels()
    last.legend(*named, title="(a), (b): alpha (gamma squared)", loc="upper left")
    config = {
        **sizes.config(),
        "step_size": STEP_SIZE,
        "gamma_squared": squares,
        "w2_of_samples": drawn["W2 of samples"],
        "p_value": drawn["p of one law"],
    }
    return Outcome({}, {"fig1.png": figure}, verdicts, config)


def by_alpha(found: Found) -> Found:
    """Return what claim 21 needs of the numbers of claim 12: rounds at K = 10 by alpha."""
    sets = {alpha: by_steps["10"] for alpha, by_steps in found["chains' rounds"].items()}
    return {
        "exact": {alpha: by_steps["10"] for alpha, by_steps in found["rounds"]["exact"].items()},
        "arrived": {a: float(np.isfinite(np.array(x, float)).mean()) for a, x in sets.items()},
        "standard errors off": found["standard errors off"],
        "chains": found["chains"],
    }


def samples_of(panels: Panels) -> np.ndarray:
    """Return the samples of panel (e), every 20th model of the second half: `f64[B, 2]`."""
    models = panels.ran[10][0].models.astype(float)
    return models[:, models.shape[1] // 2 :: 20].reshape(-1, 2)


def measure_samples(panels: Panels) -> Found:
    """Compare the samples of panel (e), and the last models, with the target (claim 23)."""
    samples, goal = samples_of(panels), oracle.target_law(panels.ran[10][0].clients)
    centred = samples - samples.mean(axis=0)
    covariance = centred.T @ centred / (len(samples) - 1)
    return {
        "W2 of samples": float(wasserstein2(samples.mean(axis=0), covariance, *goal)),
        "p of one law": same_law(panels.ran[10][0].models[:, -1].astype(float), goal),
        "samples": len(samples),
    }


def same_law(models: np.ndarray, goal: Gaussian, *, shuffles: int = 2000, seed: int = 0) -> float:
    """Test whether independent models have a normal law, by the energy distance; return p.

    The energy distance (Szekely, Rizzo 2013) is the mean distance between two samples minus half of
    the mean distances within each. The models, `f64[R, P]`, are compared with as many exact draws,
    by permutation.
    """
    random = np.random.default_rng(seed)
    num = len(models)
    both = np.concatenate([models, random.multivariate_normal(*goal, size=num)])
    both = (both - goal.mean) @ np.linalg.inv(
        np.linalg.cholesky(goal.covariance)
    ).T  # coordinates of equal importance
    apart = np.linalg.norm(both[:, None] - both[None], axis=-1)
    side = np.repeat([1.0, -1.0], num)
    sides = np.stack([side, *(random.permutation(side) for _ in range(shuffles))])
    energy = -np.einsum("si,ij,sj->s", sides, apart, sides, optimize=True)  # times (2 num)^2 / 2
    return float(np.mean(energy >= energy[0]))


def _densities(left: Any, right: Any, samples: np.ndarray, goal: Gaussian) -> None:
    """Draw the target's density with samples over it."""
    spread = 3.5 * np.sqrt(np.diag(goal.covariance))
    x, y = (np.linspace(goal.mean[i] - spread[i], goal.mean[i] + spread[i], 120) for i in (0, 1))
    away = np.stack(np.meshgrid(x - goal.mean[0], y - goal.mean[1]), axis=-1)
    density = np.exp(-np.einsum("xyi,ij,xyj->xy", away, np.linalg.inv(goal.covariance), away) / 2)
    names = {"xlabel": "first coordinate of the model", "ylabel": "second coordinate"}
    left.contourf(x, y, density, levels=np.r_[0, np.exp(-(np.linspace(3.5, 0, 15) ** 2) / 2)])
    left.set(title="(d) target, alpha = 0", **names)
    right.hist2d(samples[:, 0], samples[:, 1], bins=60, range=[(x[0], x[-1]), (y[0], y[-1])])
    deviations = np.exp(-(np.array([3, 2, 1]) ** 2) / 2)
    right.contour(x, y, density, levels=deviations, colors="white", linewidths=0.8)
    right.set(**names, title=f"(e) {len(samples)} samples, K = 10; target at 1, 2, 3 deviations")
    for axes in (left, right):
        axes.locator_params(axis="x", nbins=5)  # Longer labels would touch.
