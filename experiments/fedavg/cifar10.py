"""FedAvg on 1000 CIFAR-10 clients: rounds per second, and the accuracy curve.

This is the workload of pfl's benchmark (Granqvist et al. 2024): each client has 50 images, 50
clients take part in a round, each for one epoch in batches of 10 at learning rate 0.1, with a
network of two convolutions. No claim of a paper is judged. `--dataset FILE.npz` takes the images
from a file.
"""

from typing import Any

import fedjax_sim
from experiments.favano.setup import CIFAR10
from experiments.harness import Arguments, Outcome, Sizes, Study, table
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.results import plots
from fedjax_sim.systems import fedavg

BATCH, EPOCH = 10, 5
"""An epoch through the images of a client takes five local steps."""
STUDY = Study(
    full=Sizes(seeds=1, dataset="cifar10", rounds=100, clients=1000, cohort=50),
    smoke=Sizes(seeds=1, dataset="digits", rounds=5, clients=40, cohort=5),
)


def run(arguments: Arguments) -> Outcome:
    """Run one seed or more, and report speed and accuracy."""
    sizes = STUDY.choose(arguments)
    seeds, rounds, clients, cohort = sizes.seeds, sizes.rounds, sizes.clients, sizes.cohort
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    shares = [
        partition.iid(data.train_labels, num_clients=clients, seed=seed) for seed in range(seeds)
    ]
    scaling: dict[str, Any] = (
        {} if data.train_images.shape[-1] == 1 else {"mean": CIFAR10.mean, "std": CIFAR10.std}
    )
    tasks = problems.make_classifications(
        models.SmallCNN(data.num_classes), data, shares, **scaling
    )
    hyper = fedavg.paper(
        num_clients=clients, num_selected=cohort, local_steps=EPOCH, batch_size=BATCH, lr=0.1
    )
    curves = fedjax_sim.sweep(
        fedavg.system,
        tasks,
        hyper,
        seeds=seeds,
        budget=fedjax_sim.Ticks(rounds),
        num_evals=10,
        **arguments.kept("fedavg"),
    ).curves
    accuracy = 100 * curves.accuracy.mean("seed").values
    seconds = curves.attrs["seconds_run"]
    rows = [
        [int(tick), f"{value:.1f}"]
        for tick, value in zip(curves.ticks.isel(seed=0).values, accuracy, strict=True)
    ]
    text = (
        table(["rounds", "accuracy, %"], rows)
        + f"\n{rounds * seeds / seconds:.3g} rounds a second, evaluation included"
    )
    config = {
        "dataset": data.name,
        "seeds": seeds,
        "rounds": rounds,
        "clients": clients,
        "cohort": cohort,
        "batch": BATCH,
        "lr": 0.1,
    }
    figure = plots.curves_figure({"fedavg": curves}, "accuracy", against="ticks")
    return Outcome({"fedavg": curves}, {"accuracy.png": figure}, [], config, text)
