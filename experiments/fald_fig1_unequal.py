"""FA-LD's Fig. 1 (arXiv 2112.05120) with unequal Hessians: its panels where K, heterogeneity and rho can matter.

All is as in `fald_fig1`, but that each client's covariance is turned and scaled, for three K and by three sets of chains. Claims 6 and 8,
on exact laws and on chains that have to follow them; `fald_unequal` counts rounds with step sizes tuned for each K, and judges claim 7.
"""

import sys

import numpy as np

from experiments import fald_fig1
from experiments.fald_claims import verdict
from experiments.fald_fig1 import MIXED_STEPS, STEP_SIZE, Panels
from experiments.fald_gaussian import FAR, deviations, floor, largest, unequal_problem
from experiments.support import Arguments, Outcome, Verdict, main
from fedjax_sim.gaussians import Gaussian
from fedjax_sim.theory import langevin_oracle as oracle

FULL = fald_fig1.FULL._replace(sets=3, local_steps=(10, 100, 1000))
SMOKE = fald_fig1.SMOKE


def largest_deviation(panels: Panels) -> float:
    """How far the first set's means and variances are from the exact ones, in standard errors: all K, alphas and rho, at three rounds."""
    runs = [
        (own.first, i, local_steps, 0.0, alpha) for local_steps, own in panels.ran.items() for i, alpha in enumerate(panels.sizes.alphas)
    ]
    runs += [(own.first, 0, MIXED_STEPS, rho, panels.sizes.alphas[0]) for rho, own in panels.mixed.items()]
    far = 0.0
    for own, i, local_steps, rho, alpha in runs:
        num_rounds = own.distance.shape[-1] - 1
        taken = oracle.one_round(panels.clients[alpha], step_size=STEP_SIZE, local_steps=local_steps, rho=rho)
        exact = oracle.rounds(taken, oracle.point(np.zeros(2)), num_rounds)
        at = [1, num_rounds // 2, num_rounds]
        found = Gaussian(own.law.mean[i, at], own.law.covariance[i, at])
        far = largest(far, float(deviations(found, Gaussian(exact.mean[at], exact.covariance[at]), panels.sizes.chains).max()))
    return far


def judge(panels: Panels) -> list[Verdict]:
    """Claims 6 and 8."""
    far, sizes = largest_deviation(panels), panels.sizes
    by_alpha = [floor(own, step_size=STEP_SIZE, local_steps=10) for own in panels.clients.values()]
    late = [float(panels.ran[10].distance[:, i, -1].mean()) for i in range(len(sizes.alphas))]
    by_rho = [floor(panels.clients[sizes.alphas[0]], step_size=STEP_SIZE, local_steps=MIXED_STEPS, rho=rho) for rho in sizes.rhos]
    first, last = sizes.alphas[0], sizes.alphas[-1]
    follow = f"chains up to {far:.1f} standard errors from exact laws"
    rises = (
        f"K = 10: exact floors {by_alpha[0]:.1e} at alpha = {first:g} to {by_alpha[-1]:.1e} at {last:g}, last distances of chains "
        f"{late[0]:.1e} to {late[-1]:.1e}; {follow}"
    )
    falls = f"K = {MIXED_STEPS}, alpha = {first:g}: exact floors {by_rho[0]:.2e} at rho = 0 to {by_rho[-1]:.2e} at 1; {follow}"
    return [
        verdict(6, {"floors": by_alpha, "chains": late, "alphas": sizes.alphas}, bool((np.diff(by_alpha) > 0).all()) and far < FAR, rises),
        verdict(8, {"floors": by_rho, "rhos": sizes.rhos}, bool((np.diff(by_rho) < 0).all()) and far < FAR, falls),
    ]


def run(arguments: Arguments) -> Outcome:
    """Run, draw, judge."""
    panels = fald_fig1.run_panels(fald_fig1.sizes_of(arguments, FULL, SMOKE), arguments, unequal_problem)
    return fald_fig1.outcome(panels, judge(panels), "fig1_unequal.png")


if __name__ == "__main__":
    sys.exit(main("fald_fig1_unequal", __doc__ or "", run))
