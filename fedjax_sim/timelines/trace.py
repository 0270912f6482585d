"""Recorded traces, which replace a delay law: who worked from when to when."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError


class Trace:
    """Recorded work, in order of finish: client `i32[R]`, start and finish `f64[R]` in virtual time.

    What a row is depends on the schedule that replays it: one local step under periodic contacts; one update (or one round's work) of
    K steps in synchronous rounds and buffered arrivals.
    """

    def __init__(self, client: Any, start: Any, finish: Any):
        columns = [np.asarray(client), np.asarray(start, float), np.asarray(finish, float)]
        shapes = [column.shape for column in columns]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
            raise ConfigError(
                "trace",
                shapes,
                "three columns (client, start, finish) of one and the same length, at least 1",
            )
        if not np.all(np.isfinite(columns[1])) or not np.all(np.isfinite(columns[2])):
            raise ConfigError("trace", "nan or inf", "finite times of start and finish")
        if np.any(columns[1] > columns[2]) or np.any(columns[1] < 0):
            raise ConfigError(
                "trace",
                "a row with finish before start, or start below 0",
                "rows with 0 <= start <= finish",
            )
        if not np.all((columns[0] == np.round(columns[0])) & (np.abs(columns[0]) < 2**31)):
            raise ConfigError(
                "trace", "a client that is not a whole number", "whole client numbers from 0"
            )
        order = np.lexsort((columns[0], columns[2]))
        self.client, self.start, self.finish = (
            columns[0].astype(np.int32)[order],
            columns[1][order],
            columns[2][order],
        )

    def check(self, num_clients: int) -> None:
        """Raise ConfigError unless all rows are of clients below num_clients."""
        if self.client.min() < 0 or self.client.max() >= num_clients:
            worst = self.client.min() if self.client.min() < 0 else self.client.max()
            raise ConfigError(
                "trace client", int(worst), f"from 0 to num_clients - 1 = {num_clients - 1}"
            )

    def by_client(self, num_clients: int) -> "ClientRows":
        """The rows grouped by client, each group in order of finish."""
        order = np.argsort(self.client, kind="stable")
        first = np.searchsorted(self.client[order], np.arange(num_clients + 1)).astype(np.int32)
        return ClientRows(first, self.start[order], self.finish[order])


class ClientRows(NamedTuple):
    """Rows of a trace grouped by client: those of client i are `first[i]:first[i + 1]`."""

    first: np.ndarray  # i32[N + 1]
    start: np.ndarray  # f64[R]
    finish: np.ndarray  # f64[R]


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a CSV file with a header that names client, start and finish."""
    try:
        with Path(path).open(newline="") as file:
            rows = list(csv.DictReader(file))
        columns = [[float(row[name]) for row in rows] for name in ("client", "start", "finish")]
    except OSError:
        raise ConfigError("trace", str(path), "the name of a readable CSV file") from None
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            "trace", str(path), "a CSV file with numbers in its columns client, start and finish"
        ) from None
    return Trace(*columns)
