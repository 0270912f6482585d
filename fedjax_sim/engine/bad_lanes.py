"""Warn of lanes that diverged or collapsed."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedjax_sim.engine.runs import lane_labels

if TYPE_CHECKING:
    import xarray as xr

NAMED = 5
"""Most lanes that a warning names."""
ROOT = str(Path(__file__).parents[1])


class LaneWarning(UserWarning):
    """Lanes of a sweep did not learn; `failed_at` and `collapsed_at` of the curves say which."""


class DivergedWarning(LaneWarning):
    """In some lanes a metric or a parameter became infinite or NaN."""


class CollapsedWarning(LaneWarning):
    """Some lanes ended at chance: they are no better than the best constant guess."""


KINDS = {
    "failed_at": (DivergedWarning, "diverged (a number was not finite)"),
    "collapsed_at": (CollapsedWarning, "ended at chance"),
}


def warn_of_lanes(curves: "xr.Dataset") -> None:
    """Warn once of all lanes that diverged, and once of all that collapsed.

    The warning points to the line outside of this package that asked for the sweep.

    Args:
      curves: The curves of a sweep.
    """
    labels = lane_labels(curves)
    for name, (kind, words) in KINDS.items():
        at = curves[name].values.ravel()
        found = np.flatnonzero(at >= 0)
        if not found.size:
            continue
        lanes = [
            ", ".join(f"{label}={value}" for label, value in labels[i].items())
            + f" from evaluation {at[i]} on"
            for i in found[:NAMED]
        ]
        more = f" and {found.size - NAMED} more" if found.size > NAMED else ""
        system = curves.attrs["system"]
        sentence = f"{found.size} of {at.size} lanes of {system} {words}: {'; '.join(lanes)}{more}."
        warnings.warn(sentence, kind, stacklevel=_frames_inside())


def _frames_inside() -> int:
    """Count the frames from the caller to the first one outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ROOT):
        frame, level = frame.f_back, level + 1
    return level
