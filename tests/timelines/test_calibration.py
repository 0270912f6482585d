"""Clients and laws that are fitted to logs, against the laws that drew these logs."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedjax_sim
from experiments.clocks import coverage
from fedjax_sim import ConfigError, System, timelines
from fedjax_sim.core.settings import check
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import favano, fedbuff
from fedjax_sim.timelines import calibration

SPREADS = {
    "runtime_exp": 0.0,
    "runtime_geom": 0.0,
    "runtime_normal": 0.2,
    "runtime_lognormal": 0.6,
    "runtime_shifted_exp": 0.5,
    "runtime_pareto": 0.4,
    "runtime_uniform": 0.5,
}


def draw(law: str, *, clients: int = 4, rows: int = 150, limit: float = 3.0) -> dict[str, Any]:
    """Draw a log of clients with rates 0.1, 0.2, ..., whose rows are seen for random times."""
    rates = 0.1 * np.arange(1, clients + 1)
    speeds = timelines.Speeds(*map(jax.numpy.asarray, (rates, np.full(clients, SPREADS[law]))))
    with jax.enable_x64(True):
        time = np.asarray(timelines.draw_runtimes(jax.random.key(5), speeds, rows, law), float)
    limits = np.random.default_rng(5).exponential(limit / rates[:, None], time.shape)
    start = np.broadcast_to(2.0**14 * np.arange(rows), time.shape)
    return {
        "client": np.repeat([f"c{i}" for i in range(clients)], rows),
        "start": start.ravel(),
        "finish": (start + np.minimum(time, limits)).ravel(),
        "censored": (time > limits).astype(int).ravel(),
    }


@pytest.mark.few(3)
@pytest.mark.parametrize("law", SPREADS)
def test_law_and_clients_are_found_again(law: str) -> None:
    """Cross-validation finds the law; rates and spreads are within four standard errors."""
    fitted = timelines.calibrate(draw(law))
    assert 0.15 < np.mean(~fitted.log.done) < 0.45
    assert fitted.law == law and next(iter(fitted.scores)) == law
    spread = np.full(4, SPREADS[law])
    for found, error, truth in zip(
        np.median(fitted.draws, axis=-1), fitted.error, (0.1 * np.arange(1, 5), spread), strict=True
    ):
        assert np.all(np.abs(found - truth) <= 4 * error) and np.all(error < 0.2 * found + 1e-12)
    assert len(fitted.poor) <= 1  # A test at 5 % of each of 28 clients.
    value, error = fitted.correlation
    assert abs(value) < 4 * error < 0.25


@pytest.mark.few(3)
@pytest.mark.parametrize("law", calibration.SHAPES)
def test_intervals_have_the_truth(law: str) -> None:
    """Of 50 logs' intervals, as many have the truth as 95 % allow, at a level of 0.2 %."""
    found = coverage.cover(law, 0, 200, 0.3)
    assert found["logs"] == 50 and 0.25 < found["censored"] / 50 < 0.35 and not found["refused"]
    for name in ("rate", "spread"):
        assert found[name] >= stats.binom.ppf(0.002, 50, 0.95)


def test_another_law_is_seen() -> None:
    """Times of two kinds fit no law, which the test of goodness says; and dependence shows."""
    rng = np.random.default_rng(0)
    times = np.where(np.arange(400) % 100 < 50, 1.0, 10.0) * rng.uniform(0.95, 1.05, 400)
    start = 20.0 * np.arange(400)
    fitted = timelines.calibrate({"client": ["a"] * 400, "start": start, "finish": start + times})
    assert fitted.poor == [
        "a"
    ] and "1 clients have another law than the fitted one, such as a." in str(fitted)
    assert fitted.correlation[0] > 0.5


def test_messages_are_told_from_work() -> None:
    """Times of a bit sent and received are within four standard errors, with censored rows too."""
    log, rng = draw("runtime_lognormal", clients=2, rows=400), np.random.default_rng(1)
    sent, received = rng.integers(1000, 9000, (2, 800))
    transfer = 8 * (2e-4 * sent + 1e-4 * received)
    log["finish"] = np.where(log["censored"], log["finish"], log["finish"] + transfer)
    fitted = timelines.calibrate({**log, "bytes_up": sent, "bytes_down": received})
    is_done = fitted.log.done.mean()
    assert 0.6 < is_done < 0.9
    whole = timelines.calibrate(log)
    assert whole.table.up is None and not whole.seconds_per_bit.any()
    log["censored"], log["finish"] = 0 * log["censored"], log["start"] + transfer + 5.0
    log["finish"] += rng.exponential(3.0, 800)
    fitted = timelines.calibrate({**log, "bytes_up": sent, "bytes_down": received})
    errors = np.abs(fitted.seconds_per_bit - [2e-4, 1e-4]) / fitted.seconds_error
    assert np.all(errors < 4) and np.all(fitted.seconds_error < 2e-5)
    assert fitted.table.up == pytest.approx(1 / fitted.seconds_per_bit[:, 0])
    assert fitted.table.rate == pytest.approx(np.full(2, 1 / 8), rel=0.15)


def test_bad_rows_are_counted_by_kind() -> None:
    """Each kind has its number of rows and its first row; the other rows are used."""
    good = "\n".join(f"a,{10 * i},{10 * i + 3 + i % 4},,,1" for i in range(20))
    bad = """
,0,1,,,1
a,x,2,,,1
a,-1,2,,,1
a,5,2,,,1
a,5,4,,,1
a,7,7,,,1
a,0,3,,,1
a,1,2,maybe,,1
a,1,2,,-4,1
"""
    log = timelines.read_log("client,start,finish,censored,bytes_up,device\n" + good + bad)
    assert log.bad == {
        "no client": (1, 21),
        "start or finish that is no number": (1, 22),
        "start before 0": (1, 23),
        "finish before start": (2, 24),
        "no time between start and finish": (1, 26),
        "the same row as before": (1, 27),
        "censored that is neither 0 nor 1": (1, 28),
        "bytes that are no number from 0": (1, 29),
    }
    assert len(log.time) == 20 and log.done.all() and log.devices == ("1",)
    running = timelines.read_log("client,start,finish\na,1,4\na,4,\nb,2,9\n")
    assert running.time.tolist() == [3.0, 5.0, 7.0] and running.done.tolist() == [1, 0, 1]
    wrong = timelines.read_log("client,start,finish\na,1,4\na,4,\nb,2,9\nb,99,5\n")
    assert wrong.time.tolist() == running.time.tolist()
    begun = timelines.read_log("client,start,finish\na,1,4\na,,9\n")
    assert begun.bad == {"start or finish that is no number": (1, 2)} and len(begun.time) == 1


def test_a_data_frame_has_the_rows_of_its_file(tmp_path: Path) -> None:
    """Cells without a value are those that are empty in the file: unfinished work, and so on."""
    file = tmp_path / "log.csv"
    file.write_text("client,start,finish,censored,bytes_up\na,1,4,,8\na,4,,,\nb,2,9,1,\n,0,1,,\n")
    of_file = timelines.read_log(file)
    assert of_file.done.tolist() == [1, 0, 0] and of_file.bad == {"no client": (1, 4)}
    table = pd.read_csv(file)
    for frame in (table, table.convert_dtypes()):  # with nan, and with pandas.NA
        found = timelines.read_log(frame)
        assert found.clients == of_file.clients and found.bad == of_file.bad
        for name in ("client", "start", "time", "done", "bits"):
            np.testing.assert_array_equal(getattr(found, name), getattr(of_file, name))


def test_too_few_rows_are_refused() -> None:
    """A client needs ten finished rows, unless its class of devices has them."""
    log = draw("runtime_exp", clients=2, rows=9, limit=1e9)
    with pytest.raises(ConfigError, match="finished rows of client c0 is 9, but must be at least"):
        timelines.calibrate(log)
    fitted = timelines.calibrate(log | {"device": ["board"] * 18}, by="device", law="runtime_exp")
    assert np.ptp(fitted.table.rate) == 0 and fitted.table.names == ("c0", "c1")
    with pytest.raises(ConfigError, match="by is 'device', but must be client for a log without"):
        timelines.calibrate(log, by="device")
    with pytest.raises(ConfigError, match="law is 'count_geom', but must be one that can have"):
        timelines.calibrate(draw("runtime_exp"), law="count_geom")
    with pytest.raises(ConfigError, match="log is 'without a column finish', but must be of colu"):
        timelines.read_log("client,start\na,0\n")


def test_result_is_used_and_saved_in_one_line(tmp_path: Path) -> None:
    """A system takes the delays as they are; the table's file has the same bits; tables differ."""
    fitted = timelines.calibrate(draw("runtime_lognormal"), law="runtime_lognormal")
    hyper = fedjax_sim.SYSTEMS["fedbuff"].Hyper(num_clients=4, buffer_size=2, delays=fitted.delays)
    timeline = timelines.schedule_arrivals(jax.random.key(0), hyper, 20)
    assert np.asarray(timeline.clients).shape == (20, 2)
    file = tmp_path / "clients.csv"
    file.write_text(fitted.table.as_csv())
    again = timelines.read_client_table(file)
    assert str(again) == str(fitted.table)
    drawn = np.array([table.rate for table in fitted.draw_tables(200)])
    assert drawn.std(axis=0) == pytest.approx(fitted.error[0], rel=0.3)


@pytest.mark.slow
def test_bands_have_the_time_to_a_level() -> None:
    """An interval from a log has the true clients' time, but not that of clients half as fast."""
    law, rates = "runtime_lognormal", 0.1 * np.arange(1, 5)
    fitted = timelines.calibrate(draw(law), law=law)
    true, slow = (
        timelines.ClientTable(rates * share, SPREADS[law], time_of="update") for share in (1, 0.5)
    )
    hyper = fedbuff.Hyper(
        num_clients=4, buffer_size=2, local_steps=1, batch_size=1, lr=0.02, delays=fitted.delays
    )
    problem = Quadratic.of([[0.0, 1.0], [2.0, 0.0], [4.0, 4.0], [1.0, 3.0]])
    curves = fedjax_sim.sweep(
        fedbuff.system,
        problem,
        hyper,
        settings={"client_table": [*fitted.draw_tables(20), true, slow]},
        seeds=4,
        budget=fedjax_sim.Time(400),
        num_evals=100,
    ).curves
    start = curves.loss.isel(eval=0)
    level = 0.3 * start.mean() + 0.7 * curves.loss.min()
    reached = curves.time.where(curves.loss < level).min("eval")
    low, high = reached.isel(client_table=slice(20)).quantile(
        [0.025, 0.975], ["client_table", "seed"]
    )
    assert low < reached.isel(client_table=20).median() < high < 200
    assert reached.isel(client_table=21).median() > high


def test_equal_times_are_constant() -> None:
    """If each client always takes the same time, the law is constant; else spreads are 0."""
    start = np.tile(10.0 * np.arange(12), 2)
    log = {"client": ["a"] * 12 + ["b"] * 12, "start": start, "finish": start + 2}
    assert timelines.calibrate(log).law == "runtime_constant"
    log["finish"][12:] += np.linspace(0.01, 2, 12)
    fitted = timelines.calibrate(log)
    assert fitted.table.spread[0] == 0 < fitted.table.spread[1] and fitted.table.rate[0] == 0.5


@pytest.mark.parametrize("system", [favano.system, favano.quafl])
def test_whole_updates_are_no_steps_where_contacts_interrupt_clients(system: System) -> None:
    """Rates of whole updates, as a file or in Python, are never read as those of local steps."""
    table = timelines.calibrate(draw("runtime_exp")).table
    for own in (table, timelines.read_client_table(table.as_csv())):
        assert own.time_of == "update" and str(own) == str(table)
        with pytest.raises(ConfigError, match="time_of is 'step', but must be \"update\""):
            check(system.Hyper(num_clients=4, num_selected=2, client_table=own))
        times = {"server_wait": 4.0, "server_interact": 1.0, "time_of": "update"}
        with pytest.raises(ConfigError, match="time_of is 'update', but must be \"step\""):
            check(system.Hyper(num_clients=4, num_selected=2, client_table=own, **times))
    check(fedbuff.Hyper(num_clients=4, buffer_size=2, client_table=table, time_of="update"))
