"""FedStaleWeight's influence, staleness and incentives (arXiv 2406.02877, Sec. 4), from schedules.

Judges all claims except those of Fig. 2. There are 15 clients, ten fast with times U(1, 2) and five
slow with U(8, 12), and a buffer of 5, unless a claim states others. It also makes the table of
throttling, and pictures of influence against the buffer's size and the ratio of speeds.

Dimension letters: `L` lanes, `T` server steps, `S` slots, `b` the buffer's size.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import xarray as xr
from flax import struct
from matplotlib.figure import Figure

import fedjax_sim
from experiments.fedstaleweight.claims import CLAIMS, verdict
from experiments.harness import (
    Arguments,
    Outcome,
    Sizes,
    Study,
    Verdict,
    draw,
    estimate,
    table,
    verdict_table,
)
from fedjax_sim.diagnostics.fairness import fairness_report, influence
from fedjax_sim.problems import Quadratic
from fedjax_sim.reporting.plots import GREY, look, name_beside, styled
from fedjax_sim.reporting.plots.fairness import ClientShares, influence_figure
from fedjax_sim.server.staleness import staleness_weights
from fedjax_sim.settings import check
from fedjax_sim.systems import fedstaleweight
from fedjax_sim.theory import fedstaleweight as theory
from fedjax_sim.types import Array, Params, Timeline

SYSTEM = fedstaleweight.system
HYPER: Any = SYSTEM.Hyper()
NUM, NUM_FAST = 15, 10
RATE = np.r_[np.full(NUM_FAST, 1 / 1.5), np.full(NUM - NUM_FAST, 1 / 10)]
GROUPS = (np.arange(NUM) >= NUM_FAST).astype(int)
SLOW, FAIR = 1, 1 / 3
MEAN, ALG1, RAW = {"weighting": "mean"}, {"weighting": "alg1"}, {"normalised": False}
REVERSE = {"weighting": "exponential", "base": 2.0}
AVERAGES: dict[str, dict[str, Any]] = {
    "window 5": {},
    "cumulative": {"average": "cumulative"},
    "exponential, 0.9": {"average": "exponential"},
    "none": {"average": "none"},
}
THROTTLES = (1.0, 0.7, 0.5, 0.25, 0.1)
RATIOS = (1.0, 2.0, 4.0, 20 / 3, 15.0, 40.0)
"""How many times as fast as the slow clients the fast ones are."""


EVALS = 400


@struct.dataclass
class Watched(Quadratic):
    """Quadratics of one parameter, which is evaluated too."""

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Return loss and parameter."""
        return {**super().evaluate(params), "model": params[0]}


STUDY = Study(
    full=Sizes(
        seeds=6,
        ticks=16_000,
        buffers=(1, 2, 3, 5, 8, 10, 15, 30, 60),
        buffer_ticks=6000,
        quadratic_ticks=8000,
        counterexample_ticks=300_000,
    ),
    smoke=Sizes(
        seeds=2,
        ticks=2000,
        buffers=(1, 5, 30, 60),
        buffer_ticks=600,
        quadratic_ticks=2000,
        counterexample_ticks=10_000,
    ),
)
"""Seeds are lanes, at least two for standard errors."""


def arrivals(lanes: int, num: int, hypers: Sequence[Any] = (HYPER,)) -> Timeline:
    """Draw arrivals one by one: leaves `[hypers * lanes, num, 1]`.

    Clients never wait for the server here, so that arrivals do not depend on the buffer.

    Args:
      lanes: Number of seeds.
      num: Number of arrivals per lane.
      hypers: Settings that differ in numbers only.
    """
    drawn = draw(
        SYSTEM, [hyper.replace(buffer_size=1, weighting="mean") for hyper in hypers], lanes, num
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), drawn)


def buffered(alone: Timeline, buffer_size: int = 5, **settings: Any) -> Timeline:
    """Put arrivals into buffers, with weights.

    Args:
      alone: Arrivals one by one, leaves `[L, num, 1]`.
      buffer_size: b.
      **settings: Settings of the weights.

    Returns:
      Leaves `[L, T, b]`.
    """
    num_ticks = alone.time.shape[1] // buffer_size
    shape = (-1, num_ticks, buffer_size)

    def cut(leaf: np.ndarray) -> np.ndarray:
        return leaf[:, : num_ticks * buffer_size].reshape(shape)

    clients, version = cut(alone.clients), cut(alone.version // buffer_size)
    staleness = np.arange(num_ticks)[:, None] - version
    with jax.enable_x64(True):
        weigh = jax.jit(
            jax.vmap(
                partial(staleness_weights, settings=HYPER.replace(**settings), num_clients=NUM)
            )
        )
        weight = np.asarray(weigh(clients, staleness))
    return Timeline(
        cut(alone.time)[..., -1],
        clients,
        cut(alone.steps),
        version,
        weight,
        cut(alone.holds // buffer_size),
    )


def lane(drawn: Timeline, i: int) -> Timeline:
    """Return the schedule of one lane."""
    return Timeline(*(leaf[i] for leaf in drawn))


def slow_influence(
    drawn: Timeline, num_clients: int = NUM, groups: np.ndarray = GROUPS
) -> np.ndarray:
    """Return the influence of the slow group in each lane: `f64[L]`."""
    each = [influence(lane(drawn, i), num_clients) for i in range(len(drawn.time))]
    return np.array([shares[groups == SLOW].sum() for shares in each])


def staleness_of(drawn: Timeline) -> np.ndarray:
    """Return staleness in server steps: `i64[L, T, S]`."""
    return np.arange(drawn.version.shape[-2])[:, None] - drawn.version


# Schedules of the paper's setting: claims 1 to 4, 6, 7, 16, 20 -----------------------------------


def influence_claims(sizes: Sizes, alone: Timeline) -> tuple[list[Verdict], Figure]:
    """Judge staleness, shares and influence under the weightings.

    Args:
      sizes: The size of the study.
      alone: Arrivals one by one, leaves `[seeds, 5 * ticks, 1]`.
    """
    ways: dict[str, dict[str, Any]] = {"mean": MEAN, "eq8": {}, "alg1": ALG1, "raw": RAW}
    drawn = {name: buffered(alone, **settings) for name, settings in ways.items()}
    reports = {
        name: [fairness_report(lane(each, i), NUM, GROUPS) for i in range(sizes.seeds)]
        for name, each in drawn.items()
    }
    slow = {
        name: estimate(np.array([each.group_influence[SLOW] for each in lanes]))
        for name, lanes in reports.items()
    }
    apart = {
        name: float(np.mean([each.deviation for each in lanes])) for name, lanes in reports.items()
    }
    share = np.mean([each.update_share for each in reports["mean"]], axis=0)
    stale = np.mean([each.mean_staleness for each in reports["mean"]], axis=0)
    expected = theory.expected_staleness(RATE / RATE.sum(), buffer_size=HYPER.buffer_size)
    off = np.abs(stale / expected - 1).max()
    estimated = theory.share_from_staleness(stale, buffer_size=HYPER.buffer_size)
    missed = np.abs(estimated / share - 1).max()
    raised, formulas = CLAIMS[4].criterion, CLAIMS[20].criterion
    verdicts = [
        verdict(
            1,
            {"fast": stale[:NUM_FAST].mean(), "slow": stale[NUM_FAST:].mean()},
            bool(off < CLAIMS[1].criterion.error),
            f"largest error {off:.2%} of 2 %",
        ),
        verdict(
            2,
            {"largest error": missed},
            bool(missed < CLAIMS[2].criterion.error),
            f"largest error {missed:.2%} of 2 %",
        ),
        verdict(
            3,
            {
                "slow influence": float(slow["mean"].mean),
                "slow share": float(share[NUM_FAST:].sum()),
            },
            bool(
                abs(slow["mean"].mean - CLAIMS[3].criterion.slow) < CLAIMS[3].criterion.close
                and np.allclose(reports["mean"][0].influence, reports["mean"][0].update_share)
            ),
            f"{slow['mean'].mean:.4f} +- {slow['mean'].error:.4f}",
        ),
        verdict(
            4,
            {
                "slow influence": float(slow["eq8"].mean),
                "deviation, mean": apart["mean"],
                "deviation, eq8": apart["eq8"],
            },
            bool(
                abs(slow["eq8"].mean - raised.slow) < raised.close
                and abs(apart["mean"] - raised.before) < raised.close
                and abs(apart["eq8"] - raised.after) < raised.close
            ),
            f"{slow['eq8'].mean:.4f} +- {slow['eq8'].error:.4f}; deviation {apart['mean']:.3f} "
            f"and {apart['eq8']:.3f}",
        ),
        verdict(
            6,
            {"slow influence": float(slow["raw"].mean), "deviation": apart["raw"]},
            bool(abs(slow["raw"].mean - FAIR) < CLAIMS[6].criterion.close),
            f"{slow['raw'].mean:.4f}, deviation {apart['raw']:.3f}",
        ),
        _averages(alone),
        _bounds(drawn["eq8"]),
        verdict(
            20,
            {name: float(slow[name].mean) for name in ("eq8", "alg1")},
            bool(
                abs(slow["eq8"].mean - formulas.eq8) < formulas.close
                and abs(slow["alg1"].mean - formulas.alg1) < formulas.close
                and slow["alg1"].mean < slow["eq8"].mean
            ),
            f"{slow['eq8'].mean:.4f} and {slow['alg1'].mean:.4f}; their accuracies are in "
            "fedstaleweight/fig2",
        ),
    ]
    shown = {
        "buffer mean": "mean",
        "FedStaleWeight": "eq8",
        "FedStaleWeight, not normalised": "raw",
    }
    picture = {
        label: ClientShares(share, np.mean([each.influence for each in reports[name]], axis=0))
        for label, name in shown.items()
    }
    return verdicts, influence_figure(picture)


def _averages(alone: Timeline) -> Verdict:
    found = {
        name: float(slow_influence(buffered(alone, **settings)).mean())
        for name, settings in AVERAGES.items()
    }
    spread = max(found.values()) - min(found.values())
    return verdict(
        7, found, bool(spread < CLAIMS[7].criterion.spread), f"they differ by {spread:.4f}"
    )


def _bounds(drawn: Timeline) -> Verdict:
    least, most = theory.weight_bounds(
        int(staleness_of(drawn).max()), buffer_size=HYPER.buffer_size
    )
    exact = CLAIMS[16].criterion.exact
    inside = bool((drawn.weight >= least - exact).all() and (drawn.weight <= most + exact).all())
    grid = [(b, tau) for b in range(1, 9) for tau in range(40)]
    gap = max(
        abs(
            float(theory.squared_weight_gap(tau, buffer_size=b))
            - float(theory.squared_weight_gap_printed(tau, buffer_size=b))
        )
        for b, tau in grid
    )
    measured = {
        "least": float(drawn.weight.min()),
        "most": float(drawn.weight.max()),
        "bounds": [float(least), float(most)],
        "U": gap,
    }
    return verdict(
        16,
        measured,
        inside and gap < exact,
        f"weights {drawn.weight.min():.4f} to {drawn.weight.max():.4f}; U within {gap:.0e}",
    )


# Buffers and speeds: claims 5 and 15 -------------------------------------------------------------


def buffer_claim(sizes: Sizes) -> tuple[Verdict, Figure]:
    """Judge claim 5: influence of the slow group against the buffer's size, with two averages."""
    alone = arrivals(min(sizes.seeds, 3), sizes.buffer_ticks * max(sizes.buffers))
    found = {}
    for average in ("cumulative", "window 5"):
        cut = {
            b: jax.tree.map(lambda leaf, b=b: leaf[:, : sizes.buffer_ticks * b], alone)
            for b in sizes.buffers
        }
        found[average] = np.array(
            [slow_influence(buffered(cut[b], b, **AVERAGES[average])).mean() for b in sizes.buffers]
        )
    rising, window = found["cumulative"], dict(zip(sizes.buffers, found["window 5"], strict=True))
    far = FAIR - dict(zip(sizes.buffers, rising, strict=True))[5]
    marks = CLAIMS[5].criterion
    holds = bool(
        (np.diff(rising) > 0).all()
        and rising[-1] < FAIR + marks.above
        and abs(rising[0] - marks.first) < marks.first_close
        and far > marks.short
    )
    overshoots = window[30] > FAIR and window[60] > FAIR
    measured = {
        name: dict(zip(map(str, sizes.buffers), values.tolist(), strict=True))
        for name, values in found.items()
    }
    why = (
        f"cumulative {rising[0]:.3f} at b = 1 to {rising[-1]:.3f} at b = 60; window "
        f"{window[30]:.3f} at 30 and {window[60]:.3f} at 60"
    )
    lines = {name: (np.array(sizes.buffers), values) for name, values in found.items()}
    return verdict(5, measured, holds and bool(overshoots), why), _lines(
        lines, "buffer size b (updates)", log=True
    )


def ratio_study(sizes: Sizes) -> tuple[dict[str, list[float]], Figure]:
    """Measure the slow group's influence against the ratio of speeds, at b = 5."""
    ways: dict[str, dict[str, Any]] = {
        "FedStaleWeight": {},
        "Algorithm 1's formula": ALG1,
        "buffer mean": MEAN,
    }
    alone = arrivals(2, sizes.ticks, [HYPER.replace(rate_fast=ratio / 10) for ratio in RATIOS])
    found = {
        name: slow_influence(buffered(alone, **settings))
        .reshape(len(RATIOS), 2)
        .mean(axis=1)
        .tolist()
        for name, settings in ways.items()
    }
    lines = {name: (np.array(RATIOS), np.array(values)) for name, values in found.items()}
    return found, _lines(lines, "speed of the fast over that of the slow", log=True)


def staleness_claim(sizes: Sizes, arrived: Timeline) -> Verdict:
    """Judge claim 15: the staleness of the same arrivals with a buffer and without.

    Args:
      sizes: The size of the study.
      arrived: Arrivals one by one, of which the first ones of two seeds are used.
    """
    num = sizes.ticks // 4
    first = jax.tree.map(lambda leaf: leaf[:2, : num * 5], arrived)
    alone = staleness_of(first).reshape(2, -1)
    with_buffer = staleness_of(
        jax.tree.map(lambda leaf: leaf[0], draw(SYSTEM, [HYPER], 2, num))
    ).reshape(2, -1)
    holds = bool(((alone // 5 <= with_buffer) & (with_buffer <= -(-alone // 5))).all())
    measured = {
        "largest without": int(alone.max()),
        "largest with a buffer of 5": int(with_buffer.max()),
    }
    return verdict(
        15,
        measured,
        holds,
        f"{with_buffer.size} updates; largest {alone.max()} and {with_buffer.max()}",
    )


@styled()
def _lines(
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    x: str,
    *,
    log: bool = False,
    y: str = "share of influence of the slow group",
) -> Figure:
    figure = Figure(figsize=(8, 4.8))
    axes = figure.subplots()
    for i, (name, (places, values)) in enumerate(lines.items()):
        axes.plot(places, values, label=name, **look(i, "all"))
    if y.endswith("group"):
        fair = f"every client the same ({FAIR:.2g})"
        axes.axhline(FAIR, color=GREY, linewidth=0.8, linestyle=":", label=fair)
    axes.set(xlabel=x, ylabel=y, xscale="log" if log else "linear")
    name_beside(figure, axes)
    return figure


# Incentives: claims 12 to 14 ---------------------------------------------------------------------


def throttled_influence(
    hyper: Any, shares: Sequence[float], seeds: int, num_ticks: int
) -> np.ndarray:
    """Return the influence of client 0 when it works at a share of its rate, all others at theirs.

    A client's influence per server step is its utility (eqs. (4) and (9)). Telling the truth pays
    if influence grows with the reported rate up to the true one. For one composition of a buffer
    that holds if and only if C r^2 <= A (`theory.fedstaleweight.is_truthful`). Over the
    compositions of a run it may hold even where it fails for one, which is what is measured here.

    Args:
      hyper: Settings, whose `throttle` is set to each share in turn.
      shares: Shares of client 0's rate.
      seeds: Number of seeds; all shares use the same ones.
      num_ticks: Number of server steps.

    Returns:
      `f64[shares, seeds]`.
    """
    hypers = [hyper.replace(throttle=share) for share in shares]
    for throttled in hypers:
        check(throttled)
    drawn = draw(SYSTEM, hypers, seeds, num_ticks)
    return np.array(
        [
            [
                influence(Timeline(*(leaf[i, j] for leaf in drawn)), hyper.num_clients)[0]
                for j in range(seeds)
            ]
            for i in range(len(shares))
        ]
    )


def throttling_claim(sizes: Sizes) -> tuple[Verdict, str, Figure]:
    """Judge claim 12, and make the table of throttling."""
    ways: dict[str, dict[str, Any]] = {
        "buffer mean": MEAN,
        "FedStaleWeight": {},
        "reverse exponential": REVERSE,
    }
    found = {
        name: throttled_influence(HYPER.replace(**settings), THROTTLES, sizes.seeds, sizes.ticks)
        .mean(axis=1)
        .tolist()
        for name, settings in ways.items()
    }
    expected = [
        float(
            theory.expected_influence(
                [phi * RATE[0], RATE[0], RATE[-1]],
                num_clients=[1, NUM_FAST - 1, NUM - NUM_FAST],
                buffer_size=5,
            )[0]
        )
        for phi in THROTTLES
    ]
    falls = bool((np.diff(found["FedStaleWeight"]) < 0).all())
    gains = found["reverse exponential"][THROTTLES.index(0.5)] > found["reverse exponential"][0]
    why = (
        ", ".join(f"{x:.4f}" for x in found["FedStaleWeight"])
        + "; reverse exponential "
        + ", ".join(f"{x:.4f}" for x in found["reverse exponential"])
    )
    header = ["share of its rate", *ways, "FedStaleWeight, theory of independent slots"]
    rows = [
        [f"{phi:g}", *(f"{values[i]:.4f}" for values in found.values()), f"{expected[i]:.4f}"]
        for i, phi in enumerate(THROTTLES)
    ]
    lines = {name: (np.array(THROTTLES), np.array(values)) for name, values in found.items()}
    measured = {
        name: dict(zip(map(str, THROTTLES), values, strict=True)) for name, values in found.items()
    }
    figure = _lines(
        lines, "share of its rate at which one fast client reports", y="its share of influence"
    )
    return verdict(12, measured, falls and bool(gains), why), table(header, rows), figure


def utility_claims() -> list[Verdict]:
    """Judge claims 13 and 14 on the utility in a given buffer.

    A fast client is in slot 0; 0 to 4 of the other four clients are slow.
    """
    best = {}
    for num_slow in range(5):
        slots = np.r_[np.arange(5 - num_slow), NUM_FAST + np.arange(num_slow)]
        others = theory.competition(RATE, slot_client=slots, client=0)
        report = float(min(theory.optimal_report(others), RATE[0]))
        gain = float(theory.utility(report, others) / theory.utility(RATE[0], others)) - 1
        best[f"{num_slow} slow"] = {
            "truthful": bool(theory.is_truthful(RATE[0], others)),
            "best share of its rate": report / RATE[0],
            "gain": gain,
        }
    peak = theory.competition(RATE, slot_client=np.r_[0, 10, 11, 12, 13], client=0)
    top = float(theory.optimal_report(peak))
    marks = CLAIMS[13].criterion
    peaks = (
        float(theory.utility_slope((1 - marks.near) * top, peak))
        > 0
        > float(theory.utility_slope((1 + marks.near) * top, peak))
    )
    right = [best[f"{k} slow"]["truthful"] == (k <= marks.slow) for k in range(5)]
    slopes = {
        f"b = {b}": float(
            theory.utility_slope(
                1.0, theory.competition(np.ones(6), slot_client=np.arange(b), client=0)
            )
        )
        for b in (2, 5, 6)
    }
    gains = ", ".join(f"{result['gain']:.1%}" for result in best.values())
    return [
        verdict(
            13,
            best,
            peaks and all(right),
            f"gain by throttling with 0 to 4 slow ones of 4 others: {gains}",
        ),
        verdict(
            14,
            slopes,
            slopes["b = 2"] > 0
            and slopes["b = 5"] > 0
            and abs(slopes["b = 6"]) < CLAIMS[14].criterion.zero,
            "slope of utility at the true rate for n = 6: "
            + ", ".join(f"{x:.2g} at {name}" for name, x in slopes.items()),
        ),
    ]


# Learning on quadratics: claims 17 to 19 ---------------------------------------------------------


def fixed_point_claim(sizes: Sizes) -> tuple[Verdict, dict[str, xr.Dataset]]:
    """Judge claim 18 on quadratics with optimum 0 for fast clients and 1 for slow ones.

    The model's mean over the second half of a run is then the slow group's influence.
    """
    problem = Watched.of(GROUPS.astype(float)[:, None])
    marks = CLAIMS[18].criterion
    expected = {"mean": marks.mean, "eq8": marks.eq8, "raw": FAIR}
    curves, late = {}, {}
    ways: dict[str, dict[str, Any]] = {"mean": MEAN, "eq8": {}, "raw": RAW}
    for name, settings in ways.items():
        run = fedjax_sim.sweep(
            SYSTEM,
            problem,
            HYPER.replace(**settings),
            seeds=sizes.seeds,
            num_ticks=sizes.quadratic_ticks,
            num_evals=EVALS,
        )
        curves[f"quadratic, {name}"] = run.curves
        late[name] = estimate(run.curves.model.values[:, EVALS // 2 :].mean(axis=1))
    holds = all(
        abs(late[name].mean - value) < marks.close + marks.far * late[name].error
        for name, value in expected.items()
    )
    why = ", ".join(f"{name} {found.mean:.4f} +- {found.error:.4f}" for name, found in late.items())
    return verdict(
        18, {name: float(found.mean) for name, found in late.items()}, bool(holds), why
    ), curves


def bound_claim(sizes: Sizes) -> Verdict:
    """Judge claim 17: the bound is vacuous for b >= 2, and violated for b = 1.

    At b = 1 there are two clients of unequal speed, with optima 0 and 1.
    """
    vacuous = all(
        bool(theory.is_vacuous(tau, buffer_size=b)) for b in range(2, 20) for tau in range(1, 40)
    )
    lr, ticks = 0.001, sizes.counterexample_ticks
    hyper = HYPER.replace(num_clients=2, slow_fraction=0.5, buffer_size=1, lr=lr)
    problem = Watched.of(np.array([[0.0], [1.0]]), start=0.5)
    run = fedjax_sim.simulate(SYSTEM, problem, hyper, num_ticks=ticks, num_evals=3000)
    model = run.curves.model.values
    left = float(np.mean((model - 0.5) ** 2))
    largest = int((np.arange(ticks)[:, None] - run.timelines[0].version).max())
    gradient = float(np.max(np.maximum(model, 1 - model)) ** 2)
    setup = theory.FedStaleWeightSetup(1, largest, (lr,), 1.0, 1.0, 0.0, 0.25, gradient, 0.0)
    right = float(theory.bound(setup, num_ticks=ticks).total)
    why = (
        f"4 b^2 U >= 1 for all b >= 2 and staleness >= 1 up to 20 and 40; b = 1: {left:.4f} "
        f"against a bound of {right:.4f}"
    )
    return verdict(
        17, {"vacuous": vacuous, "left": left, "right": right}, vacuous and left > right, why
    )


def stability_claim(sizes: Sizes) -> Verdict:
    """Judge claim 19: the local step sizes at which a run on quadratics of curvature 1 diverges."""
    problem = Quadratic.of(GROUPS.astype(float)[:, None])
    rates = [0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0]
    least = {}
    ways: dict[str, dict[str, Any]] = {"buffer mean": MEAN, "FedStaleWeight": {}}
    for name, settings in ways.items():
        run = fedjax_sim.sweep(
            SYSTEM,
            problem,
            HYPER.replace(**settings),
            seeds=2,
            settings={"lr": rates},
            num_ticks=sizes.quadratic_ticks,
            num_evals=4,
        )
        loss = run.curves.loss.isel(eval=-1).max("seed").values
        bad = ~(loss < 10)
        least[name] = rates[int(np.argmax(bad))] if bad.any() else None
    stable = all(value is None or value > CLAIMS[19].criterion.lr for value in least.values())
    words = ", ".join(
        f"{name} {'never' if value is None else f'from {value:g}'}" for name, value in least.items()
    )
    return verdict(19, least, stable, f"quadratics; of step sizes up to 1 diverges: {words}")


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    alone = arrivals(sizes.seeds, 5 * sizes.ticks)
    verdicts, clients = influence_claims(sizes, alone)
    by_buffer, buffers = buffer_claim(sizes)
    ratios, speeds = ratio_study(sizes)
    throttle, throttle_table, throttling = throttling_claim(sizes)
    fixed, curves = fixed_point_claim(sizes)
    verdicts += [
        by_buffer,
        throttle,
        *utility_claims(),
        staleness_claim(sizes, alone),
        bound_claim(sizes),
        fixed,
        stability_claim(sizes),
    ]
    verdicts.sort(key=lambda each: int(each.id.rsplit("-", 1)[1]))
    figures = {
        "influence.png": clients,
        "buffers.png": buffers,
        "speeds.png": speeds,
        "throttling.png": throttling,
    }
    config = {
        "seeds": sizes.seeds,
        "ticks": sizes.ticks,
        "influence of the slow group by ratio of speeds": {"ratio": list(RATIOS), **ratios},
    }
    text = (
        f"{verdict_table(verdicts)}\n\nInfluence of one fast client that "
        f"throttles:\n{throttle_table}"
    )
    return Outcome(curves, figures, verdicts, config, text)
