"""Histograms of the accuracy that clients get: of one model for all, and of a model for each."""

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.results.plots import clients_figure
from fedjax_sim.results.summaries import summary

digits = datasets.load("digits")
split = partition.make("dirichlet", digits.train_labels, num_clients=20, alpha=0.3, seed=0)
problem = problems.supervised(
    models.LogisticRegression(10),
    problems.cross_entropy,
    (digits.train_images / 255, digits.train_labels),
    split,
    metrics={"accuracy": problems.is_right},
    per_client=True,
)
system = fedjax_sim.SYSTEMS["ditto"]
hyper = system.paper(num_clients=20, num_selected=5, batch_size=16, lr=0.2)
run = fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(60), num_evals=2)
curves = {"ditto": run.curves}
print(summary(curves)["systems"]["ditto"]["final"]["client_accuracy"])
for metric in ("client_accuracy", "personal_client_accuracy"):
    clients_figure(curves, metric).savefig(f"{metric}.png")
