"""FA-LD on a logistic posterior: from a log-density to summary, R-hat, LOO and calibration."""

import arviz_stats as az
import jax
import numpy as np
from sklearn.datasets import load_breast_cancer

import fedjax_sim
from fedjax_sim import diagnostics, problems
from fedjax_sim.results import plots
from fedjax_sim.systems import langevin

x, y = load_breast_cancer(return_X_y=True)
x = np.c_[np.ones(len(x)), (x - x.mean(0)) / x.std(0)].astype("float32")[:, [0, 2, 5, 9, 10]]
posterior = problems.from_logdensity(
    lambda w, example: jax.nn.log_sigmoid((2 * example[1] - 1) * (example[0] @ w)),
    lambda w: -jax.numpy.sum(w**2) / 8,
    (x[:400], y[:400].astype("float32")),
    np.arange(400) % 4,  # the client of each example
    lambda key: jax.random.normal(key, (5,)),
    probabilities=lambda w, inputs: jax.nn.softmax(jax.numpy.array([0.0, inputs @ w])),
)
hyper = langevin.paper(num_clients=4, step_size=1e-3, local_steps=5, gradient="exact")
how = {"budget": fedjax_sim.Ticks(4000), "num_evals": 500, "keep": fedjax_sim.Keep(models=True)}
run = fedjax_sim.sweep(langevin.system, posterior, hyper, seeds=4, **how)
samples = diagnostics.to_arviz(run, posterior, burn_in=100)
print(az.summary(samples), az.loo(samples), sep="\n")
bins = diagnostics.calibration(diagnostics.predictive(samples, posterior, x[400:], y[400:]))
plots.reliability_figure({"FA-LD": bins}).savefig("reliability.png")
