"""Logs of a cluster: which client worked on an update, from when to when.

A log is a CSV file, or a mapping of columns such as a DataFrame, with one row for each update:

- `client`: the client's name.
- `start`, `finish`: when it began and ended, in any unit of time, from 0. An empty finish is work
  that was not finished at the end of the log, which is the latest time in it.
- `censored`: 1 if `finish` is when the work was last seen running, 0 or empty if it ended then.
- `bytes_up`, `bytes_down`: bytes that the client sent and received for the update. If they vary
  from row to row, times of messages and of work are estimated apart.
- `device`: class of the device.

Bad rows are left out and counted by kind.

Dimension letters: `N` clients, `R` rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import ConfigError, checked
from fedjax_sim.timelines.delays.client_table import number_of, read_rows, write_rows

Numbers = npt.NDArray[np.float64]
COLUMNS = ("client", "start", "finish", "censored", "bytes_up", "bytes_down", "device")


class Log(NamedTuple):
    """Rows of a log that can be used, in order of client and start.

    Attributes:
      clients: Names of the clients.
      devices: Class of each client's device; () if the log has none.
      client: `i64[R]`, number of the client.
      start: `f64[R]`, when the work began.
      time: `f64[R]`, how long it took, or has taken so far.
      done: `bool[R]`, whether it was finished.
      bits: `f64[R, 2]`, bits sent and received; 0 if the log has none.
      bad: By kind of a row that was left out: their number, and the first one, from 1.
    """

    clients: tuple[str, ...]
    devices: tuple[str, ...]
    client: npt.NDArray[np.int64]
    start: Numbers
    time: Numbers
    done: npt.NDArray[np.bool_]
    bits: Numbers
    bad: dict[str, tuple[int, int]]


@checked
def read_log(log: str | Path | Mapping[str, Sequence[object]]) -> Log:
    """Read a log, and leave out its bad rows.

        rows = {"client": ["a", "a"], "start": [0.0, 2.0], "finish": [2.0, 1.0]}
        assert read_log(rows).bad == {"finish before start": (1, 2)}

    Args:
      log: Name of a CSV file, or its columns, see this module.

    Returns:
      The good rows, and counts of the others.

    Raises:
      ConfigError: If columns are missing, or no row can be used.
    """
    if not isinstance(log, str | Path):
        lists = [list(log[name]) for name in log]
        log = write_rows(log, zip(*lists, strict=True))
    rows, header = read_rows("log", log, dict.fromkeys(COLUMNS))
    for name in COLUMNS[:3]:
        if name not in header:
            raise ConfigError("log", f"without a column {name}", "of columns " + ", ".join(COLUMNS))
    names, _, ends, *_, device = (np.array([row.get(name, "") for row in rows]) for name in COLUMNS)
    start, finish, censored, up, down = (
        np.array([number_of(row.get(name) or "0") for row in rows]) for name in COLUMNS[1:6]
    )
    ended = ends != ""
    times = np.concatenate([start, finish])
    finish[~ended] = np.max(times, where=np.isfinite(times), initial=0)
    seen = [tuple(row.get(name) for name in COLUMNS) for row in rows]
    first_place = dict(reversed([(each, i) for i, each in enumerate(seen)]))
    kinds = {
        "no client": names == "",
        "start or finish that is no number": ~np.isfinite(start + finish),
        "censored that is neither 0 nor 1": ~np.isin(censored, (0, 1)),
        "bytes that are no number from 0": ~(np.isfinite(up + down) & (up >= 0) & (down >= 0)),
        "start before 0": start < 0,
        "finish before start": finish < start,
        "no time between start and finish": (finish == start) & ended & (censored == 0),
        "the same row as before": np.array([first_place[x] < i for i, x in enumerate(seen)]),
    }
    good, bad = np.ones(len(rows), bool), {}
    for kind, found in kinds.items():
        if len(places := np.flatnonzero(found & good)):
            bad[kind] = len(places), int(places[0]) + 1
            good[places] = False
    good &= finish > start  # Work that had just begun when the log ended.
    if not good.any():
        words = "; ".join(f"{kind} (first in row {bad[kind][1]})" for kind in bad)
        raise ConfigError("log", words, "of at least one row that can be used")
    clients, first, client = np.unique(names[good], return_index=True, return_inverse=True)
    order = np.lexsort((start[good], client))
    kept, bits = np.flatnonzero(good)[order], 8 * np.stack([up, down], axis=-1)
    devices = tuple(device[good][first].tolist()) if "device" in header else ()
    time, done = (finish - start)[kept], (ended & (censored == 0))[kept]
    names_of = tuple(clients.tolist())
    return Log(names_of, devices, client[order], start[kept], time, done, bits[kept], bad)
