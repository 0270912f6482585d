"""End lanes where they were stopped.

From there on every value of a lane repeats the last one, as where lanes of one sweep have different
numbers of evaluations: nothing is NaN, and the last evaluation of any lane is its end.

Dimension letters: those of `fedjax_sim.types`; `V` evaluations.
"""

import numpy as np

from fedjax_sim.engine.curves import NEVER, Part
from fedjax_sim.types import EMPTY, Timeline


def end_stopped_lanes(part: Part, stopped_at: np.ndarray) -> Part:
    """Cut schedules, and repeat the last facts.

    Args:
      part: What lanes returned. Their metrics, samples and infos end where the lanes do already.
      stopped_at: `i64[L]`, the evaluation at which a lane was stopped, or `NEVER`.
    """
    num_lanes, num_evals = part.facts["ticks"].shape
    last = np.where(stopped_at == NEVER, num_evals - 1, stopped_at)
    known = np.minimum(np.arange(num_evals), last[:, None])
    lanes = np.arange(num_lanes)

    def hold(values: np.ndarray) -> np.ndarray:
        return values[lanes[:, None], known] if values.ndim > 1 else values.copy()

    facts = {name: hold(values) for name, values in part.facts.items()}
    timelines = list(part.timelines)
    shared: dict[tuple[int, int], Timeline] = {}
    for i in np.flatnonzero(stopped_at != NEVER):
        end = int(facts["ticks"][i, -1])
        cut = shared.setdefault(
            (id(part.timelines[i]), end), Timeline(*(leaf[:end] for leaf in part.timelines[i]))
        )
        timelines[i] = cut
        staleness = (np.arange(end)[:, None] - cut.version)[cut.clients != EMPTY]
        facts["staleness_mean"][i] = staleness.mean() if staleness.size else np.nan
        facts["staleness_max"][i] = staleness.max(initial=0)
    facts["stopped_at"] = stopped_at.copy()
    told = {name: hold(values) for name, values in part.told.items()}
    return part._replace(facts=facts, timelines=timelines, told=told)
