"""FedNova on a live clock: as many local steps as a client's speed allows before a deadline."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim
from fedjax_sim.core.types import Key, System
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import fedavg, fednova
from fedjax_sim.timelines import ClientTable
from fedjax_sim.timelines.live import (
    Asked,
    Choosing,
    Clock,
    Live,
    Selector,
    Sizes,
    live_rounds,
    with_clock,
)

N, MOST, LR, TICKS, DEADLINE = 6, 12, 0.05, 40, 4.0
CURVATURE = np.linspace(0.5, 2.0, N)
CENTERS = np.random.default_rng(3).normal(size=(N, 2))
RATES = np.array([0.3, 0.5, 1.0, 1.6, 2.0, 4.0])
STEPS = np.array([1, 2, 4, 6, 8, 12])
"""What fits into the deadline, at least one and at most `MOST`."""
START = np.array([2.0, -1.0])


def clock(problem: Any, hyper: Any) -> Clock:
    def select(key: Key, now: Choosing) -> Asked:
        clients = jnp.arange(N, dtype="int32")
        fits = jnp.floor(DEADLINE * now.devices.speeds.rate[clients]).astype("int32")
        return Asked(clients, steps=jnp.clip(fits, 1, hyper.local_steps))

    return live_rounds(hyper, Selector(select), num_used=N, most_steps=hyper.local_steps)


def run(module: Any, ticks: int = TICKS, **changes: Any) -> fedjax_sim.Run:
    """Run a system on that clock in float64, with the model of every tick."""
    system: System = with_clock(
        module.system, Live(lambda hyper: Sizes(N, hyper.local_steps), clock), name="by_speed"
    )
    hyper = module.Hyper(num_clients=N).replace(
        num_selected=N,
        local_steps=MOST,
        batch_size=1,
        client_table=ClientTable(RATES),
        runtime_law="runtime_constant",
        **({"lr": LR} | changes),
    )
    with jax.enable_x64(True):
        problem = Quadratic.of(CENTERS, curvature=CURVATURE, start=START)
        options: dict[str, Any] = {"budget": fedjax_sim.Ticks(ticks), "num_evals": ticks}
        keep = fedjax_sim.Keep(models=True)
        return fedjax_sim.simulate(system, problem, hyper, keep=keep, **options)


def test_own_loop() -> None:
    found, model = run(fednova), START
    np.testing.assert_array_equal(found.timelines[0].steps[:, np.arange(N)], [STEPS] * TICKS)
    # The slowest client needs longer than the deadline for its only step.
    length = (STEPS / RATES).max()
    np.testing.assert_allclose(found.timelines[0].time, length * np.arange(1, TICKS + 1), 1e-12)
    for t in range(TICKS):
        np.testing.assert_allclose(found.samples[t], model, rtol=0, atol=1e-12)
        share = 1 - (1 - LR * CURVATURE) ** STEPS
        progress = share[:, None] * (CENTERS - model)
        model = model + STEPS.mean() * (progress / STEPS[:, None]).mean(axis=0)
    assert found.curves.needed == TICKS * STEPS.sum()


def test_fast_clients_have_no_more_influence_than_others() -> None:
    """Unlike in FedAvg on the same clock: the minimum of the mean loss is the reference."""
    minimum = (CURVATURE[:, None] * CENTERS).sum(axis=0) / CURVATURE.sum()
    runs = [run(module, 800, lr=0.01) for module in (fednova, fedavg)]
    errors = [np.linalg.norm(each.models - minimum) for each in runs]
    assert errors[0] < errors[1] / 4
