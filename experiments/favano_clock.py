"""FAVANO's clock and those it is compared with (arXiv 2305.16099, App. C.2): claims 4, 5, 8, 17, 18 and 19, from drawn schedules.

n = 100 clients, s = 20 contacted, K = 20 local steps, Z = 10 and the paper's speeds, unless a claim has its own.
"""

import sys
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from experiments.favano_claims import verdict
from experiments.sampling import FAR, are_fast, by_speed, draw, estimate, verdict_table
from experiments.support import Arguments, Outcome, Verdict, main
from fedjax_sim.systems import favano, fedavg, fedbuff, quafl
from fedjax_sim.theory import favano as theory
from fedjax_sim.theory import favano_timing as timing
from fedjax_sim.timelines import Trace
from fedjax_sim.types import System, Timeline

FAST, SLOW, PERIOD, BUDGET = 1 / 2, 1 / 16, 7, 5000
SHARES = (1 / 3, 8 / 9)
MIXES = ("66 fast, 34 slow", "11 fast, 89 slow")
GAPS = np.array([0, 1, 2, 5, 10, 20])


class Sizes(NamedTuple):
    """What --smoke makes small; --seeds replaces the number of lanes."""

    lanes: int
    warm: int = 60  # server steps until windows between contacts are stationary to one part in a million
    fedbuff_ticks: int = 1000
    fedbuff_warm: int = 200


FULL, SMOKE = Sizes(64), Sizes(16)


# Claims 4 and 5 -----------------------------------------------------------------------------------------------------------------------


def judge_contacts(sizes: Sizes) -> tuple[list[Verdict], Figure]:
    """Claims 4 and 5: 714 server steps of every lane, the first `warm` of them left out where stationary windows are asked for."""
    hyper = favano.Hyper()
    is_fast = are_fast(hyper, sizes.lanes)
    ticks = BUDGET // PERIOD
    clients, steps, version = (leaf[0] for leaf in draw(favano.system, [hyper], sizes.lanes, ticks)[1:4])
    late = slice(sizes.warm, None)
    gap = (np.arange(ticks)[:, None] + 1 - version)[:, late]
    steps, settled = steps[:, late], clients[:, late]

    law = theory.step_law([FAST, SLOW], contact_probability=0.2, round_time=PERIOD, max_steps=20, law="runtime_geom")
    moments = theory.step_moments(law)
    found = [estimate(by_speed(x, settled, is_fast)) for x in (steps, (steps > 0).astype(float))]
    expected = (moments.mean, moments.prob_any)
    far = max(each.deviation(x) for each, x in zip(found, expected, strict=True))
    as_stated = np.allclose(expected, [[12.4929, 2.1870], [0.998428, 0.740627]], atol=5.1e-5)
    num = int(steps.size)
    means = ", ".join(f"{x:.4f} +- {error:.4f}" for each in found for x, error in zip(*each, strict=True))
    steps_verdict = verdict(
        4,
        {"mean_steps": found[0].mean, "prob_any": found[1].mean, "largest_deviation": far, "contacts": num},
        far < FAR and as_stated,
        f"E[X] and P(E > 0) of fast, slow: {means}; at most {far:.1f} standard errors off; {num} contacts",
    )

    beyond = estimate(by_speed((gap[..., None] > GAPS).astype(float), settled, is_fast))
    mean_gap = estimate(by_speed(gap, settled, is_fast))
    lanes = np.arange(sizes.lanes)[:, None, None]
    visits = np.zeros((sizes.lanes, hyper.num_clients))
    np.add.at(visits, (lanes, clients), 1)
    per_client = estimate(np.stack([np.average(visits, axis=1, weights=mask) for mask in (is_fast[0], ~is_fast[0])], 1))
    per_speed = [np.array([x[mask].mean() for x, mask in zip(visits, masks, strict=True)]) for masks in (is_fast, ~is_fast)]
    per_client = estimate(np.stack(per_speed, 1))
    far = max(_from_law(beyond.mean, beyond.error, 0.8**GAPS), mean_gap.deviation(5), per_client.deviation(ticks / 5))
    contacts_verdict = verdict(
        5,
        {"mean_gap": mean_gap.mean, "contacts_per_client": per_client.mean, "expected_contacts": ticks / 5, "largest_deviation": far},
        far < FAR,
        f"mean gap {mean_gap.mean[0]:.3f}, {mean_gap.mean[1]:.3f} (5) and contacts a client {per_client.mean[0]:.2f}, {per_client.mean[1]:.2f} "
        f"({ticks / 5:g}), fast and slow; these and tails at most {far:.1f} standard errors off",
    )
    return [steps_verdict, contacts_verdict], _laws_figure(steps, gap, is_fast[lanes, settled], law)
