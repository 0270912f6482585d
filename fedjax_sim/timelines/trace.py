"""Recorded traces of the clients' work, which replace a delay law.

Dimension letters: `N` clients, `R` rows of a trace.
"""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.settings import ConfigError


class Trace:
    """Recorded work of clients, in order of finish.

    What a row stands for depends on the schedule that replays it: one local step under periodic
    contacts; one update (or one round's work) of K local steps in buffered arrivals and synchronous
    rounds.

    Attributes:
      client: `i32[R]`, client that worked.
      start: `f64[R]`, virtual time at which the work began.
      finish: `f64[R]`, virtual time at which it ended.
    """

    def __init__(self, client: Any, start: Any, finish: Any):
        """Check the rows and sort them by finish, and by client where finishes are equal.

        Args:
          client: Client numbers `[R]`, whole numbers from 0.
          start: Virtual times `[R]`, at least 0.
          finish: Virtual times `[R]`, not before the start.

        Raises:
          ConfigError: If the columns differ in length or hold values that are not allowed.
        """
        columns = [np.asarray(client), np.asarray(start, float), np.asarray(finish, float)]
        shapes = [column.shape for column in columns]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
            raise ConfigError(
                "trace",
                shapes,
                "three columns (client, start, finish) of the same length, at least 1",
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
        """Check that all rows belong to clients below `num_clients`.

        Args:
          num_clients: Number of clients N.

        Raises:
          ConfigError: If a row does not.
        """
        if self.client.min() < 0 or self.client.max() >= num_clients:
            worst = self.client.min() if self.client.min() < 0 else self.client.max()
            raise ConfigError(
                "trace client", int(worst), f"from 0 to num_clients - 1 = {num_clients - 1}"
            )

    def by_client(self, num_clients: int) -> "ClientRows":
        """Group the rows by client, each client's in order of finish.

        Args:
          num_clients: Number of clients N.

        Returns:
          The grouped rows.
        """
        order = np.argsort(self.client, kind="stable")
        first = np.searchsorted(self.client[order], np.arange(num_clients + 1)).astype(np.int32)
        return ClientRows(first, self.start[order], self.finish[order])


class ClientRows(NamedTuple):
    """Rows of a trace, grouped by client.

    Attributes:
      first: `i32[N + 1]`; the rows of client i are `first[i]:first[i + 1]`.
      start: `f64[R]`, virtual time at which the work began.
      finish: `f64[R]`, virtual time at which it ended.
    """

    first: np.ndarray
    start: np.ndarray
    finish: np.ndarray


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a CSV file.

    Args:
      path: File whose header names the columns `client`, `start` and `finish`; other columns are
        ignored.

    Returns:
      The trace.

    Raises:
      ConfigError: If the file cannot be read, or holds values that are not allowed.
    """
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
