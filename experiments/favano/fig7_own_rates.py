"""FAVANO's Fig. 7 with a rate chosen for each precision and each s, on MNIST non-IID.

The common rate 0.5 of `favano/fig7` is too large for 32 bits where few clients are contacted, and
not for QNN. Here each pair of precision and s has its own rate, from a stated grid that is widened
at its edges, by the final accuracy on a sixth of the training images that is held out. Ten other
seeds then train on all training images, and are measured on the test images.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import xarray as xr

import fedjax_sim
from experiments.favano import fig7, setup
from experiments.favano.table2_grid import FIRST_TUNING_SEED, HELD_OUT
from experiments.harness import Arguments, Outcome, Sizes, Study, Verdict
from fedjax_sim import datasets, models, studies
from fedjax_sim.results import plots
from fedjax_sim.systems import favano

STUDY = Study(
    full=Sizes(
        10,
        dataset="mnist",
        tuning_seeds=2,
        time_budget=5000.0,
        shared={},
        rates=(0.05, 0.1, 0.2, 0.5),
        widenings=2,
    ),
    smoke=Sizes(
        2,
        dataset="digits",
        tuning_seeds=1,
        time_budget=70.0,
        shared={"num_clients": 20, "local_steps": 5, "batch_size": 16},
        rates=(0.1, 0.2),
        widenings=0,
        words="handwritten digits, 20 clients",
    ),
)


def run(arguments: Arguments) -> Outcome:
    """Choose the rates, run all pairs at them, draw the figure, and judge claims 35 and 36."""
    sizes = STUDY.choose(arguments)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    num_clients = sizes.shared.get("num_clients", 100)
    held = studies.hold_out(data, HELD_OUT)
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + sizes.tuning_seeds)
    budget = fedjax_sim.Time(sizes.time_budget)
    rates: dict[str, float] = {}
    scores: dict[str, Any] = {}
    curves: dict[str, xr.Dataset] = {}
    for bits, low_bit in fig7.BITS.items():
        network = setup.in_low_bits(models.MLP((32,), data.num_classes), low_bit)
        (trials,), (tests,) = (
            setup.by_split(network, images, [fig7.COLUMN], num_clients, of_seeds).values()
            for images, of_seeds in ((held, tuning), (data, range(sizes.seeds)))
        )
        for share in fig7.SHARES:
            num_selected = max(1, round(share * num_clients))
            name = f"{bits}, s = {num_selected}"
            settings = {**sizes.shared, "num_selected": num_selected, "slow_fraction": 1 / 3}
            hyper = favano.system.paper(**settings)
            tuned, tested = studies.tune_and_run(
                studies.Contestant(favano.system, hyper, {"lr": sizes.rates}),
                trials,
                tests,
                tuning_seeds=tuning,
                seeds=range(sizes.seeds),
                widenings=sizes.widenings,
                kept=partial(_kept, arguments, name),
                options={"budget": budget, "num_evals": setup.NUM_EVALS},
            )
            rates[name], curves[name] = tuned.choice["lr"], tested.curves
            scores[name] = tuned.scores.to_dict()
    inputs = {
        "final": {name: setup.final_sample(each) for name, each in curves.items()},
        "dataset": data.name,
        "reduced": "",
        "smoke": arguments.smoke,
    }
    own = ", ".join(f"{name} at {rate:g}" for name, rate in rates.items())
    title = f"{data.name}, {fig7.COLUMN}, T = {sizes.time_budget:g}, own rates"
    figure = plots.curves_figure(curves, "accuracy", title=title)
    facts = sizes.config() | {"rates": rates, "held_out": HELD_OUT, "scores": scores}
    verdicts = judge(inputs)
    text = f"rates: {own}"
    return Outcome(setup.as_groups(curves), {"accuracy.png": figure}, verdicts, facts, text, inputs)


def judge(inputs: Mapping[str, Any]) -> list[Verdict]:
    """Judge claims 35 and 36 on the final accuracies, as `fig7` judges 15 and 25."""
    return fig7.judge(inputs, (35, 36))


def _kept(arguments: Arguments, name: str, sweep: str) -> dict[str, Any]:
    """Options by which a sweep of a pair can be resumed."""
    return arguments.kept(f"{name}, {sweep}")
