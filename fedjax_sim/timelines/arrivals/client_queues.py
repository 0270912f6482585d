"""Clients with queues: the server sends each finished task to a client drawn at random.

The clock of Generalized AsyncSGD (Leconte, Jonckheere, Samsonov and Moulines 2024, arXiv
2405.00017). Its paper's symbols: C is `num_tasks`, p_i is `routing_shares`, mu_i is a client's
rate. With exponential running times this is a closed Jackson network. Its stationary law is
proportional to the product of (p_i / mu_i)^x_i over numbers of tasks x_i of sum C, and the mean
delay of a task sent to client i, in server steps, is E[X_i] / p_i, with E[X_i] taken in the network
of C - 1 tasks. Over all tasks the mean delay is C - 1, whatever p and mu are.

Dimension letters: `N` clients, `T` ticks. A tick receives one task, so S = 1.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.checking import Above0, Count, Finite, checked
from fedjax_sim.core.settings import ConfigError, redefault, setting, struct
from fedjax_sim.core.streams import lane_stream
from fedjax_sim.core.types import EMPTY, Array, Key, Timeline
from fedjax_sim.timelines.arrivals.tasks import Routed, Work, lane_by_lane, route_finished
from fedjax_sim.timelines.delays.devices import draw_devices, per_update
from fedjax_sim.timelines.delays.laws import Clients, draw_client_rates


@struct
class ClientQueues(Clients):
    """Settings of clients that work on their tasks in the order in which these came.

    The routing is given by one number for each client, or follows from the clients' rates.

        slow_get_less = ClientQueues(num_clients=8, num_tasks=4, routing_exponent=1.0)
        hyper = ClientQueues(num_clients=3, num_tasks=4, routing=np.array([1.0, 1.0, 2.0]))
    """

    local_steps: int = redefault(Clients, "local_steps", 1)
    num_tasks: Count = setting(20, "Tasks in the clients' queues at any time, C.")
    routing: Above0 | Sequence[Above0] | None = setting(
        None,
        "Probabilities p_i with which a finished task is sent to client i, up to a common factor. "
        "None takes them from `routing_exponent`.",
        allowed="None, one finite number above 0, or one for each client",
    )
    routing_exponent: Finite = setting(
        0.0,
        "Probabilities p_i are proportional to the clients' rates to this power: 0 makes them "
        "equal, 1 keeps all clients equally busy, and below 0 slow clients get more tasks.",
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the number of probabilities is wrong, or a trace is set, which does not
            tell what waits in queues.
        """
        super().check_together()
        routing = np.asarray(() if self.routing is None else self.routing)
        if self.routing is not None and routing.shape not in ((), (self.num_clients,)):
            allowed = f"one number, or num_clients = {self.num_clients}"
            raise ConfigError("routing", f"of {routing.size} numbers", allowed)
        if self.delays.trace is not None:
            allowed = "left out: the server decides who gets a task"
            raise ConfigError("delays.trace", "given", allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        given = {} if self.routing is None else {"routing_exponent": "routing given"}
        return super().decided() | given


def routing_shares(key: Key, hyper: ClientQueues) -> Array:
    """Compute the probabilities p_i of the clients, `f64[N]`, of sum 1.

    They are the shares given, or follow from the clients' rates.

        hyper = ClientQueues(num_clients=3, routing=np.array([1.0, 1.0, 2.0]))
        assert routing_shares(key, hyper).tolist() == [1 / 4, 1 / 4, 1 / 2]
    """
    if hyper.routing is None:
        share = draw_client_rates(key, hyper) ** hyper.routing_exponent
    else:
        share = jnp.broadcast_to(jnp.asarray(hyper.routing, float), (hyper.num_clients,))
    return share / share.sum()


@checked
def schedule_client_queues(key: Key, hyper: ClientQueues, num_ticks: Count) -> Timeline:
    """Schedule server steps with one finished task each; a task carries the model it was sent with.

    The first ticks do not depend on `num_ticks`.

        steps = schedule_client_queues(key, ClientQueues(num_clients=8, num_tasks=4), 5)
        assert steps.clients.shape == (5, 1)

    Args:
      num_ticks: Number of ticks T.

    Returns:
      A timeline with one slot per tick, of weight 1 / (N p_i).
    """

    def first(key: Key, hyper: ClientQueues) -> tuple[Routed, Array]:
        ties, share = lane_stream(key, "ties"), routing_shares(key, hyper)
        order = per_update(ties, lambda own: jax.random.uniform(own, dtype=float))
        own_key, work = lane_stream(key, "routing"), Work(draw_devices(key, hyper), order)
        sizes = {"num_clients": hyper.num_clients, "num_tasks": hyper.num_tasks}
        found = route_finished(own_key, work, share, **sizes, num=num_ticks)
        return found, 1 / (hyper.num_clients * share[found.client])

    (time, *of_slots), weight = lane_by_lane(first, key, hyper, ClientQueues)
    client, before, after = (leaf[:, None] for leaf in of_slots)
    # A client without another task counts as holding its last model until it reports again.
    holds = jnp.where(after == EMPTY, before, after)
    steps = jnp.full(client.shape, hyper.local_steps)
    return Timeline(time, client, steps, before, weight[:, None], holds)


def client_queues_within(hyper: ClientQueues, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time: if no client were ever idle.

        hyper = ClientQueues(num_clients=8, num_tasks=4, local_steps=2)  # a step takes 1 on average
        assert client_queues_within(hyper, 10.0) == 10 * 4 / 2

    Args:
      hyper: Settings with concrete values.
      time: Length of the stretch, in units of virtual time.
    """
    return hyper.ticks_within(time, np.minimum(hyper.num_tasks, hyper.num_clients))
