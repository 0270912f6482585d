"""Groups of clients behind local servers: their members, their delays and their weights.

Ali and Arafa, arXiv 2302.04851, Sec. II and V. The paper's symbols:

- N_i, the clients of group i, are `members`; |N_i| is `Members.size`; |N_i| / N `Groups.shares`.
- c_i and 1 / lambda_i are `Groups.iteration_law`; c_g and 1 / lambda_g are `Groups.exchange_law`.
- S is the setting `sync_time`. E, the local steps of an iteration, is 1 in the paper.
- The coefficients {d, b, e, f, d_g, b_g, e_g, f_g} are named by `paper_delays`.

Dimension letters: `M` groups, `C` members of the largest group, `N` clients.
"""

from types import ModuleType
from typing import Annotated, Literal, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings
from fedjax_sim.core.settings import Checked, ConfigError, fields, fixed, group, setting, struct
from fedjax_sim.core.settings.declared import AtLeast0, Count, Limit, OneOf, Whole
from fedjax_sim.core.types import EMPTY, Leaf, Problem, Settings
from fedjax_sim.timelines.delays.laws import ClientDelays, Clients

AGGREGATIONS = ("divide_by_steps", "average", "fednova")
"""Rules for the weight of a group's progress; the setting `aggregation` explains them."""
GROUP_WEIGHTS = ("clients", "examples", "equal")
"""Named weights of groups: their numbers of clients, their numbers of examples, or equal."""
MOST_ITERATIONS = 1_000_000
"""Largest expected number of local iterations of a group in a round."""


EACH = ": one number for all groups, or one per group"


def _delay(value: float, part: str, each: str = "") -> Leaf:
    """Make the setting of a part of a delay."""
    return setting(value, f"{part}, in units of virtual time{each}.", of_time=True)


def _is_not_empty(value: object) -> bool:
    return value != ()


def _are_some(value: object) -> bool:
    """Tell whether a value is something else than weights that are all 0."""
    return not (
        isinstance(value, tuple) and all(isinstance(x, int | float) and x == 0 for x in value)
    )


@struct
class Grouping(Checked):
    """Settings of the assignment of clients to groups, and of the weights of groups.

    They are the group `grouping` of hierarchical systems.

        uneven = Grouping(group_sizes=(5, 15), group_weights="equal")
        hyper = fedjax_sim.SYSTEMS["hierarchical"].Hyper(num_clients=20, grouping=uneven)
    """

    group_sizes: tuple[Count, ...] | None = setting(
        None,
        "Number of clients of each group, who are taken in order of their numbers. None "
        "splits the clients evenly; the first groups get one more where the division leaves a "
        "remainder.",
        allowed="whole numbers from 1 joined by +, such as 5+15, one per group",
        accepts=_is_not_empty,
        only_with={"association": (None,)},
    )
    association: tuple[Annotated[int, Limit(least=EMPTY)], ...] | None = setting(
        None,
        "Group of each client, instead of group sizes; -1 for a client that does not take part.",
        allowed="whole numbers joined by +, such as 0+1+1, one group per client or -1",
        accepts=_is_not_empty,
    )
    active_per_group: Whole = setting(
        0,
        "Clients of a group that take part in a round, drawn anew for each round; delays count "
        "only these. 0 for all of them, as in the paper.",
    )
    group_weights: Annotated[str, OneOf(GROUP_WEIGHTS)] | tuple[AtLeast0, ...] = setting(
        "clients",
        'Weights of the groups, scaled to sum 1. "clients": their numbers of clients, as '
        'in the paper; "examples": those of their clients\' examples; "equal": 1 each; or the '
        "given numbers.",
        allowed="clients, examples, equal, or numbers from 0 joined by +, one per group",
        accepts=_are_some,
        traced=False,
    )


@struct
class IterationDelays(Checked):
    """Settings of the delay of a local iteration of a group, with `delays_of = "group"`.

    It is a constant time plus an exponential one, see `Groups`.

        law = IterationDelays(shift_per_client=0.1, shift=1.0, mean_per_client=0.0, mean=0.5)
        groups = Groups(num_clients=8, num_groups=2, iteration=law)
        assert np.allclose(groups.mean_iteration(), 4 * 0.1 + 1.0 + 0.5)  # groups of four
    """

    shift_per_client: AtLeast0 = _delay(
        0.01, "Constant part of an iteration's delay per client of the group"
    )
    shift: AtLeast0 | tuple[AtLeast0, ...] = _delay(
        0.85, "Constant part of an iteration's delay that does not depend on the group's size", EACH
    )
    mean_per_client: AtLeast0 = _delay(
        0.001, "Mean of the exponential part of an iteration's delay per client of the group"
    )
    mean: AtLeast0 | tuple[AtLeast0, ...] = _delay(
        0.085,
        "Mean of the exponential part of an iteration's delay that does not depend on the group's "
        "size",
        EACH,
    )


@struct
class ExchangeDelays(Checked):
    """Settings of the delay of the exchange with the global server.

    It is a constant time plus an exponential one, see `Groups`.

        slow = ExchangeDelays(exchange_shift=4.0, exchange_mean=1.0)
        assert Groups(exchange=slow).mean_exchange() == 4 + 1
    """

    exchanges: Literal["round", "group"] = setting(
        "round",
        'Delay of the global exchange. "round": one draw per round, for all groups together, as in '
        'the paper. "group": one draw per group and round; a round ends when the exchange of the '
        "last group does.",
    )
    exchange_shift_per_group: AtLeast0 = _delay(
        0.0, "Constant part of the global exchange's delay per group"
    )
    exchange_shift: AtLeast0 | tuple[AtLeast0, ...] = _delay(
        0.0,
        "Constant part of the global exchange's delay that does not depend on the number of groups",
        EACH,
    )
    exchange_mean_per_group: AtLeast0 = _delay(
        0.0, "Mean of the exponential part of the global exchange's delay per group"
    )
    exchange_mean: AtLeast0 | tuple[AtLeast0, ...] = _delay(
        0.0,
        "Mean of the exponential part of the global exchange's delay that does not depend on the "
        "number of groups",
        EACH,
    )


@struct
class GroupClock(Checked):
    """Settings of the length of a round.

    They are the group `clock` of hierarchical systems.

        clock = GroupClock(min_iterations=5)
        hyper = Groups(num_clients=8, num_groups=2, sync_time=0.0, clock=clock)  # always five
    """

    min_iterations: Count = setting(
        1,
        "Local iterations that a group does at least in a round. With a sync time of 0 it does "
        "exactly so many (kappa_2 of HierFAVG).",
        traced=True,
    )
    sync_growth: AtLeast0 = setting(
        0.0,
        "If above 0, round u = 1, 2, ... has the sync time min(S, u * sync_growth), in units of "
        "virtual time.",
    )
    ticks_per_round: Count = setting(
        1,
        "Number of ticks J into which a round is cut, at equal parts of its sync time, so that the "
        "groups' models can be evaluated before the round ends. Only the last tick aggregates.",
    )
    delays_of: Literal["group", "client"] = setting(
        "group",
        'Delay of an iteration of a group. "group": one draw per group, as in the paper. "client": '
        "the longest running time of the local steps of one of its clients, by the laws, speeds, "
        "bandwidths and hours of `fedjax_sim.timelines.ClientDelays` (not in the paper). Settings "
        "of the other kind must be left at their defaults.",
    )


@struct
class Groups(Clients):
    """Settings of groups of clients: members, delays, sync time and weights.

    A local iteration of a group of n clients takes a constant time c plus an exponential time of
    mean m, where c = `shift_per_client` n + `shift` and m = `mean_per_client` n + `mean`. The
    exchange between M groups and the global server takes c_g plus an exponential time of mean m_g,
    where c_g = `exchange_shift_per_group` M + `exchange_shift` and m_g = `exchange_mean_per_group`
    M + `exchange_mean`.

    An iteration's delay covers all of its local steps, however many there are. Only with delays of
    clients does it grow with their number, and only then do clients have hours: a group waits for a
    client that is away. Lost models of clients (`drop_rate`) take no time with either kind.

    Iterations of two groups of 15 clients take c = 1 and m = 0.1 by default, those of the paper's
    Fig. 7(a), so that an iteration of one step takes about as long as a client of
    `timelines.ClientDelays` takes. Exchanges take no time.

        hyper = Groups(num_clients=8, num_groups=2, sync_time=5.0, client_steps=4)
        slow_group = Groups(num_clients=8, num_groups=2, shift=(0.5, 5.0))
    """

    # Not a setting, so that a number of steps meant for other systems does not change the paper's.
    local_steps: int = fixed(1)
    client_steps: Count = setting(
        1, "Local steps of a client in one iteration of its group, E (kappa_1 of HierFAVG)."
    )
    client_epochs: AtLeast0 = setting(
        0.0,
        "Passes over a client's examples in one iteration of its group, instead of client_steps: "
        "ceil(client_epochs m / batch_size) local steps for a client of m examples. 0 for "
        "client_steps, the same number for all clients.",
        simpler_at=(0.0,),
    )
    delays: ClientDelays = group(
        ClientDelays(),
        'which clients are fast, and how long work takes, with `delays_of = "client"`',
        without=("trace",),
    )
    # What `complete_groups` fills in from the problem, where something depends on it: the clients'
    # numbers of examples, `f64[N]`, and with client_epochs their local steps, `[N]`.
    examples: np.ndarray | None = settings.filled()
    steps_of_epochs: np.ndarray | None = settings.filled()
    num_groups: Count = setting(2, "Number of groups, M.")
    sync_time: AtLeast0 = setting(
        5.0,
        "Sync time S, in units of virtual time. 0 gives one local iteration per round; the whole "
        "time budget keeps the groups isolated until its end.",
        of_time=True,
    )
    aggregation: Annotated[str, OneOf(AGGREGATIONS)] = setting(
        "divide_by_steps",
        "How the global model x follows the progress D_i = x_i - x that group i, of weight w_i, "
        "made in t_i iterations, of however many local steps. "
        '"divide_by_steps": x + sum_i w_i D_i / t_i (Eq. 12), so that a round is about one '
        'iteration long. "average": x + sum_i w_i D_i, the mean of the models (HierFAVG). '
        '"fednova": x + T sum_i w_i D_i / t_i, where T = sum_j w_j t_j is the mean number of '
        "iterations.",
    )
    grouping: Grouping = group(Grouping(), "which client belongs to which group")
    clock: GroupClock = group(GroupClock(), "how long a round takes")
    iteration: IterationDelays = group(
        IterationDelays(), 'delay of a local iteration, with `delays_of = "group"`'
    )
    exchange: ExchangeDelays = group(
        ExchangeDelays(), "delay of the exchange with the global server"
    )

    @property
    def times_per_update(self) -> int:
        """Number of running times that add up to the time of a client's iteration: E or 1."""
        return self.client_steps if self.delays.time_of == "step" else 1

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the grouping does not fit the numbers of clients and groups, delays are
            not positive, or a setting has no effect under the chosen kind of delays.
        """
        if self.local_steps != 1:
            allowed = "left at 1 with groups, whose clients' steps are client_steps"
            raise ConfigError("local_steps", self.local_steps, allowed)
        super().check_together()
        self._check_grouping()
        active, weights = self.grouping.active_per_group, self.grouping.group_weights
        if active > 0 and self.clock.delays_of == "client":
            allowed = "0 with delays of clients, because all clients of a group count there"
            raise ConfigError("grouping.active_per_group", active, allowed)
        exchange = "exchange.exchange_shift", "exchange.exchange_mean"
        for name in ("iteration.shift", "iteration.mean", *exchange):
            value = settings.value_of(self, name)
            size = np.size(value)
            if size not in (1, self.num_groups):
                raise ConfigError(name, value, f"one number, or num_groups = {self.num_groups}")
            if size > 1 and name.startswith("exchange") and self.exchange.exchanges == "round":
                allowed = 'one number with exchanges "round"; one per group needs "group"'
                raise ConfigError(name, value, allowed)
        if not isinstance(weights, str) and len(weights) != self.num_groups:
            allowed = f"of num_groups = {self.num_groups} numbers"
            raise ConfigError("grouping.group_weights", weights, allowed)
        shortest = float(np.min(self.mean_iteration()))
        if self.clock.delays_of == "group" and shortest <= 0:
            raise ConfigError("shift + mean of an iteration's delay", shortest, "above 0")
        if np.max(np.asarray(self.sync_time, float)) > MOST_ITERATIONS * shortest:
            allowed = f"at most {MOST_ITERATIONS} times an iteration's mean delay, {shortest:g}"
            raise ConfigError("sync_time", self.sync_time, allowed)
        if np.max(np.asarray(least := self.clock.min_iterations)) > MOST_ITERATIONS:
            raise ConfigError("clock.min_iterations", least, f"at most {MOST_ITERATIONS}")

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        found = super().decided()
        if np.all(np.asarray(self.client_epochs) > 0):
            found["client_steps"] = "client_epochs"
        if np.all(np.asarray(self.sync_time) == 0):
            found["clock.sync_growth"] = "sync_time = 0"
        if self.clock.delays_of == "client":
            unused = [f"iteration.{name}" for name in fields(IterationDelays)]
            return found | dict.fromkeys(unused, 'clock.delays_of "client"')
        table = self.delays.client_table
        loses = table is not None and table.drop_rate is not None
        read = ("drop_rate", "trace", *(("client_table",) if loses else ()))
        unused = [f"delays.{name}" for name in fields(ClientDelays) if name not in read]
        return found | dict.fromkeys(unused, 'clock.delays_of "group"')

    def _check_grouping(self) -> None:
        """Check that sizes or association fit the numbers of clients and groups."""
        sizes, association = self.grouping.group_sizes, self.grouping.association
        groups, clients = f"num_groups = {self.num_groups}", f"num_clients = {self.num_clients}"
        if sizes is not None and (len(sizes) != self.num_groups or sum(sizes) != self.num_clients):
            allowed = f"{groups} numbers with the sum {clients}"
            raise ConfigError("grouping.group_sizes", sizes, allowed)
        if association is not None and (
            len(association) != self.num_clients or max(association) >= self.num_groups
        ):
            allowed = f"{clients} numbers below {groups}"
            raise ConfigError("grouping.association", association, allowed)
        if self.num_groups > self.num_clients:
            raise ConfigError("num_groups", self.num_groups, f"at most {clients}")
        if association is not None and len(set(association) - {EMPTY}) < self.num_groups:
            empty = min(set(range(self.num_groups)) - set(association))
            allowed = "of at least one client per group"
            raise ConfigError("grouping.association", f"without a client of group {empty}", allowed)

    def iteration_law(self, array: ModuleType = jnp) -> tuple[Leaf, Leaf]:
        """Compute the delay law of every group's local iteration.

        Args:
          array: `jax.numpy`, or `numpy` outside a trace.

        Returns:
          The constant part c_i and the mean 1 / lambda_i of the exponential part, `f64[M]` each, in
          units of virtual time.
        """
        law, size = self.iteration, delay_sizes(self)
        parts = (law.shift_per_client, law.shift), (law.mean_per_client, law.mean)
        return _delays(size, *parts[0], array), _delays(size, *parts[1], array)

    def exchange_law(self, array: ModuleType = jnp) -> tuple[Leaf, Leaf]:
        """Compute the delay law of the global exchange.

        Args:
          array: `jax.numpy`, or `numpy` outside a trace.

        Returns:
          The constant part c_g and the mean 1 / lambda_g of the exponential part, in units of
          virtual time: `f64[]` each, or `f64[M]` where they are given per group.
        """
        law, size = self.exchange, self.num_groups
        shift = _delays(size, law.exchange_shift_per_group, law.exchange_shift, array)
        return shift, _delays(size, law.exchange_mean_per_group, law.exchange_mean, array)

    def shares(self) -> Leaf:
        """Compute every group's weight in the global model.

        With groups of equal size the weights are 1 / M, unless other weights are given.

        Returns:
          `f64[M]`, of sum 1: a NumPy array, except for the weights "examples", which are traced.
        """
        members, given = list_members(self), self.grouping.group_weights
        if given == "examples":
            counts = 1.0 if self.examples is None else self.examples
            examples = jnp.broadcast_to(jnp.asarray(counts, float), (self.num_clients,))
            total = jnp.where(members.is_there, examples[members.clients], 0).sum(axis=1)
            return total / total.sum()
        named = {"clients": members.size, "equal": np.ones(self.num_groups)}
        weight = np.asarray(named[given] if isinstance(given, str) else given, float)
        return weight / weight.sum()

    def mean_iteration(self) -> np.ndarray:
        """Compute the mean time of a local iteration of each group; not inside a trace.

        Returns:
          Virtual times, `f64[M]`. With delays of clients these are the mean time of the fastest
          single client.
        """
        if self.clock.delays_of == "client":
            fastest = np.max(np.asarray(self.delays.largest_rate, float))
            return np.broadcast_to(self.times_per_update / fastest, self.num_groups)
        return np.add(*self.iteration_law(np))

    def mean_exchange(self) -> np.ndarray:
        """Compute the mean time of a global exchange; not inside a trace.

        Returns:
          Virtual times, `f64[]`, or `f64[M]` if groups have exchanges of their own.
        """
        return np.add(*self.exchange_law(np))


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


GroupsT = TypeVar("GroupsT", bound=Groups)


def complete_groups(hyper: GroupsT, problem: Problem | None) -> GroupsT:
    """Fill in the values that follow from the clients' numbers of examples. Runs on the host.

    Without a problem all clients have equally many.

        hyper = Groups(num_clients=8, num_groups=2, group_weights="examples")
        assert complete_groups(hyper, problem).examples.tolist() == [1.0] * 8  # one each

    Args:
      hyper: Settings that passed `check`; with client_epochs they have a `batch_size`.
      problem: What is learnt, or None.

    Returns:
      The settings.

    Raises:
      ConfigError: If iterations last for epochs and there is no problem.
    """
    has_epochs = not settings.is_known(hyper.client_epochs, 0)
    if problem is None and has_epochs:
        allowed = "0 for a schedule without a problem, which says how many examples clients have"
        raise ConfigError("client_epochs", hyper.client_epochs, allowed)
    counts = np.ones(hyper.num_clients) if problem is None else np.asarray(problem.counts, float)
    completed: Settings = hyper
    if hyper.grouping.group_weights == "examples":
        completed = completed.replace(examples=counts)
    if has_epochs:
        # A product that is a whole number must not become the next one by rounding.
        batches = np.asarray(hyper.client_epochs) * counts / completed.batch_size
        completed = completed.replace(steps_of_epochs=np.ceil(batches - 1e-9))
    return completed


class Members(NamedTuple):
    """The clients of every group.

    Attributes:
      clients: `i32[M, C]`, clients in order of their numbers; entries beyond a group's size repeat
        its first client.
      size: `i32[M]`, number of clients of each group.
    """

    clients: np.ndarray
    size: np.ndarray

    @property
    def is_there(self) -> np.ndarray:
        """`bool[M, C]`, whether an entry of `clients` is a member rather than padding."""
        return np.arange(self.clients.shape[1])[None] < self.size[:, None]


def list_members(groups: Groups) -> Members:
    """List the clients of every group.

    Groupings are static, so each grouping needs its own compiled program.

        members = list_members(Groups(num_clients=5, num_groups=2, group_sizes=(2, 3)))
        assert members.size.tolist() == [2, 3]
        assert members.clients.tolist() == [[0, 1, 0], [2, 3, 4]]  # padded with its first

    Args:
      groups: Settings that passed `check`.

    Returns:
      The groups' clients and sizes, as NumPy arrays.
    """
    num = groups.num_groups
    if groups.grouping.association is None:  # in order of the clients' numbers
        parts = np.array_split(np.arange(groups.num_clients), num)
        group = np.repeat(np.arange(num), groups.grouping.group_sizes or [*map(len, parts)])
    else:
        group = np.asarray(groups.grouping.association)
    size = np.bincount(group[group >= 0], minlength=groups.num_groups)
    lists = [np.flatnonzero(group == i) for i in range(groups.num_groups)]
    padded = [np.concatenate([row, np.repeat(row[:1], size.max() - len(row))]) for row in lists]
    return Members(np.stack(padded).astype(np.int32), size.astype(np.int32))


def delay_sizes(groups: Groups) -> np.ndarray:
    """Count the clients of each group on which its delays depend.

        hyper = Groups(num_clients=5, num_groups=2, group_sizes=(2, 3))
        assert delay_sizes(hyper).tolist() == [2, 3]
        assert delay_sizes(hyper.replace(active_per_group=2)).tolist() == [2, 2]

    Args:
      groups: Settings that passed `check`.

    Returns:
      `i32[M]`; with `active_per_group` above 0 at most that number.
    """
    size, active = list_members(groups).size, groups.grouping.active_per_group
    return np.minimum(size, active) if active else size


def paper_delays(
    d: AtLeast0,
    b: AtLeast0,
    e: AtLeast0,
    f: AtLeast0,
    d_g: AtLeast0,
    b_g: AtLeast0,
    e_g: AtLeast0,
    f_g: AtLeast0,
) -> dict[str, float]:
    """Translate the delay coefficients of the paper's experiments into settings of `Groups`.

        delays = paper_delays(d=0.1, b=0.0, e=0.01, f=0.0, d_g=5.0, b_g=0.0, e_g=0.0, f_g=0.0)
        hyper = Groups(num_clients=30, num_groups=2, **delays)
        assert hyper.mean_exchange() == 2 * 5.0  # of two groups

    Args:
      d: Constant part of an iteration's delay per client.
      b: Constant part of an iteration's delay.
      e: Mean of the exponential part of an iteration's delay per client.
      f: Mean of the exponential part of an iteration's delay.
      d_g: Constant part of the exchange's delay per group.
      b_g: Constant part of the exchange's delay.
      e_g: Mean of the exponential part of the exchange's delay per group.
      f_g: Mean of the exponential part of the exchange's delay.

    Returns:
      Keyword arguments of `Groups`.
    """
    of_groups = {"shift_per_client": d, "shift": b, "mean_per_client": e, "mean": f}
    names = (f"exchange_{name.replace('client', 'group')}" for name in of_groups)
    return of_groups | dict(zip(names, (d_g, b_g, e_g, f_g), strict=True))


def _delays(size: Leaf, each: Leaf, alike: Leaf, array: ModuleType) -> Leaf:
    """Compute delays with a part for each member and a part that does not depend on the size."""
    return array.asarray(each, float) * array.asarray(size, float) + array.asarray(alike, float)
