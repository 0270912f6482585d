"""Criteria, comparisons of systems, and the tables of what they found."""

import csv
import io

import numpy as np
import pytest
import xarray as xr

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.studies import Criterion, Interval, Table, compare, pictures

TIME = np.array([0.0, 10.0, 20.0, 30.0])


def curves_of(
    accuracy: list[list[float]], failed: tuple[int, ...] = (), seeds: list[int] | None = None
) -> xr.Dataset:
    """Make curves `[seed, eval]` of a system."""
    num = len(accuracy)
    is_failed = np.isin(np.arange(num), failed)
    values = np.array(accuracy)
    loss = (("seed", "eval"), 1 - values, {"less_is_better": 1})
    clients = np.stack([values, values - 0.1], axis=-1)
    clients[..., 1, 0] = np.nan  # Evaluation 1 of client 0.
    return xr.Dataset(
        {
            "accuracy": (("seed", "eval"), values, {"has_chance": 1}),
            "loss": loss,
            "client_accuracy": (("seed", "eval", "client"), clients),
            "failed": ("seed", is_failed),
            "collapsed_at": ("seed", np.full(num, -1)),
        },
        {
            "seed": list(range(num)) if seeds is None else seeds,
            "time": (("seed", "eval"), np.broadcast_to(TIME, (num, 4))),
            "uplink_bits": ("eval", 8 * TIME),
        },
    )


RUNS = [[0.1, 0.5, 0.7, 0.9], [0.1, 0.3, 0.5, 0.7], [0.1, 0.8, 0.8, 0.8]]


def test_what_lanes_are_worth() -> None:
    """By hand, of a system whose last seed diverged."""
    curves = curves_of(RUNS, failed=(2,))
    assert Criterion().values(curves).values == pytest.approx([0.7, 0.5, 0.0])
    assert Criterion("loss").values(curves).values == pytest.approx([0.3, 0.5, np.inf])
    assert Criterion("loss").scores(curves).values == pytest.approx([-0.3, -0.5, -np.inf])
    stuck = curves.assign(collapsed_at=("seed", [-1, 2, 1]))
    assert Criterion().scores(stuck).values.tolist() == [pytest.approx(0.7), 0.0, 0.0]
    assert Criterion().values(stuck).values[1] == pytest.approx(0.5)
    of_loss = Criterion("loss").scores(stuck).values  # Chance is of accuracies.
    assert of_loss == pytest.approx([-0.3, -0.5, -np.inf])
    area = Criterion(by="area").values(curves)
    assert area.values == pytest.approx([1.3 / 3, 0.3, 0.0])
    worst = Criterion("client_accuracy", "worst_client").values(curves)
    assert worst.values[2] == 0.0 and worst.values[1] == pytest.approx(0.4)
    first = Criterion(by="time", level=0.7)
    assert first.values(curves).values.tolist() == [20.0, 30.0, 30.0]
    assert first.scores(curves).values.tolist() == [-20.0, -30.0, -30.0]
    bits = Criterion("loss", "time", 0.5, "bits")
    assert bits.values(curves).values.tolist() == [80.0, 160.0, 240.0]
    assert str(bits) == "sent to the server to loss 0.5"


def test_what_does_not_fit_is_refused() -> None:
    curves = curves_of(RUNS)
    with pytest.raises(ConfigError, match="metric is 'acuracy'"):
        Criterion("acuracy").values(curves)
    with pytest.raises(ConfigError, match="against is 'energy'"):
        Criterion(by="area", against="energy").values(curves)
    with pytest.raises(ConfigError, match="level is None"):
        Criterion(by="time")
    with pytest.raises(ConfigError, match="level is"):
        Criterion(level=0.5)
    with pytest.raises(ConfigError, match="curves is"):
        compare({})


def test_systems_are_paired_by_seed() -> None:
    """The order of seeds does not matter, and other seeds are not paired."""
    good = curves_of([[0.1, 0.5, 0.5, each] for each in (0.6, 0.7, 0.8, 0.9)])
    base = good.assign(accuracy=good.accuracy - 0.05).isel(seed=[3, 1, 0, 2])
    [pair] = compare({"base": base, "good": good}).pairs
    assert (pair.first, pair.second, pair.better) == ("good", "base", "good")
    assert pair.lead.mean == pytest.approx(0.05) and pair.lead.half < 1e-9 and pair.needed == 2
    apart = base.assign_coords(seed=[10, 11, 12, 13])
    [pair] = compare({"base": apart, "good": good}).pairs
    assert pair.lead.half > 0.05 and pair.better is None and pair.needed is None


def test_no_point_of_a_sweep_takes_the_place_of_another() -> None:
    """Neither of a rate that differs in the eighth digit, nor of a function of the same name."""
    rates, names = [0.12345678, 0.12345679], ["<lambda>", "<lambda>"]
    for values in (rates, names):
        swept = xr.concat([curves_of(RUNS), curves_of(RUNS, failed=(0,))], "lr")
        found = compare({"fedavg": swept.assign_coords(lr=values)})
        assert sorted(entry.failed for entry in found.entries.values()) == [0, 1]
        assert len(found.pairs) == 1
    assert {*found.entries} == {"fedavg lr=<lambda> (1)", "fedavg lr=<lambda> (2)"}


def test_times_of_which_some_are_not_reached() -> None:
    """Means are restricted, diverged seeds never reach the level, and less is better."""
    fast, slow = curves_of([*RUNS, RUNS[0]]), curves_of([[0.1] * 4] * 4)
    found = compare({"slow": slow, "fast": fast}, Criterion(by="time", level=0.7))
    assert list(found.entries) == ["fast", "slow"] and found.horizon == 30
    assert found.entries["fast"].sample.values == (20.0, 30.0, 10.0, 20.0)
    assert found.entries["slow"].sample.values == (30.0,) * 4
    [pair] = found.pairs
    assert pair.lead.mean == -10 and pair.better is None
    assert pair.resampled.mean == -10 and 8 < pair.resampled.half < np.inf
    rows = found.systems().rows
    assert [row[2] for row in rows] == ["4 of 4", "0 of 4"]
    assert found.systems().header[2] == "reached by 30"
    failed = compare({"fast": curves_of(RUNS, failed=(2,))}, Criterion(by="time", level=0.7))
    assert failed.entries["fast"].sample.values == (20.0, 30.0, 30.0)
    figure = pictures.survival_figure(found)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert lines["slow"].tolist() == [1.0, 1.0] and lines["fast"].tolist() == [1, 0.75, 0.25, 0, 0]


def test_a_lane_that_ends_early_is_censored() -> None:
    """One seed ends at 15 without the level: it counts as still on its way."""
    short = curves_of(RUNS)
    short["time"] = short["time"].copy()
    short["time"][1] = [0.0, 5.0, 10.0, 15.0]
    short["accuracy"][1] = 0.1
    found = compare({"short": short}, Criterion(by="time", level=0.7))
    # At 10 one of three is there; at 20 one of the one that is left.
    assert found.entries["short"].sample.mean == pytest.approx(10 + 2 / 3 * 10)


def test_many_equal_systems_are_corrected_for() -> None:
    rng = np.random.default_rng(0)
    finals = 0.5 + 0.01 * rng.normal(size=(6, 5))
    curves = {f"{i}": curves_of([[0, x, x, x] for x in each]) for i, each in enumerate(finals)}
    pairs = compare(curves).pairs
    assert len(pairs) == 15 and not any(pair.better for pair in pairs)
    assert all(pair.corrected >= pair.p for pair in pairs)


def test_tables_in_all_forms() -> None:
    rows = [["fed_avg", Interval(0.9123, 0.0031), None, 3], ["a & b", Interval(-1.5, 0.25), 2.0, 4]]
    table = Table(["system", "accuracy, %", "x", "n"], rows, [(0, 1)])
    assert table.latex().splitlines()[1:] == [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"system & accuracy, \% & x & n \\",
        r"\midrule",
        r"fed\_avg & \textbf{0.9123 $\pm$ 0.0031} &  & 3 \\",
        r"a \& b & $-$1.50 $\pm$ 0.25 & 2 & 4 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert table.markdown().splitlines()[2].split("|")[2].strip() == "**0.9123 ± 0.0031**"
    read = list(csv.reader(io.StringIO(table.csv())))
    assert read[0] == ["system", "accuracy, %", "± accuracy, %", "x", "n"]
    assert read[2] == ["a & b", "-1.5", "0.25", "2.0", "4"]
    assert table.texts()[1] == {
        "system": "a & b",
        "accuracy, %": "-1.50 ± 0.25",
        "x": "2",
        "n": "4",
    }
    assert (
        str(Table(["a"], [[Interval(float("inf"), float("nan"))]]).texts()) == "[{'a': 'diverged'}]"
    )
