"""Clocks in rounds: the server acts when the clients of the round are done, and all start anew.

- `sampled`: clients drawn uniformly or by numbers of examples, epochs, over-selection, deadlines
  and drop-outs (`CohortRounds`), and `cohort_system`, which makes a system of an algorithm for
  them.
- `weighted`: all clients with given weights, or draws by these (`WeightedRounds`).
- `synchronous`: what these two have in common: how long a round lasts, and whose reports are used.
- `coins`: rounds of equal length in which each client takes part with probability p
  (`CoinRounds`).
"""
