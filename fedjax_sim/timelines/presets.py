"""Presets: settings of papers under a name. Defaults are the field's usual values instead.

`favano.paper(num_clients=50)` is `favano.Hyper(num_clients=50)` with the other settings as in the
experiments of FAVANO's paper; every system has such a function, and `System.paper` is the same. The
values are of short names, of which each system takes those that it has, and `source`.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from fedjax_sim.core.settings.names import as_default, fields, full_name, names_of
from fedjax_sim.core.types import Settings

HyperT = TypeVar("HyperT")

FAVANO: Mapping[str, str | float] = {
    "source": "FAVANO's comparison of systems on MNIST (arXiv 2305.16099, Sec. 5 and App. C.2)",
    "lr": 0.5,
    "batch_size": 128,
    "local_steps": 20,
    "num_selected": 20,
    "server_interact": 3.0,
    "server_wait": 4.0,
    "slow_fraction": 1 / 3,
    "rate_fast": 1 / 2,
    "rate_slow": 1 / 16,
    "rate_spread": 0.0,
    "runtime_law": "runtime_geom",
}
"""A third of the clients is slow, and a server takes 3 units of time, or 7 between two contacts."""
STALENESS: Mapping[str, str | float] = {
    **FAVANO,
    "source": "FedStaleWeight's experiments (arXiv 2406.02877, Sec. 6, and their public code)",
    "num_clients": 15,
    "lr": 0.01,
    "batch_size": 32,
    "local_steps": 1,
    "sampling": "reshuffled",
    "buffer_size": 5,
    "server_interact": 0.0,
    "ties": "client",
    "slow_clients": "last",
    "rate_fast": 1 / 1.5,
    "rate_slow": 1 / 10,
    "runtime_law": "runtime_uniform",
    "spread_fast": 1 / 3,
    "spread_slow": 1 / 5,
    "time_of": "update",
}
"""Ten fast clients with updates that take U(1, 2) units of time, and five slow ones, the last, with
updates that take U(8, 12)."""
GROUPS: Mapping[str, str | float] = {
    **FAVANO,
    "source": "delay-sensitive hierarchical learning (arXiv 2302.04851, Fig. 7(a))",
    "num_clients": 30,
    "batch_size": 32,
    "exchange_shift_per_group": 4.0,
    "exchange_shift": 2.0,
    "exchange_mean_per_group": 0.4,
    "exchange_mean": 0.2,
}
"""c = 1, m = 0.1, c_g = 10 and m_g = 1 for two groups of 15 clients. Speeds of single clients, of
which the paper does not speak, and the learning rate are those of FAVANO's comparison."""
LOCK_STEP: Mapping[str, str | float] = {
    **FAVANO,
    "source": "FA-LD (arXiv 2112.05120), whose clients act in lock-step",
    "batch_size": 200,
    "num_selected": 10,
    "server_interact": 0.0,
    "slow_fraction": 0.0,
    "rate_fast": 1.0,
}
"""A unit of virtual time is a local step of all clients."""
EM: Mapping[str, str | float] = {
    "source": "FedEM's experiments (arXiv 2111.02083)",
    "batch_size": 20,
}
"""Mini-batches of FedEM."""


def preset(
    hyper_type: Callable[..., HyperT], values: Mapping[str, str | float]
) -> Callable[..., HyperT]:
    """Make a function that makes settings with other values than the defaults.

    Args:
      hyper_type: A settings struct's class.
      values: Values by short name; those that the class does not have are left out.

    Returns:
      The function. It takes settings by name as the class does. A value that something else
      decides, such as a speed with a recorded trace, is left at its default.
    """
    kind = cast(type, hyper_type)
    known, about = names_of(kind), fields(kind)
    chosen = {known[name]: value for name, value in values.items() if name in known}
    usual = as_default(kind(**chosen))

    def paper(**settings: object) -> HyperT:
        made: Settings = usual.replace(**settings)
        given = {full_name(kind, name) for name in settings if name in known}
        ours = {name for name in chosen if name.partition(".")[0] not in settings} - given
        with contextlib.suppress(AttributeError, TypeError):  # `check` refuses such values.
            idle = ours & made.decided().keys()
            made = made.replace(**{name: about[name].default for name in idle})
        return made

    paper.__doc__ = f"Make settings with the values of {values['source']}, changed by keywords."
    return paper
