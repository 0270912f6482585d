"""Settings of clocks that do not go together: each pair gets one sentence, before any schedule.

Values outside of a setting's own type are tried in `tests/checking/test_declared_settings.py`, and
laws of running times in `tests/timelines/delays/test_laws.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.core.settings import check
from fedjax_sim.timelines import (
    Arrivals,
    ClientQueues,
    ClientTable,
    CohortRounds,
    Contacts,
    Groups,
    Trace,
    WeightedRounds,
    presets,
)
from tests.timelines.delays.test_trace import recorded
from tests.timelines.grouped.test_groups import CERTAIN

ARRIVALS = presets.preset(Arrivals, presets.FAVANO)
CONTACTS = presets.preset(Contacts, presets.FAVANO)
GROUPS = presets.preset(Groups, presets.GROUPS)
QUEUES = presets.preset(ClientQueues, presets.FAVANO)
ROUNDS = presets.preset(CohortRounds, presets.FAVANO)
FAVANO = fedjax_sim.SYSTEMS["favano"].paper
NAMED = ClientTable(names=["ann", "bob", "17"])
OF_TWO = {"num_clients": 2, "buffer_size": 1}
SIX, OF_NINE = {"num_clients": 6}, {"num_clients": 9, "num_selected": 4, "local_steps": 5}
OWN = "delays.{} is {}, but must be left at 0.0 with a table of clients"
OF_GROUPS: list[tuple[dict[str, Any], str]] = [
    ({"group_sizes": (10, 21)}, "grouping.group_sizes is (10, 21), but must be num_groups = 2 num"),
    ({"group_sizes": (30,)}, "grouping.group_sizes is (30,), but must be num_groups = 2 numbers"),
    ({"group_sizes": (30, 0)}, "grouping.group_sizes is (30, 0), but must be whole numbers from 1"),
    (
        {"group_sizes": (15, 15), "association": (0, 1) * 15},
        "grouping.group_sizes is (15, 15), but must be left at None unless grouping.association",
    ),
    ({"association": (0, 1, 2) * 10}, "grouping.association is (0, 1, 2"),
    ({"association": (1, -1) * 15}, "grouping.association is 'without a client of group 0', but m"),
    ({"num_groups": 31}, "num_groups is 31, but must be at most num_clients = 30"),
    ({"sync_time": 1000000000.0}, "sync_time is 1000000000.0, but must be at most 1000000 times"),
    ({**CERTAIN, "shift": (1.0, 0.0)}, "shift + mean of an iteration's delay is 0.0, but must be "),
    ({"shift": (1.0, 1.0, 1.0)}, "iteration.shift is (1.0, 1.0, 1.0), but must be one number, or "),
    ({"shift": (1.0, -1.0)}, "iteration.shift is (1.0, -1.0), but must be a finite number of at l"),
    ({"group_weights": (1.0,)}, "grouping.group_weights is (1.0,), but must be of num_groups = 2 "),
    ({"group_weights": (0.0, 0.0)}, "grouping.group_weights is (0.0, 0.0), but must be clients, e"),
    ({"local_steps": 2}, "local_steps is 2, but must be left at 1"),
    ({"exchange_shift": (1.0, 2.0)}, "exchange.exchange_shift is (1.0, 2.0), but must be one numb"),
    (
        {"exchanges": "group", "exchange_mean": (1.0, 2.0, 3.0)},
        "exchange.exchange_mean is (1.0, 2.0, 3.0), but must be one number, or num_groups = 2",
    ),
    ({"time_of": "update"}, "delays.time_of is 'update', but must be left at step with clock.de"),
    ({"rate_slow": 0.1}, "delays.rate_slow is 0.1, but must be left at 0.125 with clock.delays_of"),
    ({"client_table": ClientTable(np.ones(30))}, "delays.client_table is "),
    ({"delays_of": "client", "shift": 1.0}, "iteration.shift is 1.0, but must be left at 0.85 wit"),
    (
        {"delays_of": "client", "active_per_group": 3},
        "grouping.active_per_group is 3, but must be 0 with delays of clients",
    ),
]
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (
        ROUNDS,
        OF_NINE | {"num_asked": 3},
        "clock.num_asked is 3, but must be 0, or at least num_",
    ),
    (ROUNDS, OF_NINE | {"num_asked": 10}, "clock.num_asked is 10, but must be at most num_clients"),
    (ROUNDS, OF_NINE | {"num_selected": 10}, "num_selected is 10, but must be at most num_clients"),
    # Buffers.
    (
        ARRIVALS,
        {"restart": "own_finish"},
        'clock.send_old_model is False, but must be true under restart = "own_finish"',
    ),
    (ARRIVALS, {"buffer_size": 101}, "buffer_size is 101, but must be at most num_clients = 100"),
    (
        ARRIVALS,
        {"restart": "free", "send_old_model": True},
        'clock.send_old_model is True, but must be false under restart = "free"',
    ),
    (
        ARRIVALS,
        {"drop_rate": 0.1, "restart": "fresh"},
        'delays.drop_rate is 0.1, but must be 0 under restart = "fresh"',
    ),
    # Queues.
    (QUEUES, {"num_clients": 5, "routing": np.ones(3)}, "routing is 'of 3 numbers', but must be"),
    (
        QUEUES,
        {"num_clients": 5, "routing": 1.0, "routing_exponent": 0.5},
        "routing_exponent is 0.5",
    ),
    # Devices and tables of clients.
    (GROUPS, {"num_clients": 2, "off_time": 1.0}, "delays.off_time is 1.0, but must be left at 0."),
    (
        FAVANO,
        {"drop_rate": 0.5},
        "reweight is 'stochastic', but must be one of none, estimated",
    ),
    (ARRIVALS, {"num_clients": 4, "client_table": NAMED}, "delays.client_table is 'of 3 rows'"),
    (ARRIVALS, {"bits_up": 8.0}, "delays.bits_up is 8.0, but must be left at 0.0 with delays."),
    (
        ARRIVALS,
        OF_TWO | {"client_table": ClientTable(drop_rate=[0, 0.5]), "drop_rate": 0.1},
        OWN.format("drop_rate", 0.1),
    ),
    (
        ARRIVALS,
        OF_TWO | {"client_table": ClientTable(available=[[(0, 1)]] * 2), "off_time": 1.0},
        OWN.format("off_time", 1.0),
    ),
    (
        CONTACTS,
        {
            "num_clients": 2,
            "num_selected": 1,
            "trace": Trace([0, 1], [0, 0], [1, 1]),
            "client_table": ClientTable([1.0, 1.0]),
        },
        "client_table",
    ),
    # Traces.
    (
        CONTACTS,
        {"num_clients": 5, "num_selected": 2, "trace": recorded()},
        "trace client is 5, but must be from 0 to num_clients - 1 = 4",
    ),
    (
        ARRIVALS,
        SIX | {"buffer_size": 91, "trace": recorded()},
        "buffer_size is 91, but must be at most the 90 rows",
    ),
    (
        ROUNDS,
        {"num_clients": 7, "num_selected": 2, "server_interact": 0.0, "trace": recorded()},
        "rows of every client",
    ),
    *(
        (kind, SIX | given | {"trace": recorded()}, f"{name} is {value!r}, but must be left at ")
        for kind, given, name, value in (
            (ARRIVALS, {"server_interact": 0.5}, "clock.server_interact", 0.5),
            (ROUNDS, {"num_selected": 2, "round_time": "mean"}, "clock.round_time", "mean"),
            (ARRIVALS, {"restart": "fresh"}, "clock.restart", "fresh"),
            (ARRIVALS, {"rate_slow": 0.1}, "delays.rate_slow", 0.1),
        )
    ),
    *(
        (kind, given | {"runtime_law": "runtime_pareto"}, "delays.runtime_law is Pareto")
        for kind, given in ((ROUNDS, {"round_time": "mean"}), (WeightedRounds, {}))
    ),
    (
        FAVANO,
        SIX | {"num_selected": 2, "server_wait": 4.0, "server_interact": 3.0, "trace": recorded()},
        "estimated",
    ),
    *((GROUPS, *row) for row in OF_GROUPS),
]


@pytest.mark.parametrize(("make", "given", "sentence"), REFUSED)
def test_settings_that_do_not_go_together(
    make: Callable[..., Any], given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check(make(**given))
    assert sentence in str(refused.value)
