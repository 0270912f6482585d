"""The formulas of FA-LD (arXiv 2112.05120) that its experiments check, NumPy, float64.

- `bounds`: the constants of the assumptions, the lemmas and the theorems on convergence.
- `exact_laws`: the exact law of a run whose clients have Gaussian energies, by recursion.
- `equal_hessians`: the same in closed form, for Gaussian clients that all have one Hessian.
- `rounds`: how many rounds an accuracy needs, by the bounds and exactly.

The differential privacy of a run is in `fedjax_sim.theory.langevin`.
"""
