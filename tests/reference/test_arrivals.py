"""CA2FL and AsyncFedED against slow loops over the same arrivals, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.timelines import ClientTable
from tests.reference import arrival_loops as loops
from tests.reference.draws import LR, TICKS, Gradient, K, N, simulate


@pytest.fixture(scope="module")
def run(small: Callable, problem: Any) -> Callable[..., fedjax_sim.Run]:
    """Return a function that runs a system for some settings, in float64."""

    def of(name: str, **changes: Any) -> fedjax_sim.Run:
        system = fedjax_sim.SYSTEMS[name]
        changes = {"sampling": "shuffled_epochs", "slow_fraction": 0.7, "lr": LR} | changes
        return simulate(system, problem, small(system, **changes))

    return of


def arrivals_of(run: fedjax_sim.Run, start: np.ndarray, gradient: Gradient) -> loops.Arrivals:
    """Return the arrivals of a run."""
    [schedule] = run.timelines
    seen = schedule.clients.tolist(), schedule.version.tolist()
    return loops.Arrivals(start, *seen, N, K, LR, gradient)


def assert_same(run: fedjax_sim.Run, expected: Any) -> None:
    """Compare the server's models after every tick with those that a loop yields."""
    models = np.stack([run.curves[f"w{i}"].values[1:] for i in range(3)], axis=-1)
    assert models.dtype == np.float64
    assert models.shape[0] == TICKS
    np.testing.assert_allclose(models, np.stack(list(expected)), rtol=0, atol=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_ca2fl(run: Callable, start: np.ndarray, gradient: Gradient, server_lr: float) -> None:
    """Some buffers have several updates of one client; in the first one it is FedBuff."""
    found = run("ca2fl", server_lr=server_lr, buffer_size=4)
    arrivals = arrivals_of(found, start, gradient)
    assert any(len(set(clients)) < 4 for clients in arrivals.clients)
    expected = list(loops.ca2fl(arrivals, server_lr=server_lr))
    assert_same(found, expected)
    fedbuff = list(loops.fedbuff(arrivals, server_lr=server_lr))
    np.testing.assert_allclose(expected[0], fedbuff[0], rtol=0, atol=1e-12)
    assert np.abs(expected[-1] - fedbuff[-1]).max() > 1e-3


@pytest.mark.parametrize(("numerator", "offset"), [(1.0, 1.0), (0.6, 0.2)])
def test_asyncfeded(
    run: Callable, start: np.ndarray, gradient: Gradient, numerator: float, offset: float
) -> None:
    found = run("asyncfeded", numerator=numerator, offset=offset)
    arrivals = arrivals_of(found, start, gradient)
    assert (np.arange(TICKS)[:, None] > found.timelines[0].version).any()
    assert_same(found, loops.asyncfeded(arrivals, numerator=numerator, offset=offset))


def test_asyncfeded_without_regard_to_distances_is_fedbuff(
    run: Callable, start: np.ndarray, gradient: Gradient
) -> None:
    """With a large lambda = epsilon, all steps have the length of the update."""
    found = run("asyncfeded", numerator=1e13, offset=1e13)
    assert_same(found, loops.fedbuff(arrivals_of(found, start, gradient), server_lr=1.0))


ADAPTED = {"numerator": 0.8, "offset": 0.5}
"""Factors of AsyncFedED's steps."""


def test_adaptive_asyncfeded(run: Callable, start: np.ndarray, gradient: Gradient) -> None:
    """Numbers of local steps too; work takes as long as they need, and begins when the last ends.

    Speeds are constant here, so that times follow from steps and speeds.
    """
    rule = {"wanted_staleness": 0.7, "gain": 2.5, "most_steps": 9}
    found = run("asyncfeded_adaptive", runtime_law="runtime_constant", **ADAPTED, **rule)
    [schedule] = found.timelines
    given = {"wanted": 0.7, "gain": 2.5, "most": 9}
    loop = loops.adaptive_asyncfeded(arrivals_of(found, start, gradient), **ADAPTED, **given)
    models, steps = zip(*loop, strict=True)
    assert_same(found, models)
    assert schedule.steps[:, 0].tolist() == list(steps)
    assert len(set(steps)) > 3 and 1 in steps
    last, pace = np.zeros(N), {}
    for tick, client in enumerate(schedule.clients[:, 0]):
        taken = schedule.time[tick] - last[client]
        pace.setdefault(client, taken / steps[tick])
        np.testing.assert_allclose(taken / steps[tick], pace[client], rtol=1e-6)
        earlier = np.flatnonzero(schedule.clients[:tick, 0] == client)
        assert schedule.version[tick, 0] == (earlier[-1] + 1 if len(earlier) else 0)
        last[client] = schedule.time[tick]


def test_adaptive_asyncfeded_with_constant_steps_is_asyncfeded_also_with_hours(
    run: Callable,
) -> None:
    """A client away when its update arrives begins from the newest model after the break."""
    hours = [[(2.0 * i, 9.0 + i)] for i in range(N)]
    table = ClientTable(np.linspace(0.3, 1, N), available=hours, period=24.0)
    given = {"client_table": table, "runtime_law": "runtime_constant", "slow_fraction": 0.0}
    found, expected = run("asyncfeded_adaptive", gain=0.0, **given), run("asyncfeded", **given)
    for field in ("clients", "version"):
        np.testing.assert_array_equal(*(getattr(x.timelines[0], field) for x in (found, expected)))
    np.testing.assert_allclose(found.models, expected.models, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"most_steps": 3}, "local_steps is 5, but must be at most most_steps = 3"),
        (
            {"time_of": "update"},
            "delays.time_of is 'update', but must be \"step\", because work of",
        ),
    ],
)
def test_adaptive_asyncfeded_refuses(run: Callable, changes: dict, sentence: str) -> None:
    with pytest.raises(fedjax_sim.ConfigError, match=sentence):
        run("asyncfeded_adaptive", **changes)
