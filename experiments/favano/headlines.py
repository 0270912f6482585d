"""FAVANO's short statements: FedBuff's start, the floor of quantized gradients, the corollary.

Judges claims 32 to 34 of arXiv 2305.16099.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

import fedjax_sim
from experiments import harness
from experiments.favano import clock
from experiments.favano.claims import CLAIMS, verdict
from experiments.favano.formulas import bounds
from experiments.favano.formulas.orders import favano_orders, favano_orders_printed
from experiments.favano.theory import LAYOUT, Quantized, step_of, with_gradient_at_mean
from experiments.harness import Arguments, Interval, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import favano, fedbuff
from fedjax_sim.theory import favano as theory

STUDY = Study(full=Sizes(seeds=48, ticks=2000), smoke=Sizes(seeds=6, ticks=200))
TEN, FIRST, WARM, STEPS = 10, 5, 150, 230
"""Server steps in a window, at the start, until FedBuff has settled, and that are drawn."""


# Claim 32 ----------------------------------------------------------------------------------------


def measure_start(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Measure the share of slow clients in FedBuff's updates with 11 of 100 clients fast."""
    found = {}
    for reading, hyper in clock.READINGS.items():
        hyper = hyper.replace(slow_fraction=8 / 9)
        drawn = harness.draw(fedbuff.system, [hyper], sizes.seeds, STEPS).clients[0]
        fast = harness.are_fast(hyper, sizes.seeds)
        is_slow = ~np.take_along_axis(fast, drawn.reshape(sizes.seeds, -1), axis=1)
        share = is_slow.reshape(drawn.shape).mean(axis=-1)
        windows = share.reshape(sizes.seeds, -1, TEN).mean(axis=-1)
        of = {
            "first": share[:, :FIRST].mean(axis=1),
            "windows": windows,
            "settled": share[:, WARM:].mean(axis=1),
        }
        each = {name: harness.estimate(values) for name, values in of.items()}
        found[reading] = {
            name: {"mean": value.mean.tolist(), "error": value.error.tolist()}
            for name, value in each.items()
        }
    return found


def judge_start(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 32 from numbers of `measure_start`."""
    marks, parts, told = CLAIMS[32].criterion, {}, []
    readings = {name: found for name, found in measured.items() if name != "parts"}
    for reading, found in readings.items():
        first, settled = found["first"], found["settled"]["mean"]
        few = Interval(marks.first - first["mean"], marks.far * first["error"]).above()
        parts[f"only fast ones at first ({reading})"] = few
        early = [
            Interval(0.9 * settled - mean, marks.far * error).above()
            for mean, error in list(zip(*found["windows"].values(), strict=True))[
                : marks.huge // TEN
            ]
        ]
        parts[f"not settled for long ({reading})"] = harness.all_of(early)
        reached = next((i for i, each in enumerate(early) if each is not True), len(early))
        told.append(
            f"{reading}: slow clients' share {first['mean']:.3f} in {FIRST} steps, {settled:.3f} "
            f"settled, not yet nine tenths of it for {TEN * reached} steps"
        )
    ruling = harness.rule(parts, deciding=harness.begins("only fast"))
    return verdict(32, {**readings, "parts": parts}, ruling, "; ".join(told))


# Claim 33 ----------------------------------------------------------------------------------------

BITS, OPTIMA = (2, 3, 4, 5, 6), 40


def measure_floor(sizes: Sizes) -> dict[str, dict[str, float]]:
    """Measure the squared gradient at the mean model of runs with quantized gradients."""
    optimum = np.random.default_rng(5).uniform(-2, 2, OPTIMA).astype("float32")
    if sizes.ticks < STUDY.full.ticks:
        optimum = optimum[:4]
    system = favano.system._replace(algorithm=with_gradient_at_mean)
    hyper = favano.paper(
        num_clients=3, num_selected=2, local_steps=3, slow_fraction=0.0, lr=0.005, batch_size=1
    )
    plain = Quadratic.of(np.stack([optimum] * 3), start=optimum)
    found = {}
    for rounding, factor in (("nearest", 0.5), ("stochastic", 1.0)):
        for bits in BITS:
            problem = Quantized(
                plain.centers, plain.curvature, plain.noise, plain.start, bits, rounding
            )
            run = fedjax_sim.sweep(
                system,
                problem,
                hyper,
                seeds=4,
                budget=fedjax_sim.Ticks(sizes.ticks),
                num_evals=sizes.ticks,
                layout=LAYOUT,
            )
            square = harness.estimate(run.curves.gradient_square.values.mean(axis=1))
            found[f"{rounding}, {bits} bits"] = {
                "square": float(square.mean),
                "error": float(square.error),
                "floor": 12 * len(optimum) * (factor * step_of(bits)) ** 2,
            }
    return found


def judge_floor(measured: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge claim 33 from numbers of `measure_floor`."""
    far = CLAIMS[33].criterion.far
    ruling = harness.all_of(
        Interval(each["floor"] - each["square"], far * each["error"]).above()
        for each in measured.values()
    )
    shares = [each["square"] / each["floor"] for each in measured.values()]
    why = f"{len(shares)} cases: {min(shares):.3f} to {max(shares):.3f} of 12 L^2 r_d"
    return verdict(33, measured, ruling, why)


# Claim 34 ----------------------------------------------------------------------------------------


def measure_corollary() -> dict[str, float]:
    """Compute the best full bound over eps at the T of the corollary, largest of all cases."""
    factor, worst = CLAIMS[34].criterion.factor, {"printed": 0.0, "corrected": 0.0}
    orders = {"printed": favano_orders_printed, "corrected": favano_orders}
    gap, sizes = 1.4, ((100, 20), (1000, 2))
    for (n, s), smoothness in itertools.product(sizes, np.geomspace(1e-3, 1e3, 7)):
        noise = smoothness * gap
        setup = theory.FavanoSetup(n, s, 20, smoothness, noise, noise, 1.4, gap, 0.35, 1.35)
        terms = bounds.error_terms(setup)
        eta = np.geomspace(1e-7, 1, 400) / terms.cap
        for eps in smoothness * gap * np.geomspace(1e-4, 1, 5):
            for name, order in orders.items():
                two, middle, one = order(setup)
                ticks = factor * (two / eps**2 + middle / eps**1.5 + one / eps)
                tried = (
                    terms.initial / (eta * ticks) + terms.linear * eta + terms.quadratic * eta**2
                )
                worst[name] = max(worst[name], float(tried.min()) / eps)
    return worst


JUDGES: Judges = {32: judge_start, 33: judge_floor, **CLAIMS.declared(34)}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    measured = {32: measure_start(sizes), 33: measure_floor(sizes), 34: measure_corollary()}
    return Outcome({}, {}, harness.judge_all(JUDGES, measured), sizes.config())
