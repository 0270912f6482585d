"""Stop the learning rates that have fallen far behind the best one."""

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import fedavg

digits = datasets.load("digits")
split = partition.make("classes", digits.train_labels, num_clients=10, seed=0)
problem = problems.make_classification(models.MLP((), 10), digits, split)
hyper = fedavg.paper(num_clients=10, num_selected=5, local_steps=5, batch_size=16)


def is_behind(progress):  # One answer for each lane; metrics are [lanes, evaluations so far].
    loss = progress.metrics["loss"][:, -1]
    return (loss > 2 * loss.min()) & (progress.evaluation >= 5)


run = fedjax_sim.sweep(
    fedavg.system,
    problem,
    hyper,
    settings={"lr": [0.001, 0.03, 0.3, 3.0]},
    budget=fedjax_sim.Ticks(100),
    watch=fedjax_sim.Watch(on_evaluation=is_behind),
    layout=fedjax_sim.Layout(lanes_at_once=False),  # a stopped lane then costs nothing more
)
print(run.to_dataframe().groupby("lr")[["stopped_at", "ticks", "loss", "accuracy"]].last())
