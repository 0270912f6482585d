"""Groups of clients behind local servers: who is in which, how long their iterations take, and what each counts for.

    N_i -> `members`    |N_i| -> `Members.size`    |N_i| / N -> `group_shares`    c_i, 1 / lambda_i -> `iteration_law`
    S -> `sync_time`    c_g, 1 / lambda_g -> `exchange_law`    {d, b, e, f, d_g, b_g, e_g, f_g} -> `paper_delays`

Ali and Arafa, arXiv 2302.04851, Sec. II and V. Dimension letters: `M` groups, `C` members of the largest, `N` clients.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_sim.settings import (
    ConfigError,
    choice,
    count,
    fixed,
    real,
    reals,
    redefault,
    static,
    struct,
)
from fedjax_sim.timelines.laws import RATES, SPREADS, ClientDelays
from fedjax_sim.types import EMPTY, Array

AGGREGATIONS = ("divide_by_steps", "average", "fednova")
GROUP_WEIGHTS = ("clients", "equal")
MOST_ITERATIONS = 1_000_000
"""Local iterations that a group may be expected to do in a round."""


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split("+"))


def _are_whole(value: Any, least: int) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, tuple)
        and len(value) > 0
        and all(isinstance(x, (int, np.integer)) and x >= least for x in value)
    )


def _are_weights(value: Any) -> bool:
    if isinstance(value, str):
        return value in GROUP_WEIGHTS
    return (
        isinstance(value, tuple)
        and all(isinstance(x, (int, float)) and np.isfinite(x) and x >= 0 for x in value)
        and sum(value) > 0
    )


@struct
class Groups(ClientDelays):
    """Groups of clients, the delays of their local iterations and of the global exchange, and how progress is weighted.

    An iteration of a group of n clients takes c + Exp(mean m), c = `shift_per_client` n + `shift` and m = `mean_per_client` n + `mean`; the
    exchange between M groups and the global server c_g + Exp(mean m_g) likewise, with the settings whose names begin with `exchange`. The
    defaults are those of the paper's Fig. 7(a): c = 1, m = 0.1, c_g = 10, m_g = 1 for two groups of 15 clients.
    """

    num_clients: int = redefault(ClientDelays, "num_clients", 30)
    local_steps: int = fixed(1)
    time_of: str = fixed("step")
    trace: Any = fixed(None)
    num_groups: int = count(2, "Num groups.")
    group_sizes: Any = static(
        None,
        "whole numbers from 1 joined by +, such as 5+15, one per group",
        lambda x: _are_whole(x, 1),
        _whole_numbers,
        meaning="Clients of each group, in order of their numbers; None: equal parts, of which the first have one more if need be.",
    )
    association: Any = static(
        None,
        "whole numbers joined by +, such as 0+1+1, one group per client or -1",
        lambda x: _are_whole(x, EMPTY),
        _whole_numbers,
        meaning="Each client's group, in place of sizes; -1: takes no part.",
    )
    active_per_group: int = count(
        0,
        "Clients of a group that take part in a round, drawn anew for each, and the size of its group for the delays; 0: all of them, as in the paper.",
        least=0,
    )
    sync_time: float = real(
        5.0,
        "S, in units of virtual time. 0: one local iteration a round; the whole time budget: groups that are isolated until its end.",
        least=0,
    )
    sync_growth: float = real(
        0.0, "If above 0, round u = 1, 2, ... has the sync time min(S, u * sync_growth).", least=0
    )
    delays: str = choice(
        "group",
        ("group", "client"),
        "Whether a group's iteration takes one draw, as in the paper; or, beyond it, the longest of its clients' running times of one local step, by the laws and speeds of `timelines.Clients`. Settings of the other kind of delays must be left at their defaults.",
    )
    shift_per_client: float = real(0.01, "Shift per client.", least=0)
    shift: Any = reals(0.85, "One number for all groups, or one per group; so is `mean`.", least=0)
    mean_per_client: float = real(0.001, "Mean per client.", least=0)
    mean: Any = reals(0.085, "Mean.", least=0)
    exchange_shift_per_group: float = real(4.0, "Exchange shift per group.", least=0)
    exchange_shift: float = real(2.0, "Exchange shift.", least=0)
    exchange_mean_per_group: float = real(0.4, "Exchange mean per group.", least=0)
    exchange_mean: float = real(0.2, "Exchange mean.", least=0)
    aggregation: str = choice(
        "divide_by_steps",
        AGGREGATIONS,
        "The weight of the progress that a group of weight w made in t iterations: w / t (Eq. 12); w; or w T / t with T the mean of the groups' t by weight (FedNova).",
    )
    group_weights: Any = static(
        "clients",
        "clients, equal, or numbers from 0 joined by +, one per group",
        _are_weights,
        lambda x: _weights(x),
        meaning="Of each group: its number of clients (the paper's), 1, or as given; their sum is made 1.",
    )
    ticks_per_round: int = count(
        1,
        "Ticks that a round is cut into, at equal parts of its sync time, so that the groups' models can be looked at on the way: only the last aggregates.",
    )

    @property
    def num_senders(self) -> int:
        return self.num_groups

    def check_together(self) -> None:
        for name, value in (("local_steps", 1), ("time_of", "step"), ("trace", None)):
            if getattr(self, name) != value:
                raise ConfigError(name, getattr(self, name), f"left at {value!r} with groups")
        super().check_together()
        self._check_grouping()
        if self.active_per_group > 0 and self.delays == "client":
            raise ConfigError(
                "active_per_group",
                self.active_per_group,
                "0 with delays of clients, which all take part in them",
            )
        for name in ("shift", "mean"):
            if np.size(getattr(self, name)) not in (1, self.num_groups):
                raise ConfigError(
                    name, getattr(self, name), f"one number, or num_groups = {self.num_groups}"
                )
        if not isinstance(self.group_weights, str) and len(self.group_weights) != self.num_groups:
            raise ConfigError(
                "group_weights", self.group_weights, f"of num_groups = {self.num_groups} numbers"
            )
        shortest = float(np.min(self.mean_iteration()))
        if self.delays == "group" and shortest <= 0:
            raise ConfigError("shift + mean of an iteration's delay", shortest, "above 0")
        if np.max(np.asarray(self.sync_time, float)) > MOST_ITERATIONS * shortest:
            allowed = f"at most {MOST_ITERATIONS} times an iteration's mean delay, {shortest:g}"
            raise ConfigError("sync_time", self.sync_time, allowed)

    def decided(self) -> dict[str, str]:
        if self.delays == "client":
            return super().decided() | dict.fromkeys(
                ("shift_per_client", "shift", "mean_per_client", "mean"), 'delays "client"'
            )
        of_clients = (
            *RATES,
            "slow_fraction",
            "slow_clients",
            *SPREADS,
            "runtime_law",
            "client_table",
        )
        return super().decided() | dict.fromkeys(of_clients, 'delays "group"')

    def _check_grouping(self) -> None:
        sizes, association = self.group_sizes, self.association
        if sizes is not None and association is not None:
            raise ConfigError(
                "group_sizes", sizes, "left out with an association, which decides them"
            )
        if sizes is not None and (len(sizes) != self.num_groups or sum(sizes) != self.num_clients):
            raise ConfigError(
                "group_sizes",
                sizes,
                f"num_groups = {self.num_groups} numbers with the sum num_clients = {self.num_clients}",
            )
        if association is not None and (
            len(association) != self.num_clients or max(association) >= self.num_groups
        ):
            allowed = (
                f"num_clients = {self.num_clients} numbers below num_groups = {self.num_groups}"
            )
            raise ConfigError("association", association, allowed)
        if self.num_groups > self.num_clients:
            raise ConfigError(
                "num_groups", self.num_groups, f"at most num_clients = {self.num_clients}"
            )
        if association is not None and len(set(association) - {EMPTY}) < self.num_groups:
            empty = min(set(range(self.num_groups)) - set(association))
            raise ConfigError(
                "association",
                f"without a client of group {empty}",
                "of at least one client per group",
            )

    def mean_iteration(self) -> np.ndarray:
        """Mean time of a local iteration of each group (of a client alone, with delays of clients): `f64[M]`; not inside a trace."""
        if self.delays == "client":
            return np.broadcast_to(
                1 / np.max(np.asarray(self.largest_rate, float)), self.num_groups
            )
        size = delay_sizes(self)
        shift = np.asarray(self.shift_per_client, float) * size + np.asarray(self.shift, float)
        return shift + np.asarray(self.mean_per_client, float) * size + np.asarray(self.mean, float)


def _weights(text: str) -> Any:
    return text if text in GROUP_WEIGHTS else tuple(float(word) for word in text.split("+"))


class Members(NamedTuple):
    """Who is in which group."""

    clients: (
        np.ndarray
    )  # i32[M, C]  in order of their numbers; beyond a group's size its first client again
    size: np.ndarray  # i32[M]

    @property
    def is_there(self) -> np.ndarray:
        """`bool[M, C]`, which entries of `clients` are members rather than padding."""
        return np.arange(self.clients.shape[1])[None] < self.size[:, None]


def members(groups: Groups) -> Members:
    """List the clients of every group. Static: a grouping of its own is a program of its own."""
    group = np.asarray(groups.association) if groups.association is not None else _in_order(groups)
    size = np.bincount(group[group >= 0], minlength=groups.num_groups)
    lists = [np.flatnonzero(group == i) for i in range(groups.num_groups)]
    padded = [np.concatenate([own, np.repeat(own[:1], size.max() - len(own))]) for own in lists]
    return Members(np.stack(padded).astype(np.int32), size.astype(np.int32))


def _in_order(groups: Groups) -> np.ndarray:
    sizes = groups.group_sizes or [
        len(part) for part in np.array_split(np.arange(groups.num_clients), groups.num_groups)
    ]
    return np.repeat(np.arange(groups.num_groups), sizes)


def group_shares(groups: Groups) -> np.ndarray:
    """Weight of every group in the global model: `f64[M]`, sum 1; with equal groups 1 / M."""
    named = {"clients": members(groups).size, "equal": np.ones(groups.num_groups)}
    weight = np.asarray(
        named[groups.group_weights]
        if isinstance(groups.group_weights, str)
        else groups.group_weights,
        float,
    )
    return weight / weight.sum()


def delay_sizes(groups: Groups) -> np.ndarray:
    """Number of clients of each group by which its delays go: `i32[M]`."""
    size = members(groups).size
    return size if groups.active_per_group == 0 else np.minimum(size, groups.active_per_group)


def paper_delays(
    d: float, b: float, e: float, f: float, d_g: float, b_g: float, e_g: float, f_g: float
) -> dict[str, float]:
    """Name the coefficients {d, b, e, f, d_g, b_g, e_g, f_g} of the paper's experiments as settings of `Groups`."""
    names = ("shift_per_client", "shift", "mean_per_client", "mean")
    return dict(
        zip(
            (*names, *(f"exchange_{name.replace('client', 'group')}" for name in names)),
            (d, b, e, f, d_g, b_g, e_g, f_g),
            strict=True,
        )
    )


def iteration_law(groups: Groups) -> tuple[Array, Array]:
    """Shift c_i and mean 1 / lambda_i of the exponential part of every group's delay: `f64[M]` each."""
    size = jnp.asarray(delay_sizes(groups), float)
    shift = groups.shift_per_client * size + jnp.asarray(groups.shift, float)
    return shift, groups.mean_per_client * size + jnp.asarray(groups.mean, float)


def exchange_law(groups: Groups) -> tuple[Any, Any]:
    """Shift c_g and mean 1 / lambda_g of the exponential part of the global exchange's delay: `f64[]` each."""
    num = groups.num_groups
    shift = groups.exchange_shift_per_group * num + groups.exchange_shift
    return shift, groups.exchange_mean_per_group * num + groups.exchange_mean
