"""Recorded traces of the clients' work, which replace a delay law.

Dimension letters: `N` clients, `R` rows of a trace.
"""

import contextlib
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.core.settings import ConfigError, Limit, checked, shape
from fedjax_sim.core.types import Array
from fedjax_sim.timelines.delays import client_table


@checked
class Trace:
    """Recorded work of clients, in order of finish.

    What a row stands for depends on the schedule that replays it: one local step under periodic
    contacts; one update (or one round's work) of K local steps in buffered arrivals and synchronous
    rounds.

        trace = Trace(client=[0, 1, 0], start=[0.0, 0.0, 2.0], finish=[2.0, 3.0, 4.5])
        assert trace.client.tolist() == [0, 1, 0]

    Attributes:
      client: `i32[R]`, client that worked; all -1 if clients are named.
      start: `f64[R]`, virtual time at which the work began.
      finish: `f64[R]`, virtual time at which it ended.
      texts: The texts that name the clients, in the order in which they first appear; () if clients
        were given as numbers.
      text: `i32[R]`, place of each row's client in `texts`.
      rows: The row, counted from 1, in which each text first appears.
    """

    def __init__(
        self,
        client: Annotated[npt.ArrayLike, shape("R")],
        start: Annotated[npt.ArrayLike, Limit()],
        finish: Annotated[npt.ArrayLike, Limit()],
    ):
        """Check the rows and sort them by finish, and by client where finishes are equal.

        Args:
          client: Client numbers `[R]`, whole numbers from 0; or texts: names, if a table of clients
            has these, and otherwise numbers.
          start: Virtual times `[R]`, at least 0.
          finish: Virtual times `[R]`, not before the start.

        Raises:
          ConfigError: If the columns differ in length or hold values that are not allowed.
        """
        self.texts: tuple[str, ...] = ()
        self.rows: tuple[int, ...] = ()
        self._numbers: dict[str, float] = {}  # texts that are numbers
        text, named = np.zeros(0, np.int32), cast(Sequence[str], client)
        if len(named) > 0 and all(isinstance(each, str) for each in named):
            first = dict(reversed([(each, row) for row, each in enumerate(named, start=1)]))
            self.texts, self.rows = zip(*sorted(first.items(), key=lambda x: x[1]), strict=True)
            place = {each: i for i, each in enumerate(self.texts)}
            text = np.array([place[each] for each in named], np.int32)
            for each in self.texts:
                with contextlib.suppress(ValueError):
                    self._numbers[each] = float(each)
            is_numbered = len(self._numbers) == len(self.texts)
            client = [self._numbers[each] if is_numbered else -1 for each in named]
        columns = [np.asarray(client), np.asarray(start, float), np.asarray(finish, float)]
        shapes = [column.shape for column in columns]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
            allowed = "three columns (client, start, finish) of the same length, at least 1"
            raise ConfigError("trace", shapes, allowed)
        if np.any(columns[1] > columns[2]) or np.any(columns[1] < 0):
            found = "a row with finish before start, or start below 0"
            raise ConfigError("trace", found, "rows with 0 <= start <= finish")
        numbers = columns[0].astype(float) if columns[0].dtype.kind in "iuf" else np.array([np.nan])
        least = -np.inf if self.texts else 0  # Of texts, rows are named where clients are known.
        if not np.all((numbers == np.round(numbers)) & (numbers >= least) & (numbers < 2**31)):
            found = "a client that is not a whole number from 0"
            raise ConfigError("trace", found, "whole client numbers from 0")
        order = np.lexsort((columns[0], columns[2]))
        self.text = text[order] if self.texts else text
        self.client = columns[0].astype(np.int32)[order]
        self.start, self.finish = columns[1][order], columns[2][order]

    def __str__(self) -> str:
        """Describe the trace by its length and content."""
        content = repr(self.texts).encode()
        content += b"".join(x.tobytes() for x in (self.text, self.client, self.start, self.finish))
        digest = hashlib.sha256(content).hexdigest()
        return f"trace of {len(self.client)} rows, sha256 {digest[:16]}"

    def as_csv(self) -> str:
        """Write the trace as `read_trace` reads it, clients without names in a column `number`."""
        who = [self.texts[place] for place in self.text] if self.texts else self.client.tolist()
        rows = zip(who, self.start.tolist(), self.finish.tolist(), strict=True)
        header = ("client" if self.texts else "number", "start", "finish")
        return client_table.write_rows(header, rows)

    def of_clients(self, num_clients: int, names: Sequence[str] = ()) -> "Trace":
        """Return the trace with numbers of clients in place of their names.

        Args:
          num_clients: Number of clients N.
          names: The clients' names in order; () if they have none.

        Raises:
          ConfigError: If a row belongs to nobody of these clients.
        """
        if not names or not self.texts:
            self._check_numbers(num_clients)
            return self
        number = {name: i for i, name in enumerate(names)}
        for text, row in zip(self.texts, self.rows, strict=True):
            if text not in number:
                allowed = f"one of the {len(names)} names of the clients, such as {names[0]}"
                raise ConfigError(f"trace client in row {row}", text, allowed)
        numbers = np.array([number[text] for text in self.texts])
        return Trace(numbers[self.text].tolist(), self.start, self.finish)

    def of_names(self, client_names: Sequence[object]) -> "Trace":
        """Return the trace with numbers of clients in place of their names, if it has such names.

        Args:
          client_names: What the clients are called, in the order of their numbers.

        Raises:
          ConfigError: If some rows name a client, and another row does not.
        """
        names = client_table.names_as_text(client_names)
        if set(self.texts).isdisjoint(names):
            return self
        return _of_names(self, names)

    def _check_numbers(self, num_clients: int) -> None:
        """Check that all rows belong to clients below `num_clients`."""
        allowed = f"from 0 to num_clients - 1 = {num_clients - 1}"
        for text, row in zip(self.texts, self.rows, strict=True):
            if text not in self._numbers or not 0 <= self._numbers[text] < num_clients:
                allowed += ", or a name in a client_table"
                raise ConfigError(f"trace client in row {row}", text, allowed)
        if self.client.min() < 0 or self.client.max() >= num_clients:
            worst = self.client.min() if self.client.min() < 0 else self.client.max()
            raise ConfigError("trace client", int(worst), allowed)

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


@functools.lru_cache(maxsize=64)  # Equal settings must have the same object.
def _of_names(trace: Trace, names: tuple[str, ...]) -> Trace:
    return trace.of_clients(len(names), names)


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

    def durations(self, client: Array, visit: Array) -> Array:
        """Look up how long work took; after a client's last row comes its first one again.

        Args:
          client: Client numbers, `i32[...]`.
          visit: How often the client worked before, `i32[...]`.

        Returns:
          Virtual times, `f[...]`.
        """
        first = jnp.asarray(self.first)
        row = first[client] + visit % (first[client + 1] - first[client])
        return jnp.asarray(self.finish - self.start, float)[row]

    def mean_durations(self) -> np.ndarray:
        """Compute how long each client's work took on average, `f64[N]`."""
        return np.add.reduceat(self.finish - self.start, self.first[:-1]) / np.diff(self.first)


@checked
def read_trace(path: str | Path) -> Trace:
    """Read a trace from a CSV file.

        work = pd.DataFrame({"client": [0, 1], "start": [0.0, 0.0], "finish": [2.0, 3.5]})
        work.to_csv(folder / "trace.csv")
        assert read_trace(folder / "trace.csv").finish.tolist() == [2.0, 3.5]

    Args:
      path: File with a header and the columns `client`, `start` and `finish`; others are ignored,
        which one line on the error stream says. Clients are numbers from 0, or names in a table
        of clients; in a column `number` in place of `client` they are never names. A text of
        several lines is the content of such a file.

    Returns:
      The trace.

    Raises:
      ConfigError: If the file cannot be read, or holds values that are not allowed.
    """
    columns = dict.fromkeys(["client", "start", "finish", "number"])
    rows, header = client_table.read_rows("trace", path, columns)
    if not header >= {"start", "finish"} or not header & {"client", "number"}:
        allowed = "a CSV file with rows, and with columns client, start and finish"
        raise ConfigError("trace", str(path), allowed)

    def number(name: str, row: int) -> float:
        try:
            return float(rows[row][name])
        except ValueError:
            field = f"trace {name} in row {row + 1}"
            raise ConfigError(field, rows[row][name], "a number") from None

    with client_table.naming_file(path):
        times = [[number(name, row) for row in range(len(rows))] for name in ("start", "finish")]
        if "client" not in header:
            return Trace([int(number("number", row)) for row in range(len(rows))], *times)
        return Trace([row["client"] for row in rows], *times)
