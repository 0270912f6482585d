"""Clocks in rounds: the server acts when the clients of the round are done, and all start anew.

- `synchronous`: clients drawn uniformly or by numbers of examples, epochs, over-selection,
  deadlines and drop-outs (`CohortRounds`); `cohort_system`, which makes a system of an algorithm
  for them; and how long any round lasts, and which reports it uses.
- `weighted`: all clients with given weights, or draws by these (`WeightedRounds`); and rounds of
  equal length in which each client takes part with probability p (`CoinRounds`).
"""
