"""What padding costs if sync times and delays of hierarchical learning are swept as one program."""

import itertools
from functools import partial
from typing import Any

import jax
import xarray as xr
from benchmarks.timing import in_turns, wall

import fedjax_sim
from fedjax_sim import datasets
from fedjax_sim.models import LogisticRegression
from fedjax_sim.partition import iid
from fedjax_sim.problems import Classification, make_classification
from fedjax_sim.systems import hierarchical

SETTINGS = {"sync_time": [0.0, 5.0, 12.0, 20.0, 24.0], "exchange_shift": [5.0, 10.0, 30.0, 60.0]}
"""S and c_g of the paper."""
CLIENTS, SEEDS, TIME = 30, 2, 1000.0


def bench_hierarchical(turns: int) -> dict[str, Any]:
    """Measure a sweep of five S by four c_g by two seeds, laid out in several ways.

    T = 1000, the other delays of Fig. 7, 2 x 15 clients, logistic regression on digits, 25
    evaluations. Reported are iterations executed per needed one, ticks run per tick that belongs to
    its lane, and seconds: as one program, lane by lane or with lanes batched, on one device and on
    all; with all lanes in one batch, long and short ones together; and with a program per setting.
    """
    data = datasets.load("digits")
    problem = make_classification(
        LogisticRegression(10), data, iid(data.train_labels, num_clients=CLIENTS, seed=0)
    )
    layouts = {}
    for num in sorted({1, jax.local_device_count()}):
        layouts[f"lane by lane, devices: {num}"] = fedjax_sim.Layout(
            lanes_at_once=False, lane_devices=num
        )
        layouts[f"lanes batched, devices: {num}"] = fedjax_sim.Layout(
            lanes_at_once=True, lane_devices=num
        )
    layouts["lanes in one batch, devices: 1"] = fedjax_sim.Layout(
        lanes_at_once=True, lane_devices=1, lane_batches=1
    )
    found: dict[str, Any] = {}

    def together(name: str) -> None:
        curves = sweep(problem, SETTINGS, layouts[name])
        found.setdefault(name, {"seconds of compilation": curves.attrs["seconds_compile"]}).update(
            padding(curves)
        )

    def apart() -> None:
        points = [
            dict(zip(SETTINGS, ([value] for value in values), strict=True))
            for values in itertools.product(*SETTINGS.values())
        ]
        curves = [sweep(problem, point, fedjax_sim.Layout(lanes_at_once=False)) for point in points]
        found.setdefault(
            "a program per setting",
            {"seconds of compilation": sum(each.attrs["seconds_compile"] for each in curves)},
        )

    contestants = {name: partial(wall, partial(together, name)) for name in layouts}
    seconds = in_turns(contestants | {"a program per setting": partial(wall, apart)}, turns)
    return {name: {"seconds": value} | found[name] for name, value in seconds.items()}


def sweep(
    problem: Classification, settings: dict[str, list[float]], layout: fedjax_sim.Layout
) -> xr.Dataset:
    """Run a sweep and return its curves."""
    hyper = hierarchical.paper(
        num_clients=CLIENTS,
        exchange_shift_per_group=0.0,
        exchange_mean_per_group=0.0,
        exchange_mean=1.0,
    )
    return fedjax_sim.sweep(
        hierarchical.system,
        problem,
        hyper,
        seeds=SEEDS,
        settings=settings,
        budget=fedjax_sim.Time(TIME),
        layout=layout,
    ).curves


def padding(curves: xr.Dataset) -> dict[str, float]:
    """Divide the work that was run by the work that was needed.

    Between two evaluations, all lanes run as many ticks as the lane with most of them.
    """
    ticks = curves.ticks
    per_eval = int(ticks.isel(eval=1).max())
    return {
        "iterations executed per needed": float(curves.executed.sum() / curves.needed.sum()),
        "ticks run per needed": per_eval
        * (ticks.sizes["eval"] - 1)
        / float(ticks.isel(eval=-1).mean()),
    }
