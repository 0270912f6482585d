"""`fedjax-sim timeline --log`: settings from a log of a cluster, and its times over simulated ones.

Dimension letters: `N` clients.
"""

import jax
import numpy as np

from fedjax_sim import timelines
from fedjax_sim.timelines.calibration import Numbers, kaplan_meier


def settings_of(fitted: timelines.Calibration) -> dict[str, list[str]]:
    """List the texts of settings that a log gives, by name.

    Args:
      fitted: Clients and a law that were fitted to it.
    """
    table = fitted.table
    given = {"num_clients": str(table.size), "client_table": table.as_csv()}
    given |= {"runtime_law": fitted.law, "time_of": "update"}
    return {name: [text] for name, text in given.items()}


def compare(fitted: timelines.Calibration, num: int = 40, points: int = 100) -> dict[str, Numbers]:
    """Compare a log's times with simulated ones, drawn as by a clock.

    Args:
      fitted: Clients and a law that were fitted to the log.
      num: Number of simulated logs, each with its own draw of rates and spreads.
      points: Number of times.

    Returns:
      `time`; the share of work that took at most that time, `measured`, a mean of the clients'
      Kaplan-Meier estimates, which take account of unfinished work; and of simulated work, `low`
      and `high`, between which 95 % of the simulated logs are.
    """
    log = fitted.log
    time = np.geomspace(log.time[log.done].min(), log.time[log.done].max(), points)
    measured, simulated = np.zeros(points), []
    ends = np.cumsum(np.bincount(log.client))[:-1]  # Rows are in order of clients.
    for own, done in zip(np.split(log.time, ends), np.split(log.done, ends), strict=True):
        seen, chance, _ = kaplan_meier(own, done)
        share = np.concatenate([[0], chance])[np.searchsorted(seen, time, "right")]
        measured += share * len(own) / len(log.client)
    with jax.enable_x64(True):
        for i in range(num):
            speeds = timelines.Speeds(*map(jax.numpy.asarray, fitted.draws[:, log.client, i]))
            drawn = timelines.draw_runtimes(jax.random.key(i), speeds, 1, fitted.law)
            place = np.searchsorted(np.sort(np.asarray(drawn)[:, 0]), time, "right")
            simulated.append(place / len(log.client))
    low, high = np.quantile(simulated, [0.025, 0.975], axis=0)
    return {"time": time, "measured": measured, "low": low, "high": high}
