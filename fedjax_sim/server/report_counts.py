"""Bits of the messages between clients and server, counted on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_sim.compression import Identity, messages
from fedjax_sim.server import report_settings, robustness
from fedjax_sim.trees import shapes_of_model
from fedjax_sim.types import EMPTY, Leaf, Messages, Params, Settings, Timeline, full_precision_bits


def _whole(params: Params, hyper: Any) -> Params:
    return params


def report_messages(
    up: Callable[[Params, Any], Params] = _whole,
    *,
    down: Callable[[Params, Any], Params] | None = None,
    has_weights: bool = True,
) -> Messages:
    """Make the counts of bits of a system whose clients report models.

    Down, a client that takes part gets all the changes of the model that it has missed, or the
    whole model if that is shorter, as on its first visit. Without a downlink compressor that is the
    whole model for each report.

        messages = report_messages()
        assert messages.bits(jnp.zeros(3), fedavg.Hyper()) == (3 * 32, 3 * 32)
        twice = report_messages(lambda model, hyper: (model, model))  # a client sends two models
        assert twice.bits(jnp.zeros(3), fedavg.Hyper()) == (6 * 32, 6 * 32)

    Args:
      up: From a model and the settings to what a client sends.
      down: The same for what the server sends, if that is something else.
      has_weights: Whether the weights of the schedule are those with which messages are averaged.

    Returns:
      The counts, for `System.messages`.
    """

    def bits(params: Params, hyper: Any) -> tuple[int, int]:
        sent = up(params, hyper), (down or up)(params, hyper)
        bits_up = hyper.aggregator.chosen.message_bits(hyper.messages.compression, sent[0])
        return bits_up, full_precision_bits(sent[1])

    def per_tick(problem: Any, hyper: Any, timeline: Timeline) -> tuple[Leaf, Leaf] | None:
        if isinstance(hyper.messages.downlink, Identity):
            return None
        model = shapes_of_model(problem)
        reports = (timeline.clients != EMPTY).sum(axis=1, dtype=np.int64)
        return reports * bits(model, hyper)[0], count_downlink(
            hyper, timeline, (down or up)(model, hyper)
        )

    return Messages(
        bits,
        per_tick,
        facts=lambda hyper, ticks: hyper.facts(ticks),
        relies_on=report_settings.RELIED_ON,
        # Settings were checked before the noise of a target epsilon was found.
        check=robustness.check_reports if has_weights else robustness.check_numbers,
        facts_of_schedule=lambda hyper, timeline, ticks: hyper.facts_of_schedule(timeline, ticks),
    )


def count_downlink(hyper: Settings, timeline: Timeline, sent: Params) -> Leaf:
    """Count the bits that the server sends at each tick, `i64[T]`. sent: its message.

        bits = count_downlink(hyper, run.timelines[0], model)
        assert (bits == 4 * 3 * 32).all()  # four clients get three numbers in each round

    Args:
      timeline: One lane's schedule.
      sent: What the server sends, leaves `[...]` or their shapes.
    """
    return downlink_of_slots(hyper, timeline, sent).sum(axis=1)


def downlink_of_slots(
    hyper: Any, timeline: Timeline, sent: Params, received: Timeline | None = None
) -> Leaf:
    """Count the bits that the server sends to the client of each slot, `i64[T, S]`.

    Args:
      timeline: As for `count_downlink`.
      sent: As for `count_downlink`.
      received: The schedule of those who receive the model, if they are not those who report.
    """
    whole, received = full_precision_bits(sent), timeline if received is None else received
    if isinstance(hyper.messages.downlink, Identity):
        return (received.clients != EMPTY).astype(np.int64) * whole
    change = messages.count_message_bits(hyper.messages.downlink, sent)
    is_there = received.clients != EMPTY
    # A tick without a report changes nothing, and nothing is sent of it.
    number = np.append(0, np.cumsum((timeline.clients != EMPTY).any(axis=1)))
    clients, versions = received.clients[is_there], number[received.version[is_there]]
    order = np.argsort(clients, kind="stable")
    is_first = np.diff(clients[order], prepend=-1) != 0
    # Where a step has changed who takes part, a client may be given an older model.
    missed = np.maximum(np.diff(versions[order], prepend=0), 0)
    per_slot, each = np.zeros(is_there.shape, np.int64), np.empty(clients.size, np.int64)
    each[order] = np.where(is_first, whole, np.minimum(missed * change, whole))
    per_slot[is_there] = each
    return per_slot
