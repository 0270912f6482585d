"""Clocks of groups of clients, each behind a local server (Ali and Arafa, arXiv 2302.04851).

Settings (`Groups`, `GroupArrivals`) come first, then members, delays and weights of groups, then
schedules. In round u (Sec. II) every group does local iterations until a time
S has passed since the round began: t_i = min{n >= 1: tau_{i,1} + ... + tau_{i,n} >= S} (Eq. 7). An
iteration that has begun is completed and counted, so t_i >= 1 always. Groups that are done wait for
the last one; then the exchange takes tau_g (Eq. 9 and 13). With `exchanges="group"`, which is not
in the paper, every group's exchange takes its own time and begins when the group is done; the round
ends with the last of them. The slots of a tick are the groups. A round is one tick, or several if
groups are to be evaluated before it ends (`ticks_per_round`).

A delay is drawn for its round, iteration and group (or client), whatever S is. Schedules that
differ in S, or in c_g, the least that tau_g can be, therefore see the same delays, and on every
path t_i and the length of a round grow with S.

The paper's symbols: S is `sync_times`, tau_{i,l}^u is `iteration_times`, t_i^u is
`GroupWork.steps`, and tau_g^u is `exchange_times`. N_i, the clients of group i, are `Members`,
|N_i| is `Members.size`, and |N_i| / N `Groups.shares`. c_i and 1 / lambda_i are
`Groups.iteration_law`, c_g and 1 / lambda_g `Groups.exchange_law`. E, the local steps of an
iteration, is 1 in the paper.
Its coefficients d, b, e, f are `shift_per_client`, `shift`, `mean_per_client` and `mean`, and those
with an index g the settings of the exchange.

Clients that have hours (with `delays_of="client"`) stop at a break, and continue after it; their
group waits for them. Rounds are then drawn one after another, because delays depend on when a round
begins.

Asynchronous groups (`GroupArrivals`) do not wait for each other. A group takes the global model,
iterates until the sync time has passed, and exchanges models with the global server, which takes
the group's own time tau_g. It then begins its next round from the global model. The global server
acts whenever its buffer of Z reports is full, as in buffered arrivals
(`fedjax_sim.timelines.Arrivals` with `restart="free"`): a report that fills the buffer is in the
model with which its group continues, and a fast group may fill several slots of one buffer. The
u-th round of a group has the delays that it has in the u-th synchronous round with
`exchanges="group"`. A single group, with a buffer of one, therefore has the same schedule in both.

Dimension letters: `U` rounds, `M` groups, `C` members of the largest group, `N` clients, `J` ticks
of a round, `T` ticks, `A` reports of asynchronous groups, `Z` reports of a buffer (slots of a
tick).
"""

from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import settings, streams
from fedjax_sim.core.settings import Above0, Checked, ConfigError, checked, setting, struct
from fedjax_sim.core.settings.declared import AtLeast0, Count, Limit, OneOf, Whole
from fedjax_sim.core.types import EMPTY, Array, Key, Leaf, Problem, Settings, Timeline
from fedjax_sim.timelines.cohorts import previous_visits
from fedjax_sim.timelines.delays.devices import close, draw_devices
from fedjax_sim.timelines.delays.laws import ClientDelays, Clients, draw_runtimes

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
        accepts=lambda value: value != (),
        only_with={"association": (None,)},
    )
    association: tuple[Annotated[int, Limit(least=EMPTY)], ...] | None = setting(
        None,
        "Group of each client, instead of group sizes; -1 for a client that does not take part.",
        allowed="whole numbers joined by +, such as 0+1+1, one group per client or -1",
        accepts=lambda value: value != (),
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
        accepts=lambda value: not isinstance(value, tuple) or any(value),
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
    local_steps: int = settings.fixed(1)
    client_steps: Count = setting(
        1, "Local steps of a client in one iteration of its group, E (kappa_1 of HierFAVG)."
    )
    delays: ClientDelays = settings.group(
        ClientDelays(),
        'which clients are fast, and how long work takes, with `delays_of = "client"`',
        without=("trace",),
    )
    # What `complete_groups` fills in from the problem, where something depends on it: the clients'
    # numbers of examples, `f64[N]`.
    examples: np.ndarray | None = settings.filled()
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
    grouping: Grouping = settings.group(Grouping(), "which client belongs to which group")
    clock: GroupClock = settings.group(GroupClock(), "how long a round takes")
    iteration: IterationDelays = settings.group(
        IterationDelays(), 'delay of a local iteration, with `delays_of = "group"`'
    )
    exchange: ExchangeDelays = settings.group(
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
        if np.all(np.asarray(self.sync_time) == 0):
            found["clock.sync_growth"] = "sync_time = 0"
        if self.clock.delays_of == "client":
            unused = [f"iteration.{name}" for name in settings.fields(IterationDelays)]
            return found | dict.fromkeys(unused, 'clock.delays_of "client"')
        table = self.delays.client_table
        loses = table is not None and table.drop_rate is not None
        read = ("drop_rate", "trace", *(("client_table",) if loses else ()))
        unused = [f"delays.{name}" for name in settings.fields(ClientDelays) if name not in read]
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
        self.check_at_most_clients("num_groups")
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
          Virtual times, `f64[]`, or `f64[M]` if each group has its own exchange.
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
    clock: GroupClock = settings.group(
        GroupClock(), "how long a round takes", without=("ticks_per_round",)
    )
    exchange: ExchangeDelays = settings.group(
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
      hyper: Settings that passed `check`.
      problem: What is learnt, or None.

    Returns:
      The settings.
    """
    if hyper.grouping.group_weights != "examples":
        return hyper
    counts = np.ones(hyper.num_clients) if problem is None else np.asarray(problem.counts, float)
    completed: Settings = hyper
    return completed.replace(examples=counts)


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


def _delays(size: Leaf, each: Leaf, alike: Leaf, array: ModuleType) -> Leaf:
    """Compute delays with a part for each member and a part that does not depend on the size."""
    return array.asarray(each, float) * array.asarray(size, float) + array.asarray(alike, float)


def iteration_times(
    key: Key, groups: Groups, round_number: Array, iteration: Array, begin: Array | None = None
) -> Array:
    """Draw how long one local iteration of every group takes, tau_{i,l}^u.

    Args:
      groups: Settings.
      round_number: Number of the round from 0, `i[]`.
      iteration: Number of the iteration in its round from 0, `i[]`.
      begin: Virtual times at which the groups begin it, `f64[M]`; needed if clients have breaks.

    Returns:
      Virtual times, `f64[M]`. With delays of clients a group takes as long as its slowest client,
      whose breaks are a part of that.
    """
    round_key = jax.random.fold_in(streams.lane_stream(key, "iterations"), round_number)
    iteration_key = jax.random.fold_in(round_key, iteration)
    if groups.clock.delays_of == "client":
        devices, clients = draw_devices(key, groups), jnp.asarray(list_members(groups).clients)
        num, law = groups.times_per_update, groups.delays.law
        running = draw_runtimes(iteration_key, devices.speeds, num, law).sum(axis=1)[clients]
        begin = jnp.zeros(len(clients)) if begin is None else begin
        start = begin[:, None] + jnp.zeros_like(running)
        finish = devices.times_of_work(clients, start, running)[1]
        return (finish - begin[:, None]).max(axis=1)
    shift, mean = groups.iteration_law()
    return shift + mean * jax.random.exponential(iteration_key, shift.shape)


def exchange_times(key: Key, groups: Groups, num_rounds: int) -> Array:
    """Draw how long the global exchange of every round takes, tau_g^u.

    Args:
      groups: Settings.
      num_rounds: Number of rounds U.

    Returns:
      Virtual times, `f64[U, M]` with exchanges of groups and `f64[U, 1]` with one exchange of all.
    """
    shift, mean = groups.exchange_law()
    exchange_key = streams.lane_stream(key, "exchange")
    shape = (groups.num_groups,) if groups.exchange.exchanges == "group" else ()
    draw = jax.vmap(lambda u: jax.random.exponential(jax.random.fold_in(exchange_key, u), shape))
    standard = draw(jnp.arange(num_rounds)).reshape(num_rounds, -1)
    return jnp.atleast_1d(shift)[None] + jnp.atleast_1d(mean)[None] * standard


def sync_times(groups: Groups, num_rounds: int) -> Array:
    """Compute the sync time S_u of every round.

    Args:
      groups: Settings.
      num_rounds: Number of rounds U.

    Returns:
      Virtual times, `f64[U]`.
    """
    final = jnp.asarray(groups.sync_time, float)
    growth = jnp.asarray(groups.clock.sync_growth, float)
    return jnp.where(growth > 0, jnp.minimum(final, growth * (1 + jnp.arange(num_rounds))), final)


Progress = tuple[Array, Array, Array, Array]
"""Progress within a round.

The number of the iteration `i[]`; and for every group the time passed `f64[M]`, the iterations done
`i[M]`, and the iterations done by the end of each tick but the last `i[J - 1, M]`.
"""


class GroupWork(NamedTuple):
    """Work of every group in every round.

    Attributes:
      steps: `i[U, J, M]`, iterations of the round done by the end of each of its ticks; at the last
        tick these are t_i^u.
      busy: `f64[U, M]`, virtual time from the beginning of the round until the group was done.
    """

    steps: Array
    busy: Array


def all_together(busy: Array, exchange: Array) -> Array:
    """Compute how long rounds last that end with the last group: `f64[..., M]`.

    Args:
      busy: `f64[..., M]`, time from the beginning of a round until the group was done.
      exchange: `f64[..., M or 1]`, time of its exchange.
    """
    return jnp.broadcast_to((busy + exchange).max(axis=-1, keepdims=True), busy.shape)


def group_work(
    key: Key, groups: Groups, num_rounds: int, length: Callable[[Array, Array], Array] = jnp.add
) -> GroupWork:
    """Count each group's local iterations in every round.

    A group iterates until the sync time has passed, and at least once (Eq. 7), or `min_iterations`
    times. Deviation: Algorithm 1 continues while the time passed is at most S, which differs from
    Eq. 7 where it equals S. Eq. 7 without "at least once" would give no iteration for S = 0, where
    the paper's baseline has one.

    Args:
      groups: Settings.
      num_rounds: Number of rounds U.
      length: From times as those of `all_together` to how long rounds last; by default no group
        waits for another. It matters if clients have breaks, because their work then depends on
        when a round begins.

    Returns:
      Iterations and times of every group.
    """
    # Each tick of a round but the last counts what was done by its part of the sync time.
    parts = jnp.arange(1, groups.clock.ticks_per_round) / groups.clock.ticks_per_round
    least = jnp.asarray(groups.clock.min_iterations, int)

    def one_round(number: Array, sync_time: Array, start: Array | None = None) -> list[Array]:
        # Iterations that exactly fill the sync time do so whatever the last bits of their sum.
        slack = close(sync_time) * sync_time
        goal, marks = sync_time - slack, parts * sync_time + slack

        def is_short(progress: Progress) -> Array:
            iteration, busy, _, _ = progress
            return (iteration < least) | jnp.any(busy < goal)

        def iterate(progress: Progress) -> Progress:
            iteration, busy, steps, by_mark = progress
            continues = (iteration < least) | (busy < goal)
            begin = None if start is None else start + busy
            taken = iteration_times(key, groups, number, iteration, begin)
            busy = jnp.where(continues, busy + taken, busy)
            is_before = continues[None] & (busy[None] <= marks[:, None])
            return iteration + 1, busy, steps + continues, by_mark + is_before

        nothing = jnp.zeros(groups.num_groups, int)
        by_mark = jnp.zeros((len(parts), groups.num_groups), int)
        first = jnp.zeros((), int), nothing.astype(float), nothing, by_mark
        _, busy, steps, by_mark = jax.lax.while_loop(is_short, iterate, first)
        return [jnp.concatenate([by_mark, steps[None]]), busy]

    # Without breaks rounds do not depend on when they begin, and are computed together.
    numbers, syncs = jnp.arange(num_rounds), sync_times(groups, num_rounds)
    if groups.clock.delays_of == "group" or draw_devices(key, groups).windows is None:
        return GroupWork(*jax.vmap(one_round)(numbers, syncs))

    def next_round(start: Array, round_of: tuple[Array, Array, Array]) -> tuple[Array, GroupWork]:
        number, sync_time, exchange = round_of
        work = GroupWork(*one_round(number, sync_time, start))
        return start + length(work.busy, exchange), work

    exchanges = exchange_times(key, groups, num_rounds)
    start = jnp.zeros(groups.num_groups)
    return jax.lax.scan(next_round, start, (numbers, syncs, exchanges))[1]


@checked
def aggregation_weights(
    shares: Annotated[Array, settings.shape("M", "U M"), Limit(least=0)],
    steps: Annotated[Array, settings.shape("U M"), Limit(least=1)],
    aggregation: Annotated[str, OneOf(AGGREGATIONS)],
) -> Array:
    """Compute the weights of the groups' progress in every round.

    With one step everywhere the weights are the shares, whatever the aggregation.

        shares, steps = jnp.array([0.5, 0.5]), jnp.array([[1, 4]])
        weights = aggregation_weights(shares, steps, "divide_by_steps")
        assert weights.tolist() == [[0.5 / 1, 0.5 / 4]]

    Args:
      shares: `f[M]`, or `f[U, M]` if they differ between rounds: the groups' weights in the global
        model, of sum 1.
      steps: `i[U, M]`, local iterations t_i, at least 1.
      aggregation: A name of `timelines.grouped.AGGREGATIONS`. "divide_by_steps" is Eq. 12.

    Returns:
      Weights, `f[U, M]`.

    Raises:
      ConfigError: If the shapes do not fit together.
    """
    shares, steps = jnp.broadcast_to(shares, steps.shape), steps.astype(shares.dtype)
    match aggregation:
        case "average":
            return shares
        case "fednova":
            return shares / steps * jnp.sum(shares * steps, axis=1, keepdims=True)
    return shares / steps


@checked
def schedule_group_rounds(key: Key, hyper: Groups, num_ticks: Count) -> Timeline:
    """Schedule rounds of groups.

    A slot belongs to a group, and its client number is the group's number. All ticks of a round
    have the version with which the round began. Only the last tick of a round aggregates; the
    weights of the other ticks are 0. Distributing the initial model takes no time. The first ticks
    do not depend on `num_ticks`.

        rounds = schedule_group_rounds(key, Groups(num_clients=8, num_groups=2, sync_time=5.0), 3)
        assert (rounds.clients == jnp.arange(2)[None]).all()  # slots are groups, steps iterations

    Args:
      num_ticks: Number of ticks T; every `ticks_per_round` of them are a round.

    Returns:
      A timeline with one slot per group; a slot's steps are the group's iterations in that tick.
    """
    per_round = hyper.clock.ticks_per_round
    num_rounds = -(-num_ticks // per_round)
    work = group_work(key, hyper, num_rounds, all_together)
    length = all_together(work.busy, exchange_times(key, hyper, num_rounds))[:, 0]
    # Deviation: Algorithm 1 sets the clock to the length of the last round; here the lengths add up
    # (Eq. 13). They are added one by one, because a cumulative sum of more rounds may add in
    # another order and change the first ticks.
    end = jax.lax.scan(lambda clock, length: (clock + length,) * 2, jnp.zeros(()), length)[1]
    parts = jnp.arange(1, per_round) / per_round
    within = (end - length)[:, None] + sync_times(hyper, num_rounds)[:, None] * parts[None]
    time = jnp.concatenate([within, end[:, None]], axis=1)

    is_last = jnp.arange(per_round) == per_round - 1
    shares, iterations = jnp.asarray(hyper.shares()), work.steps[:, -1]
    weight = aggregation_weights(shares, iterations, hyper.aggregation)
    first = jnp.arange(num_rounds) * per_round
    version = jnp.broadcast_to(first[:, None, None], work.steps.shape)
    leaves = Timeline(
        time,
        clients=jnp.broadcast_to(jnp.arange(hyper.num_groups), work.steps.shape),
        steps=jnp.diff(work.steps, axis=1, prepend=0),
        version=version,
        weight=weight[:, None] * is_last[None, :, None],
        # The groups receive the new model at the end of a round.
        holds=version + per_round * is_last[None, :, None],
    )
    return Timeline(*(leaf.reshape(-1, *leaf.shape[2:])[:num_ticks] for leaf in leaves))


@checked
def group_rounds_within(hyper: Groups, time: Above0) -> float:
    """Estimate how many ticks fit into a stretch of virtual time.

        hyper = Groups(sync_time=5.0, exchange_shift=3.0)
        assert group_rounds_within(hyper, 80.0) == 80 / (5 + 3)

    Args:
      hyper: Settings with concrete values, not traced ones.
      time: Length of the stretch, in units of virtual time.

    Returns:
      The approximate number of ticks.
    """
    length = np.max(mean_work(hyper)) + np.max(hyper.mean_exchange())
    return float(time / length) * hyper.clock.ticks_per_round


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
    share = jnp.asarray(hyper.shares()) * (hyper.num_groups / size)
    holds = jnp.arange(1, num + 1) // size
    leaves = time, group, steps, (previous + 1) // size, share[group], holds
    time, *of_slots = (leaf.reshape(shape) for leaf in leaves)
    return Timeline(time[:, -1], *of_slots)


@checked
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


def mean_work(hyper: Groups) -> np.ndarray:
    """Estimate how long groups are busy in a round, from below; not inside a trace.

    Args:
      hyper: Settings with concrete values.

    Returns:
      Virtual times, `f64[M]`.
    """
    grows = np.asarray(hyper.clock.sync_growth) > 0
    sync_time = np.where(grows, 0.0, np.asarray(hyper.sync_time, float))
    return np.maximum(sync_time, hyper.mean_iteration() * np.asarray(hyper.clock.min_iterations))
