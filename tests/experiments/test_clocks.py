"""Clocks against measurements: the tables, what is measured, and verdicts."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.clocks import coverage, machines, rack, sources, verdicts
from experiments.harness import Arguments
from fedjax_sim import ConfigError, timelines
from tests.experiments.running import FILES, judged, run


def test_tables_have_the_published_numbers() -> None:
    """Three numbers of each source, looked up by hand."""
    runs = {(row["regime"], row["method"], row["seed"]): row for row in sources.rack_runs()}
    assert runs["noniid", "fedbuff", "1337"]["update_share"] == "0.13908"
    assert runs["iid", "fedasync", "1339"]["staleness"] == "33.6111"
    assert runs["noniid", "fedavg", "1337"]["trips_to_target"] == "465"
    times = sources.machine_times("FEMNIST", "Constant")["0"]
    assert len(times) == 10 and [len(each) for each in times[:2]] == [358, 196]
    assert times[0][:3] == pytest.approx([7.624, 0.949, 0.858])
    assert sources.machine_targets("Synthetic")["FedAvg"][0]["last_updates"] == "1030.0"


def written(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_tables_are_made_from_clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends of updates are interpolated from the first evaluation on, and boards are numbered."""
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    folder = tmp_path / "rack" / "plot" / "output"
    clock = [{"run_id": "r", "client_trip": x, "wall_clock_s": 100 + 2 * x} for x in (2, 4)]
    written(folder / "network_main_accuracy_vs_wall_clock_raw.csv", clock)
    board = {f"rpi{i}_{name}": 0.25 for i in (4, 5) for name in sources.SHARES[:3]}
    a_run = {"regime": "iid", "topology": "mixed", "method": "fedbuff", "seed": 1, "run_id": "r"}
    summary = [{**a_run, "target_client_trips": 4, **board}]
    written(folder / "network_main_accuracy_vs_client_trips_summary.csv", summary)
    five = {"profile": "none", "buffer_size": 5, "method": "fedbuff", "seed": 2}
    written(
        folder / "network_stressor_sweep_summary.csv", [{**five, "target_client_trips": 9, **board}]
    )
    updates = [
        {"run_id": "r", "method": "fedbuff", "seed": 1, "node_id": node, "device_type": "rpi5"}
        | {"staleness": 0, "client_trips_total": trip}
        for trip, node in enumerate("aabb", start=1)
    ]
    written(folder / "network_async_update_weights_raw.csv", updates)
    sources.make_rack(tmp_path / "rack")
    found = sources.rack_updates("fedbuff", "1")
    assert [row["finish"] for row in found] == ["", "0.0", "2.0", "4.0"]
    assert [row["board"] for row in found] == ["rpi5-0", "rpi5-0", "rpi5-1", "rpi5-1"]
    first, last = sources.rack_runs()
    assert first["last_seconds"] == "108.0" and last["regime"] == "buffers of five"
    # What runs at the end of the log has no finish.
    log = rack.log_of(found)
    assert sorted(zip(*log.values(), strict=True)) == [
        ("rpi5-0", "0.0", ""),
        ("rpi5-1", "2.0", "4.0"),
        ("rpi5-1", "4.0", ""),
    ]


def test_weights_and_staleness_of_classes() -> None:
    """One slow update of staleness 3 in a buffer with a fast one of staleness 0."""
    slow, staleness = np.array([[True, False]]), np.array([[3, 0]])
    found = rack.measure("fedbuff", slow, staleness)
    assert (found.update_share, found.staleness, found.fast_staleness) == (0.5, 3, 0)
    assert found.weight_share == pytest.approx(0.5 / 1.5)
    assert rack.measure("fedstaleweight", slow, staleness).weight_share == pytest.approx(7 / 8)
    assert found.law[[0, 3]].tolist() == [0.5, 0.5] and found.law.sum() == 1


def test_a_share_gives_the_speeds() -> None:
    """Slow boards that have a fifth of the updates have half the speed of twice as many others."""
    (delays,) = rack.of_share(0.2, 1)
    rate = delays.client_table.rate
    assert len(rate) == 15 and rate[10:].sum() / rate.sum() == pytest.approx(0.2)


def test_machines_are_measured_from_the_order_of_ends() -> None:
    client = np.array([0, 1, 1, 0, 1])
    assert machines.staleness_of(client).tolist() == [0, 1, 0, 2, 1]
    window = machines.measure(client, np.arange(5.0), machines.staleness_of(client), half=2.0)
    assert window.throughput == 1 and window.shares[:2].tolist() == [0.5, 0.5]
    assert window.law[:3].tolist() == [0, 0.5, 0.5]
    times = [np.array([9.0, 1.0, 4.0]), np.array([9.0, 2.0])] + [np.array([9.0])] * 8
    who, ends = machines.updates_of(times)
    assert who.tolist() == [0, 1, 0] and ends.tolist() == [1, 2, 5]


def test_short_halves_are_refused() -> None:
    """A machine with five updates in the half of a run is not fitted."""
    times = sources.machine_times("Shake", "Constant")["0"]
    half = min(float(each[1:].sum()) for each in times) / 2
    with pytest.raises(ConfigError, match="finished rows of client 5 is 5, but must be at least"):
        machines.fitted(times, half)
    assert isinstance(machines.fitted(times, 2 * half), timelines.Calibration)
    # So the whole run is fitted, which does not count as a prediction of its second half.
    found, _ = machines.compare("Shake", "0", machines.STUDY.smoke)
    assert sorted(found) == ["12", "13", "14"]


def test_orders_are_of_one_task() -> None:
    pairs = {"A, x": (1.0, 5.0), "A, y": (2.0, 3.0), "B, x": (3.0, 4.0)}
    assert verdicts.orders(pairs, 0.1) == {"A, x before y": False}
    assert verdicts.orders(pairs, 1.5) == {}


def test_coverage_is_judged_by_law_and_resumed(tmp_path: Path) -> None:
    """One law outside of the marks decides; blocks that are in the folder are not fitted again."""
    good = {"logs": 1000, "rate": 950, "spread": 950, "refused": 0, "censored": 300.0}
    laws: dict[str, dict[str, float]] = dict.fromkeys(coverage.SPREADS, good)
    changes = [("runtime_exp", "spread", 0, True), ("runtime_exp", "rate", 900, False)]
    for law, name, hits, holds in [*changes, ("runtime_normal", "spread", 990, False)]:
        counts = {coverage.JUDGED: laws | {law: good | {name: hits}}}
        (verdict,) = coverage.judge({"smoke": False, "counts": counts})
        assert verdict.holds is holds
    block = ("runtime_exp", 0, 10, 0.0, 2)
    found = coverage._kept(Arguments(checkpoints=tmp_path), block)
    assert found["logs"] == 2 and not found["refused"]
    (file,) = tmp_path.iterdir()
    file.write_text('{"logs": 7}')
    assert coverage._kept(Arguments(checkpoints=tmp_path), block) == {"logs": 7}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rack", "machines", "routing", "coverage"])
def test_smoke_runs(name: str, tmp_path: Path) -> None:
    done = run(f"clocks/{name}", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} >= FILES
    assert set(judged(tmp_path / "out").values()) == {None}
