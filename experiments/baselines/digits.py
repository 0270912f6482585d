"""The demo's comparison, tuned: four systems on handwritten digits.

30 clients with two classes each, a third of them slow, and a perceptron 64-32-10. Each method gets
its best learning rate, FedBuff its best server learning rate too. `fedjax-sim run --preset paper`
uses what is chosen here (`fedjax_sim.cli.defaults`). FedBuff is run as published, with as many
clients at work as FedAvg asks in a round, and, in this comparison alone, with everyone at work and
no discount, as FAVANO's paper runs it. No claim of a paper is judged.
"""

from functools import partial
from typing import Any

from experiments.baselines.setup import Comparison, compare, contestant
from experiments.harness import Arguments, Outcome, Sizes, Study
from fedjax_sim import models
from fedjax_sim.cli.defaults import DEFAULTS
from fedjax_sim.studies import Contestant

RATES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
"""The grid of every method's learning rate of local steps."""
SERVER_RATES = (0.3, 1.0, 3.0)
"""The grid of FedBuff's server learning rate. The other systems have none."""
EVERYONE = {"restart": "after_interaction", "rule": "mean"}
"""FedBuff with all clients at work and no discount."""


def contestants(sizes: Any, *, smoke: bool) -> dict[str, Contestant]:
    """List the methods, with the settings of the main job; a smoke run has one."""
    shared = DEFAULTS["digits"].settings
    grid = {"lr": RATES[-3:-1] if smoke else RATES}
    if smoke:
        return {"fedavg": contestant("fedavg", shared, grid)}
    of_fedbuff = {**grid, "server_lr": SERVER_RATES}
    return {
        **{name: contestant(name, shared, grid) for name in ("fedavg", "quafl", "favano")},
        "fedbuff": contestant("fedbuff", shared, of_fedbuff),
        "fedbuff, everyone at work": contestant("fedbuff", {**shared, **EVERYONE}, of_fedbuff),
    }


COMPARISON = Comparison(
    Study(
        full=Sizes(
            10,
            dataset="digits",
            time_budget=5000.0,
            clients=30,
            tuning_seeds=10,
            splits=("two classes a client",),
        ),
        smoke=Sizes(
            2,
            dataset="digits",
            time_budget=1000.0,
            clients=30,
            tuning_seeds=1,
            splits=("two classes a client",),
            words="a fifth of the virtual time, FedAvg alone",
        ),
    ),
    network=partial(models.MLP, (32,)),
    targets=(0.8, 0.9),
    contestants=contestants,
    held_out=0.2,
)


def run(arguments: Arguments) -> Outcome:
    """Tune and compare all methods."""
    return compare(COMPARISON, arguments)
