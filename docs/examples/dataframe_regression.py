"""A regression on a DataFrame whose clients are strings, with the error of each client."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

import fedjax_sim
from fedjax_sim import models, problems
from fedjax_sim.systems import fedavg

table = load_diabetes(as_frame=True).frame
table["target"] = (table.target - table.target.mean()) / table.target.std()
table["clinic"] = pd.qcut(table.age, 5, labels=["Ghent", "Oslo", "Porto", "Turin", "Umeå"])

data = problems.from_dataframe(table, target="target", client="clinic")
data = data._replace(inputs=data.inputs / np.std(data.inputs, axis=0))
problem = problems.supervised(
    models.MLP((16,), 1),
    problems.squared_error,
    data,
    metrics={"mae": problems.Metric(problems.absolute_error, less_is_better=True)},
    per_client=True,
)
hyper = fedavg.paper(num_clients=problem.num_clients, num_selected=3, batch_size=16, lr=0.02)
run = fedjax_sim.simulate(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(20))
print(run.curves.client_mae.isel(eval=-1).to_series())
