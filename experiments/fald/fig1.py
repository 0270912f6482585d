"""FA-LD's Fig. 1: rounds to an accuracy, distances and samples, Gaussian clients (claim 12).

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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, Found, of_chains, verdict
from experiments.fald.formulas import exact_laws as oracle
from experiments.fald.formulas.exact_laws import GaussianTarget
from experiments.fald.formulas.rounds import rounds_to
from experiments.fald.gaussian import Repeated, largest
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, rule
from fedjax_sim.problems import GaussianClients
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


class Panels(NamedTuple):
    """What was run, and the exact numbers for comparison."""

    sizes: Sizes
    clients: dict[float, GaussianTarget]  # by alpha
    ran: dict[int, Repeated]  # panels a and b, by K: problems by alpha
    mixed: dict[float, Repeated]  # panel c, by rho
    exact: dict[float, dict[int, float]]  # rounds to the accuracy, by alpha and K
    found: dict[float, dict[int, np.ndarray]]  # those of the chains, f64[sets]


def run_panels(
    sizes: Sizes, arguments: Arguments, make: Callable[[float], GaussianClients]
) -> Panels:
    """Run the chains of panels (a) and (b) by K, and of panel (c) by rho, all with different seeds.

    Args:
      make: Makes the problem of an alpha.
    """
    problems = [make(alpha) for alpha in sizes.alphas]
    clients = {
        alpha: gaussian.clients_of(problem)
        for alpha, problem in zip(sizes.alphas, problems, strict=True)
    }

    def needed(target: GaussianTarget, local_steps: int) -> float:
        start = oracle.point(np.zeros(2))
        return float(
            rounds_to(
                target,
                start,
                ACCURACY,
                step_size=STEP_SIZE,
                local_steps=local_steps,
                most_rounds=MOST_STEPS // local_steps,
            )
        )

    # One round more: the first model within the accuracy may miss it by its sampling error.
    length = min(1.3 * max(needed(target, 1) for target in clients.values()), sizes.longest)
    ran, mixed, seeds = {}, {}, itertools.count(0, len(problems) * sizes.seeds * sizes.sets)
    for local_steps in sizes.local_steps:
        ran[local_steps] = gaussian.repeated(
            problems,
            sets=sizes.sets if local_steps <= LONG else min(3, sizes.sets),
            num_chains=sizes.seeds,
            num_rounds=int(np.ceil(length / local_steps)) + 1,
            options=arguments.kept,
            name=f"K = {local_steps}",
            first_seed=next(seeds),
            step_size=STEP_SIZE,
            local_steps=local_steps,
        )
    for rho in sizes.rhos:
        mixed[rho] = gaussian.repeated(
            problems[:1],
            sets=sizes.sets,
            num_chains=sizes.seeds,
            num_rounds=sizes.rounds,
            options=arguments.kept,
            name=f"rho = {rho:g}",
            first_seed=next(seeds),
            rho=rho,
            step_size=STEP_SIZE,
            local_steps=MIXED_STEPS,
        )
    exact = {
        alpha: {k: needed(target, k) for k in sizes.local_steps}
        for alpha, target in clients.items()
    }
    found = {
        alpha: {k: gaussian.first_within(sets.distance[:, i], ACCURACY) for k, sets in ran.items()}
        for i, alpha in enumerate(sizes.alphas)
    }
    return Panels(sizes, clients, ran, mixed, exact, found)


def measure(panels: Panels) -> Found:
    """Return the rounds of exact laws and chains, and how far chains are off (claim 12).

    Means are taken over the sets that reach the accuracy.
    """
    exact, chains = (
        {
            alpha: {f"{k}": value for k, value in by_steps.items()}
            for alpha, by_steps in found.items()
        }
        for found in (panels.exact, panels.found)
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
        "standard errors off": largest_deviation(panels),
        "chains": panels.sizes.seeds,
        "reduced": panels.sizes.words,
    }


def judge(found: Found) -> Verdict:
    """Judge claim 12 on the exact laws and on the chains.

    The chains have to follow the exact laws, and most sets have to reach the accuracy.
    """
    far, exact = found["standard errors off"], found["rounds"]["exact"].values()
    arrived = min(
        float(np.isfinite(by_steps[k]).mean())
        for by_steps in found["chains' rounds"].values()
        for k in ("100", "3000")
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
    return of_chains(12, found, ruling if follow else False, why)


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
    return of_chains(21, found, ruling if follow else False, why)


def judge_samples(found: Found) -> Verdict:
    """Judge claim 23 on the samples of panel (e)."""
    match, p, marks = found["W2 of samples"], found["p of one law"], CLAIMS[23].criterion
    why = f"{found['samples']} samples: W2 {match:.1e} to the target; p = {p:.3g} for one law"
    return verdict(
        23, found, harness.unless_unknown(match <= marks.close and p >= marks.p, found), why
    )


def largest_deviation(panels: Panels) -> float:
    """Return how far the first sets' means and variances are from the exact ones.

    Returns:
      The largest deviation in standard errors over all K, alphas and rho at three rounds; infinite
      if a distance of any set is not a number.
    """
    if not gaussian.are_numbers(*panels.ran.values(), *panels.mixed.values()):
        return float("inf")
    clients = [panels.clients[alpha] for alpha in panels.sizes.alphas]
    runs: list[tuple[Repeated, int, dict[str, Any]]] = [
        (sets, i, {"local_steps": k}) for k, sets in panels.ran.items() for i in range(len(clients))
    ]
    runs += [
        (sets, 0, {"local_steps": MIXED_STEPS, "rho": rho}) for rho, sets in panels.mixed.items()
    ]
    return largest(
        *(
            gaussian.off_exact(sets.first, (i,), clients[i], step_size=STEP_SIZE, **how)
            for sets, i, how in runs
        )
    )


@plots.styled()
def outcome(panels: Panels, verdicts: Sequence[Verdict], picture: str) -> Outcome:
    """Draw the panels and collect what is written. picture: name of the picture's file."""
    sizes, clients = panels.sizes, panels.clients
    squares = {alpha: gaussian.dissimilarity(target) ** 2 for alpha, target in clients.items()}
    figure = Figure(figsize=(16, 9))
    (first, second, third), (fourth, fifth, last) = figure.subplots(2, 3)
    gaussian.explain(
        last, "lines with marks: chains, with the range of all sets\nlines without: exact laws"
    )
    steps = list(sizes.local_steps)
    for i, alpha in enumerate(sizes.alphas):
        label = f"{alpha:g} ({squares[alpha]:.0e})"
        exactly = plots.look(i, "none", linewidth=1)
        first.loglog(steps, [panels.exact[alpha][k] for k in steps], **exactly)
        shown = [panels.found[alpha][k] for k in steps]
        means = [gaussian.mean_of_finite(rounds) for rounds in shown]
        errors = [
            np.std(rounds[np.isfinite(rounds)]) if np.isfinite(rounds).any() else 0.0
            for rounds in shown
        ]
        first.errorbar(steps, means, errors, label=label, **plots.look(i, "only"))
        distance = panels.ran[10].distance[:, i]
        exact = gaussian.exact_distances(
            clients[alpha], distance.shape[-1] - 1, step_size=STEP_SIZE, local_steps=10
        )
        second.semilogy(exact, **exactly)
        gaussian.draw_sets(second, distance, i, label=label)
    for j, (rho, sets) in enumerate(panels.mixed.items()):
        exact = gaussian.exact_distances(
            clients[sizes.alphas[0]],
            sizes.rounds,
            step_size=STEP_SIZE,
            local_steps=MIXED_STEPS,
            rho=rho,
        )
        third.semilogy(exact, **plots.look(j, "none", linewidth=1))
        gaussian.draw_sets(third, sets.distance[:, 0], j, label=f"{rho:g}")
    first.set(
        xlabel="local steps K",
        ylabel=f"rounds to W2 ≤ {ACCURACY:g}",
        title="(a) mean and std",
        xlim=(steps[0] / 1.3, steps[-1] * 1.3),  # of all K, those that were not enough too
    )
    if not any(np.isfinite(panels.found[a][k]).any() for a in sizes.alphas for k in steps):
        middle = {"transform": first.transAxes, "ha": "center", "va": "center"}
        first.text(0.5, 0.5, "not reached by any chain", **middle)
    second.set(xlabel="rounds", ylabel="W2", title="(b) K = 10")
    third.set(
        xlabel="rounds",
        ylabel="W2",
        title=f"(c) K = {MIXED_STEPS}, alpha = {sizes.alphas[0]:g}, by rho",
    )
    named = first.get_legend_handles_labels()
    last.legend(*named, title="(a), (b): alpha (gamma squared)", loc="upper left")
    for axes in (second, third):
        axes.locator_params(axis="x", integer=True)
    third.legend(title="rho")
    second.axhline(ACCURACY, color=plots.GREY, linewidth=0.6)
    drawn = measure_samples(panels)
    _densities(fourth, fifth, samples_of(panels), oracle.target_law(clients[sizes.alphas[0]]))
    config = {
        **sizes.config(),
        "step_size": STEP_SIZE,
        "gamma_squared": squares,
        "w2_of_samples": drawn["W2 of samples"],
        "p_value": drawn["p of one law"],
    }
    return Outcome({}, {picture: figure}, verdicts, config)


JUDGES: Judges = {12: judge, 21: judge_heterogeneity, 23: judge_samples}


def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw the figure and judge the claim."""
    panels = run_panels(STUDY.choose(arguments, least_seeds=3), arguments, gaussian.equal_problem)
    short = "not judged: a smoke run is too short to reach the accuracy"
    found = {} if arguments.smoke else measure(panels)
    verdicts = (
        [verdict(number, {"exact": panels.exact}, None, short) for number in (12, 21, 23)]
        if arguments.smoke
        else [
            judge(found),
            judge_heterogeneity(by_alpha(found)),
            judge_samples(measure_samples(panels)),
        ]
    )
    return outcome(panels, verdicts, "fig1.png")


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
    models = panels.ran[10].first.models[0].astype(float)
    return models[:, models.shape[1] // 2 :: 20].reshape(-1, 2)


def measure_samples(panels: Panels) -> Found:
    """Compare the samples of panel (e), and the last models, with the target (claim 23)."""
    samples, goal = samples_of(panels), oracle.target_law(panels.clients[panels.sizes.alphas[0]])
    centred = samples - samples.mean(axis=0)
    covariance = centred.T @ centred / (len(samples) - 1)
    return {
        "W2 of samples": float(wasserstein2(samples.mean(axis=0), covariance, *goal)),
        "p of one law": same_law(panels.ran[10].first.models[0][:, -1].astype(float), goal),
        "samples": len(samples),
    }


def same_law(models: np.ndarray, goal: Gaussian, *, shuffles: int = 2000, seed: int = 0) -> float:
    """Test whether independent models have a normal law, by the energy distance.

    The energy distance (Szekely, Rizzo 2013) is the mean distance between two samples minus half of
    the mean distances within each. The models are compared with as many exact draws.

    Args:
      models: `f64[R, P]`.
      goal: The normal law.
      shuffles: Number of permutations.
      seed: Seed of draws and permutations.

    Returns:
      The p-value, by permutation.
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
