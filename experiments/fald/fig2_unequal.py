"""FA-LD's Fig. 2 with unequal Hessians: distances under full and partial participation (claim 10).

See arXiv 2112.05120. Everything is as in fald/fig2, except that each client's covariance is turned
and scaled, and that there are three sets of chains. With K = 100 local steps the average over
everyone is now biased too, by less the smaller the step size. Claim 10 is judged except for rho:
floors are ordered as with one Hessian, and chains follow their exact laws.
"""

from experiments.fald import fig2
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.fig2 import Late, are_ordered, floors, largest_deviation, of_panels, told
from experiments.fald.formulas.exact_laws import GaussianTarget
from experiments.fald.gaussian import Repeated, clients_of, largest, unequal_problem
from experiments.harness import Arguments, Outcome, Sizes, Study, Verdict

STUDY = Study(full=fig2.STUDY.full.replace(sets=3), smoke=fig2.STUDY.smoke)


def measure(clients: GaussianTarget, sizes: Sizes, ran: dict[str, Repeated], late: Late) -> Found:
    """Compute exact floors, and how far chains are off (claim 10)."""
    return {
        "exact": floors(clients, sizes),
        "last quarter of rounds": late._asdict(),
        "standard errors off": largest_deviation(clients, sizes, ran),
        "step sizes": sizes.step_sizes,
        "chains": sizes.seeds,
    }


def judge(found: Found) -> Verdict:
    """Judge claim 10 on exact floors, and on chains that have to follow the exact laws."""
    exact, sizes = found["exact"], found["step sizes"]
    far = largest(*found["standard errors off"].values())
    why = (
        f"by S and scheme, rho is not varied: unequal Hessians, exact floors at 1e-7: "
        f"{told(found)}; that of everyone is left by K = "
        f"{fig2.LOCAL_STEPS} and falls by a factor of {exact['a'][0] / exact['a'][-1]:.0f} from "
        f"step size {sizes[0]:g} to "
        f"{sizes[-1]:g}; chains up to {far:.1f} standard errors off "
        "their exact laws"
    )
    holds = are_ordered(exact) and far < CLAIMS[10].criterion.far
    return of_panels(verdict(10, found, holds, why))


def run(arguments: Arguments) -> Outcome:
    """Run the chains, draw the figure and judge the claim."""
    sizes, problem = STUDY.choose(arguments, least_seeds=3), unequal_problem(0.0)
    clients = clients_of(problem)
    ran = fig2.run_panels(sizes, arguments, problem)
    late = fig2.late_distances(clients, sizes, ran)
    judged = judge(measure(clients, sizes, ran, late))
    return fig2.outcome(clients, sizes, ran, late, judged, "fig2_unequal.png")
