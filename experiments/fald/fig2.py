"""FA-LD's Fig. 2: distances under full and partial participation, by step size (claim 13).

See arXiv 2112.05120. Gaussian simulation with 50 clients, K = 100, rho = 0 and alpha = 0. The paper
gives none of the last three; only at alpha = 0 do floors hardly depend on the step size, as it
says. (a) everyone; (b) scheme I, draws with replacement, S = 40; (c) scheme II, without, S = 40;
(d) I, S = 30; (e) II, S = 30. Exact laws are drawn next to the chains.

A panel is one compiled program over all step sizes and chains. The step sizes of a panel share
their noise, panels share none. As 300 chains show W2 with an error, everything is run ten times:
the first set of 300 is the paper's figure, and all ten give means and standard deviations.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, LEAST_CHAINS, Found, verdict
from experiments.fald.formulas.exact_laws import FULL as EVERYONE
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation
from experiments.fald.gaussian import Repeated, largest
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.problems import GaussianClients
from fedjax_sim.results.plots import look, styled

LOCAL_STEPS = 100
PANELS: dict[str, Participation] = {
    "a": EVERYONE,
    "b": Participation("with_replacement", 40),
    "c": Participation("without_replacement", 40),
    "d": Participation("with_replacement", 30),
    "e": Participation("without_replacement", 30),
}
ORDER = "dbeca"
"""Panels from the largest floor to the smallest; derived."""
FLOORS = {
    "b": (7.3e-3, 6.1e-3, 5.7e-3, 5.4e-3),
    "c": (1.9e-3, 1.5e-3, 1.4e-3, 1.3e-3),
    "d": (9.1e-3, 7.7e-3, 7.2e-3, 6.9e-3),
    "e": (4.4e-3, 3.65e-3, 3.4e-3, 3.2e-3),
}
FLOORS_AT = (1e-6, 3e-7, 1e-7, 1e-8)
"""Step sizes of `FLOORS`, which are means over draws of the data; derived.

The floor of a single draw is off by up to a tenth.
"""


STUDY = Study(
    full=Sizes(
        seeds=300, sets=10, step_sizes=(1e-6, 3e-7, 1e-7, 3e-8, 1e-8), rounds=120, panels="abcde"
    ),
    smoke=Sizes(seeds=20, sets=2, step_sizes=(1e-6, 1e-7), rounds=3, panels="b"),
)
"""Seeds are chains per set, at least three to fit a law. Chains are run for these panels only, and
exact laws for all."""


def name_of(participation: Participation) -> str:
    """Return the words for a panel."""
    if participation == EVERYONE:
        return "everyone"
    return f"S = {participation.num_selected}, {participation.scheme.replace('_', ' ')}"


class Late(NamedTuple):
    """Mean distances over the last quarter of rounds, by panel and step size."""

    exact: dict[str, list[float]]
    chains: dict[str, list[list[float]]]
    """Of the fitted laws: by panel, step size and set."""


def largest_deviation(
    clients: GaussianTarget, sizes: Sizes, ran: dict[str, Repeated]
) -> dict[str, float]:
    """Return how far the first chains of each panel are from their exact means and variances.

    Returns:
      The largest deviation by panel, in standard errors over all step sizes and three rounds;
      infinite if a distance of any set is not a number.
    """
    at = sorted({max(1, sizes.rounds // 4), max(1, sizes.rounds // 2), sizes.rounds})
    far = {}
    for panel, each in ran.items():
        how: dict[str, Any] = {"local_steps": LOCAL_STEPS, "participation": PANELS[panel]}
        found = [] if gaussian.are_numbers(each) else [np.inf]
        found += [
            gaussian.off_exact(each.first, (0, i), clients, at, step_size=eta, **how)
            for i, eta in enumerate(sizes.step_sizes)
        ]
        far[panel] = largest(*found)
    return far


def late_distances(clients: GaussianTarget, sizes: Sizes, ran: dict[str, Repeated]) -> Late:
    """Average distances over the last quarter of rounds, exact ones and those of the chains.

    Small steps have not reached their floor by then.
    """
    late = slice(-(sizes.rounds // 4 + 1), None)

    def exact(eta: float, who: Participation) -> float:
        distances = gaussian.exact_distances(
            clients, sizes.rounds, step_size=eta, local_steps=LOCAL_STEPS, participation=who
        )
        return float(distances[late].mean())

    return Late(
        {panel: [exact(eta, PANELS[panel]) for eta in sizes.step_sizes] for panel in ran},
        {
            panel: sets.distance[:, 0, :, late].mean(axis=-1).T.tolist()
            for panel, sets in ran.items()
        },
    )


def floors(clients: GaussianTarget, sizes: Sizes) -> dict[str, list[float]]:
    """Return W2 of the exact stationary laws, by panel and step size."""
    return {
        panel: [
            gaussian.floor(clients, step_size=eta, local_steps=LOCAL_STEPS, participation=who)
            for eta in sizes.step_sizes
        ]
        for panel, who in PANELS.items()
    }


def measure(clients: GaussianTarget, sizes: Sizes, ran: dict[str, Repeated], late: Late) -> Found:
    """Compute the exact floors of these data, and how far chains are off (claim 13)."""
    exact = floors(clients, sizes)
    typical = {
        panel: [
            exact[panel][sizes.step_sizes.index(eta)] / mean
            for eta, mean in zip(FLOORS_AT, means, strict=True)
            if eta in sizes.step_sizes
        ]
        for panel, means in FLOORS.items()
    }
    return {
        "exact": exact,
        "exact, last quarter of rounds": late.exact,
        "chains, last quarter of rounds": late.chains,
        "standard errors off": largest_deviation(clients, sizes, ran),
        "step sizes": sizes.step_sizes,
        "over typical": typical,
        "chains": sizes.seeds,
    }


def judge(found: Found) -> Verdict:
    """Judge claim 13 on exact floors, and on chains that have to follow the exact laws."""
    exact, sizes, marks = found["exact"], found["step sizes"], CLAIMS[13].criterion
    far = largest(*found["standard errors off"].values())
    largest_share = max(max(exact[panel]) / min(exact[panel]) for panel in "bcde")
    vanishing = exact["a"][0] / exact["a"][-1]
    why = (
        f"exact floors at 1e-7: {told(found)}; from step size {sizes[0]:g} to "
        f"{sizes[-1]:g} partial ones change by a "
        f"factor of {largest_share:.2f} at most, that of everyone by {vanishing:.0f}; chains up "
        f"to {far:.1f} standard errors "
        "off their exact laws"
    )
    holds = (
        grow_with_fewer_clients(exact)
        and largest_share < marks.partial
        and vanishing > marks.everyone
        and all(abs(x - 1) < marks.usual for each in found["over typical"].values() for x in each)
        and far < marks.far
    )
    return of_panels(verdict(13, found, holds, why))


def told(found: Found) -> str:
    """Describe the exact floors at the step size 1e-7, from the largest to the smallest."""
    at = found["step sizes"].index(1e-7)
    return ", ".join(f"{name_of(PANELS[panel])} {found['exact'][panel][at]:.2e}" for panel in ORDER)


def grow_with_fewer_clients(exact: Mapping[str, Sequence[float]]) -> bool:
    """Return whether floors grow from everyone to S = 40 to 30 in both schemes, at all step sizes.

    A floor that is missing does not.
    """
    return all(
        bool((np.diff([exact[panel] for panel in scheme], axis=0) > 0).all())
        for scheme in ("abd", "ace")
    )


def of_panels(judged: Verdict) -> Verdict:
    """Leave a verdict on chains undecided if they are too few, or not of all panels."""
    num, ran = judged.measured["chains"], judged.measured["standard errors off"]
    few = f"not judged: {num} chains of {len(ran)} panels are too few; "
    return judged if num >= LEAST_CHAINS and set(ran) == set(PANELS) else judged.undecided(few)


def run_panels(sizes: Sizes, arguments: Arguments, problem: GaussianClients) -> dict[str, Repeated]:
    """Run the chains of the panels, all with different seeds."""
    return {
        panel: gaussian.repeated(
            [problem],
            sets=sizes.sets,
            num_chains=sizes.seeds,
            first_seed=place * sizes.sets * sizes.seeds,
            num_rounds=sizes.rounds,
            settings={"step_size": sizes.step_sizes},
            options=arguments.kept,
            name=f"panel {panel}",
            local_steps=LOCAL_STEPS,
            participants=who.scheme,
            **({} if who.scheme == "full" else {"num_selected": who.num_selected}),
        )
        for place, (panel, who) in enumerate(PANELS.items())
        if panel in sizes.panels
    }


@styled()
def outcome(
    clients: GaussianTarget,
    sizes: Sizes,
    ran: dict[str, Repeated],
    judged: Verdict,
    picture: str,
) -> Outcome:
    """Draw the panels and collect what is written. picture: name of the picture's file."""
    figure = Figure(figsize=(16, 9))
    places = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    gaussian.explain(
        places[-1],
        "lines with marks: chains, with the range of all sets\nlines without: exact laws",
    )
    for axes, (panel, who) in zip(places, PANELS.items(), strict=False):
        for i, eta in enumerate(sizes.step_sizes):
            exact = gaussian.exact_distances(
                clients, sizes.rounds, step_size=eta, local_steps=LOCAL_STEPS, participation=who
            )
            axes.semilogy(exact, **look(i, "none", linewidth=1))
            if panel in ran:
                gaussian.draw_sets(axes, ran[panel].distance[:, 0, i], i, label=f"{eta:g}")
        axes.set(title=f"({panel}) {name_of(who)}")
    for axes in places[2:5]:  # those without a panel of data below them
        axes.set(xlabel="rounds")
        axes.tick_params(labelbottom=True)
    for axes in (places[0], places[3]):
        axes.set_ylabel("W2")
    drawn = next(axes for axes, panel in zip(places, PANELS, strict=False) if panel in ran)
    named = drawn.get_legend_handles_labels()
    places[-1].legend(*named, title="step size", loc="upper left")
    config = {**sizes.config(), "local_steps": LOCAL_STEPS}
    return Outcome({}, {picture: figure}, [judged], config)


JUDGES: Judges = {13: judge}


def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw the figure and judge the claim."""
    sizes, problem = STUDY.choose(arguments, least_seeds=3), gaussian.equal_problem(0.0)
    clients = gaussian.clients_of(problem)
    ran = run_panels(sizes, arguments, problem)
    late = late_distances(clients, sizes, ran)
    judged = judge(measure(clients, sizes, ran, late))
    return outcome(clients, sizes, ran, judged, "fig2.png")
