"""Hierarchical FL on quadratics: fixed points, rates, and the best S (9, 10, 24 to 26, 28).

See arXiv 2302.04851. Runs go through the engine, with the delays of Fig. 7b, 2 x 15 clients, and 20
coordinates of curvature 0.01 to 1. Expected values come from
`experiments.hierarchical.formulas.quadratics`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from flax import struct
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from experiments.hierarchical.claims import CLAIMS, verdict
from experiments.hierarchical.formulas import quadratics as formulas
from experiments.hierarchical.formulas.delays import linear_delays
from experiments.hierarchical.setup import FIG7, at, clock, fixed_clock
from fedjax_sim.core.types import Array, Key
from fedjax_sim.problems import Quadratic
from fedjax_sim.results import plots
from fedjax_sim.systems import hierarchical

LAYOUT = fedjax_sim.Layout(lanes_at_once=True)
"""These models are few numbers, so that lanes are worth batching even on a CPU."""
NUM_CLIENTS, SYNC_TIMES, NOISE = 30, (0.0, 5.0, 20.0), 3.0
DELAYS = linear_delays([15, 15], FIG7)._replace(global_shift=30.0)
SETTINGS = clock([15, 15], FIG7, exchange_shift=30.0)
CANDIDATES = (0.0, 1.5, 3.0, 5.0, 8.0, 12.0, 20.0)
TARGETS = (1.0, 0.5, 0.3, 0.15)
TIMES = (200.0, 500.0, 750.0, 1000.0, 1500.0)


@struct.dataclass
class Diagonal:
    """Clients with f_i(x) = sum_j h_j / 2 (x_j - c_ij)^2 and Gaussian gradient noise.

    `evaluate` returns the mean loss and a coordinate.
    """

    curvature: Array  # f[P]
    centers: Array  # f[N, P]
    noise: Array  # f[]  standard deviation in each coordinate
    start: Array  # f[P]

    @property
    def counts(self) -> Array:
        return jnp.ones(self.centers.shape[0], "int32")

    def init(self, key: Key) -> Array:
        return self.start

    def loss(self, params: Array, client: Array, examples: Array, key: Key) -> Array:
        noise = self.noise * jax.random.normal(key, params.shape, params.dtype)
        return (
            jnp.sum(self.curvature / 2 * jnp.square(params - self.centers[client])) + noise @ params
        )

    def evaluate(self, params: Array) -> Mapping[str, Array]:
        each = jnp.sum(self.curvature / 2 * jnp.square(params[None] - self.centers), axis=1)
        return {"loss": each.mean(), "model": params[0]}


STUDY = Study(full=Sizes(seeds=200, time=1500.0), smoke=Sizes(seeds=24, time=800.0))


def curved(noise_variance: float, num_clients: int = NUM_CLIENTS) -> Diagonal:
    """Make the problem of the specification's check, started from 1 in every coordinate."""
    curvature = jnp.geomspace(0.01, 1, 20)
    return Diagonal(
        curvature, jnp.zeros((num_clients, 20)), jnp.asarray(noise_variance**0.5), jnp.ones(20)
    )


def law(lr: float, noise_variance: float, rule: str = "divide_by_steps") -> formulas.Quadratics:
    """Return the same problem for the theory."""
    return formulas.Quadratics(
        np.geomspace(0.01, 1, 20), noise_variance, np.ones(20), lr, np.array([15, 15]), rule
    )


def play(
    problem: Diagonal,
    seeds: int,
    settings: Mapping[str, Sequence[float]],
    changes: Mapping[str, Any],
    **options: Any,
) -> xr.Dataset:
    """Sweep seeds and settings as one program."""
    hyper = hierarchical.paper(
        **{"num_clients": problem.centers.shape[0], "batch_size": 1, **changes}
    )
    return fedjax_sim.sweep(
        hierarchical.system,
        problem,
        hyper,
        seeds=seeds,
        settings=settings,
        layout=LAYOUT,
        **options,
    ).curves


# Claims 9 and 10 ---------------------------------------------------------------------------------


def judge_fixed_points(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 9 from numbers of `measure_fixed_points`."""
    ends = {rule: list(measured[rule].values()) for rule in ("divide_by_steps", "average")}
    off, divided, marks = measured["error"], ends["divide_by_steps"], CLAIMS[9].criterion
    vanishes = abs(divided[0]) < abs(divided[-1]) / marks.divisor
    holds = off < marks.close and vanishes and ends["average"][0] > marks.stays
    told = "; ".join(
        f"{rule} {', '.join(f'{x:.4f}' for x in values)}" for rule, values in ends.items()
    )
    why = (
        f"at alpha = {', '.join(measured['average'])}: {told}; off by {off:.0e} at most from the "
        "closed form"
    )
    return verdict(9, measured, harness.unless_unknown(holds, measured), why)


def measure_fixed_points() -> dict[str, Any]:
    """Measure the fixed points of two groups with optima -1 and 1, for claim 9, without noise."""
    centers = jnp.asarray([[-1.0], [1.0]])
    problem = Diagonal(jnp.ones(1), centers, jnp.zeros(()), jnp.zeros(1))
    rates = (0.01, 0.03, 0.1, 0.3)
    found, expected = {}, {}
    for rule in ("divide_by_steps", "average"):
        changes = fixed_clock([10.0, 1.0], [0.0, 0.0], 1.0, 0.0) | {
            "sync_time": 10.0,
            "aggregation": rule,
        }
        data = play(problem, 1, {"lr": rates}, changes, budget=fedjax_sim.Ticks(2000), num_evals=2)
        found[rule] = data.model.isel(seed=0, eval=-1).values.astype(float)
        places: dict[str, Any] = {
            "optima": [-1.0, 1.0],
            "iterations": [1, 10],
            "group_weight": [0.5, 0.5],
        }
        expected[rule] = np.array(
            [formulas.fixed_point(**places, lr=lr, rule=rule) for lr in rates]
        )
    return {
        "error": np.max([np.abs(found[rule] - expected[rule]) for rule in found]),
        **{
            rule: dict(zip(map(str, rates), values.tolist(), strict=True))
            for rule, values in found.items()
        },
    }


def judge_rates(measured: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Judge claim 10 from numbers of `measure_rates`."""
    off = np.max([each["contraction error"] for each in measured.values()])
    far = np.max(
        [
            abs(each["floor"] - each["expected"]) / (each["standard error"] or np.nan)
            for each in measured.values()
        ]
    )
    floors = ", ".join(
        f"{m['floor']:.4f} ({m['expected']:.4f}) at {name}" for name, m in measured.items()
    )
    why = (
        f"contraction off by {off:.0e} at most, floors {floors} in units of alpha^2 s^2 / N, "
        f"{far:.1f} standard errors at most"
    )
    holds = off < CLAIMS[10].criterion.close and far < CLAIMS[10].criterion.far
    is_known = harness.unless_unknown(holds, [far, measured])
    return verdict(10, measured, is_known, why, seeds=measured["t = 1"]["seeds"])


def measure_rates(seeds: int) -> dict[str, dict[str, Any]]:
    """Measure contraction and noise floor for claim 10.

    There is one curvature, with 1 and 5 iterations in every round and alpha h = 0.5.
    """
    measured: dict[str, dict[str, Any]] = {}
    for iterations in (1, 5):
        rho, floor = formulas.contraction_and_floor(iterations, lr=0.5, curvature=1.0)
        changes = fixed_clock([1.0, 1.0], [0.0, 0.0], 1.0, 0.0) | {
            "sync_time": float(iterations),
            "lr": 0.5,
        }
        start = jnp.ones(1)
        quiet = Diagonal(jnp.ones(1), jnp.zeros((4, 1)), jnp.zeros(()), start)
        data = play(quiet, 1, {}, changes, budget=fedjax_sim.Ticks(10), num_evals=10)
        off = np.max(np.abs(data.model.values[0] / rho ** np.arange(11) - 1))
        noisy = Diagonal(jnp.ones(1), jnp.zeros((4, 1)), jnp.ones(()), 0 * start)
        data = play(noisy, seeds, {}, changes, budget=fedjax_sim.Ticks(1000), num_evals=1000)
        settled = np.square(data.model.isel(eval=slice(100, None)).values.astype(float)).mean(
            axis=1
        )
        each = harness.estimate(settled / (0.5**2 / 4))
        measured[f"t = {iterations}"] = {
            "rho": rho,
            "contraction error": float(off),
            "floor": float(each.mean),
            "standard error": float(each.error),
            "expected": floor,
            "seeds": seeds,
        }
    return measured


# Claims 24 to 26 ---------------------------------------------------------------------------------


class Curves(NamedTuple):
    """Losses on the 20 coordinates, swept over learning rate, S and seeds."""

    noisy: xr.Dataset
    quiet: xr.Dataset
    noisy_average: xr.Dataset
    quiet_average: xr.Dataset
    less_noisy: xr.Dataset
    """S = 0 and 5 at the largest rate, with a tenth of the noise's variance."""


NOISY_RATES, QUIET_RATES = (0.25, 0.5, 1.0), (0.3, 1.0)
LESS = 10


def run_all(sizes: Sizes) -> Curves:
    """Run five sweeps: noise or none, divided by the iterations or averaged, and less noise."""
    options = {"budget": fedjax_sim.Time(sizes.time), "num_evals": 200}
    runs = []
    for rule, noise in itertools.product(("divide_by_steps", "average"), (NOISE, 0.0)):
        settings = {
            "lr": NOISY_RATES if noise else QUIET_RATES,
            "sync_time": CANDIDATES if rule == "divide_by_steps" else SYNC_TIMES,
        }
        seeds = sizes.seeds if noise else max(10, sizes.seeds // 10)
        runs.append(
            play(curved(noise), seeds, settings, SETTINGS | {"aggregation": rule}, **options)
        )
    runs.append(
        play(
            curved(NOISE / LESS),
            sizes.seeds,
            {"lr": (1.0,), "sync_time": (0.0, 5.0)},
            SETTINGS,
            **options,
        )
    )
    return Curves(*runs)


def first_lead(data: xr.Dataset, lr: float, sync_time: float, grid: np.ndarray) -> float | None:
    """Return the first time from which a sync time's mean loss stays below that of S = 0.

    A loss that is not a number is not below.
    """
    means = at(data.sel(lr=lr), grid, "loss").mean("seed", skipna=False)
    behind = np.flatnonzero(~(means.sel(sync_time=sync_time) < means.sel(sync_time=0.0)).values)
    k = int(behind[-1]) + 1 if behind.size else 0
    return float(grid[k]) if k < len(grid) else None


def expected_lead(lr: float, noise: float, sync_time: float) -> float:
    """Return the same time by theory, without a limit on it."""
    grid = np.geomspace(40, 1e6, 3000)
    flat, other = (
        formulas.loss_at(grid, law(lr, noise), sync_time=s, delays=DELAYS) for s in (0.0, sync_time)
    )
    behind = np.flatnonzero(other >= flat)
    return float(grid[behind[-1] + 1]) if behind[-1] + 1 < len(grid) else np.inf


def judge_quiet(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 24 from numbers of `measure_regimes`."""
    worst = measured["least relative lead of S = 0"]
    why = (
        f"S = {', '.join(f'{s:g}' for s in CANDIDATES[1:])} never below S = 0 by more than "
        f"{np.maximum(-worst, 0):.0e} at {measured['times']} times, "
        f"{measured['delay paths']} delay paths, alpha = {' and '.join(map(str, QUIET_RATES))}"
    )
    holds = worst >= -CLAIMS[24].criterion.slack
    return verdict(24, measured, harness.unless_unknown(holds, measured), why)


def judge_lead_times(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 25 from numbers of `measure_regimes`; a lead that never comes has None."""
    times, expected = (
        {name: np.inf if time is None else time for name, time in measured[part].items()}
        for part in ("measured", "expected")
    )
    *by_lr, quieter = times.values()
    later = all(a >= b for a, b in itertools.pairwise(by_lr)) and by_lr[0] > by_lr[-1] < quieter
    by_alpha = [expected[f"alpha {lr}"] for lr in (0.05, *NOISY_RATES)]
    grows = (
        all(a > b for a, b in itertools.pairwise(by_alpha))
        and expected["alpha 1, noise / 100"] > expected["alpha 1, noise / 10"] > by_alpha[-1]
    )
    worst = measured["least relative lead of S = 0"]
    never = worst >= -CLAIMS[25].criterion.slack
    told = ", ".join(
        f"{'later' if time == np.inf else f'{time:.0f}'} at {name}" for name, time in times.items()
    )
    theory_words = ", ".join(f"{time:.0f} at {name}" for name, time in expected.items())
    return verdict(
        25,
        measured,
        harness.unless_unknown(
            later and grows and never,
            [worst, *(x for x in (*times.values(), *expected.values()) if x != np.inf)],
        ),
        f"S = 5 leads S = 0 from {told}; in theory {theory_words}; without noise "
        f"{'never' if never else 'too'}",
    )


def measure_regimes(curves: Curves, sizes: Sizes) -> list[dict[str, Any]]:
    """Measure the numbers for claims 24 to 26, one mapping for each."""
    grid = np.linspace(35, sizes.time, 150)
    quiet = at(curves.quiet, grid, "loss")
    behind = quiet.sel(sync_time=list(CANDIDATES[1:])) - quiet.sel(sync_time=0.0)
    worst = float((behind / quiet.sel(sync_time=0.0)).min(skipna=False))
    times = {f"alpha {lr}": first_lead(curves.noisy, lr, 5.0, grid) for lr in NOISY_RATES}
    times[f"alpha 1, noise / {LESS}"] = first_lead(curves.less_noisy, 1.0, 5.0, grid)
    expected = {f"alpha {lr}": expected_lead(lr, NOISE, 5.0) for lr in (*NOISY_RATES, 0.05)}
    expected |= {f"alpha 1, noise / {k}": expected_lead(1.0, NOISE / k, 5.0) for k in (10, 100)}
    early = at(curves.quiet_average.sel(lr=QUIET_RATES[0]), [200.0], "loss").mean(
        ["seed", "at"], skipna=False
    )
    floors = {}
    for name, data in (("divide_by_steps", curves.noisy), ("average", curves.noisy_average)):
        late = at(data.sel(lr=1.0), np.linspace(0.8, 1, 20) * sizes.time, "loss").mean(
            ["seed", "at"], skipna=False
        )
        floors[name] = float(late.sel(sync_time=5.0) / late.sel(sync_time=0.0))
    losses = {f"S = {s:g}": float(early.sel(sync_time=s)) for s in SYNC_TIMES}
    lead = {"least relative lead of S = 0": worst}
    return [
        {**lead, "times": len(grid), "delay paths": quiet.sizes["seed"]},
        {**lead, "measured": times, "expected": expected},
        {"early": losses, "floor over that of S = 0": floors},
    ]


def mirror_difference(num_ticks: int = 12) -> float:
    """Swap association and delays where iterations take deterministic times, and compare models.

    Quadratic clients with full gradients, in double precision: the clients of the fast group
    are the first ten of one run and the last ten of the other. Returned is the largest
    difference between the last global models of two seeds, over their largest norm.
    """
    with jax.enable_x64(True):
        centers = np.random.default_rng(0).normal(size=(30, 3))
        models = []
        for shift, sizes, order in (
            ((1.0, 7.0), (10, 20), np.arange(30)),
            ((7.0, 1.0), (20, 10), np.roll(np.arange(30), -10)),
        ):
            problem = Quadratic.of(centers[order])
            changes = fixed_clock(shift, [0.0, 0.0], 10.0, 1.0)
            hyper = hierarchical.paper(
                num_clients=30,
                batch_size=1,
                lr=0.3,
                sync_time=8.0,
                **{"group_sizes": sizes, **changes},
            )
            run = fedjax_sim.sweep(
                hierarchical.system,
                problem,
                hyper,
                seeds=2,
                budget=fedjax_sim.Ticks(num_ticks),
                num_evals=1,
            )
            models.append(np.asarray(run.models))
    first, second = models
    return float(np.max(np.abs(first - second)) / np.max(np.linalg.norm(first, axis=-1)))


@plots.styled()
def best_sync_time(curves: Curves, sizes: Sizes) -> tuple[Figure, dict[str, Any]]:
    """Draw the time to a loss against S, by theory and by runs; return the best candidates too."""
    figure = Figure(figsize=(8, 4.4))
    axes = figure.subplots()
    fine = np.concatenate([[0.0], np.linspace(0.5, 22, 44)])
    grid = np.linspace(10, sizes.time, 400)
    means = at(curves.noisy.sel(lr=1.0), grid, "loss").mean("seed")
    found = {}
    for i, target in enumerate(TARGETS):
        _, smooth = formulas.optimal_sync_time(
            target, law(1.0, NOISE), delays=DELAYS, candidates=fine.tolist()
        )
        best, _ = formulas.optimal_sync_time(
            target, law(1.0, NOISE), delays=DELAYS, candidates=CANDIDATES
        )
        reached = (means <= target).transpose("sync_time", "at").values
        times = np.where(reached.any(axis=1), grid[reached.argmax(axis=1)], np.nan)
        axes.plot(fine, np.where(smooth <= sizes.time, smooth, np.nan), **plots.look(i, "none"))
        axes.plot(CANDIDATES, times, **plots.look(i, "only"))
        axes.plot([], [], label=f"loss {target:g}", **plots.look(i, "all"))
        measured = float(CANDIDATES[int(np.nanargmin(times))]) if np.isfinite(times).any() else None
        found[f"{target:g}"] = {"best in theory": best, "best in runs": measured}
    axes.set(
        xlabel="sync time S (units of virtual time)",
        ylabel="virtual time to the loss (units)",
        title=f"Delays of Fig. 7b, alpha = 1, noisy quadratic, mean of {sizes.seeds} seeds",
    )
    plots.name_beside(figure, axes, title="lines: theory\nmarks: runs")
    return figure, found


JUDGES: Judges = {
    9: judge_fixed_points,
    10: judge_rates,
    24: judge_quiet,
    25: judge_lead_times,
    **CLAIMS.declared(26, 28),
}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    curves = run_all(sizes)
    quiet, lead_times, average = measure_regimes(curves, sizes)
    measured = {
        9: measure_fixed_points(),
        10: measure_rates(max(8, sizes.seeds // 4)),
        24: quiet,
        25: lead_times,
        26: average,
        28: {"models apart": mirror_difference()},
    }
    verdicts = harness.judge_all(JUDGES, measured)
    figure, best = best_sync_time(curves, sizes)
    table = at(curves.noisy.sel(lr=1.0), [t for t in TIMES if t <= sizes.time], "loss").mean("seed")
    rows = [
        f"S = {s:g}: "
        + ", ".join(
            f"{float(x):.3f} at {t:g}"
            for t, x in zip(table["at"].values, table.sel(sync_time=s), strict=True)
        )
        for s in SYNC_TIMES
    ]
    text = "mean loss with noise, alpha = 1\n" + "\n".join(rows) + f"\nbest S by target: {best}"
    return Outcome(
        curves._asdict(),
        {"best_sync_time.png": figure},
        verdicts,
        {**sizes.config(), "best_sync_time": best},
        text,
    )
