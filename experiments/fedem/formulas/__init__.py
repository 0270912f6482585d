"""The formulas of FedEM and VR-FedEM (arXiv 2111.02083) that their experiments check, float64.

- `bounds`: FedEM's convergence bound (Theorems 1 and 3) and those that lead to it.
- `variance_reduction`: the same for VR-FedEM (Theorem 2 and Appendix E).
- `moments`: closed forms and exact moments on the noisy-mean model, as a reference for runs and
  bounds.

Step sizes are in `fedjax_sim.theory.fedem`.
"""
