"""The map of sync times: orders, delays that are only read off, and the smallest run."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.harness import Arguments, draw
from experiments.hierarchical import map as sync_map
from experiments.hierarchical import setup
from experiments.hierarchical.map import DELAY, Order, Point, delayed, is_open, order_of
from fedjax_sim import datasets
from fedjax_sim.systems import hierarchical
from tests.experiments.running import run


def ordered(**values: list) -> Order:
    """Order S = 0, 5, 20 by accuracies at two rates with two seeds."""
    accuracies = xr.DataArray(
        [values["flat"], values["middle"], values["long"]],
        {"sync_time": [0.0, 5.0, 20.0], "lr": [0.1, 1.0], "seed": [0, 1]},
        ("sync_time", "lr", "seed"),
    )
    return order_of(accuracies, "sync_time", 5.0)


def test_each_sync_time_has_its_best_rate() -> None:
    found = ordered(
        flat=[[70, 72], [80, 80.4]], middle=[[90, 90.4], [0, 0]], long=[[60, 60.4], [30, 30]]
    )
    assert found.runs == (5, 0, 20) and found.rates == (0.1, 1, 0.1)
    assert found.accuracy == pytest.approx((90.2, 80.2, 60.2))
    assert found.lead == pytest.approx(10) and not found.is_near
    assert str(found) == "5>0>20"


def test_what_is_near_and_what_is_chance() -> None:
    """Two sync times are near within a point, or within two standard errors."""
    close = ordered(flat=[[80, 80]] * 2, middle=[[80.5, 80.5]] * 2, long=[[60, 60]] * 2)
    assert close.is_near and str(close) == "5=0>20" and close.lead == pytest.approx(0.5)
    spread = ordered(flat=[[80, 80]] * 2, middle=[[80, 90]] * 2, long=[[60, 60]] * 2)
    assert spread.is_near and str(spread) == "5>0>20"
    bad = ordered(flat=[[9, 9]] * 2, middle=[[19, 19]] * 2, long=[[10, 10]] * 2)
    assert not bad.is_readable and str(bad) == "chance"
    clear = close._replace(is_near=False)
    turned = clear._replace(runs=(0.0, 5.0, 20.0))
    assert is_open([clear, turned]) and not is_open([clear, clear])
    assert is_open([close]) and not is_open([bad])


def curves_of(rates: list[float], sync_times: list[float], seeds: int) -> xr.Dataset:
    """Make curves of four rounds that are 50 units long, all of them at 40 %."""
    dims = ("lr", "sync_time", "seed", "eval")
    shape = (len(rates), len(sync_times), seeds, 5)
    ticks = np.broadcast_to(np.arange(5), shape)
    return xr.Dataset(
        {"accuracy": (dims, np.full(shape, 0.4)), "failed": (dims[:3], np.zeros(shape[:3], bool))},
        {
            "lr": rates,
            "sync_time": sync_times,
            "time": (dims, 50.0 * ticks),
            "ticks": (dims, ticks),
        },
    )


@pytest.mark.parametrize(
    ("arguments", "pictures"),
    [
        (Arguments(), {f"accuracy_E{e}_cg{c}.png" for e in (1, 5) for c in (10, 30)}),
        (Arguments(reduced=True), {"order_E1.png", "order_E5.png"}),
    ],
)
def test_the_lines_on_cifar10_draw_accuracies_if_they_were_measured(
    arguments: Arguments, pictures: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--reduced` has no second stage, and shows the first one's order."""
    made = {
        "sweep": lambda *given: curves_of(given[5]["lr"], given[5]["sync_time"], len(given[4])),
        "_tasks": lambda *_: [],
    }
    for name, function in made.items():
        monkeypatch.setattr(sync_map, name, function)
    data = datasets.load("digits")
    monkeypatch.setattr(datasets, "load", lambda *_, **__: data)
    outcome = sync_map.run(arguments._replace(dataset="cifar10_own.npz"))
    assert outcome.panel == "cifar10" and set(outcome.figures) == pictures


def test_each_sync_time_and_delay_runs_at_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one sweep for each S, at the rates of both c_g; each c_g then takes its own."""
    point = Point("average", 1, "[0, 1]")
    rates = {10.0: (0.5, 0.2, 2.0), 30.0: (0.1, 0.2, 1.0)}
    orders = {
        (point, delay, 300.0): Order((5.0, 0.0, 20.0), of_delay, (80.0,) * 3, False, 1.0)
        for delay, of_delay in rates.items()
    }
    swept = []

    def sweep(*given: Any) -> xr.Dataset:
        seeds, settings = given[4:6]
        swept.append(settings)
        return curves_of(settings["lr"], settings["sync_time"], len(seeds))

    monkeypatch.setattr(sync_map, "sweep", sweep)
    monkeypatch.setattr(sync_map, "_tasks", lambda *_: [])
    sizes = sync_map.STUDY.full.replace(steps={1: 300.0}, inputs=("[0, 1]",))
    data = datasets.load("digits")
    found = sync_map.second_stage(Arguments(), sizes, data, [point], orders)
    assert swept == [
        {"lr": [0.2], "sync_time": [0.0]},
        {"lr": [0.1, 0.5], "sync_time": [5.0]},
        {"lr": [1.0, 2.0], "sync_time": [20.0]},
    ]
    assert len(found) == 6
    for key, curves in found.items():
        assert curves.lr == rates[key.delay][(5.0, 0.0, 20.0).index(key.sync_time)]
        assert curves.time.isel(seed=0, eval=4) == 4 * (50 + key.delay - DELAY)
        assert curves.accuracy.dims == ("seed", "eval")


def test_a_larger_exchange_delay_only_delays_the_rounds() -> None:
    """The schedule is the same apart from its times, so that one run shows every c_g."""
    clock = setup.clock([15, 15], setup.FIG7, num_clients=30, sync_time=20.0)
    hypers = [
        hierarchical.paper(**{**clock, "exchange_shift": shift}) for shift in (2.0, 22.0)
    ]  # c_g = 10 and 30
    drawn = draw(hierarchical.system, hypers, 2, 6)
    near, far = (jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), drawn) for i in (0, 1))
    np.testing.assert_array_equal(near.steps, far.steps)
    np.testing.assert_array_equal(near.weight, far.weight)
    assert near.steps.min() > 1
    rounds = np.arange(1, 7)
    np.testing.assert_allclose(far.time, near.time + 20 * rounds, rtol=1e-12)
    curves = xr.Dataset(coords={"time": ("eval", near.time[0]), "ticks": ("eval", rounds)})
    np.testing.assert_allclose(delayed(curves, 30.0).time, far.time[0], rtol=1e-12)
    assert near.time[0, 0] == delayed(curves, DELAY).time[0]


@pytest.mark.slow
def test_the_map_runs_and_reads_off_every_delay(tmp_path: Path) -> None:
    done = run("hierarchical/map", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert len(config["orders"]) == 2 * 5  # c_g, T
    assert all(len(each["rates"]) == 3 for each in config["orders"].values())
    assert (tmp_path / "out" / "order_E1.png").exists()
