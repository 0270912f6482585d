"""Asynchronous groups: each exchanges with the global server as soon as it is done.

A group takes the global model, iterates until the sync time has passed (Eq. 7 of Ali and Arafa,
arXiv 2302.04851), and exchanges models with the global server, which takes the group's own time
tau_g. It then begins its next round from the global model, without waiting for other groups. The
global server acts whenever its buffer of Z reports is full, as in buffered arrivals
(`fedjax_sim.timelines.Arrivals` with `restart="free"`): a report that fills the buffer is in the
model with which its group continues, and a fast group may fill several slots of one buffer.

The delays are those of `rounds`: the u-th round of a group has the delays that it has in the u-th
synchronous round with `exchanges="group"`. A single group, with a buffer of one, therefore has the
same schedule in both.

Dimension letters: `M` groups, `T` ticks, `A` reports, `Z` reports of a buffer (slots of a tick).
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.checking import Above0, Count, checked
from fedjax_sim.core.settings import group, setting, struct
from fedjax_sim.core.types import Key, Timeline
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.grouped.groups import ExchangeDelays, GroupClock, Groups, group_shares
from fedjax_sim.timelines.grouped.rounds import exchange_times, group_work, mean_work


@struct
class GroupArrivals(Groups):
    """Settings of asynchronous groups: those of groups, and the buffer of the global server.

    They are inherited by the settings of asynchronous hierarchical systems.

        hyper = GroupArrivals(num_clients=8, num_groups=2, sync_time=5.0, num_reports=1)
    """

    num_reports: Count = setting(
        1, "Reports of groups that fill the global server's buffer and make it act, Z."
    )
    clock: GroupClock = group(GroupClock(), "how long a round takes", without=("ticks_per_round",))
    exchange: ExchangeDelays = group(
        ExchangeDelays(exchanges="group"),
        "delay of the exchange with the global server",
        without=("exchanges",),
    )


@checked
def schedule_group_arrivals(key: Key, hyper: GroupArrivals, num_ticks: Count) -> Timeline:
    """Schedule buffered reports of groups.

    A slot is a place in the buffer, and its client number is the group's number. Reports that
    arrive at the same time are in order of their groups' numbers. The first ticks do not depend on
    `num_ticks`. Time and memory are proportional to M times A, because any group may have sent all
    of the first A reports.

        hyper = GroupArrivals(num_clients=8, num_groups=2, num_reports=1)
        reports = schedule_group_arrivals(key, hyper, 4)
        assert reports.clients.shape == (4, 1) and (reports.clients < 2).all()  # groups

    Args:
      num_ticks: Number of ticks T.

    Returns:
      A timeline with Z slots. A slot's steps are the group's iterations, and its weight is M w_i /
      Z for a group of weight w_i: 1 / Z for groups of equal weight.
    """
    size, num = hyper.num_reports, num_ticks * hyper.num_reports
    shape = (num_ticks, size)
    work = group_work(key, hyper, num)
    length = work.busy + exchange_times(key, hyper, num)
    # Added one by one, as the clock of `schedule_group_rounds` is.
    start = jnp.zeros(hyper.num_groups)
    finish = jax.lax.scan(lambda clock, length: (clock + length,) * 2, start, length)[1]
    order = jnp.argsort(finish.T.ravel(), stable=True)[:num]
    place, number = jnp.divmod(order, num)
    time, group, steps = finish[number, place], place.astype("int32"), work.steps[number, -1, place]
    previous, _ = previous_visits(group[:, None])  # the group's previous report, or -1
    share = jnp.asarray(group_shares(hyper)) * (hyper.num_groups / size)
    return Timeline(
        time=time.reshape(shape)[:, -1],
        clients=group.reshape(shape),
        steps=steps.reshape(shape),
        version=((previous + 1) // size).reshape(shape),
        weight=share[group].reshape(shape),
        holds=(jnp.arange(1, num + 1) // size).reshape(shape),
    )


def group_arrivals_within(hyper: GroupArrivals, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time.

        hyper = GroupArrivals(num_groups=2, sync_time=5.0, exchange_shift=3.0)
        assert group_arrivals_within(hyper, 80.0) == 2 * 80 / (5 + 3)

    Args:
      hyper: Settings with concrete values, not traced ones.
      time: Length of the stretch, in units of virtual time.

    Returns:
      The approximate number of ticks.
    """
    return float(np.sum(time / (mean_work(hyper) + hyper.mean_exchange()))) / hyper.num_reports
