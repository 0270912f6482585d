"""How often 95 % intervals of fitted clients have the truth, in simulated logs of every delay law.

Judges claim 18. Each log has one client with its own rate and spread, whose rows are seen until an
exponential time. Logs are fitted in blocks, which an unfinished run keeps. A constant law has no
interval of positive length. The estimates were made with other blocks, from 0 on.

Dimension letters: `R` rows.
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.clocks.claims import CLAIMS
from experiments.harness import (
    NOT_RUN,
    Arguments,
    Outcome,
    Sizes,
    Study,
    Verdict,
    rule,
    unless_unknown,
)
from fedjax_sim import timelines
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.studies.tables import table

SPREADS = {
    "runtime_exp": (0.0, 0.0),
    "runtime_geom": (0.0, 0.0),
    "runtime_normal": (0.05, 0.3),
    "runtime_lognormal": (0.1, 1.0),
    "runtime_shifted_exp": (0.1, 0.9),
    "runtime_pareto": (0.1, 0.45),
    "runtime_uniform": (0.1, 0.9),
}
"""Range of spreads of each law's clients."""
JUDGED = "200 rows, 30 % unfinished"
CASES = {JUDGED: (200, 0.3, 1), "10 rows": (10, 0.0, 5), "10 rows, 30 % unfinished": (10, 0.3, 5)}
"""By name: rows of a log, the share that is not seen to its end, and for how many logs of the first
case there is one of this."""
BLOCK, FIRST_BLOCK = 50, 1000
STUDY = Study(full=Sizes(seeds=1000), smoke=Sizes(seeds=5))
"""Seeds are logs of each law."""


def cover(law: str, block: int, rows: int, censored: float, logs: int = BLOCK) -> dict[str, float]:
    """Fit a block of logs, and count the intervals that have the true rate and spread.

    Args:
      law: Name of the law.
      block: Number of the block, which seeds it.
      rows: Rows of a log.
      censored: Share of rows that are not seen to their end.
      logs: Number of logs.

    Returns:
      Counts of logs and hits, and the sum of the shares of censored rows.
    """
    rng = np.random.default_rng([block, rows, *law.encode()])
    rates, spreads = np.exp(rng.uniform(-4, -1, logs)), rng.uniform(*SPREADS[law], logs)
    counts = {"logs": logs, "rate": 0, "spread": 0, "refused": 0, "censored": 0.0}
    with jax.enable_x64(True):
        speeds = timelines.Speeds(jax.numpy.asarray(rates), jax.numpy.asarray(spreads))
        key = jax.random.fold_in(jax.random.key(rows), block)
        # Limits follow from the law, not from the log's own times: censoring must be independent.
        drawn, others = (
            np.asarray(timelines.draw_runtimes(jax.random.fold_in(key, i), speeds, num, law))
            for i, num in enumerate((rows, 2000))
        )
    for rate, spread, time, other in zip(rates, spreads, drawn, others, strict=True):
        limits, least, most = rng.exponential(size=rows) / rate, 0.0, 100.0
        for _ in range(40 * (censored > 0)):  # Scale the limits to the share of censored rows.
            middle = (least + most) / 2
            is_short = 1 - np.mean(np.exp(-other * rate / middle)) > censored
            least, most = (middle, most) if is_short else (least, middle)
        limits = limits * most if censored > 0 else np.inf * limits
        start = np.arange(rows) * 2.0**20
        log = {"client": ["a"] * rows, "start": start, "finish": start + np.minimum(time, limits)}
        log["censored"] = (time > limits).astype(int)
        counts["censored"] += float(np.mean(time > limits))
        try:
            low, high = timelines.calibrate(log, law=law).interval[:, :, 0]
        except ConfigError:
            counts["refused"] += 1
            continue
        counts["rate"] += int(low[0] <= rate <= high[0])
        counts["spread"] += int(low[1] <= spread <= high[1])
    return counts


def run(arguments: Arguments) -> Outcome:
    """Fit all logs that the results folder does not have yet, count, and judge."""
    sizes = STUDY.choose(arguments)
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in CASES}
    for begin in range(0, sizes.seeds, BLOCK):
        for case, (rows, censored, every) in CASES.items():
            logs = -(-min(BLOCK, sizes.seeds - begin) // every)
            for law in SPREADS:
                counts = _kept(arguments, (law, FIRST_BLOCK + begin // BLOCK, rows, censored, logs))
                own = found[case].setdefault(law, dict.fromkeys(counts, 0))
                found[case][law] = {name: own[name] + counts[name] for name in counts}
    inputs = {"smoke": arguments.smoke, "counts": found}
    verdicts = judge(inputs)
    rows_of = [
        [case, law, f"{own['censored'] / own['logs']:.1%}", f"{own['logs']}", f"{own['refused']}"]
        + [f"{share:.1%}" for share in shares_of(law, own).values()]
        for case, laws in found.items()
        for law, own in laws.items()
    ]
    header = ["logs of", "law", "unfinished", "number", "refused", "rate", "spread"]
    told = table(header, [each + [""] * (len(header) - len(each)) for each in rows_of])
    return Outcome({}, {}, verdicts, sizes.config(), told, inputs)


def _kept(arguments: Arguments, block: tuple[str, int, int, float, int]) -> dict[str, float]:
    """Fit a block, or read its counts from the unfinished run that is resumed."""
    law, number, rows, censored, logs = block
    if arguments.checkpoints is None:
        return cover(law, number, rows, censored, logs)
    file = arguments.checkpoints / f"{law}-{number}-{rows}-{censored}-{logs}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        counts = cover(law, number, rows, censored, logs)
        (part := file.with_suffix(".part")).write_text(json.dumps(counts))
        part.replace(file)
    return dict(json.loads(file.read_text()))


def shares_of(law: str, counts: Mapping[str, float]) -> dict[str, float]:
    """Return shares of the fitted logs in which intervals have the truth; nan if none is fitted."""
    fits = counts["logs"] - counts["refused"]
    names = ("rate", "spread") if SPREADS[law][1] else ("rate",)
    return {name: counts[name] / fits if fits else np.nan for name in names}


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claim 18.

    Args:
      inputs: By case and law, "counts" as from `cover`; and whether it is a "smoke" run.
    """
    if inputs["smoke"]:
        return [CLAIMS.verdict(18, None, NOT_RUN, "a smoke run, no evidence")]
    marks = CLAIMS[18].criterion
    shares = {law: shares_of(law, each) for law, each in inputs["counts"][JUDGED].items()}
    flat = {f"{law}, {name}": x for law, own in shares.items() for name, x in own.items()}
    why = f"{min(flat.values()):.1%} to {max(flat.values()):.1%}: " + ", ".join(
        f"{name} {share:.1%}" for name, share in flat.items()
    )
    is_in = {
        name: unless_unknown(marks.least <= share <= marks.most, share)
        for name, share in flat.items()
    }
    return [CLAIMS.verdict(18, shares, rule(is_in), why)]
