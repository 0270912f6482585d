"""Arguments of public functions that would make a wrong schedule without an error."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, timelines
from fedjax_sim.timelines import live

KEY, NAN = jax.random.key(0), float("nan")
SPEEDS = timelines.Speeds(jnp.ones(2), jnp.zeros(2))
CHOICE = live.Selector(live.Asked)
QUEUES, COHORTS = timelines.ClientQueues, live.LiveCohorts(num_clients=4, num_selected=2)
SOME = jnp.array([0.5, 0.5])
TRACE = timelines.Trace([0], [0.0], [1.0])  # client 1 has no row
OF_ONE = timelines.Arrivals(num_clients=2, buffer_size=1, trace=TRACE)
WITHIN = [
    (timelines.arrivals_within, timelines.Arrivals()),
    (timelines.client_queues_within, QUEUES()),
    (timelines.group_rounds_within, timelines.Groups()),
    (timelines.group_arrivals_within, timelines.GroupArrivals()),
    (timelines.rounds_within, timelines.CohortRounds()),
]


@pytest.mark.parametrize("time", [-1.0, 0.0, NAN])
@pytest.mark.parametrize(("within", "hyper"), WITHIN)
def test_stretches_of_time_are_above_0(within: Callable, hyper: object, time: float) -> None:
    with pytest.raises(ConfigError, match=r"time is .* must be .*above 0"):
        within(hyper, time)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: timelines.draw_runtimes(KEY, SPEEDS, 0, "runtime_exp"), "num"),
        (lambda: timelines.draw_runtimes(KEY, SPEEDS, 2, "exp"), "law"),
        (lambda: timelines.draw_client_rates(KEY, timelines.Clients(rate_fast=-1.0)), "rate_fast"),
        (lambda: timelines.draw_client_speeds(KEY, timelines.Clients(rate_fast=NAN)), "rate_fast"),
        (lambda: timelines.draw_losses(KEY, -SOME, jnp.arange(2), jnp.arange(2)), "shares"),
        (lambda: timelines.routing_shares(KEY, QUEUES(routing_exponent=NAN)), "routing_exponent"),
        (
            lambda: timelines.routing_shares(
                KEY, QUEUES(num_clients=2, routing=np.array([1.0, -1.0]))
            ),
            "routing",
        ),
        (lambda: timelines.aggregation_weights(SOME, jnp.array([[-1, 1]]), "average"), "steps"),
        (lambda: timelines.aggregation_weights(-SOME, jnp.array([[1, 1]]), "fednova"), "shares"),
        (lambda: timelines.aggregation_weights(SOME, jnp.array([[1, 1]]), "mean"), "aggregation"),
        (lambda: live.Sizes(0, 2), "slots"),
        (lambda: live.Sizes(1.5, 2), "slots"),  # type: ignore[arg-type]
        (lambda: live.Sizes(2, -1), "most_steps"),
        (lambda: live.uniform_cohort(COHORTS.replace(num_selected=0)), "num_selected"),
        (lambda: live.live_rounds(COHORTS, CHOICE, num_used=2, most_steps=0), "most_steps"),
        (lambda: live.live_tasks(timelines.Arrivals(), num_tasks=0, num_used=2), "num_tasks"),
        (lambda: live.live_tasks(OF_ONE, num_tasks=2, num_used=1), "delays.trace"),
    ],
)
def test_bad_arguments_are_named(call: Callable, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^(\w+\.)*{name}\b.* must be"):
        call()
