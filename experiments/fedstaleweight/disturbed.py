"""FedStaleWeight with drop-outs and throttling: the study that its Sec. 7 leaves to the future.

Judges claim 26. Clients and buffers are those of `influence`. The slow clients lose a share d of
their updates, and one fast client works at a share of its rate. Staleness tells how long an update
took, and not that others were lost. So weights are those of whole rates, 1 / r, and arrivals those
of what is left, r (1 - d): `theory.expected_influence` of these is what is expected. Schedules are
all that is drawn, which takes a minute.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import harness
from experiments.fedstaleweight import influence as study
from experiments.fedstaleweight.claims import CLAIMS, verdict
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim.core.settings import check
from fedjax_sim.results import plots
from fedjax_sim.theory import fedstaleweight as theory
from fedjax_sim.timelines import ClientTable

STUDY = Study(full=Sizes(seeds=6, ticks=8000), smoke=Sizes(seeds=2, ticks=1000))
LOSSES, THROTTLES = (0.0, 0.2, 0.5), (1.0, 0.5, 0.25)
WAYS: dict[str, dict[str, Any]] = {"FedStaleWeight": {}, "buffer mean": study.MEAN}
Found = Mapping[str, Mapping[str, Mapping[str, float]]]


def measure(lost: float, share: float, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Return both influences by way of weighting, of slow clients and of the throttled one.

    The slow clients lose a share of their updates, and the first fast one works at a share of
    its rate.
    """
    rate, losses = study.RATE.copy(), lost * study.GROUPS
    rate[0] *= share
    table = ClientTable(rate, study.SPREAD, drop_rate=losses)
    hyper = study.SYSTEM.paper(client_table=table)
    check(hyper)
    drawn = study.arrivals(sizes.seeds, study.HYPER.buffer_size * sizes.ticks, [hyper])
    found = {}
    for name, settings in WAYS.items():
        buffers = study.buffered(drawn, **settings)
        each = study.influences(buffers)
        slow = each[:, study.NUM_FAST :].sum(axis=1)
        found[name] = {"slow": float(slow.mean()), "throttled": float(each[:, 0].mean())}
        found[name]["standard error"] = float(slow.std(ddof=1) / np.sqrt(len(slow)))
    left, full = rate * (1 - losses), rate
    kinds = [0, 1, study.NUM - 1]  # the throttled, a fast and a slow client
    expected = theory.expected_influence(
        left[kinds],
        num_clients=[1, study.NUM_FAST - 1, study.NUM - study.NUM_FAST],
        buffer_size=study.HYPER.buffer_size,
        weight=1 / full[kinds],
    )
    found["expected"] = {"slow": float(expected[2]), "throttled": float(expected[0])}
    return found


def name_of(lost: float, share: float) -> str:
    """Name a case."""
    return f"{lost:g} lost, {share:g} of the rate"


def judge(found: Found) -> Verdict:
    """Judge claim 26."""
    marks = CLAIMS[26].criterion
    ours = {name: each["FedStaleWeight"] for name, each in found.items()}
    off = {name: abs(each["slow"] - found[name]["expected"]["slow"]) for name, each in ours.items()}
    slow = [ours[name_of(lost, 1.0)]["slow"] for lost in LOSSES]
    throttled = [[ours[name_of(d, share)]["throttled"] for share in THROTTLES] for d in LOSSES]
    parts = {
        "as expected": max(off.values()) < marks.close,
        "not made up for": slow[-1] < marks.left * slow[0],
        "throttling does not pay": bool((np.diff(throttled, axis=1) < 0).all()),
    }
    known = {name: harness.unless_unknown(holds, found) for name, holds in parts.items()}
    mean = [found[name_of(lost, 1.0)]["buffer mean"]["slow"] for lost in LOSSES]
    words = [", ".join(f"{x:.3f}" for x in each) for each in (slow, mean)]
    why = (
        f"slow clients' influence {words[0]} with losses of 0, 0.2 and 0.5, and {words[1]} with "
        f"the buffer mean; at most {max(off.values()):.4f} from the expected"
    )
    return verdict(26, found, harness.rule(known, deciding=harness.begins("as expected")), why)


JUDGES: Judges = {26: judge}


@plots.styled()
def draw(found: Found) -> Figure:
    """Draw influence against losses, and of the throttled client against its rate."""
    figure = Figure(figsize=(10, 4.0))
    left, right = figure.subplots(1, 2)
    for i, way in enumerate((*WAYS, "expected")):
        line = "--" if way == "expected" else "-"
        slow = [found[name_of(lost, 1.0)][way]["slow"] for lost in LOSSES]
        left.plot(LOSSES, slow, label=way, **plots.look(i, "all", linestyle=line))
        throttled = [found[name_of(0.5, share)][way]["throttled"] for share in THROTTLES]
        right.plot(THROTTLES, throttled, label=way, **plots.look(i, "all", linestyle=line))
    left.set(xlabel="share of the slow clients' updates that is lost", ylabel="their influence")
    right.set(xlabel="share of its rate at which one fast client works", ylabel="its influence")
    left.legend()
    return figure


def run(arguments: Arguments) -> Outcome:
    """Draw the schedules of all cases, and judge the influences."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    found = {
        name_of(lost, share): measure(lost, share, sizes) for lost in LOSSES for share in THROTTLES
    }
    reason = "not judged: schedules of a smoke run are short" if arguments.smoke else ""
    verdicts = harness.judge_all(JUDGES, {26: found}, reason)
    return Outcome({}, {"disturbed.png": draw(found)}, verdicts, sizes.config())
