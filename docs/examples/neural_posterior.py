"""FA-LD on the posterior of a small neural network, in the same steps as a logistic one."""

import arviz_stats as az
import jax
from jax.flatten_util import ravel_pytree
from sklearn.datasets import make_moons

import fedjax_sim
from fedjax_sim import diagnostics, models, problems
from fedjax_sim.results import plots
from fedjax_sim.systems import langevin

x, y = make_moons(300, noise=0.35, random_state=0)
x, net = x.astype("float32"), models.MLP((8,), 2)
posterior = problems.from_logdensity(
    lambda w, example: jax.nn.log_softmax(net.apply(w, example[0][None])[0])[example[1]],
    lambda w: -(ravel_pytree(w)[0] ** 2).sum() / 2,
    (x[:200], y[:200]),
    (x[:200, 0] > 0.5).astype(int),  # two clients, who see different halves of the plane
    lambda key: net.init(key, x[:1]),
    probabilities=lambda w, inputs: jax.nn.softmax(net.apply(w, inputs[None])[0]),
)
hyper = langevin.paper(num_clients=2, step_size=1e-3, local_steps=4, gradient="exact")
how = {"budget": fedjax_sim.Ticks(8000), "num_evals": 500, "keep": fedjax_sim.Keep(models=True)}
run = fedjax_sim.sweep(langevin.system, posterior, hyper, seeds=4, **how)
samples = diagnostics.to_arviz(run, posterior, burn_in=100)
print(az.summary(samples["sample_stats"].to_dataset()[["lp"]]), az.loo(samples), sep="\n")
bins = diagnostics.calibration(diagnostics.predictive(samples, posterior, x[200:], y[200:]))
plots.reliability_figure({"FA-LD": bins}).savefig("reliability.png")
