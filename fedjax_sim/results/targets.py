"""When runs reach a given accuracy."""

import numpy as np
import xarray as xr


def first_reach(
    curves: xr.Dataset, accuracy: float, metric: str = "accuracy", *, axis: str = "time"
) -> xr.DataArray:
    """Find where each lane's accuracy first reaches a value.

    Args:
      curves: Curves with dimension `eval`.
      accuracy: The value, between 0 and 1.
      metric: The accuracy that must reach it.
      axis: What is returned of the first evaluation that reaches it: `time`, `ticks`,
        `local_steps`, `uplink_bits` or `downlink_bits`.

    Returns:
      The value of the axis, without the dimension `eval`; infinite where a lane never reaches it.
    """
    reached = curves[metric] >= accuracy
    there = curves[axis].isel(eval=reached.argmax("eval"))
    return there.where(reached.any("eval"), np.inf).reset_coords(drop=True)


def median_reach(reached: xr.DataArray) -> float | None:
    """Return the median of `first_reach` over all lanes; None if half of the lanes never reach it.

    With an even number of lanes it is the larger of the two middle values.
    """
    values = np.sort(reached.values.ravel())
    median = float(values[len(values) // 2])
    return median if np.isfinite(median) else None
