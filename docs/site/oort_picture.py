"""Draw whom Oort asks against time, next to a uniform choice, on the bundled digits.

python docs/site/oort_picture.py    writes docs/images/oort.png, in about half a minute
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import fedavg, oort
from fedjax_sim.timelines import ClientTable

PATH = Path(__file__).parents[1] / "images" / "oort.png"
CLIENTS, TIME = 60, 1500.0
SPEEDS = np.geomspace(0.1, 4, CLIENTS)


def picture() -> Figure:
    """Draw a dot for each report: when, and by how fast a client."""
    digits = datasets.load("digits")
    split = partition.make("classes", digits.train_labels, num_clients=CLIENTS, seed=0)
    problem = problems.make_classification(models.MLP((32,), 10), digits, split)
    table = ClientTable(SPEEDS)
    settings = {"num_selected": 6, "local_steps": 10, "batch_size": 16, "client_table": table}
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, system, words in zip(
        panels, (fedavg, oort), ("FedAvg: drawn uniformly", "Oort"), strict=True
    ):
        hyper = system.Hyper(num_clients=CLIENTS).replace(**settings)
        most = {"most_ticks": 500} if system.system.live else {}
        run = fedjax_sim.simulate(
            system.system, problem, hyper, budget=fedjax_sim.Time(TIME, **most), num_evals=50
        )
        timeline = run.timelines[0]
        when = np.broadcast_to(timeline.time[:, None], timeline.clients.shape)
        is_there = timeline.clients >= 0
        speeds = SPEEDS[timeline.clients[is_there]]
        panel.plot(when[is_there], speeds, ".", color="#4c72b0")
        final = f"{float(run.curves.accuracy[-1]):.2f} after {len(timeline.time)} rounds"
        panel.set_title(f"{words}: accuracy {final}", fontsize=10)
        panel.set_xlabel("virtual time")
        panel.set_yscale("log")
    panels[0].set_ylabel("speed of the client, steps per unit of time")
    return figure


if __name__ == "__main__":
    picture().savefig(PATH, dpi=110)
