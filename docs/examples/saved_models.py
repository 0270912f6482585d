"""Save a sweep, load it elsewhere, use one of its models, and train all of them further."""

import numpy as np

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import fedavg, fedprox

digits = datasets.load("digits")
split = partition.make("classes", digits.train_labels, num_clients=10, seed=0)
network = models.MLP((16,), 10)
problem = problems.make_classification(network, digits, split)
sizes = {"num_clients": 10, "num_selected": 5, "local_steps": 5, "batch_size": 16}
rates = {"lr": [0.1, 0.3]}
run = fedjax_sim.sweep(
    fedavg.system, problem, fedavg.Hyper(**sizes), settings=rates, seeds=2, num_ticks=50
)
run.save("trained")

loaded = fedjax_sim.load("trained")  # curves, models, schedules and settings
one = loaded.lane(lr=0.3, seed=1)
logits = network.apply(one.models, digits.test_inputs)
print("accuracy", float(np.mean(logits.argmax(axis=1) == digits.test_labels)))
longer = fedjax_sim.sweep(
    fedprox.system, problem, fedprox.Hyper(**sizes), settings=rates, seeds=2, num_ticks=50,
    start=loaded,  # each lane from the lane of the same rate and seed; or start=one.models
)  # fmt: skip
print(longer.curves.accuracy.isel(eval=[0, -1]).values)
