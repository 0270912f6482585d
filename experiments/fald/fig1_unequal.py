"""FA-LD's Fig. 1 with unequal Hessians: the panels where K, heterogeneity and rho can matter.

See arXiv 2112.05120. Everything is as in fald/fig1, except that each client's covariance is turned
and scaled, K is small, and there are three sets of chains. For most heterogeneities and K the floor
is above the accuracy, so that the rounds to it are infinite. Claims 6 and 8 are judged on exact
laws and on chains that have to follow them; fald/unequal counts rounds with step sizes tuned for
each K, and judges claim 7.
"""

import numpy as np

from experiments.fald import fig1
from experiments.fald.claims import CLAIMS, LEAST_CHAINS, verdict
from experiments.fald.fig1 import MIXED_STEPS, STEP_SIZE, Panels, largest_deviation
from experiments.fald.gaussian import floor, unequal_problem
from experiments.harness import Arguments, Outcome, Study, Verdict, rule

STUDY = Study(
    full=fig1.STUDY.full.replace(sets=3, local_steps=(1, 2, 5, 10, 20, 50)),
    smoke=fig1.STUDY.smoke,
)


OTHERS: dict[str, bool | None] = {"one Hessian (not run here)": None}
"""The part of both claims that this experiment leaves open."""


def judge(panels: Panels) -> list[Verdict]:
    """Judge claims 6 and 8."""
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
    first, last = sizes.alphas[0], sizes.alphas[-1]
    follow = f"chains up to {far:.1f} standard errors from exact laws"
    rises = (
        f"K = 10: exact floors {by_alpha[0]:.1e} at alpha = {first:g} to {by_alpha[-1]:.1e} at "
        f"{last:g}, last distances of chains "
        f"{late[0]:.1e} to {late[-1]:.1e}; {follow}"
    )
    falls = (
        f"K = {MIXED_STEPS}, alpha = {first:g}: exact floors {by_rho[0]:.2e} at rho = 0 to "
        f"{by_rho[-1]:.2e} at 1; {follow}"
    )
    found = {
        6: (
            {"floors": by_alpha, "chains": late, "alphas": sizes.alphas},
            rule({"unequal Hessians": bool((np.diff(by_alpha) > 0).all()), **OTHERS}),
            rises,
        ),
        8: (
            {"floors": by_rho, "rhos": sizes.rhos},
            rule({"unequal Hessians": bool((np.diff(by_rho) < 0).all()), **OTHERS}),
            falls,
        ),
    }
    if sizes.seeds < LEAST_CHAINS:
        few = f"not judged: {sizes.seeds} chains are too few; "
        return [
            verdict(number, measured, None, few + why)
            for number, (measured, _, why) in found.items()
        ]
    return [
        verdict(number, measured, ruling if far < CLAIMS[number].criterion.far else False, why)
        for number, (measured, ruling, why) in found.items()
    ]


def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw the figure and judge the claims."""
    panels = fig1.run_panels(STUDY.choose(arguments, least_seeds=3), arguments, unequal_problem)
    return fig1.outcome(panels, judge(panels), "fig1_unequal.png")
