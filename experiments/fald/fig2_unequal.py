"""FA-LD's Fig. 2 with unequal Hessians: distances under full and partial participation (claim 10).

See arXiv 2112.05120. Everything is as in fald/fig2, except that each client's covariance is turned
and scaled, and that there are three sets of chains. With K = 100 local steps the average over
everyone is now biased too, by less the smaller the step size. Claim 10 is judged except for rho:
floors are ordered as with one Hessian, and chains follow their exact laws.
"""

import itertools

from experiments.fald import fig2
from experiments.fald.claims import CLAIMS, LEAST_CHAINS, verdict
from experiments.fald.fig2 import ORDER, PANELS, Late, floors, largest_deviation, name_of
from experiments.fald.gaussian import Repeated, clients_of, unequal_problem
from experiments.harness import Arguments, Outcome, Sizes, Study, Verdict
from fedjax_sim.theory.langevin.exact_laws import GaussianTarget

STUDY = Study(full=fig2.STUDY.full.replace(sets=3), smoke=fig2.STUDY.smoke)


def judge(clients: GaussianTarget, sizes: Sizes, ran: dict[str, Repeated], late: Late) -> Verdict:
    """Judge claim 10 on exact floors, and on chains that have to follow the exact laws.

    Too few chains are not judged.
    """
    exact = floors(clients, sizes)
    far = largest_deviation(clients, sizes, ran)
    ordered = all(
        exact[a][i] > exact[b][i]
        for a, b in itertools.pairwise(ORDER)
        for i in range(len(sizes.step_sizes))
    )
    at = sizes.step_sizes.index(1e-7)
    words = ", ".join(f"{name_of(PANELS[panel])} {exact[panel][at]:.2e}" for panel in ORDER)
    why = (
        f"by S and scheme, rho is not varied: unequal Hessians, exact floors at 1e-7: {words}; "
        "that of everyone is left by K = "
        f"{fig2.LOCAL_STEPS} and falls by a factor of {exact['a'][0] / exact['a'][-1]:.0f} from "
        f"step size {sizes.step_sizes[0]:g} to "
        f"{sizes.step_sizes[-1]:g}; chains up to {max(far.values()):.1f} standard errors off "
        "their exact laws"
    )
    holds: bool | None = ordered and max(far.values()) < CLAIMS[10].criterion.far
    if sizes.seeds < LEAST_CHAINS or set(ran) != set(PANELS):
        holds, why = (
            None,
            f"not judged: {sizes.seeds} chains of {len(ran)} panels are too few; {why}",
        )
    measured = {
        "exact": exact,
        "last quarter of rounds": late._asdict(),
        "standard errors off": far,
        "step sizes": sizes.step_sizes,
    }
    return verdict(10, measured, holds, why)


def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw the figure and judge the claim."""
    sizes, problem = STUDY.choose(arguments, least_seeds=3), unequal_problem(0.0)
    clients = clients_of(problem)
    ran = fig2.run_panels(sizes, arguments, problem)
    late = fig2.late_distances(clients, sizes, ran)
    return fig2.outcome(
        clients, sizes, ran, late, judge(clients, sizes, ran, late), "fig2_unequal.png"
    )
