"""Settings and schedule of buffered arrivals with weights from staleness.

FedBuff, FedStaleWeight and FedAsync use them.
"""

from typing import Annotated

import jax.numpy as jnp

from fedjax_sim.core.checking import Count, shape
from fedjax_sim.core.settings import group, struct
from fedjax_sim.core.types import Array, Key, Timeline
from fedjax_sim.server.staleness import StalenessWeights, staleness_weights
from fedjax_sim.timelines import Arrivals, schedule_arrivals


@struct
class WeightedArrivals(Arrivals):
    """Settings of arrivals that are weighted by staleness.

    They are inherited by the settings of FedBuff, for example.

        weights = StalenessWeights(rule="exponential", base=0.9)
        hyper = WeightedArrivals(num_clients=8, buffer_size=3, staleness=weights)
    """

    staleness: StalenessWeights = group(StalenessWeights(), "weights of the updates in a buffer")


def schedule_stale_arrivals(key: Key, hyper: WeightedArrivals, num_ticks: Count) -> Timeline:
    """Schedule buffered arrivals, with weights from their clients' staleness.

    Args:
      num_ticks: Number of ticks, T.

    Returns:
      The schedule.
    """
    schedule = schedule_arrivals(key, hyper, num_ticks)
    staleness = jnp.arange(num_ticks)[:, None] - schedule.version
    return schedule._replace(weight=weigh_arrivals(hyper, schedule.clients, staleness))


def weigh_arrivals(
    hyper: WeightedArrivals,
    clients: Annotated[Array, shape("T S")],
    staleness: Annotated[Array, shape("T S")],
) -> Array:
    """Weight buffered arrivals by their staleness, as `staleness_weights` does.

        halved = StalenessWeights(rule="exponential", base=0.5)
        hyper = WeightedArrivals(num_clients=8, buffer_size=2, staleness=halved)
        weight = weigh_arrivals(hyper, jnp.array([[0, 1]]), jnp.array([[0, 1]]))
        assert jnp.allclose(weight, jnp.array([[2 / 3, 1 / 3]]))  # 1 and 0.5, to sum 1

    Args:
      clients: `i32[T, S]`, none empty, slots in order of arrival.
      staleness: `i32[T, S]`, in server versions.

    Returns:
      `f[T, S]`.
    """
    return staleness_weights(clients, staleness, hyper.staleness, num_clients=hyper.num_clients)
