"""FA-LD's Fig. 2: distances under full and partial participation, by step size (claim 13).

See arXiv 2112.05120. Gaussian simulation with 50 clients, K = 100, rho = 0 and alpha = 0. The paper
gives none of the last three; only at alpha = 0 do floors hardly depend on the step size, as it
says. (a) everyone; (b) scheme I, draws with replacement, S = 40; (c) scheme II, without, S = 40;
(d) I, S = 30; (e) II, S = 30. Exact laws are drawn next to the chains.

A panel is one compiled program over all step sizes and chains. The step sizes of a panel share
their noise, panels share none. As 300 chains show W2 with an error, everything is run ten times:
the first set of 300 is the paper's figure, and all ten give means and standard deviations.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from experiments.fald import gaussian
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.formulas.exact_laws import FULL as EVERYONE
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation
from experiments.fald.gaussian import Cell
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.results.plots import styled

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


def measure(clients: GaussianTarget, sizes: Sizes, ran: Mapping[str, list[Cell]]) -> Found:
    """Compute the exact floors of these data, and how far chains are off (claim 13).

    Distances are averaged over the last quarter of rounds, in which small steps have not reached
    their floor yet.

    Args:
      ran: By panel, a cell for each step size.
    """
    late = slice(-(sizes.rounds // 4 + 1), None)
    at = sorted({max(1, sizes.rounds // 4), max(1, sizes.rounds // 2), sizes.rounds})
    exact = {
        panel: [
            gaussian.floor(clients, step_size=eta, local_steps=LOCAL_STEPS, participation=who)
            for eta in sizes.step_sizes
        ]
        for panel, who in PANELS.items()
    }
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
        "exact, last quarter of rounds": {
            panel: [float(cell.exact[late].mean()) for cell in cells]
            for panel, cells in ran.items()
        },
        "chains, last quarter of rounds": {
            panel: [cell.distance[:, late].mean(axis=-1).tolist() for cell in cells]
            for panel, cells in ran.items()
        },
        "standard errors off": {
            panel: gaussian.largest(*(cell.off(at) for cell in cells))
            for panel, cells in ran.items()
        },
        "step sizes": sizes.step_sizes,
        "over typical": typical,
        "chains": sizes.seeds,
    }


def judge(found: Found) -> Verdict:
    """Judge claim 13 on exact floors, and on chains that have to follow the exact laws.

    It is undecided if chains are too few, or not of all panels.
    """
    exact, sizes, marks = found["exact"], found["step sizes"], CLAIMS[13].criterion
    off = found["standard errors off"]
    far = gaussian.largest(*off.values())
    # Floors grow from everyone to S = 40 to 30 in both schemes; one that is missing does not.
    grow = all(
        bool((np.diff([exact[panel] for panel in scheme], axis=0) > 0).all())
        for scheme in ("abd", "ace")
    )
    largest_share = max(max(exact[panel]) / min(exact[panel]) for panel in "bcde")
    vanishing = exact["a"][0] / exact["a"][-1]
    told = (f"{name_of(PANELS[x])} {exact[x][sizes.index(1e-7)]:.2e}" for x in ORDER)
    why = (
        f"exact floors at 1e-7: {', '.join(told)}; from step size {sizes[0]:g} to "
        f"{sizes[-1]:g} partial ones change by a factor of {largest_share:.2f} at most, that of "
        f"everyone by {vanishing:.0f}; chains up to {far:.1f} standard errors off their exact laws"
    )
    holds = (
        grow
        and largest_share < marks.partial
        and vanishing > marks.everyone
        and all(abs(x - 1) < marks.usual for each in found["over typical"].values() for x in each)
        and far < marks.far
    )
    if set(off) != set(PANELS):
        few = f"not judged: {found['chains']} chains of {len(off)} panels are too few; "
        return verdict(13, found, holds, why).undecided(few)
    return verdict(13, found, holds, why)


JUDGES: Judges = {13: judge}


@styled()
def run(arguments: Arguments) -> Outcome:
    """Run the chains of the panels, draw the figure and judge the claim."""
    sizes, problem = STUDY.choose(arguments, least_seeds=3), gaussian.equal_problem(0.0)
    ran = {
        panel: gaussian.cells(
            [problem],
            sets=sizes.sets,
            num_chains=sizes.seeds,
            first_seed=place * sizes.sets * sizes.seeds,
            num_rounds=sizes.rounds,
            vary={"step_size": sizes.step_sizes},
            options=arguments.kept,
            name=f"panel {panel}",
            local_steps=LOCAL_STEPS,
            participation=who,
        )
        for place, (panel, who) in enumerate(PANELS.items())
        if panel in sizes.panels
    }
    figure = Figure(figsize=(16, 9))
    *places, last = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    for axes, (panel, who) in zip(places, PANELS.items(), strict=True):
        for i, cell in enumerate(ran.get(panel, ())):
            cell.draw(axes, i, f"{sizes.step_sizes[i]:g}")
        axes.set(title=f"({panel}) {name_of(who)}")
    for axes in places[2:]:  # those without a panel of data below them
        axes.set(xlabel="rounds")
        axes.tick_params(labelbottom=True)
    for axes in (places[0], places[3]):
        axes.set_ylabel("W2")
    drawn = places["abcde".index(next(iter(ran)))]
    gaussian.explain(last)
    last.legend(*drawn.get_legend_handles_labels(), title="step size", loc="upper left")
    judged = judge(measure(gaussian.clients_of(problem), sizes, ran))
    config = {**sizes.config(), "local_steps": LOCAL_STEPS}
    return Outcome({}, {"fig2.png": figure}, [judged], config)
