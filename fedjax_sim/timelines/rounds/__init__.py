"""Clocks in rounds: the server acts when the clients of the round are done, and all start anew.

- `synchronous`: the server waits for the slowest of its cohort (`Rounds`), which may be drawn with
  weights (`WeightedRounds`).
- `sampled`: the same with draws by numbers of examples, epochs, over-selection, deadlines and
  drop-outs (`CohortRounds`), and `cohort_system`, which makes a system of an algorithm for them.
- `coins`: rounds of equal length in which each client takes part with probability p
  (`CoinRounds`).
"""

from fedjax_sim.timelines.rounds.coins import CoinRounds, schedule_coin_rounds
from fedjax_sim.timelines.rounds.sampled import (
    Cohort,
    CohortClock,
    CohortRounds,
    cohort_system,
    rounds_within,
    schedule_cohort_rounds,
)
from fedjax_sim.timelines.rounds.synchronous import (
    RoundClock,
    Rounds,
    WeightedRounds,
    schedule_rounds,
    schedule_weighted_rounds,
)

__all__ = [
    "Cohort",
    "CohortClock",
    "CohortRounds",
    "CoinRounds",
    "RoundClock",
    "Rounds",
    "WeightedRounds",
    "cohort_system",
    "rounds_within",
    "schedule_cohort_rounds",
    "schedule_coin_rounds",
    "schedule_rounds",
    "schedule_weighted_rounds",
]
