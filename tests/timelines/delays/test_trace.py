"""Recorded traces: reading, refused rows, and every schedule's replay against a loop over rows."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.timelines import (
    Arrivals,
    ClientDelays,
    ClientTable,
    CohortRounds,
    Contacts,
    Trace,
    presets,
    read_trace,
    schedule_arrivals,
    schedule_cohort_rounds,
    schedule_contacts,
)
from tests.conftest import slow_but

CONTACTS = presets.preset(Contacts, presets.FAVANO)
ROUNDS = presets.preset(CohortRounds, presets.FAVANO)
ARRIVALS = presets.preset(Arrivals, presets.FAVANO)


def recorded(num_clients: int = 6, rows: int = 90, *, seed: int = 0, whole: bool = False) -> Trace:
    """Make rows of clients that work without breaks, for random lengths of time.

    With whole numbers, finishes coincide with the server's clock.
    """
    random = np.random.default_rng(seed)
    client = np.concatenate(
        [np.arange(num_clients), random.integers(0, num_clients, rows - num_clients)]
    )
    length = random.integers(1, 5, rows).astype(float) if whole else random.uniform(0.5, 5, rows)
    start, finish, clock = np.zeros(rows), np.zeros(rows), np.zeros(num_clients)
    for row, i in enumerate(client):
        start[row], finish[row] = clock[i], clock[i] + length[row]
        clock[i] = finish[row]
    order = random.permutation(rows)
    return Trace(client[order], start[order], finish[order])


def test_rows_are_put_in_order_of_finish() -> None:
    trace = Trace([2, 0, 1], [0, 0, 1.5], [3.0, 1.0, 2.0])
    assert trace.client.tolist() == [0, 1, 2]
    assert trace.start.tolist() == [0, 1.5, 0]
    assert trace.finish.tolist() == [1.0, 2.0, 3.0]
    rows = trace.by_client(4)
    assert rows.first.tolist() == [0, 1, 2, 3, 3]


def test_a_csv_file_is_read(tmp_path: Path) -> None:
    """Columns are found by name in any order, and other columns are ignored."""
    path = tmp_path / "trace.csv"
    path.write_text("finish,note,client,start\n3.5,a,1,0\n1.25,b,0,0.5\n")
    trace = read_trace(path)
    assert trace.client.tolist() == [0, 1]
    assert trace.start.tolist() == [0.5, 0.0]
    assert trace.finish.tolist() == [1.25, 3.5]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "client,start\n0,1\n",
        "client,start,finish\n0,1\n",
        "client,start,finish\n0,one,2\n",
        "client,start,finish\n0,0,5,1\n",
        "client,start,start,finish\n0,0,1,2\n",
        "a,b,c\n0,1,2\n",
        "client,start,finish\n",
        "number,start,finish\n1.7,0,1\n",
        "number,start,finish\nnan,0,1\n",
    ],
)
def test_a_csv_file_that_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match="trace"):
        read_trace(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="readable CSV file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="readable CSV file"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([0, 1], [0.0], [1.0, 2.0]), "of the same length"),
        (([], [], []), "at least 1"),
        (([[0]], [[0.0]], [[1.0]]), "an array of shape"),
        (([0], [0.0], [np.nan]), "finite numbers"),
        (([0], [np.inf], [np.inf]), "finite numbers"),
        (([0], [2.0], [1.0]), "start <= finish"),
        (([0], [-1.0], [1.0]), "0 <= start"),
        (([0.5], [0.0], [1.0]), "whole client numbers"),
        (([np.nan], [0.0], [1.0]), "whole client numbers"),
        (([np.inf], [0.0], [1.0]), "whole client numbers"),
        (([2.0**40], [0.0], [1.0]), "whole client numbers"),
    ],
)
def test_rows_that_cannot_be(columns: tuple, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Trace(*columns)


def test_contacts_count_the_rows_that_finish_in_the_window(draw: Callable) -> None:
    """At most K rows count, and a row that ends at the contact does."""
    trace = recorded(whole=True)
    hyper = CONTACTS(
        num_clients=6,
        num_selected=2,
        local_steps=3,
        server_wait=2.0,
        server_interact=1.0,
        trace=trace,
    )
    schedule, _ = draw(schedule_contacts, hyper, num_ticks=25)
    last = np.zeros(6)
    for t in range(25):
        now = schedule.time[0, t]
        for slot, i in enumerate(schedule.clients[0, t]):
            finish = trace.finish[trace.client == i]
            done = np.sum((finish > last[i]) & (finish <= now))
            assert schedule.steps[0, t, slot] == min(done, 3)
            last[i] = now
    assert 0 < schedule.steps.mean() < 3


def test_rounds_use_a_clients_rows_in_turn(draw: Callable) -> None:
    """After its last row a client starts again from the first."""
    trace = recorded()
    hyper = ROUNDS(num_clients=6, num_selected=2, local_steps=3, server_interact=0.5, trace=trace)
    schedule = draw(schedule_cohort_rounds, hyper, num_ticks=60)
    lengths = {i: (trace.finish - trace.start)[trace.client == i] for i in range(6)}
    visits, clock = np.zeros(6, int), 0.0
    for t in range(60):
        longest = 0.0
        for i in schedule.clients[0, t]:
            longest = max(longest, lengths[i][visits[i] % len(lengths[i])])
            visits[i] += 1
        clock += longest + 0.5
        np.testing.assert_allclose(schedule.time[0, t], clock, rtol=1e-12)
    assert (visits > [len(lengths[i]) for i in range(6)]).any()


def test_arrivals_are_buffered_in_order_of_finish(draw: Callable) -> None:
    """The server acts when a buffer is full.

    An update starts from the newest version at its recorded start.
    """
    trace = recorded()
    hyper = ARRIVALS(num_clients=6, buffer_size=4, local_steps=3, trace=trace)
    schedule = draw(schedule_arrivals, hyper, num_ticks=30)
    made: list[float] = []
    for t in range(22):
        rows = slice(4 * t, 4 * t + 4)
        np.testing.assert_array_equal(schedule.clients[0, t], trace.client[rows])
        clock = trace.finish[rows].max()
        assert schedule.time[0, t] == clock
        for slot, start in enumerate(trace.start[rows]):
            assert schedule.version[0, t, slot] == sum(time <= start for time in made)
        made.append(clock)
        # A client holds the tick's model afterwards, unless its next row started from an older one.
        for slot, i in enumerate(schedule.clients[0, t]):
            later = np.flatnonzero(trace.client[4 * t + slot + 1 :] == i)
            started = trace.start[4 * t + slot + 1 + later[0]] if later.size else np.inf
            assert schedule.holds[0, t, slot] == (
                t + 1 if started >= clock else sum(time <= started for time in made)
            )
    short = draw(schedule_arrivals, hyper, num_ticks=7)
    for few, many in zip(jax.tree.leaves(short), jax.tree.leaves(schedule), strict=True):
        np.testing.assert_array_equal(few, many[:, :7])
    # 90 rows fill 22 buffers; later ticks never happen.
    assert np.isposinf(schedule.time[0, 22:]).all()
    assert schedule.version.max() > 0


def test_a_buffer_of_all_clients_is_never_stale(draw: Callable) -> None:
    """Four clients that finish together at 1, 2, 3, ... fill a buffer of four."""
    rounds = np.repeat(np.arange(7.0), 4)
    trace = Trace(np.tile(np.arange(4), 7), rounds, rounds + 1)
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = system.paper(num_clients=4, buffer_size=4, trace=trace)
    schedule = draw(system.timeline, hyper, num_ticks=7)
    np.testing.assert_array_equal(schedule.time[0], np.arange(1, 8))
    np.testing.assert_array_equal(
        schedule.version[0], np.broadcast_to(np.arange(7)[:, None], (7, 4))
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", slow_but(["quafl", "fedbuff"], ["fedavg", "quafl", "fedbuff", "favano"])
)
def test_a_run_on_a_trace(name: str, regression: Callable, small: Callable, tmp_path: Path) -> None:
    """Systems run on a trace from a file, through the public interface, until its end.

    Asking for more ticks than the trace has is an error.
    """
    trace = recorded(num_clients=7, rows=60)
    path = tmp_path / "trace.csv"
    rows = zip(trace.client.tolist(), trace.start.tolist(), trace.finish.tolist(), strict=True)
    path.write_text(
        "client,start,finish\n"
        + "".join(f"{client},{start!r},{finish!r}\n" for client, start, finish in rows)
    )
    system = fedjax_sim.SYSTEMS[name]
    changes = {"reweight": "estimated"} if name == "favano" else {}
    if name != "fedbuff":
        changes["server_interact"] = 3.0
    if name in ("quafl", "favano"):
        changes["server_wait"] = 4.0
    hyper = small(system, trace=read_trace(path), **changes)
    run = fedjax_sim.simulate(
        system, regression(), hyper, budget=fedjax_sim.Time(1000.0), num_evals=4
    )
    assert np.isfinite(run.curves.loss).all()
    if name == "fedbuff":
        assert run.curves.ticks[-1] == 15
        with pytest.raises(ConfigError, match="num_ticks is 16, but must be at most the 15 ticks"):
            fedjax_sim.simulate(system, regression(), hyper, budget=fedjax_sim.Ticks(16))
    assert jax.tree.all(jax.tree.map(lambda leaf: np.isfinite(leaf).all(), run.models))


def test_traces_and_tables_have_labels_of_their_content() -> None:
    """The same in every process, unlike an address, also in a group of a sweep."""
    one, same, other = (Trace([0], [0.0], [end]) for end in (1.0, 1.0, 2.0))
    assert str(one) == str(same) != str(other)
    assert repr(ClientDelays(trace=one)) == f"ClientDelays(trace=<{one}>)"
    table = ClientTable(rate=[1.0, 0.5])
    assert repr(ClientDelays(client_table=table)) == f"ClientDelays(client_table=<{table}>)"
