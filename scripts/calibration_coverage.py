"""Coverage of the 95 % intervals of `timelines.calibrate`, in simulated logs of every delay law.

    python scripts/calibration_coverage.py coverage.json --logs 1000 --rows 200 --censored 0.3

Each log has one client with its own rate and spread, and its rows are seen until an exponential
time. The file has a count of each interval's hits for each law and block of 50 logs; a second call
goes on where the first one ended. A constant law has no interval of positive length.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from fedjax_sim import timelines
from fedjax_sim.timelines import calibration

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
BLOCK = 50


def cover(law: str, block: int, rows: int, censored: float) -> dict[str, float]:
    """Fit a block of logs, and count the intervals that have the true rate and spread.

    Args:
      law: Name of the law.
      block: Number of the block, which seeds it.
      rows: Rows of a log.
      censored: Share of rows that are not seen to their end.

    Returns:
      Counts of logs and hits, and the sum of the shares of censored rows.
    """
    rng = np.random.default_rng([block, rows, *law.encode()])
    rates, spreads = np.exp(rng.uniform(-4, -1, BLOCK)), rng.uniform(*SPREADS[law], BLOCK)
    counts = {"logs": 0, "rate": 0, "spread": 0, "refused": 0, "censored": 0.0}
    speeds = timelines.Speeds(jax.numpy.asarray(rates), jax.numpy.asarray(spreads))
    key = jax.random.fold_in(jax.random.key(rows), block)
    drawn = np.asarray(timelines.draw_runtimes(key, speeds, rows, law))
    # Limits follow from the law, not from the log's own times: censoring has to be independent.
    others = np.asarray(timelines.draw_runtimes(jax.random.fold_in(key, 1), speeds, 2000, law))
    for rate, spread, time, other in zip(rates, spreads, drawn, others, strict=True):
        limits, least, most = rng.exponential(size=rows) / rate, 0.0, 100.0
        for _ in range(40 * (censored > 0)):  # Scale the limits to the share of censored rows.
            middle = (least + most) / 2
            is_short = 1 - np.mean(np.exp(-other * rate / middle)) > censored
            least, most = (middle, most) if is_short else (least, middle)
        limits = limits * most if censored > 0 else np.inf * limits
        start = np.arange(rows) * 2.0**20
        seen = np.minimum(time, limits)
        log = {"client": ["a"] * rows, "start": start, "finish": start + seen}
        log["censored"] = (time > limits).astype(int)
        counts["logs"] += 1
        counts["censored"] += float(np.mean(time > limits))
        try:
            fitted = timelines.calibrate(log, law=law)
        except ValueError:
            counts["refused"] += 1
            continue
        least, most = fitted.interval[:, :, 0]
        counts["rate"] += int(least[0] <= rate <= most[0])
        counts["spread"] += int(least[1] <= spread <= most[1])
    return counts


def main() -> None:
    """Count what the file does not have yet, and print coverage by law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--censored", type=float, default=0.3)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    file, rows, censored = arguments.file, arguments.rows, arguments.censored
    found = json.loads(file.read_text()) if file.exists() else {}
    for block in range(arguments.logs // BLOCK):
        for law in calibration.SHAPES:
            if (name := f"{law} {block} {rows} {censored}") not in found:
                found[name] = cover(law, block, rows, censored)
                file.write_text(json.dumps(found, indent=1))
    print("law, logs, refused, coverage of rate and of spread (%), censored rows (%)")
    for law in calibration.SHAPES:
        own = [
            each
            for name, each in found.items()
            if name.startswith(law + " ") and name.endswith(f" {rows} {censored}")
        ]
        total = {key: sum(each[key] for each in own) for key in own[0]}
        fits = max(total["logs"] - total["refused"], 1)
        shares = [f"{100 * total[key] / fits:.1f}" for key in ("rate", "spread")]
        print(
            law,
            total["logs"],
            total["refused"],
            *shares,
            f"{100 * total['censored'] / total['logs']:.1f}",
        )


if __name__ == "__main__":
    main()
