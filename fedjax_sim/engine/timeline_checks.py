"""What a timeline must be, in particular that of a clock that a user wrote.

Dimension letters: those of `fedjax_sim.types`, `D` timelines.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.settings import ConfigError
from fedjax_sim.types import EMPTY, Timeline

INTEGERS = ("clients", "steps", "version", "holds")
"""Fields of a timeline that are whole numbers."""
PIECE = 2**22
"""Slots that are looked at together; so the check takes little memory."""


def check_form(found: Any) -> None:
    """Check what a timeline function returned when it was traced.

    Whole numbers may be floats, as settings are while a timeline is traced.

    Args:
      found: Shapes and dtypes of what it returned.

    Raises:
      ConfigError: If it is no `Timeline`, or a field has the wrong shape or dtype.
    """
    if not isinstance(found, Timeline):
        raise ConfigError("result of timeline", type(found).__name__, "a fedjax_sim.Timeline")
    shape = found.clients.shape
    for name, leaf in found._asdict().items():
        is_real = np.issubdtype(leaf.dtype, np.integer) or np.issubdtype(leaf.dtype, np.floating)
        if len(shape) != 2 or leaf.shape != (shape[:1] if name == "time" else shape) or not is_real:
            letter, dims = "i" if name in INTEGERS else "f", "T" if name == "time" else "T, S"
            allowed = f"{letter}[{dims}] for T ticks of S slots"
            if len(shape) == 2:
                allowed += f", here T = {shape[0]} and S = {shape[1]} by clients"
            value = f"{leaf.dtype}{list(leaf.shape)}"
            raise ConfigError(f"field {name} of the timeline", value, allowed)


def check_whole(fractions: Mapping[str, tuple[Any, Any]], num_ticks: int, num_slots: int) -> None:
    """Check that whole numbers that were drawn as floats are whole.

    Args:
      fractions: For some fields the first value of each timeline that is no whole number of 32
        bits, or 0, and its place among all slots: `[D]` each.
      num_ticks: Ticks that were asked for; what comes later does not matter.
      num_slots: Slots of a tick.

    Raises:
      ConfigError: If one is not.
    """
    for name, (values, places) in fractions.items():
        for value, place in zip(np.asarray(values), np.asarray(places), strict=True):
            tick, slot = divmod(int(place), num_slots)
            if value != 0 and tick < num_ticks:
                field = f"{name} of tick {tick} in slot {slot} of the timeline"
                raise ConfigError(field, value.item(), "a whole number of 32 bits")


def check_values(timeline: Timeline, num_ticks: int, num_clients: int) -> None:
    """Check that there are enough ticks in order, and that slots name what exists.

    Ticks that never happen or cannot be known yet may hold anything, and so may empty slots.

    Args:
      timeline: Leaves `[D, T, ...]` on the host.
      num_ticks: Ticks that were asked for.
      num_clients: Clients that slots can name.

    Raises:
      ConfigError: If ticks are missing, times go back, a client does not exist, a number of steps
        is negative, a version does not exist yet, or a weight is not finite.
    """
    num, known, slots = timeline.clients.shape
    if known < num_ticks:
        raise ConfigError(
            "number of ticks of the timeline", known, f"at least {num_ticks}, as asked"
        )
    if (goes_back := timeline.time[:, 1:] < timeline.time[:, :-1]).any():
        row, tick = np.argwhere(goes_back)[0]
        before, after = timeline.time[row, tick : tick + 2]
        raise ConfigError(f"time of tick {tick + 1}", float(after), f"at least {before}")
    rows = max(1, PIECE // max(1, num_ticks * slots))
    ticks = max(1, PIECE // max(1, rows * slots))
    for row in range(0, num, rows):
        for tick in range(0, num_ticks, ticks):
            piece = (leaf[row : row + rows, tick : tick + ticks] for leaf in timeline)
            _check_slots(Timeline(*piece), num_clients, tick)


def _check_slots(timeline: Timeline, num_clients: int, first: int) -> None:
    """Check the slots of some ticks, of which `first` is the first one's number."""
    ticks = first + np.arange(timeline.time.shape[1])[:, None]
    is_known = np.isfinite(timeline.time)[..., None]
    is_filled = is_known & (timeline.clients != EMPTY)
    largest = np.finfo("float64").max
    for name, least, most, matters in (
        ("clients", EMPTY, num_clients - 1, is_known),
        ("steps", 0, np.iinfo("int32").max, is_filled),
        ("version", 0, ticks, is_filled),
        ("holds", 0, ticks + 1, is_filled),
        ("weight", -largest, largest, is_filled),
    ):
        values = getattr(timeline, name)
        wrong = ~((least <= values) & (values <= most)) & matters
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            allowed = f"from {least} to {np.broadcast_to(most, values.shape)[place]}"
            if name == "weight":
                allowed = "finite"
            field = f"{name} of tick {first + place[1]} in slot {place[2]} of the timeline"
            raise ConfigError(field, values[place].item(), allowed)
