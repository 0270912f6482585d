"""FA-LD's privacy against its accuracy, from theory alone (claim 16).

See arXiv 2112.05120, Sec. 6. There are 50 clients, S = 10 without replacement, K = 10, 100 rounds,
tau = 1, batches of a tenth, Delta_l = 1, delta_0 = delta_1 = 1e-6 and delta_2 = 1e-5, unless a
panel varies it. Accuracy is the exact stationary W2 of a Gaussian problem with unequal Hessians at
the same settings. Its gradients have bounded sensitivity nowhere: the direction of the trade-off is
meant, not its numbers. Guarantees are those of Theorem 6.1 as printed. Its step for the draw of
clients needs clients with similar models, which the paper does not say; see
`fedjax_sim.theory.langevin.privacy`.
"""

import warnings
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.fald.claims import CLAIMS, verdict
from experiments.fald.gaussian import clients_of, floor, unequal_problem
from experiments.harness import Arguments, Outcome, Verdict, table, verdict_table
from fedjax_sim.reporting.plots import look, styled
from fedjax_sim.theory.langevin.exact_laws import Participation
from fedjax_sim.theory.langevin.privacy import PrivacySetup, guarantee

RUN = PrivacySetup(
    50, 10, "without_replacement", 10, 100, 1e-7, 1.0, 0.5, 0.1, 1.0, 1 / 50, 1e-6, 1e-6, 1e-5
)
VARIED: dict[str, tuple[Any, ...]] = {
    "step_size": tuple(np.geomspace(1e-9, 1e-5, 9)),
    "rho": (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98),
    "num_selected": (1, 2, 5, 10, 20, 30, 40, 50),
    "num_rounds": (1, 3, 10, 30, 100, 300, 1000),
}
PRINTED = {
    1e-5: (78.1433, 5e-5, 73.4038, 0.366478),
    1e-6: (10.1153, 5e-5, 9.10402, 0.224940),
    1e-8: (0.617570, 5e-5, 0.563917, 0.189974),
}
"""Epsilon and delta without replacement, then with it, by step size."""


def distance(rho: float) -> float:
    """Return the stationary W2 at the run's settings."""
    clients = clients_of(unequal_problem(0.0))
    who = Participation(RUN.scheme, RUN.num_selected)
    return floor(
        clients, step_size=RUN.step_size, local_steps=RUN.local_steps, rho=rho, participation=who
    )


def judge() -> tuple[Verdict, dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """Judge claim 16.

    Returns:
      The verdict, epsilons and deltas by what is varied, and W2 by rho.
    """
    schemes = ("without_replacement", "with_replacement")
    epsilons, deltas = {}, {}
    for name, values in VARIED.items():
        found = [
            [guarantee(RUN._replace(scheme=scheme, **{name: value})) for value in values]
            for scheme in schemes
        ]
        epsilons[name] = np.array([[each.epsilon for each in row] for row in found])
        deltas[name] = np.array([[each.delta for each in row] for row in found])
    rising = {name: bool((np.diff(values) > 0).all()) for name, values in epsilons.items()}
    rising |= {
        f"delta, {name}": bool((np.diff(deltas[name][0]) > 0).all())
        for name in ("num_selected", "num_rounds")
    }
    off = 0.0
    for step_size, expected in PRINTED.items():
        both = [guarantee(RUN._replace(step_size=step_size, scheme=scheme)) for scheme in schemes]
        off = max(
            off,
            float(
                np.max(
                    np.abs(np.array([(g.epsilon, g.delta) for g in both]).ravel() / expected - 1)
                )
            ),
        )
    largest = RUN._replace(step_size=RUN.largest_step_size)
    at_largest = guarantee(largest).epsilon_batch / (2 * RUN.batch_fraction)
    near = (
        guarantee(RUN._replace(rho=1 - 1e-5, step_size=1e-12)).epsilon
        / guarantee(RUN._replace(rho=0.0, step_size=1e-12)).epsilon
    )
    try:
        guarantee(RUN._replace(rho=1.0))
        infinite = False
    except ValueError:
        infinite = True
    accuracy = np.array([distance(rho) for rho in VARIED["rho"]])
    trades = bool((np.diff(accuracy) < 0).all() and rising["rho"])
    marks = CLAIMS[16].criterion
    holds = (
        all(rising.values())
        and off < marks.printed
        and abs(at_largest - 1) < marks.exact
        and infinite
        and near > marks.near
        and trades
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        guarantee(RUN._replace(scheme="with_replacement"), num_examples=50_000)
    measured = {
        "rising": rising,
        "largest relative error of printed values": off,
        "epsilon_1 / 2 q at the largest step size": at_largest,
        "epsilon at rho = 1 - 1e-5 over that at 0": near,
        "refused at rho = 1": infinite,
        "W2 by rho": dict(zip(map(str, VARIED["rho"]), accuracy.tolist(), strict=True)),
        "epsilon by rho": dict(
            zip(map(str, VARIED["rho"]), epsilons["rho"][0].tolist(), strict=True)
        ),
        "warned of delta with replacement": len(caught) > 0,
    }
    why = (
        f"monotone in all {len(rising)} ways; printed values to {off:.0e}; from rho = 0 to 0.98 "
        f"W2 falls from {accuracy[0]:.2e} to "
        f"{accuracy[-1]:.2e} and epsilon rises from {epsilons['rho'][0, 0]:.2f} to "
        f"{epsilons['rho'][0, -1]:.1f}"
    )
    return verdict(16, measured, holds, why), epsilons, deltas, accuracy


@styled()
def run(arguments: Arguments) -> Outcome:
    """Compute and judge. All sizes are the same, as this takes seconds."""
    judged, epsilons, deltas, accuracy = judge()
    figure = Figure(figsize=(16, 3.8))
    panels = figure.subplots(1, 5)
    words = {
        "step_size": "step size",
        "rho": "rho (share of noise in common)",
        "num_selected": "S (clients selected)",
        "num_rounds": "rounds",
    }
    for axes, (name, values) in zip(panels, VARIED.items(), strict=False):
        for i, label in enumerate(("without replacement", "with replacement")):
            axes.plot(values, epsilons[name][i], label=label, **look(i, "all"))
        axes.set(xlabel=words[name], yscale="log", xscale="linear" if name == "rho" else "log")
    panels[0].set_ylabel("epsilon of the whole run")
    panels[0].legend()
    panels[4].plot(epsilons["rho"][0], accuracy, **look(2, "all"))
    for rho, x, y in zip(VARIED["rho"], epsilons["rho"][0], accuracy, strict=True):
        panels[4].annotate(f"{rho:g}", (x, y), (3, 3), textcoords="offset points", fontsize=7)
    panels[4].set(
        xlabel="epsilon of the whole run",
        ylabel="stationary W2",
        yscale="log",
        title="rho next to its points",
    )
    both = [
        list(zip(epsilons["step_size"][i], deltas["step_size"][i], strict=True)) for i in (0, 1)
    ]
    cells = [[f"{epsilon:.4g}, {delta:.2g}" for epsilon, delta in column] for column in both]
    rows = [[f"{x:.2g}", *row] for x, *row in zip(VARIED["step_size"], *cells, strict=True)]
    text = (
        table(["step size", "epsilon, delta without replacement", "with replacement"], rows)
        + "\n\n"
        + verdict_table([judged])
    )
    return Outcome({}, {"privacy.png": figure}, [judged], {}, text)
