"""Clocks in rounds: the server acts when the clients of the round are done, and all start anew.

- `sampled`: clients drawn uniformly or by numbers of examples, epochs, over-selection, deadlines
  and drop-outs (`CohortRounds`), and `cohort_system`, which makes a system of an algorithm for
  them.
- `weighted`: all clients with given weights, or draws by these (`WeightedRounds`).
- `synchronous`: what these two have in common: how long a round lasts, and whose reports are used.
- `coins`: rounds of equal length in which each client takes part with probability p
  (`CoinRounds`).
"""

from fedjax_sim.timelines.rounds.coins import CoinRounds, schedule_coin_rounds
from fedjax_sim.timelines.rounds.sampled import (
    Cohort,
    CohortRounds,
    cohort_system,
    schedule_cohort_rounds,
)
from fedjax_sim.timelines.rounds.synchronous import CohortClock, rounds_within
from fedjax_sim.timelines.rounds.weighted import WeightedRounds, schedule_weighted_rounds

__all__ = [
    "Cohort",
    "CohortClock",
    "CohortRounds",
    "CoinRounds",
    "WeightedRounds",
    "cohort_system",
    "rounds_within",
    "schedule_cohort_rounds",
    "schedule_coin_rounds",
    "schedule_weighted_rounds",
]
