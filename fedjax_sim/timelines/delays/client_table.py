"""Tables of clients and recorded traces, read from CSV files.

A table (`ClientTable`) has the clients' names, speeds, bandwidths, losses and hours. A trace
(`Trace`) has the clients' recorded work, which replaces a delay law.

The file of a table has a header and one row per client.
Spaces around names of columns and around cells mean nothing. Every column is optional; columns
of other names are ignored, which one line on the error stream says, and misspelt ones are refused:

- `client`: the client's name. Recorded traces may then name clients instead of numbering them. If
  the clients of the problem have names too (its `client_ids`), rows belong to clients of equal
  names, written as text, in whatever order they are: names must then be the same on both sides. If
  only one side has names, rows are the clients in the order of their numbers.
- `rate`: local steps (or updates, see `time_of`) per unit of virtual time, above 0.
- `time_of`: "step" or "update" in all rows, what `rate` counts. Settings whose `delays.time_of`
  differs are then refused. Tables that were fitted to a log have it.
- `spread`: spread of running times relative to their mean, from 0; an empty cell is 0.
- `up`, `down`: bits that the client sends and receives per unit of virtual time, above 0. A message
  takes its number of bits divided by this; an empty cell is a connection that takes no time.
- `drop_rate`: share of the client's finished updates that never reach the server, from 0 to 0.99.
- `available`: windows of time in which the client can work, such as `0-480 1200-1440`. An empty
  cell is a client that always can.
- `energy_step`, `energy_byte`: energy that a local step takes, and a byte that is sent or received,
  in any unit, from 0; an empty cell is 0. Curves then have the coordinate `energy`.
- `period`: time after which the windows repeat. An empty cell stands for the end of the last window
  of all clients.

For example:

    client,rate,up,down,drop_rate,available,period
    phone 1,0.5,2e6,8e6,0.05,0-480 1200-1440,1440
    tablet,0.25,1e7,4e7,,,

A public trace of devices is converted with a few lines. FedScale's `client_device_capacity` holds,
for each device, milliseconds of inference per example and kilobits per second (training is counted
three times), and its `client_behave_trace` the seconds at which it becomes active and inactive in
a period of `finish_time`:

    import csv
    import pickle

    def convert(capacity_file, behaviour_file, csv_file, batch_size):
        capacity = pickle.load(open(capacity_file, "rb"))
        behaviour = pickle.load(open(behaviour_file, "rb"))
        with open(csv_file, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["client", "rate", "up", "down", "available", "period"])
            for (name, device), hours in zip(capacity.items(), behaviour.values()):
                rate = 1e3 / (3 * device["computation"] * batch_size)
                bits = 1e3 * device["communication"]
                windows = zip(hours["active"], hours["inactive"])
                text = " ".join(f"{begin}-{end}" for begin, end in windows if end > begin)
                if text:  # a device that is never active takes no part
                    table.writerow([name, rate, bits, bits, text, hours["finish_time"]])

A unit of virtual time is then a second, and a local step a mini-batch of `batch_size` examples.

Dimension letters: `N` clients, `W` windows of all clients, `R` rows of a trace.
"""

import contextlib
import copy
import csv
import difflib
import functools
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_sim.core.lifecycle import nearest, say
from fedjax_sim.core.settings import ConfigError, Limit, check_file, checked, shape
from fedjax_sim.core.types import Array

NUMBERS = ("rate", "spread", "up", "down", "drop_rate", "energy_step", "energy_byte")
"""Columns with a number for each client, which may vary between lanes of one program."""
Windows = Sequence[tuple[float, float]]
"""Beginnings and ends of one client's windows, in order, in units of virtual time."""


class ClientWindows(NamedTuple):
    """Windows of availability, grouped by client; equal windows are parts of the same programs.

    Attributes:
      first: `i32[N + 1]`; the windows of client i are `first[i]:first[i + 1]`, at least one.
      begin: `f64[W]`, virtual time at which the window begins, from the start of a period.
      end: `f64[W]`, virtual time at which it ends.
      period: `f64[N]`, time after which a client's windows repeat.
    """

    first: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    period: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientWindows) and all(map(np.array_equal, self, other))

    def __hash__(self) -> int:
        return hash(self.begin.tobytes())


@checked
@jax.tree_util.register_pytree_with_keys_class
class ClientTable:
    """Facts of individual clients, instead of two groups of fast and slow ones.

    Tables with the same columns, names and windows share a compiled program. In a program, columns
    may be traced.

        table = ClientTable(rate=[1.0, 0.5, 0.1], names=["phone", "tablet", "watch"])
        hyper = fedavg.Hyper(num_clients=3, num_selected=2, client_table=table, server_interact=0.5)

    Attributes:
      size: Number of clients N.
      names: The clients' names; () if they have none.
      rate: `f64[N]`, local steps (or updates) per unit of virtual time; None if speeds are not
        from the table.
      spread: `f64[N]`, spread relative to the mean time, at least 0.
      up: `f64[N]`, bits sent per unit of virtual time; None if messages take no time.
      down: `f64[N]`, bits received per unit of virtual time; None if messages take no time.
      drop_rate: `f64[N]`, share of updates that are lost; None if that is not from the table.
      energy_step: `f64[N]`, energy of a local step; None if energy is not counted.
      energy_byte: `f64[N]`, energy of a byte that is sent or received; None likewise.
      windows: When clients are available; None if that is not from the table.
      time_of: What rates count, "step" or "update"; None if the table does not say.
    """

    def __init__(
        self,
        rate: npt.ArrayLike | None = None,
        spread: npt.ArrayLike = 0.0,
        *,
        names: Sequence[str] = (),
        up: npt.ArrayLike | None = None,
        down: npt.ArrayLike | None = None,
        drop_rate: npt.ArrayLike | None = None,
        energy_step: npt.ArrayLike | None = None,
        energy_byte: npt.ArrayLike | None = None,
        available: Sequence[Windows] | None = None,
        period: npt.ArrayLike | None = None,
        time_of: Literal["step", "update"] | None = None,
    ):
        """Check and keep the columns. At least one of them gives the number of clients.

        Args:
          rate: Rates of the clients, `[N]`, above 0.
          spread: Spreads of the clients, `[N]`, or one number for all, at least 0.
          names: Different names of the clients.
          up: Bits per unit of time, `[N]`, above 0; inf for messages that take no time.
          down: The same for what the client receives.
          drop_rate: Shares of lost updates, `[N]`, from 0 to 0.99.
          energy_step: Energy of a local step, `[N]`, at least 0.
          energy_byte: Energy of a byte that is sent or received, `[N]`, at least 0.
          available: Windows of each client; none for a client that is always available.
          period: Time after which windows repeat, `[N]` or one number; None for the latest end.
          time_of: What rates count; None if the settings' `delays.time_of` decides.

        Raises:
          ConfigError: If a value is not allowed, or the columns differ in length.
        """
        columns = {"rate": rate, "up": up, "down": down, "drop_rate": drop_rate}
        columns |= {"energy_step": energy_step, "energy_byte": energy_byte}
        sizes = {name: np.shape(column) for name, column in columns.items() if column is not None}
        lists = {"client": names if len(names) else None, "available": available}
        sizes |= {name: (len(each),) for name, each in lists.items() if each is not None}
        if len(set(sizes.values())) != 1 or len(shape := next(iter(sizes.values()))) != 1:
            words = "one value per client in every column, and at least one column"
            raise ConfigError("client_table", f"columns of {sizes or 'no'} values", words)
        if shape[0] == 0:
            raise ConfigError("client_table", "without rows", "one row per client")
        (self.size,) = shape
        self.names, self.time_of = tuple(names), time_of
        first = {name: row for row, name in reversed([*enumerate(self.names)])}
        for row, name in enumerate(self.names):
            if not name or first[name] < row:
                raise _bad_cell("client", row, name, "a name, different from the others")
        self.rate, self.up, self.down, self.drop_rate, self.energy_step, self.energy_byte = (
            None if column is None else _checked_column(name, column)
            for name, column in columns.items()
        )
        spreads = np.asarray(spread)
        if spreads.shape not in ((), shape):
            words = "one number, or one per client, from 0"
            raise ConfigError("client_table spread", f"of {spreads.size} numbers", words)
        self.spread = _checked_column("spread", np.broadcast_to(spreads, shape))
        if rate is None and self.spread.any():
            raise ConfigError("client_table spread", "given", "left out without rate")
        self.windows = None if available is None else self._windows(available, period)
        if available is None and period is not None:
            raise ConfigError("client_table period", "given", "left out without windows")

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        """Give JAX the columns of numbers by name, and the facts that are static in programs."""
        keys = map(jax.tree_util.GetAttrKey, NUMBERS)
        columns = [(key, getattr(self, key.name)) for key in keys]
        return columns, (self.size, self.names, self.time_of, self.windows)

    @classmethod
    def tree_unflatten(cls, facts: tuple[Any, ...], columns: Iterable[Any]) -> "ClientTable":
        """Make a table of such parts, without checks.

        Args:
          facts: Number of clients, their names, what rates count, and windows.
          columns: The columns in the order of `NUMBERS`.

        Returns:
          The table.
        """
        made = object.__new__(cls)
        made.size, made.names, made.time_of, made.windows = facts
        vars(made).update(zip(NUMBERS, columns, strict=True))
        return made

    def __str__(self) -> str:
        """Describe the table by its size and content."""
        digest = hashlib.sha256(self.as_csv().encode()).hexdigest()
        return f"table of {self.size} clients, sha256 {digest[:16]}"

    def as_csv(self) -> str:
        """Write the table as `read_client_table` reads it."""
        columns: dict[str, npt.ArrayLike | None] = {"client": self.names or None}
        columns |= {name: getattr(self, name, None) for name in _COLUMNS}
        columns |= {"time_of": self.time_of and [self.time_of] * self.size}
        if self.windows is not None:
            first, begin, end, period = self.windows
            # Without exponents, whose sign might be that between begin and end.
            words = [
                "-".join(np.format_float_positional(x, trim="-") for x in pair)
                for pair in zip(begin, end, strict=True)
            ]
            columns["available"] = [" ".join(words[i:j]) for i, j in itertools.pairwise(first)]
            columns["period"] = period
        known = {name: column for name, column in columns.items() if column is not None}
        cells = (np.asarray(column).tolist() for column in known.values())
        return write_rows(known, zip(*cells, strict=True))

    @property
    def has_bandwidth(self) -> bool:
        """Whether messages take time."""
        return self.up is not None or self.down is not None

    @property
    def counts_energy(self) -> bool:
        """Whether the table has the energy of steps or bytes."""
        return self.energy_step is not None or self.energy_byte is not None

    @property
    def has_times(self) -> bool:
        """Whether a column is in units of time, or per unit."""
        return self.rate is not None or self.has_bandwidth or self.windows is not None

    def _windows(self, available: Sequence[Windows], period: npt.ArrayLike | None) -> ClientWindows:
        """Check windows and periods, and group the windows by client."""
        latest = max((end for windows in available for _, end in windows), default=1.0)
        given = np.asarray(latest if period is None else period, object)
        if given.shape not in ((), (self.size,)):
            words = "one number, or one per client, above 0"
            raise ConfigError("client_table period", f"of {given.size} numbers", words)
        texts = [latest if each is _LATEST else each for each in given.ravel().tolist()]
        periods = np.broadcast_to(_checked_column("period", texts), (self.size,))
        all_windows = []
        for row, windows in enumerate(available):
            ends = [0.0, *(end for _, end in windows)]
            pairs = zip(ends[:-1], windows, strict=True)
            in_order = all(before <= begin < end for before, (begin, end) in pairs)
            if not in_order or ends[-1] > periods[row]:
                text = " ".join(f"{begin:g}-{end:g}" for begin, end in windows)
                allowed = f"windows in order, from 0 to the period {periods[row]:g}"
                raise _bad_cell("available", row, text, allowed)
            all_windows.append(windows or [(0.0, float(periods[row]))])
        first = np.cumsum([0, *(len(windows) for windows in all_windows)])
        flat = np.array([window for windows in all_windows for window in windows], float)
        return ClientWindows(first.astype(np.int32), flat[:, 0], flat[:, 1], periods)


def names_as_text(names: Sequence[object]) -> tuple[str, ...]:
    """Write the names of clients as files have them.

    Args:
      names: Different names of any kind.

    Raises:
      ConfigError: If two names are the same text, such as 1 and "1".
    """
    texts = tuple(str(name).strip() for name in names)
    if len(set(texts)) < len(texts):
        twice = next(text for i, text in enumerate(texts) if text in texts[:i])
        allowed = "the text of one client, as a table or a trace names clients by texts"
        raise ConfigError("name of two clients of the problem", twice, allowed)
    return texts


@functools.lru_cache(maxsize=64)  # Equal settings must have the same object.
def in_order_of(table: ClientTable, names: tuple[str, ...]) -> ClientTable:
    """Return the rows of a table with names in the order of these."""
    if table.names == names:
        return table
    row, number = ({name: i for i, name in enumerate(each)} for each in (table.names, names))
    for name in table.names:
        if name not in number:
            allowed = f"a name of one of the {len(names)} clients of the problem, such as "
            allowed += f"{names[0]!r}{nearest(name, names)}"
            raise _bad_cell("client", row[name], name, allowed)
    for name in names:
        if name not in row:
            allowed = "one row for each client of the problem"
            raise ConfigError("client_table client", f"without {name}", allowed)
    order, made = np.array([row[name] for name in names]), copy.copy(table)
    made.names = names
    for name in NUMBERS:
        column = getattr(table, name)
        setattr(made, name, None if column is None else column[order])
    if table.windows is not None:
        first, begin, end, period = table.windows
        held = [np.arange(first[i], first[i + 1]) for i in order]
        rows = np.concatenate(held)
        firsts = np.cumsum([0, *map(len, held)]).astype(np.int32)
        made.windows = ClientWindows(firsts, begin[rows], end[rows], period[order])
    return made


@checked
def read_client_table(path: str | Path) -> ClientTable:
    """Read a table of clients from a CSV file, see this module.

        clients = pd.DataFrame({"client": ["phone", "watch"], "rate": [1.0, 0.1]})
        clients.to_csv(folder / "clients.csv")
        assert read_client_table(folder / "clients.csv").rate.tolist() == [1.0, 0.1]

    Returns:
      The table of clients.

    Raises:
      ConfigError: If the file cannot be read, or holds values that are not allowed; the sentence
        names the row, counted from 1 without the header, and the value.
    """
    known = dict.fromkeys(["client", "available", "time_of", *_COLUMNS])
    rows, header = read_rows("client_table", path, known)
    units: set[Any] = {row.get("time_of") or None for row in rows}
    with naming_file(path):
        if units - {None, "step", "update"} or len(units) > 1:
            found = ", ".join(sorted(unit or "nothing" for unit in units))
            raise ConfigError("client_table time_of", found, "step in all rows, or update in all")
        columns: dict[str, Any] = {
            name: read_column(f"client_table {name}", rows, name, _read_number, column.if_empty)
            for name, column in _COLUMNS.items()
            if name in header
        }
        if (name := "available") in header:
            columns[name] = read_column(f"client_table {name}", rows, name, _read_windows, [])
        names = [values["client"] for values in rows] if "client" in header else ()
        return ClientTable(**columns, names=names, time_of=units.pop())


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
      names: The text that names the client of each row; () if clients were given as numbers.
      row: `i64[R]`, where each row was given, counted from 1.
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
        given = cast(Sequence[str], client)
        is_text = len(given) > 0 and all(isinstance(each, str) for each in given)
        if is_text:
            numbers = list(map(number_of, given))
            client = [-1] * len(given) if np.isnan(numbers).any() else numbers
        columns = [np.asarray(client), np.asarray(start, float), np.asarray(finish, float)]
        shapes = [column.shape for column in columns]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
            allowed = "three columns (client, start, finish) of the same length, at least 1"
            raise ConfigError("trace", shapes, allowed)
        if np.any(columns[1] > columns[2]) or np.any(columns[1] < 0):
            found = "a row with finish before start, or start below 0"
            raise ConfigError("trace", found, "rows with 0 <= start <= finish")
        who = columns[0].astype(float) if columns[0].dtype.kind in "iuf" else np.array([np.nan])
        least = -np.inf if is_text else 0  # Of texts, rows are named where clients are known.
        if not np.all((who == np.round(who)) & (who >= least) & (who < 2**31)):
            found = "a client that is not a whole number from 0"
            raise ConfigError("trace", found, "whole client numbers from 0")
        order = np.lexsort((columns[0], columns[2]))
        self.names = tuple(given[i] for i in order) if is_text else ()
        self.row = order + 1
        self.client = columns[0].astype(np.int32)[order]
        self.start, self.finish = columns[1][order], columns[2][order]

    def __str__(self) -> str:
        """Describe the trace by its length and content."""
        digest = hashlib.sha256(self.as_csv().encode()).hexdigest()
        return f"trace of {len(self.client)} rows, sha256 {digest[:16]}"

    def as_csv(self) -> str:
        """Write the trace as `read_trace` reads it, clients without names in a column `number`."""
        who = self.names or self.client.tolist()
        rows = zip(who, self.start.tolist(), self.finish.tolist(), strict=True)
        return write_rows(("client" if self.names else "number", "start", "finish"), rows)

    def of_clients(self, num_clients: int, names: Sequence[str] = ()) -> "Trace":
        """Return the trace with numbers of clients in place of their names.

        Args:
          num_clients: Number of clients N.
          names: The clients' names in order; () if they have none.

        Raises:
          ConfigError: If a row belongs to nobody of these clients.
        """
        found: Sequence[float] = self.client.tolist()
        allowed = f"from 0 to num_clients - 1 = {num_clients - 1}"
        if self.names and names:
            number = {name: float(i) for i, name in enumerate(names)}
            found = [number.get(name, np.nan) for name in self.names]
            allowed = f"one of the {len(names)} names of the clients, such as {names[0]}"
        elif self.names:
            found = list(map(number_of, self.names))
            allowed += ", or a name in a client_table"
        wrong = [i for i, n in enumerate(found) if not 0 <= n < num_clients]
        if wrong and self.names:
            first = min(wrong, key=self.row.__getitem__)
            raise ConfigError(f"trace client in row {self.row[first]}", self.names[first], allowed)
        if wrong:
            least, most = int(self.client.min()), int(self.client.max())
            raise ConfigError("trace client", least if least < 0 else most, allowed)
        if not (self.names and names):
            return self
        return Trace(found, self.start, self.finish)

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


def number_of(text: str) -> float:
    """Read a number; nan from other texts."""
    try:
        return float(text)
    except ValueError:
        return np.nan


@functools.lru_cache(maxsize=64)  # Equal settings must have the same object.
def of_names(trace: Trace, names: tuple[str, ...]) -> Trace:
    """Return a trace with numbers of clients in place of their names, if it has such names."""
    return trace if set(trace.names).isdisjoint(names) else trace.of_clients(len(names), names)


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
    rows, header = read_rows("trace", path, columns)
    if not header >= {"start", "finish"} or not header & {"client", "number"}:
        allowed = "a CSV file with rows, and with columns client, start and finish"
        raise ConfigError("trace", str(path), allowed)

    with naming_file(path):
        times = (read_column(f"trace {name}", rows, name, float) for name in ("start", "finish"))
        if "client" in header:
            return Trace([row["client"] for row in rows], *times)
        return Trace(read_column("trace number", rows, "number", float), *times)


def write_rows(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a CSV file as text.

    Args:
      header: Names of the columns.
      rows: Cells of the rows.
    """
    writer = csv.writer(text := io.StringIO())
    writer.writerows([header, *rows])
    return text.getvalue()


def read_rows(
    name: str, path: str | Path, columns: dict[str, None]
) -> tuple[list[dict[str, str]], set[str]]:
    """Read a CSV file with a header. Spaces around its cells are left out.

    Args:
      name: What the file is, in errors.
      columns: Names of the columns that have a meaning, in the order in which errors list them.

    Returns:
      The rows, as texts by column, and which of the columns there are.

    Others are ignored, which one line on the error stream says.

    Raises:
      ConfigError: If the file cannot be read, has no rows, has such a column twice or misspelt, or
        has a row of another number of cells than its header, as with decimal commas.
    """
    is_text = isinstance(path, str) and "\n" in path
    if not is_text:
        check_file(name, path)
    try:
        text = str(path) if is_text else Path(path).read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
        lines = [[cell.strip() for cell in row] for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error):
        raise ConfigError(name, str(path), "the name of a readable CSV file") from None
    header, rows = lines[0] if lines else [], lines[1:]
    absent = {column: column for column in columns if column not in header}
    others = []
    with naming_file(path):
        for column in header:
            if column in columns and header.count(column) > 1:
                raise ConfigError(f"{name} column {column}", "there twice", "there once")
            plain = re.sub(r"[\s-]+", "_", column).casefold()
            if column not in columns and difflib.get_close_matches(plain, absent, cutoff=0.8):
                allowed = "one of " + ", ".join(columns)
                raise ConfigError(f"{name} column", column, allowed, absent)
            if column and column not in columns:  # The index of a DataFrame has no name.
                others.append(column)
        if len(absent) == len(columns):
            allowed = "a CSV file with a header, of which some columns are " + ", ".join(columns)
            raise ConfigError(name, ", ".join(header), allowed)
        if not rows:
            raise ConfigError(name, "without rows", "a header and one row or more")
        for number, row in enumerate(rows, start=1):
            if any(row[len(header) :]):
                cells = f"of {len(row)} cells"
                raise ConfigError(f"{name} row {number}", cells, f"of {len(header)}, as the header")
    if others:
        say(f"columns of {name} {path} that are ignored: {', '.join(dict.fromkeys(others))}.")
    texts = [dict(zip(header, row + [""] * len(header), strict=False)) for row in rows]
    return texts, columns.keys() - absent


@contextlib.contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Begin the sentences of errors with the name of the file that has the bad cell.

    Args:
      path: The file.
    """
    try:
        yield
    except ConfigError as error:
        field, value, allowed = error.parts
        place = str(path).partition("\n")[0]
        sentence = ConfigError.__new__(ConfigError, f"{place}: {error}")
        sentence.parts = f"{place}: {field}", value, allowed
        raise sentence from None


_LATEST = ""
"""In a column of periods: the end of the last window of all clients."""


class _Column(NamedTuple):
    if_empty: Any  # What an empty cell stands for; None if it may not be empty.
    allowed: str
    accepts: Callable[[np.ndarray], np.ndarray]


_LEAST, _MOST = (float(each) for each in (np.finfo("float32").tiny, np.finfo("float32").max))
_RANGE = f"from {_LEAST:.2g} to {_MOST:.2g}, as a float32 can hold it"


def _in_range(x: np.ndarray) -> np.ndarray:
    return (x >= _LEAST) & (x <= _MOST)


_ABOVE_0 = f"a finite number above 0, {_RANGE}", _in_range
_FROM_0 = f"a finite number of at least 0, and 0 or {_RANGE}", lambda x: (x == 0) | _in_range(x)
_SPEED = f"a number above 0, inf or {_RANGE}", lambda x: (x == np.inf) | _in_range(x)
_COLUMNS = {
    "rate": _Column(None, *_ABOVE_0),
    "spread": _Column(0.0, *_FROM_0),
    "up": _Column(np.inf, *_SPEED),
    "down": _Column(np.inf, *_SPEED),
    "drop_rate": _Column(0.0, "from 0 to 0.99", lambda x: (x >= 0) & (x <= 0.99)),
    "energy_step": _Column(0.0, *_FROM_0),
    "energy_byte": _Column(0.0, *_FROM_0),
    "period": _Column(_LATEST, *_ABOVE_0),
}
"""Columns of numbers."""


def _checked_column(name: str, values: npt.ArrayLike) -> np.ndarray:
    """Check a column of numbers."""
    try:
        column = np.array(values, float)
    except (TypeError, ValueError):
        raise ConfigError(f"client_table {name}", values, "numbers") from None
    bad = np.flatnonzero(~_COLUMNS[name].accepts(column))
    if bad.size:
        raise _bad_cell(name, int(bad[0]), float(column[bad[0]]), _COLUMNS[name].allowed)
    return column


def _read_number(text: str) -> float:
    """Read a number; nan is none."""
    if np.isnan(number := float(text)):
        raise ValueError(text)
    return number


def _read_windows(text: str) -> list[tuple[float, float]]:
    """Read windows such as "0-480 1200-1440"."""
    pairs = [word.split("-") for word in text.split()]
    return [(_read_number(begin), _read_number(end)) for begin, end in pairs]


def read_column(
    field: str,
    rows: Sequence[Mapping[str, str]],
    name: str,
    read: Callable[[str], Any],
    if_empty: Any = None,
) -> list[Any]:
    """Read the cells of a column.

    Args:
      field: What the column is in errors.
      rows: The rows of the file, as `read_rows` returns them.
      name: Name of the column.
      read: From a text to a value; raises ValueError for others.
      if_empty: What an empty cell stands for; None if it may not be empty.

    Raises:
      ConfigError: If a cell cannot be read.
    """
    allowed = "windows such as 0-480 1200-1440" if read is _read_windows else "a number"
    found = []
    for row, cells in enumerate(rows, start=1):
        try:
            is_empty = not cells[name] and if_empty is not None
            found.append(if_empty if is_empty else read(cells[name]))
        except ValueError:
            raise ConfigError(f"{field} in row {row}", cells[name], allowed) from None
    return found


def _bad_cell(name: str, row: int, value: object, allowed: str) -> ConfigError:
    """Make the error of one cell, with the row counted from 1."""
    return ConfigError(f"client_table {name} in row {row + 1}", value, allowed)
