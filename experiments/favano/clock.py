"""FAVANO's clock and the clocks it is compared with (arXiv 2305.16099, App. C.2), without learning.

Judges claims 4, 5, 8 and 17 to 19 on drawn schedules, and 23 on a formula. There are n = 100
clients, s = 20 contacted, K = 20 local steps, Z = 10 and the paper's speeds, unless a claim states
others.

Dimension letters: `L` lanes, `T` server steps, `S` slots, `N` clients.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.favano.claims import CLAIMS, verdict
from experiments.favano.formulas.orders import favano_orders, favano_orders_printed, quafl_orders
from experiments.favano.setup import BLOCKED, PUBLIC
from experiments.harness import (
    Arguments,
    Estimate,
    Interval,
    Judges,
    Outcome,
    Sizes,
    Study,
    Verdict,
)
from fedjax_sim.core.types import System, Timeline
from fedjax_sim.results.plots import look, name_beside, styled
from fedjax_sim.systems import favano, fedavg, fedbuff, quafl
from fedjax_sim.theory import favano as theory
from fedjax_sim.timelines import Trace

FAST, SLOW, BUDGET = 1 / 2, 1 / 16, 5000
PERIOD = CLAIMS[8].criterion.period
SHARES = (1 / 9, 1 / 3, 2 / 3, 8 / 9)
"""Shares of slow clients. The second and the last are the paper's, with 66 and 11 fast clients."""
THIRD, MOST = 1, 3
READINGS: dict[str, Any] = {
    "blocked": fedbuff.paper(**BLOCKED),
    "own finish": fedbuff.paper(**PUBLIC),
}
"""When a FedBuff client continues after it has finished; see `fedjax_sim.systems.fedbuff`."""

BIASED = "more than their share"
"""Begin of the names of the deciding parts of claim 19."""

STUDY = Study(full=Sizes(seeds=48, slow_arrivals=60), smoke=Sizes(seeds=6, slow_arrivals=5))
"""Seeds are lanes, at least two.

`slow_arrivals` are the updates of the slow client in claim 18, per lane.
"""
STATED_STEPS = {"blocked": {THIRD: 767, MOST: 236}, "own finish": {THIRD: 858, MOST: 271}}
"""FedBuff's server steps within 5000 units, to a percent, found by an independent simulation."""
STATED_MEANS = ((12.4929, 2.1870), (0.998428, 0.740627))
"""E[X], then P(E > 0), of fast and slow clients, which follow from the paper's clock."""
WARM = 60
"""Contacts after which windows are stationary to one part in a million."""
FEDBUFF_TICKS, FEDBUFF_WARM, FEDAVG_TICKS = 1000, 200, 40
PAIR_LANES, PAIR_TICKS = 16, 3000
UNITS = CLAIMS[18].criterion.units


def at_shares(
    system: System, hyper: Any, lanes: int, ticks: int, shares: Sequence[float] = SHARES
) -> Timeline:
    """Draw schedules at several shares of slow clients: leaves `[shares, lanes, T, ...]`."""
    return harness.draw(
        system, [hyper.replace(slow_fraction=share) for share in shares], lanes, ticks
    )


def gaps_of(version: np.ndarray) -> np.ndarray:
    """Return the server steps since each client's last contact. version: `i32[..., T, S]`."""
    return np.arange(version.shape[-2])[:, None] + 1 - version


# Claims 4 and 5 ----------------------------------------------------------------------------------


def measure_contacts(timeline: Timeline) -> tuple[dict[str, Any], dict[str, Any], Figure]:
    """Compare the contacts within 5000 units of time with the closed forms, and draw them.

    The first share of slow clients is used, and the first `WARM` contacts are left out where
    stationary windows are needed.
    """
    hyper, (_, lanes, ticks) = favano.paper(), timeline.time.shape
    is_fast = harness.are_fast(hyper, lanes)
    everyone = timeline.clients[0]
    clients, steps, gap = (
        x[0, :, WARM:] for x in (timeline.clients, timeline.steps, gaps_of(timeline.version))
    )
    law = theory.step_law(
        [FAST, SLOW], contact_probability=0.2, round_time=PERIOD, max_steps=20, law="runtime_geom"
    )
    moments = theory.step_moments(law)
    expected = np.array([moments.mean, moments.prob_any])
    found = harness.estimate(
        np.stack([harness.by_speed(x, clients, is_fast) for x in (steps, steps > 0)], axis=1)
    )
    of_steps = {
        "mean_steps": found.mean[0],
        "prob_any": found.mean[1],
        "standard_error": found.error,
        "largest_deviation": found.deviation(expected),
        "closed_forms_off": np.abs(expected - STATED_MEANS).max(),
        "contacts": steps.size,
    }
    beyond = np.array([1, 2, 5, 10, 20])
    tails = harness.estimate(harness.by_speed(gap[..., None] > beyond, clients, is_fast))
    mean_gap = harness.estimate(harness.by_speed(gap, clients, is_fast))
    visits = np.stack([np.bincount(lane.ravel(), minlength=hyper.num_clients) for lane in everyone])
    contacts = harness.estimate(
        np.stack([(visits * mask).sum(1) / mask.sum(1) for mask in (is_fast, ~is_fast)], axis=1)
    )
    of_gaps = {
        "mean_gap": mean_gap.mean,
        "contacts_per_client": contacts.mean,
        "expected_contacts": ticks / 5,
        "largest_deviation": np.max(
            [tails.deviation(0.8**beyond), mean_gap.deviation(5), contacts.deviation(ticks / 5)]
        ),
        "lanes": lanes,
        "server_steps": ticks,
    }
    slots_fast = is_fast[np.arange(lanes)[:, None, None], clients]
    draws = [(steps[mask], gap[mask]) for mask in (slots_fast, ~slots_fast)]
    return of_steps, of_gaps, _laws_figure(draws, law)


@styled()
def _laws_figure(draws: list[tuple[np.ndarray, np.ndarray]], law: np.ndarray) -> Figure:
    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    rounds = np.arange(1, 31)
    for i, (name, (steps, gap)) in enumerate(zip(("fast", "slow"), draws, strict=True)):
        left.plot(law[i], label=f"{name}, closed form", **look(i, "none"))
        drawn = np.bincount(steps, minlength=21) / steps.size
        left.plot(drawn, label=f"{name}, drawn", **look(i, "only"))
        shares = np.bincount(gap, minlength=31)[1:31] / gap.size
        right.semilogy(rounds, shares, label=f"{name}, drawn", **look(i, "only"))
    exact = look(4, "none", linewidth=1, label="geometric(s/n)")
    right.semilogy(rounds, 0.2 * 0.8 ** (rounds - 1), **exact)
    left.set(xlabel="local steps between contacts X", ylabel="probability", title="Step counts")
    left.set_xticks(range(0, 21, 5))
    right.set(xlabel="server steps between contacts", ylabel="probability", title="Contact gaps")
    for axes in (left, right):
        axes.legend()
    return figure


# Claim 8 -----------------------------------------------------------------------------------------


def judge_step_time(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 8 from numbers of `measure_step_time`."""
    marks = CLAIMS[8].criterion
    found = {
        name: Estimate(np.asarray(mean), np.asarray(measured["standard_error"][name]))
        for name, mean in measured["mean"].items()
    }
    far = found["FedAvg"].deviation(measured["fedavg_closed_form"])
    begun = [
        abs(measured["fedbuff_steps_in_5000"][name][at] / stated - 1) < marks.share
        for name, row in STATED_STEPS.items()
        for at, stated in row.items()
    ]
    holds = harness.all_of(
        [
            harness.unless_unknown(
                measured["constant"] and far < marks.far and all(begun), measured
            ),
            *(differs(x, MOST, THIRD, marks.far) for x in found.values()),
        ]
    )
    numbers = "; ".join(
        f"{name} {x.mean[THIRD]:.4g} and {x.mean[MOST]:.4g}" for name, x in found.items()
    )
    why = (
        f"FAVANO and QuAFL {'' if measured['constant'] else 'not '}7 in every step; at 34 and 89 "
        f"slow {numbers} units; FedAvg {far:.1f} standard errors from closed form at most"
    )
    return verdict(8, measured, holds, why)


def differs(found: Estimate, larger: int, smaller: int, far: float) -> bool | None:
    """Return whether one mean is above another by a number of standard errors, see `Interval`."""
    mean, error = found.mean, found.error
    half = far * np.hypot(error[larger], error[smaller])
    return Interval(mean[larger] - mean[smaller], half).above()


def measure_step_time(
    sizes: Sizes, favano_run: Timeline, fedbuff_runs: Mapping[str, Timeline]
) -> tuple[dict[str, Any], Figure]:
    """Measure the time per server step at four shares of slow clients, for claim 8."""
    quafl_run = at_shares(quafl.system, quafl.paper(), 2, 200)
    is_constant = all(
        bool(np.all(np.diff(each.time, prepend=0.0) == PERIOD)) for each in (favano_run, quafl_run)
    )
    rounds = np.diff(
        at_shares(fedavg.system, fedavg.paper(), sizes.seeds, FEDAVG_TICKS).time, prepend=0.0
    )
    found = {"FedAvg": harness.estimate(rounds.mean(-1).T)}
    for reading, timeline in fedbuff_runs.items():
        span = timeline.time[..., -1] - timeline.time[..., FEDBUFF_WARM - 1]
        found[f"FedBuff, {reading}"] = harness.estimate((span / (FEDBUFF_TICKS - FEDBUFF_WARM)).T)
    measured = {
        "slow_share": SHARES,
        "constant": is_constant,
        "mean": {name: x.mean for name, x in found.items()},
        "standard_error": {name: x.error for name, x in found.items()},
        "fedavg_closed_form": [_closed_forms(share)[0] for share in SHARES],
        "fedbuff_steps_in_5000": {
            name: _begins_within(x).sum(-1).mean(-1) for name, x in fedbuff_runs.items()
        },
    }
    return measured, _times_figure(found)


def _closed_forms(share: float) -> tuple[float, float]:
    num_slow = int(np.ceil(share * 100 - 1e-6))
    rates = [FAST] * (100 - num_slow) + [SLOW] * num_slow
    fedavg_time = theory.fedavg_round_time(rates, num_contacted=20, local_steps=20, interact_time=3)
    return fedavg_time, theory.fedbuff_step_time(
        rates, buffer_size=10, local_steps=20, interact_time=3
    )


@styled()
def _times_figure(found: dict[str, Estimate]) -> Figure:
    figure = Figure(figsize=(8.5, 4.2))
    axes = figure.subplots()
    grid = np.linspace(0, 1, 21)
    curves = np.array([_closed_forms(share) for share in grid])
    axes.semilogy(grid, curves[:, 0], label="FedAvg, closed form", **look(0, "none"))
    axes.semilogy(grid, curves[:, 1], label="FedBuff if clients never wait", **look(1, "none"))
    axes.axhline(PERIOD, label="FAVANO and QuAFL", **look(2, "none"))
    for number, (name, times) in zip((0, 1, 3), found.items(), strict=True):
        style = look(number, "only", label=f"{name}, drawn")
        axes.errorbar(SHARES, times.mean, harness.FAR * times.error, **style)
    axes.set(xlabel="share of slow clients", ylabel="virtual time per server step (units)")
    axes.set_title(f"bars: {harness.FAR:g} standard errors")
    name_beside(figure, axes)
    return figure


# Claims 17, 18 and 19 ----------------------------------------------------------------------------


def judge_orders(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 17 from numbers of `measure_orders`."""
    powers = measured["powers_of_n"]
    powers_fit = np.allclose(powers["FAVANO"], [0, 1, 1]) and np.allclose(
        powers["QuAFL"], [0, 1.5, 1.5]
    )
    worst, error = (
        np.asarray(measured[name]) for name in ("fedbuff_largest_staleness", "standard_error")
    )
    is_same = measured["favano_same_at_all_shares"]
    holds = harness.all_of(
        [
            harness.unless_unknown(powers_fit and is_same, measured),
            differs(Estimate(worst, error), THIRD, MOST, CLAIMS[17].criterion.far),
        ]
    )
    shown = ", ".join(f"{abs(x):.2f}" for x in powers["FAVANO"])
    why = (
        f"powers of n {shown} (QuAFL's lower ones {powers['QuAFL'][1]:.2f}); FedBuff's largest "
        f"staleness {worst[THIRD]:.1f} with 66 fast, {worst[MOST]:.1f} with 11; FAVANO's is "
        f"{'' if is_same else 'not '}the same with either"
    )
    return verdict(17, measured, holds, why)


@styled()
def measure_orders(favano_run: Timeline, blocked: Timeline) -> tuple[dict[str, Any], Figure]:
    """Measure Table 1's rows at fixed s and constants, and staleness, for claim 17.

    Staleness counts in the steps that begin within 5000 units.
    """
    numbers = np.array([50, 100, 200, 400, 800, 1600])
    setup = theory.FavanoSetup(100, 20, 20, 1.0, 1.0, 1.0, 1.0, 1.0, 0.345, 1.35)
    settings = [setup._replace(num_clients=int(n)) for n in numbers]
    orders = {
        "FAVANO": np.array([favano_orders(each) for each in settings]),
        "QuAFL": np.array([quafl_orders(each, mean_steps=9.0) for each in settings]),
    }
    powers = {
        name: np.polyfit(np.log(numbers), np.log(values), 1)[0] for name, values in orders.items()
    }
    staleness = np.arange(FEDBUFF_TICKS)[:, None] - blocked.version
    worst = harness.estimate(
        np.where(_begins_within(blocked)[..., None], staleness, 0).max(axis=(2, 3)).T
    )
    contacts = gaps_of(favano_run.version)
    measured = {
        "powers_of_n": powers,
        "slow_share": SHARES,
        "fedbuff_largest_staleness": worst.mean,
        "standard_error": worst.error,
        "favano_same_at_all_shares": bool(np.all(contacts == contacts[:1])),
    }
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.subplots()
    late = {
        "FedBuff, 66 fast": staleness[THIRD, :, FEDBUFF_WARM:],
        "FedBuff, 11 fast": staleness[MOST, :, FEDBUFF_WARM:],
        "FAVANO, any speeds": contacts[0, :, WARM:] - 1,
    }
    for number, (name, values) in enumerate(late.items()):
        share = 1 - np.arange(values.size) / values.size
        axes.semilogy(np.sort(values, axis=None), share, label=name, **look(number))
    axes.set(xlabel="staleness (server steps)", ylim=(1e-5, 1))
    axes.set_ylabel("share of updates at least as stale")
    axes.legend()
    return measured, figure


def measure_two_workers(sizes: Sizes) -> dict[str, Any]:
    """Measure staleness if one worker takes 1 unit a gradient and the other 1000, for claim 18.

    The times are exact (a recorded trace), and geometric with these means.
    """
    pair = {"num_clients": 2, "local_steps": 1, "slow_fraction": 0.5}
    pair |= {"rate_fast": 1.0, "rate_slow": 1 / UNITS}
    fast, slow = np.arange(10 * UNITS), np.arange(10) * UNITS
    trace = Trace([0] * fast.size + [1] * slow.size, [*fast, *slow], [*(fast + 1), *(slow + UNITS)])
    immediate: Any = fedbuff.paper(**pair, buffer_size=1)
    exact = _slow_staleness(
        harness.draw(fedbuff.system, [immediate.replace(trace=trace)], 1, fast.size),
        np.array([[True, False]]),
        slow.size - 1,
    )
    free = immediate.replace(restart="free")
    ticks = 2500 * sizes.slow_arrivals
    drawn = _slow_staleness(
        harness.draw(fedbuff.system, [free], PAIR_LANES, ticks),
        harness.are_fast(free, PAIR_LANES),
        sizes.slow_arrivals,
    )
    mean = harness.estimate(drawn.mean(1))
    contacts = favano.paper(**pair, num_selected=1)
    timeline = harness.draw(favano.system, [contacts], PAIR_LANES, PAIR_TICKS)
    clients, gap = timeline.clients[0, :, WARM:], gaps_of(timeline.version)[0, :, WARM:]
    beyond = np.array([1, 2, 5])
    tails = harness.estimate(
        harness.by_speed(gap[..., None] > beyond, clients, harness.are_fast(contacts, PAIR_LANES))
    )
    return {
        "exact": exact[0],
        "drawn": drawn.size,
        "mean": mean.mean,
        "standard_error": mean.error,
        "favano_tails": tails.mean,
        "largest_deviation": tails.deviation(0.5**beyond),
    }


def _slow_staleness(timeline: Timeline, is_fast: np.ndarray, num: int) -> np.ndarray:
    """Return the staleness of the first `num` updates of each lane's slow client: `[L, num]`."""
    client, version = timeline.clients[0, ..., 0], timeline.version[0, ..., 0]
    ticks = [
        np.flatnonzero(~fast[contacted])[:num]
        for fast, contacted in zip(is_fast, client, strict=True)
    ]
    return np.stack([at - read[at] for at, read in zip(ticks, version, strict=True)])


def judge_shares(measured: Mapping[str, Any]) -> Verdict:
    """Judge claim 19 from numbers of `measure_shares`, in steady state."""
    settled, errors = measured["settled"], measured["standard_error"]["settled"]
    population = 1 - np.ceil(np.array(SHARES) * 100) / 100
    marks = CLAIMS[19].criterion
    leads = {
        name: [
            Interval(mean - share, marks.far * error).above()
            for mean, error, share in zip(means, errors[name], population, strict=True)
        ]
        for name, means in settled.items()
    }
    most = {
        name: harness.interval_of_error(means[MOST], errors[name][MOST], measured["lanes"])
        for name, means in settled.items()
    }
    parts = {f"{BIASED} ({name})": harness.all_of(each) for name, each in leads.items()} | {
        f"most updates with 11 fast ({name})": each.above(marks.mainly)
        for name, each in most.items()
    }
    numbers = ", ".join(
        f"{100 * means[THIRD]:.1f} % with 66 fast and {100 * most[name].mean:.1f} ± "
        f"{100 * most[name].half:.2f} % with 11 ({name})"
        for name, means in settled.items()
    )
    why = f"fast clients' updates once settled: {numbers}; derived of the clock: 94 and 44 to 51 %"
    ruling = harness.rule(parts, deciding=harness.begins(BIASED))
    return verdict(19, {**measured, "parts": parts}, ruling, why)


def measure_units() -> dict[str, float]:
    """Compute FAVANO's printed row of Table 1 in two systems of units, for claim 23.

    The objective is multiplied by 3 and the weights by 0.7; a time must stay as it is.
    """
    setup = theory.FavanoSetup(100, 20, 20, 1.7, 0.6, 2.3, 1.4, 3.1, 0.35, 1.35)
    objective, length = 3.0, 0.7
    square = (objective / length) ** 2
    scaled = setup._replace(
        smoothness=setup.smoothness * objective / length**2,
        gradient_variance=setup.gradient_variance * square,
        dissimilarity=setup.dissimilarity * square,
        initial_gap=setup.initial_gap * objective,
    )
    powers = {"eps^-2": 2, "eps^-3/2": 1.5, "eps^-1": 1}
    return {
        name: float(after / before / square**power)
        for (name, power), before, after in zip(
            powers.items(), favano_orders_printed(setup), favano_orders_printed(scaled), strict=True
        )
    }


def measure_shares(sizes: Sizes, fedbuff_runs: Mapping[str, Timeline]) -> dict[str, Any]:
    """Measure whose updates FedBuff takes, for claim 19.

    They are counted in the steps that begin within 5000 units, and in those after it has settled.
    """
    within, settled = {}, {}
    for reading, timeline in fedbuff_runs.items():
        hypers = [READINGS[reading].replace(slow_fraction=share) for share in SHARES]
        fast = np.stack([harness.are_fast(hyper, sizes.seeds) for hyper in hypers])
        clients = timeline.clients
        is_fast = np.take_along_axis(fast, clients.reshape(*fast.shape[:2], -1), axis=2)
        taken = is_fast.reshape(clients.shape).mean(-1)
        within[reading] = harness.estimate(
            np.average(taken, axis=-1, weights=_begins_within(timeline)).T
        )
        settled[reading] = harness.estimate(taken[..., FEDBUFF_WARM:].mean(-1).T)
    return {
        "slow_share": SHARES,
        "within_5000": {name: x.mean for name, x in within.items()},
        "settled": {name: x.mean for name, x in settled.items()},
        "standard_error": {
            words: {name: x.error for name, x in found.items()}
            for words, found in (("within_5000", within), ("settled", settled))
        },
        "lanes": sizes.seeds,
    }


def _begins_within(timeline: Timeline) -> np.ndarray:
    """Return which server steps begin within the budget: `bool[..., T]`."""
    time = timeline.time
    return np.concatenate([np.zeros_like(time[..., :1]), time[..., :-1]], axis=-1) < BUDGET


JUDGES: Judges = {
    **CLAIMS.declared(4, 5, 18, 23),
    8: judge_step_time,
    17: judge_orders,
    19: judge_shares,
}


def run(arguments: Arguments) -> Outcome:
    """Draw the schedules and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    fedbuff_runs = {
        reading: at_shares(fedbuff.system, hyper, sizes.seeds, FEDBUFF_TICKS)
        for reading, hyper in READINGS.items()
    }
    favano_run = at_shares(
        favano.system, favano.paper(), sizes.seeds, BUDGET // PERIOD, (SHARES[THIRD], SHARES[MOST])
    )
    steps, gaps, laws = measure_contacts(favano_run)
    step_time, times = measure_step_time(sizes, favano_run, fedbuff_runs)
    orders, staleness = measure_orders(favano_run, fedbuff_runs["blocked"])
    measured = {4: steps, 5: gaps, 8: step_time, 17: orders}
    measured[18] = measure_two_workers(sizes)
    measured[19] = measure_shares(sizes, fedbuff_runs)
    measured[23] = measure_units()
    figures = {"contacts.png": laws, "step_time.png": times, "staleness.png": staleness}
    return Outcome({}, figures, harness.judge_all(JUDGES, measured), sizes.config())
