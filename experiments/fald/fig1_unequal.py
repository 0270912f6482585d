"""FA-LD's Fig. 1 with unequal Hessians: the panels where K, heterogeneity and rho can matter.

See arXiv 2112.05120. Everything is as in fald/fig1, except that each client's covariance is turned
and scaled, K is small, and there are three sets of chains. For most heterogeneities and K the floor
is above the accuracy, so that the rounds to it are infinite. Claims 6 and 8 are judged on exact
laws and on chains that have to follow them; fald/unequal counts rounds with step sizes tuned for
each K, and judges claim 7.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.fald import fig1
from experiments.fald.claims import CLAIMS, Found, of_chains
from experiments.fald.fig1 import MIXED_STEPS, STEP_SIZE, Panels, largest_deviation
from experiments.fald.gaussian import floor, unequal_problem
from experiments.harness import Arguments, Outcome, Study, Verdict

STUDY = Study(
    full=fig1.STUDY.full.replace(sets=3, local_steps=(1, 2, 5, 10, 20, 50)),
    smoke=fig1.STUDY.smoke,
)


def measure(panels: Panels) -> dict[int, Found]:
    """Compute floors by alpha and by rho, and how far chains are off, by number of the claim."""
    far, sizes = largest_deviation(panels), panels.sizes
    by_alpha = [
        floor(target, step_size=STEP_SIZE, local_steps=10) for target in panels.clients.values()
    ]
    late = [float(panels.ran[10].distance[:, i, -1].mean()) for i in range(len(sizes.alphas))]
    by_rho = [
        floor(
            panels.clients[sizes.alphas[0]], step_size=STEP_SIZE, local_steps=MIXED_STEPS, rho=rho
        )
        for rho in sizes.rhos
    ]
    both = {"alphas": sizes.alphas, "standard errors off": far, "number of chains": sizes.seeds}
    return {
        6: {"floors": by_alpha, "chains": late, **both},
        8: {"floors": by_rho, "rhos": sizes.rhos, **both},
    }


def judge_heterogeneity(found: Found) -> Verdict:
    """Judge claim 6."""
    floors, late, alphas = found["floors"], found["chains"], found["alphas"]
    why = (
        f"K = 10: exact floors {floors[0]:.1e} at alpha = {alphas[0]:g} to {floors[-1]:.1e} at "
        f"{alphas[-1]:g}, last distances of chains "
        f"{late[0]:.1e} to {late[-1]:.1e}"
    )
    return _judged(6, found, bool((np.diff(floors) > 0).all()), why)


def judge_rho(found: Found) -> Verdict:
    """Judge claim 8."""
    floors = found["floors"]
    why = (
        f"K = {MIXED_STEPS}, alpha = {found['alphas'][0]:g}: exact floors {floors[0]:.2e} at "
        f"rho = 0 to {floors[-1]:.2e} at 1"
    )
    return _judged(8, found, bool((np.diff(floors) < 0).all()), why)


def _judged(number: int, found: Found, is_met: bool, why: str) -> Verdict:
    """Judge a claim on unequal Hessians; chains have to follow exact laws."""
    far = found["standard errors off"]
    return of_chains(
        number,
        found,
        is_met and far < CLAIMS[number].criterion.far,
        f"{why}; chains up to {far:.1f} standard errors from exact laws",
        "number of chains",
    )


def judge_kept(kept: Mapping[int, Any]) -> list[Verdict]:
    """Judge the claims from what was measured."""
    return [judge_heterogeneity(kept[6]), judge_rho(kept[8])]


def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw the figure and judge the claims."""
    panels = fig1.run_panels(STUDY.choose(arguments, least_seeds=3), arguments, unequal_problem)
    found = measure(panels)
    verdicts = [judge_heterogeneity(found[6]), judge_rho(found[8])]
    return fig1.outcome(panels, verdicts, "fig1_unequal.png")
