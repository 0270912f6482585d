"""Draw 8 learning rates x 5 seeds x 3 systems with seaborn."""

import numpy as np
import pandas as pd
import seaborn as sns

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems

digits = datasets.load("digits")
split = partition.make("classes", digits.train_labels, num_clients=10, seed=0)
problem = problems.make_classification(models.MLP((), 10), digits, split)
sizes = {"num_clients": 10, "num_selected": 5, "local_steps": 5, "batch_size": 16}
tables = []
for name in ("fedavg", "scaffold", "favano"):
    system = fedjax_sim.SYSTEMS[name]
    rates = {"lr": np.geomspace(0.01, 3, 8).tolist()}
    run = fedjax_sim.sweep(
        system, problem, system.paper(**sizes), settings=rates, seeds=5, budget=fedjax_sim.Time(500)
    )
    tables.append(run.to_dataframe())
last = pd.concat(tables).groupby(["system", "lr", "seed"], as_index=False).last()
axes = sns.lineplot(last, x="lr", y="accuracy", hue="system", style="system", markers=True)
axes.set(xscale="log", xlabel="learning rate", ylabel="accuracy at time 500")
axes.figure.savefig("rates.png")
