"""An equinox network, trained by FAVANO on handwritten digits."""

import equinox as eqx

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import favano

digits = datasets.load("digits")
images, labels = digits.train_images.reshape(-1, 64) / 255, digits.train_labels
split = partition.make("dirichlet", labels, num_clients=10, alpha=0.5, seed=0)
model = models.from_equinox(lambda key: eqx.nn.MLP(64, 10, 32, 1, key=key))
problem = problems.supervised(
    model,
    problems.cross_entropy,
    (images, labels),
    split,
    metrics={"accuracy": problems.is_right},
)
hyper = favano.paper(num_clients=10, num_selected=4, local_steps=5, batch_size=16, lr=0.5)
run = fedjax_sim.simulate(favano.system, problem, hyper, budget=fedjax_sim.Ticks(100))
print(f"accuracy {float(run.curves.accuracy[-1]):.2f}")
