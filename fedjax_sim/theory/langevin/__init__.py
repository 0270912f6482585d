"""The theory of FA-LD (Deng, Zhang, Ma, Song, Lin, arXiv 2112.05120), NumPy, float64.

- `bounds`: the constants of the assumptions, the lemmas and the theorems on convergence.
- `exact_laws`: the exact law of a run whose clients have Gaussian energies, by recursion.
- `equal_hessians`: the same in closed form, for Gaussian clients that all have one Hessian.
- `variants`: the same for SGHMC, control variates, preconditioners and compressed messages.
- `rounds`: how many rounds an accuracy needs, by the bounds and exactly.
- `privacy`: the differential privacy of a run.

The modules are exported rather than their functions, many of whose names say little without the
module's, e.g. `bounds.bound` and `exact_laws.steps`.
"""

from fedjax_sim.theory.langevin import bounds, equal_hessians, exact_laws, privacy, rounds, variants

__all__ = ["bounds", "equal_hessians", "exact_laws", "privacy", "rounds", "variants"]
