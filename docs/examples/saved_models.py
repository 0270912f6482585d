"""Save a sweep, load it elsewhere, use one of its models, and train all of them further."""

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import fedavg, fedprox

digits = datasets.load("digits")
split = partition.make("classes", digits.train_labels, num_clients=10, seed=0)
problem = problems.make_classification(models.MLP((16,), 10), digits, split)
sizes = {"num_clients": 10, "num_selected": 5, "local_steps": 5, "batch_size": 16}
options = {"settings": {"lr": [0.1, 0.3]}, "seeds": 2, "budget": fedjax_sim.Ticks(50)}
run = fedjax_sim.sweep(fedavg.system, problem, fedavg.paper(**sizes), **options)
run.save("trained")

loaded = fedjax_sim.load("trained")  # curves, models, schedules and settings
one = loaded.lane(lr=0.3, seed=1)
found = problem.evaluate(one.models)  # one.models is what MLP((16,), 10).init returns
print("accuracy", found["accuracy"])
# Each lane starts from the lane of the same rate and seed; start=one.models would start them all.
longer = fedjax_sim.sweep(fedprox.system, problem, fedprox.paper(**sizes), start=loaded, **options)
print(longer.curves.accuracy.isel(eval=[0, -1]).values)
