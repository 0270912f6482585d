"""The formulas of hierarchical federated learning (arXiv 2302.04851) that its experiments check.

- `delays` has the paper's linear model of delays.
- `bounds` has Lemma 1, Theorems 1 and 2 and Corollary 1, corrected and sharpened.
- `quadratics` has fixed points, rates and noise floors on quadratics, and the best sync time. None
  of it is in the paper.

The laws of iterations and round times are in `fedjax_sim.theory.hierarchical`.
"""
