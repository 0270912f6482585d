"""Compares successive halving with a whole grid: processor time once compiled, and the scores.

Nine learning rates and two seeds of three systems on handwritten digits: lanes one after another,
and in batches, whose places are refilled by the points that go on. A ratio of processor times does
not depend much on other work of the machine. The score of the rate that halving chooses is that of
the whole grid, where it ran to its end.

    python -m scripts.benchmarks.halving
"""

import time
from typing import Any

import numpy as np

import fedjax_sim
from fedjax_sim import SYSTEMS, Layout, datasets, models, partition, problems, studies

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SIZES: dict[str, dict[str, Any]] = {
    "fedavg": {"num_selected": 6},
    "fedbuff": {"buffer_size": 5, "concurrency": 6},
    "favano": {"num_selected": 6},
}

BATCHED = Layout(lanes_at_once=True, lane_devices=1)
LAYOUTS = {
    "lanes in turn": (Layout(), Layout()),
    "lanes in three batches": (BATCHED, BATCHED._replace(lane_batches=3)),
    "lanes in nine batches": (BATCHED, BATCHED._replace(lane_batches=9)),
}
"""Layouts of the grid and of halving."""


def main() -> None:
    """Print a line for each system."""
    data = studies.hold_out(datasets.load("digits"), 0.2)
    share = partition.make("classes", data.train_labels, num_clients=30, seed=0)
    problem = problems.make_classification(models.MLP((128,), 10), data, share)
    for name, sizes in SIZES.items():
        system = SYSTEMS[name]
        hyper = system.Hyper(num_clients=30, batch_size=32, local_steps=10, **sizes)
        contestant = studies.Contestant(system, hyper, {"lr": RATES})
        for kind, (whole, refilled) in LAYOUTS.items():
            ways = {"grid": (None, whole), "halving": (studies.Halving(), refilled)}
            found, seconds = {}, {}
            for how, (halving, layout) in ways.items():
                for _ in range(2):  # The first call compiles.
                    began = time.process_time()
                    found[how] = studies.tune(
                        contestant,
                        [problem] * 2,
                        seeds=[1000, 1001],
                        widenings=0,
                        halving=halving,
                        budget=fedjax_sim.Time(1000),
                        num_evals=25,
                        watch=fedjax_sim.Watch(progress=False),
                        layout=layout,
                    )
                    seconds[how] = time.process_time() - began
            scores = found["grid"].scores
            best, chosen = (scores.sel(each.choice) for each in found.values())
            error = float(best.std("seed", ddof=1)) / np.sqrt(best.sizes["seed"])
            print(
                f"{name}, {kind}: {seconds['halving']:.2f} of {seconds['grid']:.2f} s, ratio "
                f"{seconds['halving'] / seconds['grid']:.2f}; best {found['grid'].choice['lr']} "
                f"with {float(best.mean()):.4f} ± {error:.4f}, halving "
                f"{found['halving'].choice['lr']} with {float(chosen.mean()):.4f}; virtual time "
                f"{found['halving'].time:.0f} of {found['grid'].time:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
