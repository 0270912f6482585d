"""FedStaleWeight's short statements: weak truthfulness, no staleness, why weights are normalised.

Judges claims 23 to 25 of arXiv 2406.02877.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import fedjax_sim
from experiments import harness
from experiments.fedstaleweight import influence as study
from experiments.fedstaleweight.claims import CLAIMS, verdict
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import fedavg, fedstaleweight
from fedjax_sim.timelines import ClientTable

STUDY = Study(
    full=Sizes(seeds=6, ticks=16_000, quadratic_ticks=8000),
    smoke=Sizes(seeds=2, ticks=1000, quadratic_ticks=500),
)
SPEEDS = (1.0, 0.5, 0.25, 0.1)
RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)


def measure_indifference(sizes: Sizes) -> dict[str, Any]:
    """Measure a fast client's influence at shares of its speed, with weights divided by b."""
    found = {}
    for phi in SPEEDS:
        rate = np.r_[phi * study.RATE[0], study.RATE[1:]]
        hyper = study.HYPER.replace(client_table=ClientTable(rate, study.SPREAD))
        arrived = study.arrivals(sizes.seeds, study.HYPER.buffer_size * sizes.ticks, [hyper])
        drawn = study.buffered(arrived, **study.RAW)
        found[f"{phi:g}"] = float(np.mean(study.influences(drawn)[:, 0]))
    return {"influence": found, "share": 1 / study.NUM}


def measure_synchronous() -> dict[str, float]:
    """Compare FedStaleWeight without staleness with FedAvg."""
    num, ticks = 6, 40
    problem = Quadratic.of(np.random.default_rng(24).normal(size=(num, 5)), start=3.0)
    clock: dict[str, Any] = {
        "num_clients": num,
        "client_table": ClientTable(np.ones(num), np.zeros(num)),
    }
    options: dict[str, Any] = {
        "seeds": 1,
        "budget": fedjax_sim.Ticks(ticks),
        "num_evals": ticks,
        "keep": fedjax_sim.Keep(models=True),
    }
    steps: dict[str, Any] = {"local_steps": 3, "lr": 0.05, "batch_size": 1}
    ours: Any = fedstaleweight.paper(buffer_size=num, **clock, **steps)
    ours = ours.replace(clock=ours.clock.replace(restart="after_interaction"))
    drawn = harness.draw(fedstaleweight.system, [ours], 1, ticks)
    staleness = np.arange(ticks)[:, None] - drawn.version[0, 0]
    theirs = fedavg.Hyper(num_clients=num, num_selected=num, **steps)
    both: list[tuple[fedjax_sim.System, Any]]
    both = [(fedstaleweight.system, ours), (fedavg.system, theirs)]
    models = [
        np.asarray(fedjax_sim.sweep(system, problem, hyper, **options).samples)
        for system, hyper in both
    ]
    return {
        "largest staleness": float(staleness.max()),
        "weights off": float(np.abs(drawn.weight - 1 / num).max()),
        "models off": float(np.linalg.norm(models[0] - models[1]) / np.linalg.norm(models[1])),
    }


def judge_synchronous(measured: Mapping[str, float]) -> Verdict:
    """Judge claim 24 from numbers of `measure_synchronous`."""
    marks, stale = CLAIMS[24].criterion, measured["largest staleness"]
    weights, models = measured["weights off"], measured["models off"]
    same = weights <= marks.same and models <= marks.model
    why = f"staleness {stale:g}; weights off by {weights:.1e}, models by {models:.1e}"
    return verdict(24, measured, None if stale else harness.unless_unknown(same, measured), why)


def measure_divergence(sizes: Sizes) -> dict[str, float | None]:
    """Find the least step sizes at which runs diverge, with and without normalising."""
    ways: dict[str, dict[str, Any]] = {"normalised": {}, "not normalised": study.RAW}
    return study.least_diverging(ways, RATES, sizes.quadratic_ticks)


def judge_divergence(measured: Mapping[str, float | None]) -> Verdict:
    """Judge claim 25; None is a step size beyond all tried."""
    sizes = {name: np.inf if value is None else value for name, value in measured.items()}
    words = {name: "none tried" if np.isinf(x) else f"{x:g}" for name, x in sizes.items()}
    why = "diverges from the step size " + ", ".join(f"{x} ({name})" for name, x in words.items())
    return verdict(25, measured, sizes["not normalised"] < sizes["normalised"], why, seeds=2)


JUDGES: Judges = {**CLAIMS.declared(23), 24: judge_synchronous, 25: judge_divergence}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    verdicts = harness.judge_all(
        JUDGES,
        {23: measure_indifference(sizes), 24: measure_synchronous(), 25: measure_divergence(sizes)},
    )
    return Outcome({}, {}, verdicts, sizes.config())
