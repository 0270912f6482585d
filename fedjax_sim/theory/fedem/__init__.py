"""The theory of FedEM and VR-FedEM (Dieuleveut, Fort, Moulines, Robin, arXiv 2111.02083), float64.

- `bounds`: FedEM's step sizes, convergence bounds and cost, and whether noise dominates the cost
  (Theorems 1 and 3).
- `variance_reduction`: the same for VR-FedEM (Theorem 2 and Appendix E).
- `moments`: closed forms and exact moments on the noisy-mean model, as a reference for runs and
  bounds.

The modules are exported rather than their functions, because `bounds` and `variance_reduction`
use the same function names, e.g. `rounds_needed`.
"""

from fedjax_sim.theory.fedem import bounds, moments, variance_reduction

__all__ = ["bounds", "moments", "variance_reduction"]
