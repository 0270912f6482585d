"""Checks of schedules: those that timeline functions draw, and those of one's own.

Dimension letters: those of `fedjax_sim.core.types`, `D` timelines.
"""

import numpy as np

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import EMPTY, System, Timeline

INTEGERS = ("clients", "steps", "version", "holds")
"""Fields of a timeline that are whole numbers."""


PIECE = 2**22
"""Slots that are looked at together; so the check takes little memory."""


def check_form(found: object) -> None:
    """Check the shapes and dtypes of a timeline function's result, or raise a ConfigError.

    Whole numbers may be floats, as settings are while a timeline is traced.
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


def check_own(
    system: System, timeline: Timeline, num_clients: int = np.iinfo("int32").max
) -> Timeline:
    """Check a schedule of the caller's own as those that a system draws.

    Args:
      system: The system.
      timeline: Leaves `[T, ...]` on the host.
      num_clients: Clients that slots can name.

    Returns:
      The schedule, in arrays of NumPy. Slots of ticks that never happen are empty.

    Raises:
      ConfigError: As `check_form` and `check_values`, or if a time is nan or -inf.
    """
    whole = Timeline(*map(np.asarray, timeline))
    check_form(whole)
    if (is_unknown := ~(whole.time > -np.inf)).any():
        field = f"time of tick {is_unknown.argmax()} of the timeline"
        raise ConfigError(field, whole.time[is_unknown][0].item(), "a number, or inf for never")
    # Ticks that never happen are nobody's.
    clients = np.where(np.isfinite(whole.time)[:, None], whole.clients, EMPTY)
    whole = whole._replace(clients=clients)
    each = Timeline(*(leaf[None] for leaf in whole))
    check_values(system, each, len(whole.time), num_clients)
    # Empty slots may hold anything, also what is no whole number.
    is_filled = whole.clients != EMPTY
    real = [name for name in INTEGERS[1:] if np.issubdtype(getattr(whole, name).dtype, np.floating)]
    return whole._replace(**{name: np.where(is_filled, getattr(whole, name), 0) for name in real})


def check_values(
    system: System, timeline: Timeline, num_ticks: int, num_clients: int, *, least_weight: float = 0
) -> None:
    """Check that ticks are enough and in order, and clients, versions and steps in range.

    Ticks that never happen or cannot be known yet may hold anything, and so may empty slots.

    Args:
      system: The system, whose clients may have several slots of a tick or not.
      timeline: Leaves `[D, T, ...]` on the host.
      num_ticks: Ticks that were asked for.
      num_clients: Clients that slots can name.
      least_weight: The least weight of a slot. A step may make one negative.

    Raises:
      ConfigError: If anything in it is not allowed, such as a client that does not exist.
    """
    num, known, slots = timeline.clients.shape
    if known < num_ticks:
        allowed = f"at least {num_ticks}, as asked"
        raise ConfigError("number of ticks of the timeline", known, allowed)
    before = np.pad(timeline.time[:, :-1], ((0, 0), (1, 0)))
    if (is_wrong := timeline.time < before).any():
        row, tick = np.argwhere(is_wrong)[0]
        field, allowed = f"time of tick {tick} of the timeline", f"at least {before[row, tick]}"
        raise ConfigError(field, float(timeline.time[row, tick]), allowed)
    rows = max(1, PIECE // max(1, num_ticks * slots))
    ticks = max(1, PIECE // max(1, rows * slots))
    for row in range(0, num, rows):
        for tick in range(0, num_ticks, ticks):
            piece = Timeline(*(leaf[row : row + rows, tick : tick + ticks] for leaf in timeline))
            _check_slots(system, piece, num_clients, tick, least_weight)


def _check_slots(
    system: System, timeline: Timeline, num_clients: int, first: int, least_weight: float
) -> None:
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
        ("weight", least_weight, largest, is_filled),
    ):
        values, words = getattr(timeline, name), ""
        wrong = ~((least <= values) & (values <= most)) & matters
        if name in INTEGERS and values.dtype.kind == "f":
            # Whole numbers may be floats, as settings are while a timeline is traced.
            is_whole = (values == np.round(values)) & (np.abs(values) < 2**31)
            if (is_part := is_filled & ~is_whole).any():
                wrong, words = is_part, "a whole number of 32 bits"
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            allowed = words or f"from {least} to {np.broadcast_to(most, values.shape)[place]}"
            if name == "weight":
                allowed = "finite" + (" and at least 0" if least_weight == 0 else "")
            field = f"{name} of tick {first + place[1]} in slot {place[2]} of the timeline"
            raise ConfigError(field, values[place].item(), allowed)
    filled = np.where(is_known, timeline.clients, EMPTY)
    if system.can_repeat or (filled[..., 1:] > filled[..., :-1]).all():
        return
    filled = np.sort(filled, axis=-1)
    is_twice = (filled[..., 1:] == filled[..., :-1]) & (filled[..., 1:] != EMPTY)
    if is_twice.any():
        row, tick, slot = np.argwhere(is_twice)[0]
        allowed = f"in one slot, because {system.name} does not say by `can_repeat` that it takes "
        allowed += "several reports of a client in a tick"
        field = f"client {filled[row, tick, slot]} of tick {first + tick} of the timeline"
        raise ConfigError(field, "in several slots", allowed)
