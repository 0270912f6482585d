"""Measures of results: predictions, posterior samples, Gaussians and fairness."""
