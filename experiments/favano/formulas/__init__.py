"""The formulas of FAVANO (arXiv 2305.16099) that its experiments check.

- `bounds` has the variance of the reweightings, the contraction of the potential, fixed points on
  quadratics, and the bound of Theorem 1.
- `orders` has the rows of Table 1 of FAVANO and QuAFL: server steps to an accuracy.

Step sizes and times of server steps are in `fedjax_sim.theory.favano`.
"""
