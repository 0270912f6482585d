"""Clients and a delay law from a log of a cluster: which device worked, from when to when.

Each client has its own rate and spread, and all have one law. Their uncertainty is a sample from
the posterior law under the prior 1 / scale, for which intervals of laws with a location and a scale
have exact coverage without censored rows. Normal and log-normal laws are sampled around the maximum
of the likelihood, uniform and shifted exponential ones from their smallest and largest rows, both
with importance weights; the other two in closed form.

The law is the one with the highest cross-validated likelihood: five times, four fifths of each
client's rows predict the others. "runtime_geom" takes part if all times are whole numbers, and
"runtime_constant" is chosen if each client always takes the same time. "count_geom" has the running
times of "runtime_geom", so that no log tells them apart.

A log is a CSV file, or a mapping of columns such as a DataFrame, with one row for each update:

- `client`: the client's name.
- `start`, `finish`: when it began and ended, in any unit of time, from 0. An empty finish is work
  that was not finished at the end of the log, which is the latest time in its good rows.
- `censored`: 1 if `finish` is when the work was last seen running, 0 or empty if it ended then.
- `bytes_up`, `bytes_down`: bytes that the client sent and received for the update. If they vary
  from row to row, times of messages and of work are estimated apart.
- `device`: class of the device.

Bad rows are left out and counted by kind.

Dimension letters: `N` clients, `R` rows, `D` draws.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from fedjax_sim.core.settings import ConfigError, Count, checked
from fedjax_sim.timelines.delays.client_table import ClientTable, number_of, read_rows, write_rows
from fedjax_sim.timelines.delays.laws import LAWS, ClientDelays

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.float64]
COLUMNS = ("client", "start", "finish", "censored", "bytes_up", "bytes_down", "device")
LEAST_ROWS = 10
"""Finished rows that a client needs."""
NUM_DRAWS, NUM_FOLDS, MOST_CLIENTS = 1000, 5, 100
"""Draws from the posterior law; folds of rows, and clients, that choose the law."""


Rng = np.random.Generator
Rows = npt.NDArray[np.bool_]
Standard = Callable[[Numbers], Numbers]
Draws = tuple[Numbers, Numbers, Numbers | None]
"""Draws of a location and a scale, `f64[D]` each, with log densities; None for exact draws."""
Proposal = Callable[[Numbers, Rows, Numbers], Draws]


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
def read_log(log: "str | Path | Mapping[str, Sequence[object]] | pd.DataFrame") -> Log:
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
        # What a DataFrame lacks (nan, NA), which equals nothing, is an empty cell as in a file.
        lists = [[x if str(x == x) == "True" else "" for x in log[name]] for name in log]
        log = write_rows(log, zip(*lists, strict=True))
    rows, header = read_rows("log", log, dict.fromkeys(COLUMNS))
    for name in COLUMNS[:3]:
        if name not in header:
            raise ConfigError("log", f"without a column {name}", "of columns " + ", ".join(COLUMNS))
    names, _, ends, *_, device = (np.array([row.get(name, "") for row in rows]) for name in COLUMNS)
    start, finish, censored, up, down = (
        np.array([number_of(row.get(name) or ("0" if name != "start" else "")) for row in rows])
        for name in COLUMNS[1:6]
    )
    ended = ends != ""
    finish[~ended] = start[~ended]
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
    # The end of the log is not that of a bad row, whose times may be wrong.
    finish[~ended] = np.max([start, finish], where=good, initial=0)
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


class Shape(NamedTuple):
    """A delay law as a location and a scale, of times or of their logarithms.

    Attributes:
      of_log: Whether logarithms of times have the law.
      density: Log density of a standard number.
      survival: Log probability of more than a standard number.
      propose: Draws given numbers, whether they were seen in full, and points of the unit square,
        `f64[2, D]`.
      speeds: Rate and spread of a location and a scale.
    """

    of_log: bool
    density: Standard
    survival: Standard
    propose: Proposal
    speeds: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]

    def log_likelihood(self, time: Numbers, done: Rows, loc: Numbers, scale: Numbers) -> Numbers:
        """Log density of finished times, and log probability of longer ones, `f64[D, R]`."""
        loc, scale = loc[:, None], scale[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if self is SHAPES["runtime_geom"]:
                fails = np.floor(time) - done
                return np.where(fails > 0, fails * np.log1p(-1 / scale), 0.0) - done * np.log(scale)
            x, factor = (np.log(time), time) if self.of_log else (time, 1.0)
            z = (x - loc) / scale
            return np.where(done, self.density(z) - np.log(scale * factor), self.survival(z))

    def chance(self, time: Numbers, done: Rows, loc: Numbers, scale: Numbers) -> Numbers:
        """Density of finished times, and probability of longer ones, over all draws: `f64[R]`."""
        return np.exp(self.log_likelihood(time, done, loc, scale)).mean(axis=0)


def _propose_normal(x: Numbers, done: Rows, u: Numbers) -> Draws:
    """Draw around the maximum of a likelihood with censored numbers, found by Newton's method."""
    at = np.array([x.mean(), np.log(x[done].std())])
    for _ in range(30):
        scale = np.exp(at[1])
        z = (x - at[0]) / scale
        hazard = np.exp(-(z**2) / 2 - scipy.special.log_ndtr(-z)) / np.sqrt(2 * np.pi)
        slope = np.where(done, z, hazard)
        bend = np.where(done, 1.0, hazard * (hazard - z))
        gradient = np.sum([slope / scale, slope * z - done], axis=1)
        cross = (bend * z + slope) / scale
        hessian = -np.sum([[bend / scale**2, cross], [cross, z * cross * scale]], axis=2)
        values, vectors = np.linalg.eigh(-hessian)
        step = vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(values), 1e-12))
        at += step / max(1.0, np.abs(step / [scale, 1.0]).max())
    freedom, root = 5.0, vectors / np.sqrt(np.maximum(np.abs(values), 1e-12))
    standard = scipy.special.stdtrit(freedom, u.T)
    loc, log_scale = (at + standard @ root.T).T
    log_density = -(freedom + 1) / 2 * np.log1p(standard**2 / freedom).sum(axis=1)
    return (loc, np.exp(log_scale), log_density - log_scale)


def _propose_shifted(x: Numbers, done: Rows, u: Numbers) -> Draws:
    least, count = x[done].min(), done.sum() - 1
    above = x[x >= least] - least
    scale, below = above.sum() / scipy.special.gammaincinv(count, u[0]), -np.log(u[1])
    density = -(count + 2) * np.log(scale) - above.sum() / scale - below
    return (least - below * scale / len(above), scale, density)


def _propose_uniform(x: Numbers, done: Rows, u: Numbers) -> Draws:
    width = np.ptp(x) / done.sum()
    below, above = -width * np.log(u[0]), 3 * width * (u[1] ** -0.5 - 1)
    density = -below / width - 3 * np.log1p(above / (3 * width))
    low, high = x[done].min() - below, x.max() + above
    return ((low + high) / 2, (high - low) / 2, density)


def _propose_exponential(x: Numbers, done: Rows, u: Numbers) -> Draws:
    return (0 * u[0], x.sum() / scipy.special.gammaincinv(done.sum(), u[0]), None)


def _propose_geometric(x: Numbers, done: Rows, u: Numbers) -> Draws:
    fails = np.sum(np.floor(x) - done)
    return (0 * u[0], 1 / scipy.special.betaincinv(done.sum(), fails + 0.5, u[0]), None)


_NORMAL: tuple[Standard, Standard, Proposal] = (
    lambda z: -(z**2) / 2 - np.log(2 * np.pi) / 2,
    lambda z: scipy.special.log_ndtr(-z),
    _propose_normal,
)
_EXPONENTIAL: tuple[Standard, Standard] = (
    lambda z: np.where(z >= 0, -z, -np.inf),
    lambda z: -np.maximum(z, 0),
)
_UNIFORM: tuple[Standard, Standard, Proposal] = (
    lambda z: np.where(np.abs(z) <= 1, -np.log(2), -np.inf),
    lambda z: np.log((1 - np.clip(z, -1, 1)) / 2),
    _propose_uniform,
)
SHAPES = {
    "runtime_exp": Shape(False, *_EXPONENTIAL, _propose_exponential, lambda a, b: (1 / b, 0 * b)),
    "runtime_geom": Shape(False, *_EXPONENTIAL, _propose_geometric, lambda a, b: (1 / b, 0 * b)),
    "runtime_normal": Shape(False, *_NORMAL, lambda a, b: (1 / a, b / a)),
    "runtime_lognormal": Shape(True, *_NORMAL, lambda a, b: (np.exp(-a - b**2 / 2), b)),
    "runtime_shifted_exp": Shape(
        False, *_EXPONENTIAL, _propose_shifted, lambda a, b: (1 / (a + b), b / (a + b))
    ),
    "runtime_pareto": Shape(
        True, *_EXPONENTIAL, _propose_shifted, lambda a, b: ((1 - b) * np.exp(-a), b)
    ),
    "runtime_uniform": Shape(False, *_UNIFORM, lambda a, b: (1 / a, b / a)),
}
"""Laws that are fitted, by name in `LAWS`."""


def _fit(law: str, time: Numbers, done: Rows, rng: Rng, num: int) -> tuple[Numbers, Numbers] | None:
    """Draw locations and scales of one client; None if the law's settings do not allow them."""
    if len(np.unique(time[done])) < 2:
        return None
    shape, most = SHAPES[law], {"at most 1": 1.0, "below 1": 1 - 1e-6}
    # Evenly spread points (the R2 sequence), as random ones would make the intervals noisy.
    points = rng.random((2, 1)) + np.outer([0.7548776662466927, 0.5698402909980532], range(num))
    points = np.clip(points % 1, 1e-12, 1 - 1e-12)
    loc, scale, density = shape.propose(np.log(time) if shape.of_log else time, done, points)
    rate, spread = shape.speeds(loc, scale)
    allowed = (rate > 0) & np.isfinite(rate) & (spread <= most.get(LAWS[law].spreads, np.inf))
    log_weight = np.where(allowed, 0.0, -np.inf)
    if density is not None:
        likelihood = shape.log_likelihood(time, done, loc, scale).sum(axis=1)
        log_weight += likelihood - np.log(scale) - density
    weight = np.exp(log_weight - max(log_weight.max(), np.finfo(float).min))
    if not weight.sum() > 0 or allowed.mean() < 0.01:
        return None
    order = np.argsort(rate)
    below = np.cumsum(weight[order]) / weight.sum()
    kept = order[np.searchsorted(below, (np.arange(num) + 0.5) / num)]
    kept = rng.permutation(kept)
    return loc[kept], scale[kept]


class Score(NamedTuple):
    """How well a law predicts rows that it was not fitted to.

    Attributes:
      score: Mean log likelihood of a row.
      behind: How much it is below that of the chosen law.
      error: Standard error of that.
    """

    score: float
    behind: float
    error: float


@dataclass(frozen=True, eq=False)
class Calibration:
    """Clients and a delay law that were fitted to a log.

    Attributes:
      log: The rows that were used, with times of messages taken off.
      law: Name of the law.
      scores: How well each law predicts held-out rows, best first; {} if one law was asked for.
      draws: `f64[2, N, D]`, draws of the clients' rates and spreads.
      seconds_per_bit: `f64[N, 2]`, time of a bit sent and received; 0 if it cannot be told.
      seconds_error: `f64[N, 2]`, their standard errors.
      correlation: Correlation of consecutive times of a client, and its standard error. The laws
        draw independent times.
      plots: `f64[3, ...]` of each client: probabilities of its finished times by the law, and by
        Kaplan and Meier's estimate, which are close if the law fits; and the half width of the
        estimate's band.
    """

    log: Log
    law: str
    scores: dict[str, Score]
    draws: Numbers
    seconds_per_bit: Numbers
    seconds_error: Numbers
    correlation: tuple[float, float]
    plots: tuple[Numbers, ...]

    @property
    def error(self) -> Numbers:
        """Standard errors of rates and spreads, `f64[2, N]`."""
        return self.draws.std(axis=-1)

    @property
    def interval(self) -> Numbers:
        """Least and largest values of the 95 % intervals of rates and spreads, `f64[2, 2, N]`."""
        return np.quantile(self.draws, [0.025, 0.975], axis=-1)

    @property
    def table(self) -> ClientTable:
        """The clients, with medians of rates and spreads; `as_csv` writes it as a file."""
        return self._table(*np.median(self.draws, axis=-1))

    @property
    def delays(self) -> ClientDelays:
        """Settings for a system of as many clients: its `delays`."""
        return ClientDelays(client_table=self.table, runtime_law=self.law, time_of="update")

    @property
    def poor(self) -> list[str]:
        """Clients with times that do not have the fitted law, by Kolmogorov's test at 5 %.

        The band is that of a law without fitted parameters: the test finds too few.
        """
        pairs = zip(self.log.clients, self.plots, strict=True)
        return [name for name, (x, y, width) in pairs if np.any(np.abs(x - y) > width)]

    def draw_tables(self, num: Count) -> list[ClientTable]:
        """Draw tables of clients that agree with the log, for intervals of results.

        Args:
          num: Number of tables, at most 1,000.
        """
        return [self._table(*self.draws[:, :, i]) for i in range(num)]

    def _table(self, rate: Numbers, spread: Numbers) -> ClientTable:
        with np.errstate(divide="ignore"):
            up, down = 1 / self.seconds_per_bit.T if self.seconds_per_bit.any() else (None, None)
        return ClientTable(rate, spread, names=self.log.clients, up=up, down=down, time_of="update")

    def __str__(self) -> str:
        """Describe the result, with the rows that were left out."""
        log, (value, error) = self.log, self.correlation
        lines = [
            f"{len(log.clients)} clients, {log.done.sum()} finished rows, "
            f"{(~log.done).sum()} unfinished; law {self.law}."
        ]
        lines += [f"Left out: {n} with {kind}, first row {i}." for kind, (n, i) in log.bad.items()]
        for law, each in self.scores.items():
            behind = f"{each.behind:.4f} behind (standard error {each.error:.4f})"
            lines.append(f"{law}: {each.score:.4f} per held-out row, {behind}.")
        lines.append(f"Correlation of consecutive times {value:.3f} (standard error {error:.3f}).")
        if poor := self.poor:
            some = ", ".join(poor[:5])
            lines.append(
                f"{len(poor)} clients have another law than the fitted one, such as {some}."
            )
        return "\n".join(lines)


@checked
def calibrate(
    log: "str | Path | Mapping[str, Sequence[object]] | pd.DataFrame",
    *,
    law: str | None = None,
    by: Literal["client", "device"] = "client",
) -> Calibration:
    """Fit clients' speeds and a delay law to a log.

        columns = ["client", "start", "finish"]
        rows = [["a", 3.0 * i, 3.0 * i + each] for i, each in enumerate([1.0, 1.5, 2.0, 2.5] * 3)]
        fitted = calibrate(dict(zip(columns, zip(*rows))))
        hyper = Arrivals(num_clients=1, buffer_size=1, delays=fitted.delays)

    Args:
      log: Name of a CSV file, or its columns, see this module.
      law: Name of a law; None for the best one.
      by: Whether each client has its own rate and spread, or all of a class of devices the same.

    Returns:
      The clients and the law, with what the log leaves open.

    Raises:
      ConfigError: If the log cannot be read, if a client or class has fewer than `LEAST_ROWS`
        finished rows, or if no law has its times.
    """
    found, rng = read_log(log), np.random.default_rng(0)
    if by == "device" and not found.devices:
        raise ConfigError("by", by, "client for a log without a column device")
    unit = found.clients if by == "client" else found.devices
    names, of_client = np.unique(unit, return_inverse=True)
    unit_of = of_client[found.client]
    rows = np.split(np.argsort(unit_of, kind="stable"), np.cumsum(np.bincount(unit_of))[:-1])
    for name, own in zip(names, rows, strict=True):
        if (num := int(found.done[own].sum())) < LEAST_ROWS:
            allowed = f"at least {LEAST_ROWS}" + ', or fit by="device"' * (by == "client")
            raise ConfigError(f"finished rows of {by} {name}", num, allowed)
    transfer = np.array([_transfer(found.time[x], found.done[x], found.bits[x]) for x in rows])
    seconds, errors = transfer[of_client, 0], transfer[of_client, 1]
    left = found.time - np.sum(found.bits * seconds[found.client], axis=1)
    found = found._replace(time=np.maximum(left, 1e-3 * found.time))
    time, done = found.time, found.done
    is_constant = [np.ptp(time[own][done[own]]) <= 1e-9 * time[own].max() for own in rows]
    laws: list[str] = list(SHAPES)
    if not np.all(time[done] == np.round(time[done])):
        laws.remove("runtime_geom")
    if any(is_constant):
        laws = [name for name in laws if LAWS[name].spreads]
    if law is not None and law not in (*laws, "runtime_constant"):
        raise ConfigError("law", law, "one that can have these times: " + ", ".join(laws))
    scores: dict[str, Score] = {}
    if law is None:
        scores = {} if all(is_constant) else _scores(laws, [(time[x], done[x]) for x in rows], rng)
        law = next(iter(scores), "runtime_constant")
    draws, plots, pairs = np.zeros((2, len(rows), NUM_DRAWS)), [], [np.zeros((2, 0))]
    for i, own in enumerate(rows):
        x, ended = time[own], done[own]
        if is_constant[i] or law == "runtime_constant":
            draws[0, i] = 1 / x[ended].mean()
            plots.append(np.ones((3, 1)))
            continue
        if (fit := _fit(law, x, ended, rng, NUM_DRAWS)) is None:
            raise ConfigError("law", law, f"another one: its settings exclude times of {names[i]}")
        draws[:, i] = SHAPES[law].speeds(*fit)
        none = np.zeros(len(x), bool)
        seen, measured, width = kaplan_meier(x, ended)
        longer = SHAPES[law].chance(x, none, *fit)
        more = longer[np.unique(x, return_index=True)[1]][np.isin(np.unique(x), seen)]
        plots.append(np.stack([1 - more, measured, width]))
        normal = scipy.special.ndtri(np.clip(1 - longer, 1e-9, 1 - 1e-9))
        follows = ended[1:] & ended[:-1] & (found.client[own][1:] == found.client[own][:-1])
        pairs.append(np.stack([normal[:-1], normal[1:]])[:, follows])
    before, after = np.concatenate(pairs, axis=1)
    both = max(np.sqrt(np.sum(before**2) * np.sum(after**2)), 1e-300)
    correlation = float(np.sum(before * after) / both), float(1 / np.sqrt(max(len(before), 1)))
    every = tuple(plots[i] for i in of_client)
    return Calibration(found, law, scores, draws[:, of_client], seconds, errors, correlation, every)


def kaplan_meier(time: Numbers, done: Rows) -> tuple[Numbers, Numbers, Numbers]:
    """Estimate the chances of at most each finished time.

    Args:
      time: Times, `f64[R]`.
      done: Whether they ended.

    Returns:
      Different finished times in order, their chances, and Hall and Wellner's half width of a band
      that has all of the law in 95 % of logs; without censored rows it is Kolmogorov's.
    """
    order, num = np.lexsort((~done, time)), len(time)
    at_risk, ended = np.arange(num, 0, -1), done[order]
    left = np.asarray(np.cumprod(1 - ended / at_risk), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = num * np.cumsum(ended / (at_risk * (at_risk - ended)))
        width: Numbers = np.where(left > 0, 1.358 / np.sqrt(num) * left * (1 + variance), np.inf)
    last = np.unique(np.searchsorted(time[order], time[order][ended], "right") - 1)
    return time[order][last], 1 - left[last], width[last]


def _scores(
    laws: Sequence[str], clients: Sequence[tuple[Numbers, Rows]], rng: Rng
) -> dict[str, Score]:
    """Score the laws by cross-validation, best first.

    Each prediction has a share of 0.1 % of a law that is flat in the logarithm of time, from a
    thousandth to a thousandfold, so that one row outside of a law's range does not decide.
    """
    chosen = np.unique(np.linspace(0, len(clients) - 1, MOST_CLIENTS).astype(int))
    found: dict[str, list[Numbers]] = {law: [] for law in laws}
    for i in chosen:
        time, done = clients[i]
        none = np.zeros(len(time), bool)
        for fold in range(NUM_FOLDS):
            held = np.arange(len(time)) % NUM_FOLDS == fold
            flat = np.where(done[held], 1e-3 / (2 * np.log(1e3) * time[held]), 1e-3)
            for law in laws:
                fit = _fit(law, time[~held], done[~held], rng, NUM_DRAWS // 2)
                chance = np.zeros(held.sum())
                if fit is not None:
                    chance = SHAPES[law].chance(time[held], done[held], *fit)
                    if "runtime_geom" in laws and law != "runtime_geom":  # Parts of a unit count.
                        at_least = SHAPES[law].chance(time[held] - 1, none[held], *fit)
                        more = SHAPES[law].chance(time[held], none[held], *fit)
                        chance = np.where(done[held], at_least - more, chance)
                found[law].append(np.log(0.999 * chance + flat))
    rows = {law: np.concatenate(each) for law, each in found.items()}
    order = sorted(laws, key=lambda law: -rows[law].mean())
    behind = {law: rows[order[0]] - rows[law] for law in order}
    errors = {law: each.std() / np.sqrt(len(each)) for law, each in behind.items()}
    return {law: Score(rows[law].mean(), behind[law].mean(), errors[law]) for law in order}


def _transfer(time: Numbers, done: Rows, bits: Numbers) -> Numbers:
    """Estimate times of a bit sent and received, and standard errors, `f64[2, 2]`.

    Least squares, in which Buckley and James' method replaces an unfinished time by its mean given
    that it is longer. A direction counts if its bits vary, and its estimate is above two errors.
    """
    varies = np.ptp(bits, axis=0) > 0.01 * bits.max(axis=0)
    found, kept = np.zeros((2, 2)), np.flatnonzero(varies)
    while len(kept):
        x = np.column_stack([np.ones(len(time)), bits[:, kept]])
        scale, filled = x.max(axis=0), time.copy()
        for _ in range(20):
            slope = np.linalg.lstsq(x / scale, filled, rcond=None)[0]
            fitted = x / scale @ slope
            rest = time - fitted
            ends, chance, _ = kaplan_meier(rest, done)
            mass = np.diff(chance, prepend=0)
            mass[-1] += 1 - chance[-1]  # The largest time counts as finished.
            above = ends > rest[~done][:, None]
            mean = above @ (mass * ends) / np.maximum(above @ mass, 1e-300)
            filled[~done] = fitted[~done] + np.where(above.any(axis=1), mean, rest[~done])
        variance = np.mean((filled - fitted) ** 2) * len(time) / max(done.sum() - len(kept) - 1, 1)
        error = np.sqrt(variance * np.diag(np.linalg.pinv((x / scale).T @ (x / scale))))
        told = slope[1:] > 2 * error[1:]
        if told.all():
            found[:, kept] = [slope[1:] / scale[1:], error[1:] / scale[1:]]
            break
        kept = kept[told]
    return found
