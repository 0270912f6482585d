"""The map of numbers and sizes of groups: orders, rates of the second stage, the smallest run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from experiments.harness import Arguments
from experiments.hierarchical import map_groups
from experiments.hierarchical.map import Order, Point
from experiments.hierarchical.map_groups import QUESTIONS, STUDY, orders_of
from fedjax_sim import datasets
from tests.experiments.running import run

PAPERS, AVERAGE = (Point(rule, 1, "[0, 1]") for rule in ("divide_by_steps", "average"))


def curves_of(before: float, after: float, rates: list[float], num_seeds: int = 2) -> xr.Dataset:
    """Make curves of ten rounds that change at time 500; the first rate is a point better."""
    dims = ("lr", "seed", "eval")
    time = np.arange(0, 1001, 100.0)
    values = np.where(time < 500, before, after) / 100
    values = values - 0.01 * np.arange(len(rates))[:, None, None] + np.zeros((1, num_seeds, 1))
    return xr.Dataset(
        {"accuracy": (dims, values), "failed": (dims[:2], np.zeros(values.shape[:2], bool))},
        {"lr": rates, "time": (dims, np.broadcast_to(time, values.shape))},
    )


def test_the_runs_of_both_questions_are_those_of_the_figures() -> None:
    groups, sizes = QUESTIONS["groups"].runs, QUESTIONS["sizes"].runs
    assert {m: len(each["shift"]) for m, each in groups.items()} == {2: 2, 4: 4, 8: 8}
    assert {slow: each["group_sizes"][1] for slow, each in sizes.items()} == {
        10: 10,
        15: 15,
        20: 20,
    }
    assert all(each["shift"][1] == max(each["shift"]) == 7 for each in sizes.values())
    assert all(
        sum(each["group_sizes"]) == QUESTIONS["sizes"].num_clients for each in sizes.values()
    )


def test_orders_are_read_off_at_every_time() -> None:
    """Four groups lead until 500, and then two."""
    curves = [curves_of(*ends, [0.5, 1.0]) for ends in ((70, 90), (80, 80), (60, 60.5))]
    found = orders_of(QUESTIONS["groups"], curves, 1000.0)
    assert [str(found[time]) for time in (100.0, 250.0, 500.0)] == ["4>2>8", "4>2>8", "2>4>8"]
    assert found[100.0].lead == pytest.approx(10) and found[1000.0].lead == pytest.approx(-10)
    assert found[1000.0].rates == (0.5,) * 3 and not found[1000.0].is_near


def test_the_second_stage_takes_what_is_open_and_the_papers_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run has its best rate for the last T."""
    played = []

    def sweep(*given: Any) -> xr.Dataset:
        _, name, point, _, seeds, settings, _, changes = given
        played.append((name, point, settings["lr"], len(seeds), changes["num_groups"]))
        return curves_of(50, 60, settings["lr"], len(seeds))

    monkeypatch.setattr(map_groups.sync_map, "sweep", sweep)
    clear = Order((4.0, 2.0, 8.0), (0.1, 0.2, 0.5), (90.0, 80.0, 70.0), False, 10.0)
    early = clear._replace(rates=(4.0,) * 3)
    near = clear._replace(is_near=True)
    orders = {
        ("groups", point, time): order
        for point, late in ((PAPERS, clear), (AVERAGE, clear), (AVERAGE._replace(steps=5), near))
        for time, order in ((100.0, early), ({1: 1000.0, 5: 300.0}[point.steps], late))
    }
    sizes, data = STUDY.full, datasets.load("digits")
    found = map_groups.second_stage(Arguments(), sizes, data, orders)
    assert {(key[1], key[2]): float(each.lr) for key, each in found.items()} == {
        (point, run): rate
        for point in (PAPERS, AVERAGE._replace(steps=5))
        for run, rate in zip(clear.runs, clear.rates, strict=True)
    }
    assert all(each.accuracy.dims == ("seed", "eval") for each in found.values())
    assert [each[2:] for each in played[:3]] == [([0.1], 10, 4), ([0.2], 10, 2), ([0.5], 10, 8)]
    assert len({name for name, *_ in played}) == 6
    assert not map_groups.second_stage(Arguments(), STUDY.reduced, data, orders)


@pytest.mark.slow
def test_the_map_of_groups_runs(tmp_path: Path) -> None:
    """Both stages. The questions differ in the runs that they compare and in the split."""
    done = run("hierarchical/map_groups", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert len(config["orders"]) == len(QUESTIONS) * 5  # questions, T
    assert {each.name for each in (tmp_path / "out").glob("*.png")} == {
        f"order_{name}.png" for name in QUESTIONS
    }
