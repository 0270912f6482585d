"""Stop each learning rate once its loss has stopped falling."""

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import fedavg

digits = datasets.load("digits")
split = partition.make("classes", digits.train_labels, num_clients=10, seed=0)
problem = problems.make_classification(models.MLP((), 10), digits, split)
hyper = fedavg.Hyper(num_clients=10, num_selected=5, local_steps=5, batch_size=16)


def has_stalled(progress):  # One answer for each lane; curves are [lanes, evaluations so far].
    loss = progress.metrics["loss"]
    return (loss[:, -1] > 0.98 * loss[:, :-1].min(axis=1)) & (progress.evaluation > 3)


run = fedjax_sim.sweep(
    fedavg.system,
    problem,
    hyper,
    settings={"lr": [0.001, 0.03, 0.3, 3.0]},
    num_ticks=100,
    on_evaluation=has_stalled,
    layout=fedjax_sim.Layout(lanes_at_once=False),  # a stopped lane then costs nothing more
)
print(run.curves[["stopped_at", "loss", "accuracy"]].isel(eval=-1, seed=0).to_dataframe())
