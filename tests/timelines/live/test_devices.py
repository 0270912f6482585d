"""Live draws of clients' times against planned ones: the same laws, hours, transfers and losses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim.core.types import Array
from fedjax_sim.timelines import LAWS, Clients, ClientTable, Trace
from fedjax_sim.timelines.delays.devices import draw_devices
from fedjax_sim.timelines.live import Instant
from tests.conftest import slow_but

N, NUMBER = 40, 60
SPREADS = {"runtime_uniform": 0.5, "runtime_normal": 0.5, "runtime_shifted_exp": 0.5}
SPREADS |= {"runtime_lognormal": 0.8, "runtime_pareto": 0.4}


def settings(**changes: Any) -> Clients:
    """Return settings of N clients."""
    return Clients(num_clients=N, local_steps=3).replace(**changes)


def everyone() -> tuple[Array, Array]:
    """Return clients and numbers of their work, `i32[N, NUMBER]` each."""
    found = jnp.meshgrid(jnp.arange(N), jnp.arange(NUMBER), indexing="ij")
    return found[0].astype("int32"), found[1].astype("int32")


def live_devices(hyper: Any, seed: int = 0) -> Any:
    """Return the devices of a live clock, as they are in every tick."""
    key = jax.random.key(seed)
    return draw_devices(key, hyper, draw_devices(key, hyper).drawn)


@pytest.mark.parametrize("time_of", slow_but(["step"], ["step", "update"]))
@pytest.mark.parametrize("law", [*LAWS])
def test_laws_of_running_times(law: str, time_of: str) -> None:
    """Two samples of other draws, by Kolmogorov and Smirnov; and a law that is not this one."""
    spread, rate = SPREADS.get(law, 0.0), 0.4
    hyper = settings(
        runtime_law=law, time_of=time_of, spread_fast=spread, rate_fast=rate, rate_spread=0.0
    )
    clients, numbers = everyone()
    live = live_devices(hyper)
    found = np.asarray(live.running_time(clients, numbers)).ravel()
    assert found.dtype == np.float32
    with jax.enable_x64(True):
        devices = draw_devices(jax.random.key(1), hyper)
        begin, end = devices.follow(clients, numbers, jnp.zeros(clients.shape))
        planned = np.asarray(end - begin).ravel()
    if law == "runtime_constant":
        np.testing.assert_allclose(found, planned, rtol=1e-6)
        return
    # Discrete times of both precisions are whole numbers.
    assert stats.ks_2samp(found, np.round(planned, 6)).pvalue > 1e-2
    assert stats.ks_2samp(found, 1.15 * planned).pvalue < 1e-4


def windows() -> dict[str, Any]:
    """Return a table of three windows a day for some clients, and one for others."""
    own = [[(1.0, 3.0), (5.0, 9.0), (20.0, 22.5)] if i % 2 else [(8.0, 23.0)] for i in range(N)]
    table = ClientTable(np.full(N, 0.5), available=own, period=24.0)
    return {"client_table": table, "runtime_law": "runtime_constant"}


@pytest.mark.parametrize("start", [0.0, 1e6])
@pytest.mark.parametrize(
    "changes",
    [{"on_time": 7.0, "off_time": 5.0, "runtime_law": "runtime_exp"}, windows()],
    ids=["cycles", "table"],
)
def test_hours(changes: dict[str, Any], start: float) -> None:
    """After a million units of time as well: places in a period are exact to 10^-6 of it."""
    hyper = settings(**changes)
    live = live_devices(hyper)
    clients, _ = everyone()
    times = start + 24 * np.random.default_rng(0).random(clients.shape)
    busy = np.random.default_rng(1).gamma(2.0, 6.0, clients.shape).astype("float32")
    now = Instant.at(times)
    exact = now.to_float64()
    wait, taken = live.times_of_work(clients, now, jnp.asarray(busy))
    here = live.are_available(clients, now)
    with jax.enable_x64(True):
        phase = np.asarray(live.windows.phase, "float64")
        devices = draw_devices(jax.random.key(0), hyper)
        devices = devices._replace(windows=devices.windows._replace(phase=jnp.asarray(phase)))
        begin, end = devices.times_of_work(clients, jnp.asarray(exact), jnp.asarray(busy, float))
        expected = devices.are_available(clients, jnp.asarray(exact))
    near = 1e-6 * 24 * 4
    np.testing.assert_allclose(wait, np.asarray(begin) - exact, atol=near)
    np.testing.assert_allclose(taken, np.asarray(end) - exact, rtol=1e-6, atol=near)
    assert 0.2 < np.mean(expected) < 0.8
    assert np.mean(np.asarray(here) != np.asarray(expected)) <= 1e-3


def test_transfers_and_losses_of_a_table() -> None:
    share = np.linspace(0, 0.9, N)
    table = ClientTable(
        np.full(N, 0.5),
        up=np.linspace(1, 9, N),
        down=np.linspace(20, 10, N),
        drop_rate=share,
    )
    hyper = settings(
        client_table=table, bits_up=30.0, bits_down=40.0, runtime_law="runtime_constant"
    )
    live, (clients, numbers) = live_devices(hyper), everyone()
    _, taken = live.times_of_work(clients[:, 0], Instant.at(5.0), jnp.zeros(N))
    np.testing.assert_allclose(taken, 30 / table.up + 40 / table.down, rtol=1e-6)
    lost = np.asarray(live.are_lost(clients, numbers)).sum(axis=1)
    deviation = (lost - NUMBER * share) / np.sqrt(NUMBER * share * (1 - share) + 1e-9)
    assert lost[0] == 0 and np.square(deviation[1:]).sum() < stats.chi2(N - 1).isf(1e-3)


def test_a_trace_gives_its_rows_in_order_and_again() -> None:
    rows = [(i, 10.0 * j, 10.0 * j + 1 + i + j / 8) for i in range(N) for j in range(3)]
    client, start, finish = (np.array(column) for column in zip(*rows, strict=True))
    order = np.argsort(finish, kind="stable")
    trace = Trace(client[order].astype("int32"), start[order], finish[order])
    hyper = Clients(num_clients=N, local_steps=10).replace(trace=trace)
    clients, numbers = everyone()
    found = live_devices(hyper).running_time(clients, numbers)
    np.testing.assert_allclose(found, 1 + clients + (numbers % 3) / 8, rtol=1e-6)
