"""FedStaleWeight's influence, staleness and incentives (arXiv 2406.02877, Sec. 4), from schedules.

Judges claims 1 to 7 and 12 to 22. There are 15 clients, ten fast with times U(1, 2) and five slow
with U(8, 12), and a buffer of 5, unless a claim states others. It also makes the table of
throttling, and pictures of influence against the buffer's size and the ratio of speeds.

Dimension letters: `L` lanes, `T` server steps, `S` slots, `b` the buffer's size.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_sim
from experiments import harness
from experiments.fedstaleweight import formulas
from experiments.fedstaleweight.claims import CLAIMS, verdict
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, draw, rule
from fedjax_sim.core.settings import check
from fedjax_sim.core.types import Timeline
from fedjax_sim.problems import Quadratic
from fedjax_sim.results import plots
from fedjax_sim.results.diagnostics import fairness_report, influence
from fedjax_sim.results.plots import ClientShares, influence_figure
from fedjax_sim.server.staleness import staleness_weights
from fedjax_sim.systems import fedstaleweight
from fedjax_sim.theory import fedstaleweight as theory
from fedjax_sim.timelines import ClientTable

SYSTEM = fedstaleweight.system
HYPER: Any = SYSTEM.paper()
NUM, NUM_FAST = 15, 10
RATE = np.r_[np.full(NUM_FAST, 1 / 1.5), np.full(NUM - NUM_FAST, 1 / 10)]
SPREAD = np.r_[np.full(NUM_FAST, 1 / 3), np.full(NUM - NUM_FAST, 1 / 5)]
GROUPS = (np.arange(NUM) >= NUM_FAST).astype(int)
SLOW, FAIR = 1, 1 / 3
OPPOSED = Quadratic.of(GROUPS.astype(float)[:, None])
"""Fast clients want 0 and slow ones 1, so that a late mean is the slow group's influence."""
MEAN, ALG1, RAW = {"rule": "mean"}, {"rule": "alg1"}, {"normalised": False}
REVERSE = {"rule": "exponential", "base": 2.0}
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


STUDY = Study(
    full=Sizes(
        seeds=6,
        ticks=16_000,
        buffers=(1, 2, 3, 5, 8, 10, 15, 30, 60),
        buffer_ticks=6000,
        quadratic_ticks=8000,
    ),
    smoke=Sizes(
        seeds=2, ticks=2000, buffers=(1, 5, 30, 60), buffer_ticks=600, quadratic_ticks=2000
    ),
)
"""Seeds are lanes, at least two for standard errors."""


def arrivals(lanes: int, num: int, hypers: Sequence[Any] = (HYPER,)) -> Timeline:
    """Draw arrivals one by one: leaves `[hypers * lanes, num, 1]`.

    Clients never wait for the server here, so that arrivals do not depend on the buffer. The
    settings differ in numbers only.
    """
    drawn = draw(
        SYSTEM, [hyper.replace(buffer_size=1, rule="mean") for hyper in hypers], lanes, num
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), drawn)


def buffered(alone: Timeline, buffer_size: int = 5, **settings: Any) -> Timeline:
    """Put arrivals `[L, num, 1]` into buffers, with weights: leaves `[L, T, b]`."""
    num_ticks = alone.time.shape[1] // buffer_size
    shape = (-1, num_ticks, buffer_size)

    def cut(leaf: np.ndarray) -> np.ndarray:
        return leaf[:, : num_ticks * buffer_size].reshape(shape)

    clients, version = cut(alone.clients), cut(alone.version // buffer_size)
    staleness = np.arange(num_ticks)[:, None] - version
    with jax.enable_x64(True):
        weigh = jax.jit(
            jax.vmap(
                partial(
                    staleness_weights, settings=HYPER.replace(**settings).staleness, num_clients=NUM
                )
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


def influences(drawn: Timeline) -> np.ndarray:
    """Return the influence of each client in each lane: `f64[L, N]`."""
    return np.array([influence(lane(drawn, i), NUM) for i in range(len(drawn.time))])


def slow_influence(drawn: Timeline) -> np.ndarray:
    """Return the influence of the slow group in each lane: `f64[L]`."""
    return influences(drawn)[:, GROUPS == SLOW].sum(axis=1)


def staleness_of(drawn: Timeline) -> np.ndarray:
    """Return staleness in server steps: `i64[L, T, S]`."""
    return np.arange(drawn.version.shape[-2])[:, None] - drawn.version


# Schedules of the paper's setting: claims 1 to 4, 6, 7, 16, 20 -----------------------------------


def judge_averages(measured: Mapping[str, float]) -> Verdict:
    """Judge claim 7 from the influence by kind of average."""
    spread = np.ptp(list(measured.values()))
    holds = harness.unless_unknown(spread < CLAIMS[7].criterion.spread, measured)
    return verdict(7, measured, holds, f"they differ by {spread:.4f}")


def judge_weights(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 16 from numbers of `_bounds`."""
    (least, most), gap, exact = measured["bounds"], measured["U"], CLAIMS[16].criterion.exact
    inside = measured["least"] >= least - exact and measured["most"] <= most + exact
    why = f"weights {measured['least']:.4f} to {measured['most']:.4f}; U within {gap:.0e}"
    return verdict(16, measured, harness.unless_unknown(inside and gap < exact, measured), why)


def measure_influence(sizes: Sizes, alone: Timeline) -> tuple[dict[int, dict[str, Any]], Figure]:
    """Measure staleness, shares and influence under the weightings, and draw the influence.

    Given are arrivals one by one, and returned are the numbers by claim.
    """
    ways: dict[str, dict[str, Any]] = {"mean": MEAN, "eq8": {}, "alg1": ALG1, "raw": RAW}
    drawn = {name: buffered(alone, **settings) for name, settings in ways.items()}
    reports = {
        name: [fairness_report(lane(each, i), NUM, GROUPS) for i in range(sizes.seeds)]
        for name, each in drawn.items()
    }
    slow = {
        name: harness.estimate(np.array([each.group_influence[SLOW] for each in lanes]))
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
    slow_mean = {name: float(each.mean) for name, each in slow.items()}
    error = {name: float(each.error) for name, each in slow.items()}
    measured = {
        1: {"largest error": off, "fast": stale[:NUM_FAST].mean(), "slow": stale[NUM_FAST:].mean()},
        2: {"largest error": missed},
        3: {
            "slow influence": slow_mean["mean"],
            "standard error": error["mean"],
            "slow share": float(share[NUM_FAST:].sum()),
            "influence is the share": all(
                np.allclose(each.influence, each.update_share) for each in reports["mean"]
            ),
        },
        4: {
            "slow influence": slow_mean["eq8"],
            "standard error": error["eq8"],
            "deviation, mean": apart["mean"],
            "deviation, eq8": apart["eq8"],
        },
        6: {"slow influence": slow_mean["raw"], "deviation": apart["raw"]},
        7: {
            name: float(slow_influence(buffered(alone, **settings)).mean())
            for name, settings in AVERAGES.items()
        },
        16: _bounds(drawn["eq8"]),
        20: {name: slow_mean[name] for name in ("eq8", "alg1")},
    }
    shown = {
        "buffer mean": "mean",
        "FedStaleWeight": "eq8",
        "FedStaleWeight, not normalised": "raw",
    }
    picture = {
        label: ClientShares(share, np.mean([each.influence for each in reports[name]], axis=0))
        for label, name in shown.items()
    }
    return measured, influence_figure(picture)


def _bounds(drawn: Timeline) -> dict[str, Any]:
    """Measure weights and both forms of U, for claim 16."""
    least, most = formulas.weight_bounds(
        int(staleness_of(drawn).max()), buffer_size=HYPER.buffer_size
    )
    gaps = [
        abs(
            float(formulas.squared_weight_gap(tau, buffer_size=b))
            - float(formulas.squared_weight_gap_printed(tau, buffer_size=b))
        )
        for b in range(1, 9)
        for tau in range(40)
    ]
    return {
        "least": float(drawn.weight.min()),
        "most": float(drawn.weight.max()),
        "bounds": [float(least), float(most)],
        "U": float(np.max(gaps)),
    }


# Buffers and speeds: claims 5 and 15 -------------------------------------------------------------


def judge_buffers(measured: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Judge claim 5 from the influence by kind of average and size of the buffer."""
    rising, window = list(measured["cumulative"].values()), measured["window 5"]
    marks = CLAIMS[5].criterion
    holds = (
        bool((np.diff(rising) > 0).all())
        and rising[-1] < FAIR + marks.above
        and abs(rising[0] - marks.first) < marks.first_close
        and FAIR - measured["cumulative"]["5"] > marks.short
        and window["30"] > FAIR
        and window["60"] > FAIR
    )
    why = (
        f"cumulative {rising[0]:.3f} at b = 1 to {rising[-1]:.3f} at b = 60; window "
        f"{window['30']:.3f} at 30 and {window['60']:.3f} at 60"
    )
    return verdict(5, measured, harness.unless_unknown(holds, measured), why, seeds=3)


def measure_buffers(sizes: Sizes) -> tuple[dict[str, dict[str, float]], Figure]:
    """Measure the slow group's influence against the buffer's size with two averages: claim 5."""
    alone = arrivals(3, sizes.buffer_ticks * max(sizes.buffers))
    found = {}
    for average in ("cumulative", "window 5"):
        cut = {
            b: jax.tree.map(lambda leaf, b=b: leaf[:, : sizes.buffer_ticks * b], alone)
            for b in sizes.buffers
        }
        found[average] = np.array(
            [slow_influence(buffered(cut[b], b, **AVERAGES[average])).mean() for b in sizes.buffers]
        )
    measured = {
        name: dict(zip(map(str, sizes.buffers), values.tolist(), strict=True))
        for name, values in found.items()
    }
    lines = {name: (np.array(sizes.buffers), values) for name, values in found.items()}
    return measured, _lines(lines, "buffer size b (updates)", log=True)


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


def measure_buffered_staleness(sizes: Sizes, arrived: Timeline) -> dict[str, int]:
    """Measure the staleness of the first arrivals with a buffer and without, for claim 15."""
    num = sizes.ticks // 4
    first = jax.tree.map(lambda leaf: leaf[:2, : num * 5], arrived)
    alone = staleness_of(first).reshape(2, -1)
    with_buffer = staleness_of(
        jax.tree.map(lambda leaf: leaf[0], draw(SYSTEM, [HYPER], 2, num))
    ).reshape(2, -1)
    within = (alone // 5 <= with_buffer) & (with_buffer <= -(-alone // 5))
    return {
        "updates": with_buffer.size,
        "outside": int((~within).sum()),
        "largest without": int(alone.max()),
        "largest with a buffer of 5": int(with_buffer.max()),
    }


@plots.styled()
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
        axes.plot(places, values, label=name, **plots.look(i, "all"))
    if y.endswith("group"):
        fair = f"every client the same ({FAIR:.2g})"
        axes.axhline(FAIR, color=plots.GREY, linewidth=0.8, linestyle=":", label=fair)
    axes.set(xlabel=x, ylabel=y, xscale="log" if log else "linear")
    plots.name_beside(figure, axes)
    return figure


# Incentives: claims 12 to 14 ---------------------------------------------------------------------


def throttled_influence(arrived: Timeline, **settings: Any) -> np.ndarray:
    """Return the influence of client 0 at each of `THROTTLES` of its rate: `f64[shares, seeds]`.

    A client's influence per server step is its utility (eqs. (4) and (9)). Telling the truth
    pays if influence grows with the reported rate up to the true one. For one composition of a
    buffer that holds if and only if C r^2 <= A (`formulas.is_truthful`). Over the compositions
    of a run it may hold even where it fails for one, which is what is measured here.
    """
    return influences(buffered(arrived, **settings))[:, 0].reshape(len(THROTTLES), -1)


def measure_throttling(sizes: Sizes) -> tuple[dict[str, dict[str, float]], str, Figure]:
    """Measure the influence of a client that throttles for claim 12, and make a table of it."""
    ways: dict[str, dict[str, Any]] = {
        "buffer mean": MEAN,
        "FedStaleWeight": {},
        "reverse exponential": REVERSE,
    }
    rates = [np.r_[phi * RATE[0], RATE[1:]] for phi in THROTTLES]
    hypers = [SYSTEM.paper(client_table=ClientTable(rate, SPREAD)) for rate in rates]
    for throttled in hypers:
        check(throttled)
    num = HYPER.buffer_size * sizes.ticks
    # Settings that differ in a table are drawn one after another.
    drawn = [arrivals(sizes.seeds, num, [hyper]) for hyper in hypers]
    arrived = jax.tree.map(lambda *leaves: np.concatenate(leaves), *drawn)
    found = {
        name: throttled_influence(arrived, **settings).mean(axis=1).tolist()
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
    return measured, harness.table(header, rows), figure


def judge_peak(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 13 from numbers of `measure_utility`."""
    before, behind = measured["slopes around the peak"]
    best = [measured[f"{k} slow"] for k in range(5)]
    right = [each["truthful"] == (k <= CLAIMS[13].criterion.slow) for k, each in enumerate(best)]
    gains = ", ".join(f"{each['gain']:.1%}" for each in best)
    why = f"gain by throttling with 0 to 4 slow ones of 4 others: {gains}"
    return verdict(
        13, measured, harness.unless_unknown(before > 0 > behind and all(right), measured), why
    )


def measure_utility() -> dict[int, dict[str, Any]]:
    """Compute the utility in a given buffer for claims 13 and 14.

    A fast client is in slot 0; 0 to 4 of the other four clients are slow.
    """
    best: dict[str, Any] = {}
    for num_slow in range(5):
        slots = np.r_[np.arange(5 - num_slow), NUM_FAST + np.arange(num_slow)]
        others = formulas.competition(RATE, slot_client=slots, client=0)
        report = float(min(formulas.optimal_report(others), RATE[0]))
        gain = float(formulas.utility(report, others) / formulas.utility(RATE[0], others)) - 1
        best[f"{num_slow} slow"] = {
            "truthful": bool(formulas.is_truthful(RATE[0], others)),
            "best share of its rate": report / RATE[0],
            "gain": gain,
        }
    peak = formulas.competition(RATE, slot_client=np.r_[0, 10, 11, 12, 13], client=0)
    top = float(formulas.optimal_report(peak))
    near = CLAIMS[13].criterion.near
    best["slopes around the peak"] = [
        float(formulas.utility_slope(scale * top, peak)) for scale in (1 - near, 1 + near)
    ]
    slopes = {
        f"b = {b}": float(
            formulas.utility_slope(
                1.0, formulas.competition(np.ones(6), slot_client=np.arange(b), client=0)
            )
        )
        for b in (2, 5, 6)
    }
    return {13: best, 14: slopes}


# Learning on quadratics: claims 17 to 19, 21 and 22 ----------------------------------------------


def judge_fixed_points(measured: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Judge claim 18 from numbers of `measure_fixed_points`."""
    marks = CLAIMS[18].criterion
    expected = {"mean": marks.mean, "eq8": marks.eq8, "raw": FAIR}
    holds = harness.all_of(
        harness.interval_of_error(
            found["mean"] - expected[name], found["standard error"], found["seeds"]
        ).within(marks.close)
        for name, found in measured.items()
    )
    why = ", ".join(
        f"{name} {found['mean']:.4f} +- {found['standard error']:.4f}"
        for name, found in measured.items()
    )
    return verdict(18, measured, holds, why)


def measure_fixed_points(sizes: Sizes) -> dict[str, dict[str, float]]:
    """Measure claim 18 on quadratics with optimum 0 for fast clients and 1 for slow ones.

    The model's mean over the second half of a run is then the slow group's influence.
    """
    late = {}
    ways: dict[str, dict[str, Any]] = {"mean": MEAN, "eq8": {}, "raw": RAW}
    for name, settings in ways.items():
        run = fedjax_sim.sweep(
            SYSTEM,
            OPPOSED,
            HYPER.replace(**settings),
            seeds=sizes.seeds,
            budget=fedjax_sim.Ticks(sizes.quadratic_ticks),
            num_evals=EVALS,
            keep=fedjax_sim.Keep(models=True),
        )
        models = np.asarray(run.samples).reshape(sizes.seeds, -1)
        found = harness.estimate(models[:, EVALS // 2 :].mean(axis=1))
        late[name] = {
            "mean": float(found.mean),
            "standard error": float(found.error),
            "seeds": sizes.seeds,
        }
    return late


def measure_vacuous() -> dict[str, bool]:
    """Compute whether the last term of the bound is at least G for every b >= 2 (claim 17)."""
    return {
        "vacuous": all(
            bool(formulas.is_vacuous(tau, buffer_size=b))
            for b in range(2, 20)
            for tau in range(1, 40)
        )
    }


def judge_theorem(measured: Mapping[str, Sequence[float]]) -> Verdict:
    """Judge claim 21 from numbers of `measure_theorem`."""
    rows = list(zip(*(measured[name] for name in ("step sizes", "left", "right")), strict=True))
    shown = ", ".join(f"{left:.5f} against {right:.5f} at {lr:g}" for lr, left, right in rows)
    why = f"b = 1, uniform draws, left side against the bound: {shown}"
    holds = all(left <= right for _, left, right in rows)
    return verdict(21, measured, harness.unless_unknown(holds, measured), why)


def measure_theorem(ticks: int = 100_000) -> dict[str, list[float]]:
    """Compute both sides of Theorem 1 for b = 1 exactly (claim 21).

    Two clients with F_i = (w - c_i)^2 / 2 and optima -1 and 1 are drawn uniformly, nothing is
    stale, and the run starts at the minimum of f. Then w_t has the second moment
    lr / (2 - lr) (1 - (1 - lr)^(2 t)), and every gradient is at most 2.
    """
    rates, left, right = [0.01, 0.005, 0.002, 0.001], [], []
    for lr in rates:
        kept = (1 - lr) ** 2
        left.append(lr / (2 - lr) * (1 - (1 - kept**ticks) / (ticks * (1 - kept))))
        most = float(CLAIMS[21].criterion.most)
        setup = formulas.FedStaleWeightSetup(1, 0, (lr,), 1.0, 1.0, 0.0, 1.0, most, 0.0)
        right.append(float(formulas.bound(setup, num_ticks=ticks).total))
    return {"step sizes": rates, "left": left, "right": right}


def judge_strategy(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 22 from numbers of `measure_strategy`."""
    best = {k: measured[f"{k} slow"] for k in range(CLAIMS[22].criterion.others + 1)}
    shares = ", ".join(f"{each['best share of its rate']:.2f}" for each in best.values())
    enough = measured["least n"]
    why = (
        f"truth is best in every buffer from n = {enough} on; at n = 15 a fast client's best share "
        f"of its rate is, with 0 to 4 slow ones of 4 others, {shares}"
    )
    parts = {
        "large enough n": enough is not None and harness.unless_unknown(True, measured),
        "n = 15": harness.unless_unknown(all(each["truthful"] for each in best.values()), best),
    }
    return verdict(22, measured, rule(parts, deciding=harness.begins("large")), why)


def measure_strategy(at_15: Mapping[str, Any]) -> dict[str, Any]:
    """Add to what claim 13 compares the least n from which truth is best in every buffer.

    Two of three clients are fast, as in the paper's experiment.
    """
    marks = CLAIMS[22].criterion

    def is_truthful(num: int) -> bool:
        rates = np.repeat([RATE[0], RATE[-1]], [2 * num // 3, num // 3])
        slots = np.r_[0, num - 1 - np.arange(marks.others)]
        others = formulas.competition(rates, slot_client=slots, client=0)
        return bool(formulas.is_truthful(RATE[0], others))

    false = [num for num in range(NUM, marks.most + 1, 3) if not is_truthful(num)]
    enough = max(false) + 3 if false else NUM
    return {**at_15, "least n": enough if enough <= marks.most else None}


def judge_stability(measured: Mapping[str, float | None]) -> Verdict:
    """Judge claim 19 from the least step sizes at which runs diverge, None where none does."""
    known = [value for value in measured.values() if value is not None]
    stable = all(value > CLAIMS[19].criterion.lr for value in known)
    words = ", ".join(
        f"{name} {'never' if value is None else f'from {value:g}'}"
        for name, value in measured.items()
    )
    why = f"quadratics; of step sizes up to 1 diverges: {words}"
    return verdict(19, measured, harness.unless_unknown(stable, known), why)


def measure_stability(sizes: Sizes) -> dict[str, float | None]:
    """Find the local step sizes at which a run on quadratics of curvature 1 diverges: claim 19."""
    rates = [0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0]
    ways: dict[str, dict[str, Any]] = {"buffer mean": MEAN, "FedStaleWeight": {}}
    return least_diverging(ways, rates, sizes.quadratic_ticks)


def least_diverging(
    ways: Mapping[str, Mapping[str, Any]], rates: Sequence[float], ticks: int
) -> dict[str, float | None]:
    """Return the least step size at which a run on `OPPOSED` diverges, by way of weighting."""
    least = {}
    for name, settings in ways.items():
        run = fedjax_sim.sweep(
            SYSTEM,
            OPPOSED,
            HYPER.replace(**settings),
            seeds=2,
            settings={"lr": list(rates)},
            budget=fedjax_sim.Ticks(ticks),
            num_evals=4,
        )
        bad = ~(run.curves.loss.isel(eval=-1).max("seed", skipna=False).values < 10)
        least[name] = rates[int(np.argmax(bad))] if bad.any() else None
    return least


JUDGES: Judges = {
    **CLAIMS.declared(1, 2, 3, 4, 6, 12, 14, 15, 17, 20),
    5: judge_buffers,
    7: judge_averages,
    13: judge_peak,
    16: judge_weights,
    18: judge_fixed_points,
    19: judge_stability,
    21: judge_theorem,
    22: judge_strategy,
}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    alone = arrivals(sizes.seeds, 5 * sizes.ticks)
    measured, clients = measure_influence(sizes, alone)
    measured[5], buffers = measure_buffers(sizes)
    ratios, speeds = ratio_study(sizes)
    measured[12], throttle_table, throttling = measure_throttling(sizes)
    measured |= measure_utility()
    measured[15] = measure_buffered_staleness(sizes, alone)
    measured[17], measured[21] = measure_vacuous(), measure_theorem()
    measured[22] = measure_strategy(measured[13])
    measured[18] = measure_fixed_points(sizes)
    measured[19] = measure_stability(sizes)
    verdicts = harness.judge_all(JUDGES, measured)
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
    text = f"Influence of one fast client that throttles:\n{throttle_table}"
    return Outcome({}, figures, verdicts, config, text)
