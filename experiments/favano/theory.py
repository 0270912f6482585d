"""FAVANO's long-run mean, Theorem 1 and quantized gradients, measured through the engine.

Judges claims 6, 7, 16 and 30 of arXiv 2305.16099. Expected values come from the paper's `formulas`.
Quadratics meet the theorem's assumptions with equality.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.favano.claims import CLAIMS, verdict
from experiments.favano.formulas import bounds as formulas
from experiments.harness import Arguments, Interval, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Plan
from fedjax_sim.kernels.rounding import straight_through, uniform
from fedjax_sim.problems import Quadratic
from fedjax_sim.results import plots
from fedjax_sim.server.compression import luq
from fedjax_sim.server.reports import Versioned
from fedjax_sim.systems import favano
from fedjax_sim.theory import favano as theory

REWEIGHTINGS = ("stochastic", "deterministic")
FAST, SLOW, PERIOD = 1 / 2, 1 / 16, 7.0
LAYOUT = fedjax_sim.Layout(lanes_at_once=True)
"""These models are single numbers, so that lanes are worth batching even on a CPU."""


STUDY = Study(
    full=Sizes(
        seeds=20,
        lanes=40,
        step_curvatures=(0.02, 0.05, 0.1, 0.2, 0.4),
        ticks=6000,
        cases=3,
        bits=(3, 4, 5, 6),
    ),
    smoke=Sizes(seeds=4, lanes=8, step_curvatures=(0.2, 0.4), ticks=2000, cases=1, bits=(3, 4)),
)
"""Claim 7 has seeds and cases; claim 6 has lanes, values of eta a, and ticks; claim 16 has bits.

`--seeds` replaces the numbers of seeds and of lanes, which are at least two.
"""


# Claim 6 -----------------------------------------------------------------------------------------

GROUPS: dict[str, Any] = {
    "num_clients": 8,
    "num_selected": 3,
    "slow_fraction": 0.5,
    "batch_size": 1,
}
EVERY = 10
"""Server steps between two evaluations."""
STATED = {"deterministic": 0.3166, "stochastic": 0.2310, "none": -0.5441}


def expected_mean(reweighting: str, step_curvature: float) -> float:
    """Return the long-run mean in closed form.

    Four fast clients have their optimum at -1 and four slow ones at 1.
    """
    law = theory.step_law(
        [FAST] * 4 + [SLOW] * 4,
        contact_probability=3 / 8,
        round_time=PERIOD,
        max_steps=20,
        law="runtime_geom",
    )
    pull = formulas.expected_pull(law, step_curvature=step_curvature, reweighting=reweighting)
    return float(formulas.long_run_means(np.repeat([-1.0, 1.0], 4), pull, num_contacted=3)[0])


@plots.styled()
def measure_long_run_mean(sizes: Sizes) -> tuple[dict[str, Any], Figure]:
    """Measure the long-run mean through the engine, for claim 6, and draw it."""
    hyper = favano.paper(**GROUPS)
    # Fast clients have their optimum at -1, whichever clients are fast in a seed's lane.
    centers = np.where(harness.are_fast(hyper, sizes.lanes), -1.0, 1.0).astype("float32")
    run = fedjax_sim.sweep(
        favano.system,
        lambda seed: Quadratic.of(centers[seed][:, None]),
        hyper,
        seeds=sizes.lanes,
        settings={"reweight": list(STATED), "lr": list(sizes.step_curvatures)},
        budget=fedjax_sim.Ticks(sizes.ticks),
        num_evals=sizes.ticks // EVERY,
        layout=LAYOUT,
        keep=fedjax_sim.Keep(models=True),
    )
    models = np.asarray(run.samples, float)[:, sizes.ticks // EVERY // 3 :]
    found = harness.estimate(
        np.moveaxis(models.mean(axis=1).reshape(len(STATED), -1, sizes.lanes), -1, 0)
    )
    expected = np.array(
        [[expected_mean(name, lr) for lr in sizes.step_curvatures] for name in STATED]
    )
    at = sizes.step_curvatures.index(0.2)
    means, errors = (dict(zip(STATED, part[:, at].tolist(), strict=True)) for part in found)
    measured = {
        "mean": means,
        "standard_error": errors,
        "largest_deviation": found.deviation(expected),
        "closed_forms_off": np.abs(expected[:, at] - list(STATED.values())).max(),
        "step_curvatures": sizes.step_curvatures,
        "lanes": sizes.lanes,
        "ticks": sizes.ticks,
    }
    figure = Figure(figsize=(8.5, 4.2))
    axes = figure.subplots()
    grid = np.geomspace(0.01, 0.6, 40)
    for i, name in enumerate(STATED):
        words = "not reweighted" if name == "none" else name
        closed = [expected_mean(name, x) for x in grid]
        axes.plot(grid, closed, label=f"{words}, closed form", **plots.look(i, "none"))
        drawn = found.mean[i], harness.FAR * found.error[i]
        look = plots.look(i, "only", label=f"{words}, runs")
        axes.errorbar(sizes.step_curvatures, *drawn, **look)
    axes.axhline(0, color=plots.GREY, linewidth=0.8, linestyle=":")
    axes.set(
        xscale="log",
        xlabel="step size times curvature, ηa",
        ylabel="long-run mean of the server's model",
        title="Fast clients want -1, slow ones 1; optimum 0",
    )
    plots.name_beside(figure, axes, title=f"bars: {harness.FAR:g} standard errors")
    return measured, figure


# Claim 7 -----------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A family of quadratics, and the run on them."""

    n: int
    s: int
    most_steps: int
    slow_fraction: float
    smoothness: float
    noise: float


CASES = (
    Case(10, 3, 8, 0.5, 1.0, 0.5),
    Case(6, 2, 10, 0.4, 2.0, 3.0),
    Case(20, 10, 6, 0.8, 0.5, 0.2),
)
TICKS, DIM, START = 2000, 5, 3.0


class Watched(NamedTuple):
    """FAVANO's state, with the base model that every client holds: `f[N, P]`."""

    versioned: Versioned
    base: Array


def with_gradient_at_mean(problem: Any, hyper: Any, plan: Plan) -> Algorithm:
    """Bind FAVANO with a further metric, the squared gradient at mu.

    mu is the mean of the server's model and all base models.
    """
    algorithm = favano.algorithm(problem, hyper, plan)

    def init(key: Key) -> Watched:
        first = algorithm.init(key)
        return Watched(first, jnp.tile(first.server, (hyper.num_clients, 1)))

    def step(key: Key, state: Watched, event: Event) -> tuple[Watched, Any]:
        after, work = algorithm.step(key, state.versioned, event)
        # Empty slots get a row that does not exist, so that their write is dropped.
        row = jnp.where(event.clients >= 0, event.clients, hyper.num_clients)
        return Watched(after, state.base.at[row].set(after.server, mode="drop")), work

    def metrics(state: Watched) -> dict[str, Array]:
        mean = (state.versioned.server + state.base.sum(axis=0)) / (hyper.num_clients + 1)
        gradient = problem.curvature.mean() * (mean - problem.optimum)
        return {"gradient_square": jnp.sum(jnp.square(gradient))}

    return Algorithm(init, step, lambda state: state.versioned.server, metrics)


def constants(case: Case, centers: np.ndarray, reweighting: str) -> theory.FavanoSetup:
    """Return the constants of the assumptions, which the quadratics meet with equality."""
    num_slow = int(np.ceil(case.slow_fraction * case.n - 1e-6))
    rates = [SLOW] * num_slow + [FAST] * (case.n - num_slow)
    window = {"contact_probability": case.s / case.n, "round_time": PERIOD}
    law = theory.step_law(rates, **window, max_steps=case.most_steps, law="runtime_geom")
    a, b = theory.reweighting_constants(
        theory.step_moments(law), max_steps=case.most_steps, reweighting=reweighting
    )
    middle = centers.mean(0)
    return theory.FavanoSetup(
        num_clients=case.n,
        num_contacted=case.s,
        max_steps=case.most_steps,
        smoothness=case.smoothness,
        gradient_variance=case.noise**2,
        dissimilarity=case.smoothness**2 * float(np.mean(np.sum((centers - middle) ** 2, axis=1))),
        dissimilarity_factor=1.0,
        initial_gap=case.smoothness / 2 * float(np.sum((START - middle) ** 2)),
        noise_constant=float(a.mean()),
        drift_constant=b,
    )


def judge_bound(measured: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge claim 7 from numbers of `measure_bound`, run by run."""
    ratios = [each["ratio"] for each in measured.values()]
    far = CLAIMS[7].criterion.far
    holds = harness.all_of(
        Interval(each["bound"] - each["measured"], far * each["standard_error"]).above()
        for each in measured.values()
    )
    seeds = next(iter(measured.values()))["seeds"]
    why = (
        f"measured over bound {np.min(ratios):.2f} to {np.max(ratios):.2f} in {len(ratios)} runs "
        f"of {TICKS} ticks and {seeds} seeds, all conditions met"
    )
    return verdict(7, measured, holds, why)


@plots.styled()
def measure_bound(sizes: Sizes) -> tuple[dict[str, dict[str, float]], Figure]:
    """Measure the squared gradient and its bound through the engine, for claim 7, and draw them.

    Each case is one problem, run at the largest step size allowed and averaged over seeds.
    """
    system = favano.system._replace(algorithm=with_gradient_at_mean)
    rows = CASES[: sizes.cases]
    measured: dict[str, dict[str, float]] = {}
    figure = Figure(figsize=(4.2 * len(rows) + 2.5, 4))
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    ticks = range(1, TICKS + 1)
    for k, (case, axes) in enumerate(zip(rows, panels, strict=True)):
        centers = np.random.default_rng(70 + k).normal(size=(case.n, DIM))
        problem = Quadratic.of(
            centers.astype("float32"), curvature=case.smoothness, noise=case.noise, start=START
        )
        for i, reweighting in enumerate(REWEIGHTINGS):
            setup = constants(case, centers, reweighting)
            step_size = 0.999 * theory.largest_step_size(setup)
            conditions = theory.conditions(setup, step_size=step_size)
            unmet = [each.name for each in conditions if not each.holds]
            assert not unmet, f"{unmet} of Theorem 1 do not hold at step size {step_size}"
            hyper = favano.paper(
                num_clients=case.n,
                num_selected=case.s,
                local_steps=case.most_steps,
                slow_fraction=case.slow_fraction,
                lr=step_size,
                reweight=reweighting,
                batch_size=1,
            )
            run = fedjax_sim.sweep(
                system,
                problem,
                hyper,
                seeds=sizes.seeds,
                budget=fedjax_sim.Ticks(TICKS),
                num_evals=TICKS,
                layout=LAYOUT,
                keep=fedjax_sim.Keep(client_variance=True),
            )
            squares = run.curves.gradient_square.values[:, :-1]
            found = harness.estimate(squares.mean(1))
            bounds = [formulas.bound(setup, step_size=step_size, num_ticks=t) for t in ticks]
            measured[f"{reweighting}, n={case.n}, s={case.s}, K={case.most_steps}"] = {
                "measured": float(found.mean),
                "standard_error": float(found.error),
                "bound": bounds[-1],
                "ratio": float(found.mean) / bounds[-1],
                "step_size": step_size,
                "seeds": sizes.seeds,
            }
            bounded = plots.look(i, "none", linewidth=1, label=f"bound, {reweighting}")
            axes.loglog(ticks, bounds, **bounded)
            mean, look = squares.mean(0).cumsum() / ticks, plots.look(i)
            axes.loglog(ticks, mean, label=f"measured, {reweighting}", **look)
        title = f"n = {case.n}, s = {case.s}, K = {case.most_steps}"
        axes.set(xlabel="server steps T", title=title)
    panels[0].set_ylabel("squared gradient at the mean of\nall models, averaged up to T")
    plots.name_beside(figure, panels[0])
    return measured, figure


# Claim 16 ----------------------------------------------------------------------------------------

RANGE, OPTIMA = 4.0, 40
"""Half the quantizer's range, and the number of coordinates, whose optima lie anywhere between its
levels."""


@struct.dataclass
class Quantized(Quadratic):
    """Quadratics of curvature 1 with gradients at weights of few bits."""

    bits: int = struct.field(pytree_node=False, default=3)
    rounding: str = struct.field(pytree_node=False, default="nearest")

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        def quantizer(x: Array) -> Array:
            drawn = jax.random.uniform(jax.random.fold_in(key, 33), x.shape) - 0.5
            moved = x + step_of(self.bits) * drawn if self.rounding == "stochastic" else x
            return uniform(moved, bits=self.bits, scale=RANGE, signed=True, levels="strict")

        return super().loss(straight_through(quantizer, params), client, examples, key)


def step_of(bits: int) -> float:
    """Return the distance of the quantizer's levels."""
    return 2 * RANGE / (2**bits - 1)


def judge_rounding(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 16 from numbers of `measure_rounding`."""
    far, marks = measured["largest_deviation"], CLAIMS[16].criterion
    falls = [a / b for a, b in itertools.pairwise(measured["floors"])]
    holds = far < marks.far and all(abs(fall / marks.factor - 1) < marks.share for fall in falls)
    ratios, bits = ", ".join(f"{fall:.2f}" for fall in falls), measured["bits"]
    why = (
        f"LUQ's means at most {far:.1f} standard errors off in 100000 draws; from {bits[0]} to "
        f"{bits[-1]} bits the floor falls by {ratios}"
    )
    return verdict(16, measured, harness.unless_unknown(holds, measured), why)


def measure_rounding(sizes: Sizes) -> dict[str, Any]:
    """Measure LUQ's means and the floors of the squared gradient, for claim 16.

    The mean of LUQ's results is checked for each element. FAVANO is run with gradients at rounded
    weights, to see at which squared gradient it ends.
    """
    values = np.concatenate(
        [[0.0, 1.0], np.random.default_rng(16).uniform(-1, 1, 30), np.geomspace(1e-4, 1e-1, 8)]
    ).astype("float32")
    drawn = jax.vmap(lambda key: luq(key, jnp.asarray(values)))(
        jax.random.split(jax.random.key(16), 100_000)
    )
    found = harness.estimate(np.asarray(drawn, float))
    far = float(np.max(np.abs(found.mean - values) / np.maximum(found.error, 1e-9)))
    optimum = np.random.default_rng(5).permutation(np.linspace(-2, 2, OPTIMA)).astype("float32")
    hyper = favano.paper(
        num_clients=3,
        num_selected=2,
        local_steps=3,
        slow_fraction=0.0,
        lr=0.01,
        batch_size=1,
        reweight="deterministic",
    )
    floors = []
    for bits in sizes.bits:
        plain = Quadratic.of(np.stack([optimum] * 3), start=optimum + np.float32(0.3))
        problem = Quantized(plain.centers, plain.curvature, plain.noise, plain.start, bits)
        run = fedjax_sim.sweep(
            favano.system,
            problem,
            hyper,
            seeds=2,
            budget=fedjax_sim.Ticks(3000),
            num_evals=30,
            layout=LAYOUT,
        )
        # With one optimum of curvature 1 the squared gradient is twice the loss.
        floors.append(2 * float(run.curves.loss.isel(eval=slice(-5, None)).mean(skipna=False)))
    return {"largest_deviation": far, "bits": sizes.bits, "floors": floors}


JUDGES: Judges = {
    **CLAIMS.declared(6, 30),
    7: judge_bound,
    16: judge_rounding,
}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    if arguments.seeds is not None:
        sizes = sizes.replace(lanes=sizes.seeds)
    mean, mean_figure = measure_long_run_mean(sizes)
    bound, bound_figure = measure_bound(sizes)
    ours = ("mean", "standard_error")
    equal = {name: {each: mean[name][each] for each in REWEIGHTINGS} for name in ours}
    measured = {6: mean, 7: bound, 16: measure_rounding(sizes), 30: equal}
    figures = {"long_run_mean.png": mean_figure, "theorem_1.png": bound_figure}
    return Outcome({}, figures, harness.judge_all(JUDGES, measured), sizes.config())
