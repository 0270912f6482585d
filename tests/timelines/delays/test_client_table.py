"""Tables of clients: reading, refused cells, names, and the conversion of a public trace."""

import inspect
import pickle
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, partition, problems
from fedjax_sim.core.settings import check
from fedjax_sim.engine.request import Options, grid_of, list_lanes
from fedjax_sim.timelines import (
    Arrivals,
    ClientTable,
    Contacts,
    Trace,
    presets,
    read_client_table,
    read_trace,
)
from fedjax_sim.timelines.delays import client_table

CONTACTS = presets.preset(Contacts, presets.FAVANO)
ARRIVALS = presets.preset(Arrivals, presets.FAVANO)

DOCS = inspect.getdoc(client_table) or ""


def block_of_docs(first_line: str) -> str:
    """Return the indented block of the module's documentation that begins with a line."""
    text = DOCS[DOCS.index(f"    {first_line}") :]
    lines = text.splitlines()
    ends = [i for i, line in enumerate(lines) if line and not line.startswith("    ")]
    return textwrap.dedent("\n".join(lines[: ends[0]]))


def test_the_example_is_read(tmp_path: Path) -> None:
    """Empty cells are connections that take no time, no losses, and clients that are always there.

    The missing period is the end of the last window.
    """
    path = tmp_path / "clients.csv"
    path.write_text(block_of_docs("client,rate,up,down"))
    table = read_client_table(path)
    assert table.names == ("phone 1", "tablet")
    assert table.size == 2
    np.testing.assert_array_equal(table.rate, [0.5, 0.25])
    np.testing.assert_array_equal(table.spread, [0, 0])
    np.testing.assert_array_equal(table.up, [2e6, 1e7])
    np.testing.assert_array_equal(table.down, [8e6, 4e7])
    np.testing.assert_array_equal(table.drop_rate, [0.05, 0])
    first, begin, end, period = table.windows or ()
    assert first.tolist() == [0, 2, 3]
    assert begin.tolist() == [0, 1200, 0]
    assert end.tolist() == [480, 1440, 1440]
    assert period.tolist() == [1440, 1440]
    assert str(table) == str(read_client_table(path)) != str(ClientTable([0.5, 0.25]))


def test_a_public_trace_is_converted(tmp_path: Path) -> None:
    """FedScale's two files, by the lines that the documentation shows."""
    capacity = {
        17: {"computation": 20.0, "communication": 5000.0},
        4: {"computation": 100.0, "communication": 800.0},
    }
    behaviour = {
        1: {
            "duration": 500,
            "active": [0, 700],
            "inactive": [400, 800],
            "finish_time": 1000,
            "model": "A",
        },
        2: {
            "duration": 300,
            "active": [100, 600],
            "inactive": [300, 600],
            "finish_time": 900,
            "model": "B",
        },
    }
    files = [tmp_path / name for name in ("capacity", "behaviour", "clients.csv")]
    for path, content in zip(files, (capacity, behaviour), strict=False):
        path.write_bytes(pickle.dumps(content))
    scope: dict[str, Any] = {}
    exec(block_of_docs("import csv"), scope)
    scope["convert"](*files, batch_size=5)
    table = read_client_table(files[2])
    assert table.names == ("17", "4")
    np.testing.assert_allclose(table.rate, [1 / 0.3, 1 / 1.5])  # 5 examples, counted three times
    np.testing.assert_allclose(table.up, [5e6, 8e5])
    np.testing.assert_array_equal(table.up, table.down)
    first, begin, end, period = table.windows or ()
    assert first.tolist() == [0, 2, 3]
    assert begin.tolist() == [0, 700, 100]
    assert end.tolist() == [400, 800, 300]
    assert period.tolist() == [1000, 900]


CELLS = {
    "rate": ("client,rate\na,1\nb,fast\n", "rate in row 2 is 'fast', but must be a number"),
    "no rate": ("client,rate\na,1\nb,\n", "rate in row 2 is '', but must be a number"),
    "rate of 0": ("rate\n1\n0\n", "rate in row 2 is 0.0, but must be a finite number above 0"),
    "spread": ("rate,spread\n1,-1\n", "spread in row 1 is -1.0, but must be a finite number of at"),
    "bandwidth": ("rate,up\n1,2\n1,0\n", "up in row 2 is 0.0, but must be a number above 0"),
    "losses": ("drop_rate\n0.1\n1\n", "drop_rate in row 2 is 1.0, but must be from 0 to 0.99"),
    "twice": ("client\na\nb\na\n", "client in row 3 is 'a', but must be a name, different from"),
    "no name": ("client,rate\na,1\n,1\n", "client in row 2 is '', but must be a name"),
    "windows": ("available\n0-5 x\n", "available in row 1 is '0-5 x', but must be windows such as"),
    "order": ("available\n0-5 3-9\n", "available in row 1 is '0-5 3-9', but must be windows in"),
    "period": ("available,period\n0-5,4\n", "must be windows in order, from 0 to the period 4"),
    "period of 0": ("available,period\n0-5,0\n", "period in row 1 is 0.0"),
    "nothing known": ("battery\n1\n", "a CSV file with a header, of which some columns are client"),
    "subnormal rate": ("rate\n1\n1e-39\n", "rate in row 2 is 1e-39, but must be a finite number"),
    "negative rate": ("rate\n-1\n", "rate in row 1 is -1.0, but must be a finite number above 0"),
    "nan rate": ("rate\n1\nnan\n", "rate in row 2 is 'nan', but must be a number"),
    "nan bandwidth": ("rate,up\n1,NaN\n", "up in row 1 is 'NaN', but must be a number"),
    "nan losses": ("drop_rate\nnan\n", "drop_rate in row 1 is 'nan', but must be a number"),
    "nan energy": ("energy_step\nnan\n", "energy_step in row 1 is 'nan', but must be a number"),
    "nan period": ("available,period\n0-5,nan\n", "period in row 1 is 'nan', but must be a number"),
    "nan windows": (
        "available\nnan-5\n",
        "available in row 1 is 'nan-5', but must be windows such",
    ),
    "negative energy": ("energy_byte\n-1\n", "energy_byte in row 1 is -1.0, but must be a finite"),
    "no rows": (
        "rate\n",
        "client_table is 'without rows', but must be a header and one row",
    ),
    "a decimal comma": ("drop_rate,rate\n0,05,0.5\n", "row 1 is 'of 3 cells', but must be of 2"),
    "a column twice": ("rate,rate\n1,2\n", "column rate is 'there twice', but must be there once"),
}


@pytest.mark.parametrize("name", CELLS)
def test_bad_cells_are_reported_by_row_and_value(tmp_path: Path, name: str) -> None:
    text, words = CELLS[name]
    path = tmp_path / "clients.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_client_table(path)
    assert words in str(error.value)
    assert str(error.value).startswith(f"{path}: client_table")


NAMED = ClientTable(names=["ann", "bob", "17"])


def test_a_trace_names_clients(tmp_path: Path) -> None:
    """Rows may be in any order, and a name may look like a number."""
    path = tmp_path / "trace.csv"
    path.write_text("client,start,finish\nbob,0,4\n17,1,3\nann,2,3\nbob,4,9\n")
    trace = read_trace(path)
    hyper = CONTACTS(
        num_clients=3,
        num_selected=2,
        server_wait=4.0,
        server_interact=3.0,
        client_table=NAMED,
        trace=trace,
    )
    check(hyper)
    assert hyper.recorded.client.tolist() == [0, 2, 1, 1]
    assert hyper.recorded.start.tolist() == [2, 1, 0, 4]
    assert hyper.recorded.finish.tolist() == [3, 3, 4, 9]
    # Without names a client is its number.
    numbered = Trace(["2", "0"], [0, 0], [1, 2])
    assert numbered.of_clients(3).client.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("client", "table", "words"),
    [
        (["bob", "eve", "eve"], NAMED, "client in row 2 is 'eve', but must be one of the 3 names"),
        (["1", "17"], NAMED, "trace client in row 1 is '1', but must be one of the 3 names"),
        (["0", "bob"], None, "trace client in row 2 is 'bob', but must be from 0 to num_clients"),
        (["0", "3"], None, "trace client in row 2 is '3', but must be from 0 to num_clients - 1"),
    ],
)
def test_unknown_names_are_reported_by_row_and_value(
    client: list[str], table: ClientTable | None, words: str
) -> None:
    trace = Trace(client, np.zeros(len(client)), np.ones(len(client)))
    with pytest.raises(ConfigError) as error:
        check(ARRIVALS(num_clients=3, buffer_size=1, client_table=table, trace=trace))
    assert words in str(error.value)


def test_columns_that_do_not_fit_together() -> None:
    for columns, words in (
        ({}, "columns of no values"),
        ({"rate": [1.0, 2.0], "up": [1.0]}, "one value per client in every column"),
        ({"rate": [1.0], "period": 3.0}, "left out without windows"),
        ({"available": [[(0, 1)]], "period": [1, 2]}, "period is 'of 2 numbers'"),
        ({"names": ["a"], "spread": [0.5]}, "spread is 'given', but must be left out without rate"),
        ({"rate": ["fast"]}, "rate is .'fast'., but must be numbers"),
        ({"rate": [1.0], "spread": ["wide"]}, "spread is .*wide.*, but must be numbers"),
    ):
        with pytest.raises(ConfigError, match=words):
            ClientTable(**columns)


class Compared(str):
    """A name that counts how often it is compared with another one."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.compared += 1
        return str.__eq__(self, other)


def test_names_are_compared_a_few_times_each() -> None:
    """Tables of many clients are read in a time proportional to their number."""
    names = [Compared(f"client {i}") for i in range(2000)]
    assert ClientTable(names=names).size == 2000
    assert Compared.compared < 20 * len(names)
    with pytest.raises(ConfigError, match="client in row 2001 is 'client 7', but must be a name"):
        ClientTable(names=[*names, Compared("client 7")])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fedavg", "oort", "scaffold"])
def test_energy_is_a_curve(name: str, regression: Callable, small: Callable) -> None:
    """Steps and bytes of the clients that report; SCAFFOLD's messages are twice as long."""
    step, byte = np.arange(1.0, 8.0), np.arange(7.0)[::-1] / 100
    system = fedjax_sim.SYSTEMS[name]
    hyper = small(system, client_table=ClientTable(energy_step=step, energy_byte=byte))
    run = fedjax_sim.simulate(system, regression(), hyper, budget=fedjax_sim.Ticks(6), num_evals=3)
    timeline = run.timelines[0]
    bits = 2 * 96 * (2 if name == "scaffold" else 1)
    each = timeline.steps * step[timeline.clients] + bits / 8 * byte[timeline.clients]
    expected = np.concatenate([[0], np.cumsum(each.sum(axis=1))])[[0, 2, 4, 6]]
    np.testing.assert_allclose(run.curves.energy, expected)


def test_energy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("client,energy_step,energy_byte\na,2.5,\nb,1,0.25\n")
    table = read_client_table(path)
    assert table.counts_energy and not table.has_times
    assert table.energy_step.tolist() == [2.5, 1.0] and table.energy_byte.tolist() == [0.0, 0.25]
    with pytest.raises(ConfigError, match="energy_step in row 1"):
        ClientTable([1.0], energy_step=[-1.0])


def test_spaces_around_columns_and_cells_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text("client , rate,drop_rate \n ann , 0.5,0.1\nbob,2 , \n")
    table = read_client_table(path)
    assert table.names == ("ann", "bob")
    assert table.rate.tolist() == [0.5, 2]
    assert table.drop_rate.tolist() == [0.1, 0]
    path.write_text("client, start ,finish\n0, 1,2 \n")
    assert read_trace(path).start.tolist() == [1]


@pytest.mark.parametrize(
    ("header", "near"),
    [("Rate,rate_", "rate"), ("drop-rate,x", "drop_rate"), ("Client,rate", "client")],
)
def test_misspelt_columns_are_refused(tmp_path: Path, header: str, near: str) -> None:
    """They would be ignored: speeds would be those of the settings, and nothing would be lost."""
    path = tmp_path / "clients.csv"
    path.write_text(f"{header}\n0.5,0.5\n")
    column = header.split(",")[0]
    words = f"clients.csv: client_table column is '{column}', but must be one of client, available"
    with pytest.raises(ConfigError) as error:
        read_client_table(path)
    assert words in str(error.value)
    assert str(error.value).endswith(f"(did you mean {near!r}?).")
    path.write_text("Client,start,finish\n0,1,2\n")
    with pytest.raises(ConfigError, match=r"column is 'Client', .* \(did you mean 'client'\?\)"):
        read_trace(path)


def test_other_columns_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The index that a DataFrame writes has no name. A column that is there is misspelt nowhere."""
    path = tmp_path / "clients.csv"
    path.write_text(",up,battery,state,date\n0,0.5,3,here,1\n1,0.25,4,there,2\n")
    assert read_client_table(path).up.tolist() == [0.5, 0.25]
    assert capsys.readouterr().err == (
        f"fedjax-sim: columns of client_table {path} that are ignored: battery, state, date.\n"
    )


NAMES, RATES = ["watch", "phone", "tablet"], [0.01, 100.0, 1.0]


def named_problem(names: Any = ("phone", "tablet", "watch")) -> Any:
    """Make a problem with one example of each client."""
    return problems.from_logdensity(
        lambda mean, example: -((example - mean) ** 2).sum(),
        lambda mean: -(mean**2).sum(),
        np.arange(float(len(names)))[:, None],
        list(names),
        start=jnp.zeros(1),
        per_client=True,
    )


def run_with(problem: Any, **delays: Any) -> Any:
    """Return the one event of a round of all three clients."""
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = system.Hyper(num_selected=3, local_steps=1, batch_size=1, lr=0.1, server_interact=1.0)
    hyper = hyper.replace(**delays)
    return fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(5), num_evals=1)


def lane_table(problem: Any, table: ClientTable) -> ClientTable:
    """Return the table with which a lane runs."""
    system = fedjax_sim.SYSTEMS["fedavg"]
    hyper = system.Hyper(num_selected=2, batch_size=1, server_interact=1.0, client_table=table)
    options = Options(budget=fedjax_sim.Ticks(2))
    lanes = list_lanes(system, problem, hyper, grid_of(2, None), options)
    first, second = (lane.hyper.delays.client_table for lane in lanes)
    assert first is second
    return first


def test_rows_belong_to_clients_of_their_names() -> None:
    """The problem has other clients first: phone, tablet, watch."""
    windows = [[(0, 1)], [(1, 2), (3, 4)], [(2, 5)]]
    table = ClientTable(
        RATES, names=NAMES, drop_rate=[0, 0.5, 0], available=windows, period=[5, 6, 7]
    )
    found = lane_table(named_problem(), table)
    assert found.names == ("phone", "tablet", "watch")
    assert found.rate.tolist() == [100, 1, 0.01]
    assert found.drop_rate.tolist() == [0.5, 0, 0]
    assert found.windows is not None
    assert found.windows.first.tolist() == [0, 2, 3, 4]
    assert found.windows.begin.tolist() == [1, 3, 2, 0]
    assert found.windows.end.tolist() == [2, 4, 5, 1]
    assert found.windows.period.tolist() == [6, 7, 5]
    same = ClientTable([100.0, 1.0, 0.01], names=["phone", "tablet", "watch"])
    assert lane_table(named_problem(), same) is same
    numbers = ClientTable(rate=[0.1, 0.2], names=["9", "10"])  # Sorted as numbers: 9, 10.
    assert lane_table(named_problem([10, 9]), numbers).rate.tolist() == [0.1, 0.2]


def test_a_run_has_the_speeds_of_the_names() -> None:
    """So it is the run of the table in the problem's order, which is found by its results."""
    by_name = run_with(named_problem(), client_table=ClientTable(RATES, names=NAMES))
    in_order = run_with(named_problem(), client_table=ClientTable([100.0, 1.0, 0.01]))
    as_given = run_with(named_problem(), client_table=ClientTable(RATES))
    for name in ("loss", "client_loss", "time"):
        np.testing.assert_array_equal(by_name.curves[name], in_order.curves[name])
    assert not np.array_equal(by_name.curves.time, as_given.curves.time)
    assert by_name.curves.client.values.tolist() == ["phone", "tablet", "watch"]


def test_without_names_on_one_side_rows_go_by_position() -> None:
    split = partition.Partition(np.array([0, 1, 2]), np.array([1, 1, 1]))
    unnamed = problems.from_logdensity(
        lambda mean, example: -((example - mean) ** 2).sum(),
        lambda mean: -(mean**2).sum(),
        np.arange(3.0)[:, None],
        split,
        start=jnp.zeros(1),
    )
    table = ClientTable(RATES, names=NAMES)
    assert lane_table(unnamed, table) is table
    nameless = ClientTable(RATES)
    assert lane_table(named_problem(), nameless) is nameless


@pytest.mark.parametrize(
    ("names", "problem_names", "words"),
    [
        (
            ["watch", "phone", "Tablet"],
            ["phone", "tablet", "watch"],
            "client_table client in row 3 is 'Tablet', but must be a name of one of the 3 clients "
            "of the problem, such as 'phone' (did you mean 'tablet'?).",
        ),
        (
            ["a", "b"],
            ["b", "b "],
            "name of two clients of the problem is 'b', but must be",
        ),
    ],
)
def test_names_of_both_sides_must_be_the_same(
    names: list[str], problem_names: list, words: str
) -> None:
    table = ClientTable(rate=np.ones(len(names)), names=names)
    with pytest.raises(ConfigError) as error:
        lane_table(named_problem(problem_names), table)
    assert words in str(error.value)
    with pytest.raises(
        ConfigError, match="client_table client is 'without c', but must be one row"
    ):
        client_table.in_order_of(ClientTable(names=["a", "b"]), ("b", "c", "a"))


def test_a_trace_without_a_table_may_name_the_problem_s_clients(tmp_path: Path) -> None:
    """Numbers in a file are names where the problem's clients have such names."""
    path = tmp_path / "trace.csv"
    path.write_text("client,start,finish\n2,0,4\n1,0,3\n")
    system = fedjax_sim.SYSTEMS["fedbuff"]

    def clients(names: list, trace: Trace) -> list[int]:
        hyper = system.Hyper(buffer_size=1, batch_size=1, trace=trace)
        options = Options(budget=fedjax_sim.Ticks(2))
        (lane,) = list_lanes(system, named_problem(names), hyper, grid_of(1, None), options)
        return lane.hyper.delays.trace.client.tolist()

    assert clients([0, 1, 2], read_trace(path)) == [1, 2]
    assert clients([1, 2, 3], read_trace(path)) == [0, 1]
    assert clients(["a", "b", "c"], read_trace(path)) == [1, 2]
    assert clients([1, 2, 3], Trace([1, 2], [0, 0], [3, 4])) == [1, 2]
    with pytest.raises(ConfigError, match="trace client in row 1 is '2', but must be one of the 3"):
        clients([1, 5, 9], read_trace(path))


@pytest.mark.parametrize("cells", [("step", "update"), ("update", ""), ("epoch", "epoch")])
def test_a_table_counts_steps_or_updates(tmp_path: Path, cells: tuple[str, str]) -> None:
    path = tmp_path / "clients.csv"
    path.write_text("rate,time_of\n1,{}\n2,{}\n".format(*cells))
    with pytest.raises(ConfigError, match=r"time_of is .* but must be step in all rows"):
        read_client_table(path)
    path.write_text("rate,time_of\n1,step\n2,step\n")
    assert read_client_table(path).time_of == "step"


@pytest.mark.slow
def test_tables_of_equal_columns_share_a_program() -> None:
    """Lanes of a sweep over tables are those of the tables alone, bit for bit."""
    rng = np.random.default_rng(0)
    windows: Any = {"available": [[(0.0, 2.0)]] * 4, "period": 3.0}

    def drawn() -> ClientTable:
        rate, spread, up = rng.uniform(0.2, 2, (3, 4))
        return ClientTable(rate, spread / 4, up=up, names=tuple("abcd"), **windows)

    tables, system = [drawn() for _ in range(3)], fedjax_sim.SYSTEMS["oort"]
    problem = problems.Quadratic.of(rng.normal(size=(4, 2)).astype("float32"))
    law: Any = {"runtime_law": "runtime_lognormal", "server_interact": 0.5}
    hyper = system.Hyper(num_clients=4, num_selected=2, **law)
    given: Any = {"seeds": 2, "budget": fedjax_sim.Ticks(6), "num_evals": 2}
    sweep = fedjax_sim.sweep(system, problem, hyper, settings={"client_table": tables}, **given)
    assert len({jax.tree.structure(each) for each in sweep.hypers}) == 1
    times = sweep.curves.time.transpose("client_table", ...)
    assert len(np.unique(times)) > times.sizes["eval"]
    for table, found in zip(tables, times, strict=True):
        alone = fedjax_sim.sweep(system, problem, hyper.replace(client_table=table), **given)
        np.testing.assert_array_equal(alone.curves.time, found)
    others = ClientTable(np.ones(4), names=tuple("abcd")), ClientTable(np.ones(4))
    assert len({jax.tree.structure(each) for each in (*tables, *others)}) == 3
