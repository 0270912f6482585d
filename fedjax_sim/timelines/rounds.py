"""Rounds of a server that samples clients, may ask for more than it needs, and may lose some.

The settings are those of FedAvg (McMahan et al. 2017, arXiv 1602.05629, Algorithm 1), with
over-selection, deadlines and lost reports (`drop_rate`) as in Bonawitz et al. (2019, arXiv
1902.01046, Sec. 2.2). With the defaults the server waits for everyone of a uniform cohort, with
others for the first reports that are in, or until a deadline.

How long rounds last, and which reports are used, is the same in rounds of weighted clients
(`WeightedRounds`), of which all take part or some that are drawn by their weights, and in live
rounds (`timelines.live`); they differ in the clients that are asked and in the weights.
`CoinRounds` are rounds of fixed length, in which slot i belongs to client i.

Dimension letters: `N` clients, `T` ticks (a tick is a round), `A` clients asked in a round, `S`
slots of a tick, that is reports that the server uses, `K` local steps of a client in a round.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import schedules, settings, streams, types
from fedjax_sim.core.settings import Checked, ConfigError, Portion, checked, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Whole
from fedjax_sim.core.types import EMPTY, Array, Key, Leaf, Problem, Settings, Timeline
from fedjax_sim.timelines import cohorts, presets
from fedjax_sim.timelines.delays import laws
from fedjax_sim.timelines.delays.devices import close, draw_devices, loss_shares

SlotsT = TypeVar("SlotsT")


@struct
class CohortClock(Checked):
    """Settings of the time that a round takes.

    They are the group `clock` of systems of rounds.

        clock = CohortClock(num_asked=13, deadline=20.0, server_interact=1.0)
        hyper = fedavg.Hyper(num_selected=10, clock=clock)  # the first 10 of 13, or until 20
    """

    num_asked: Whole = setting(
        0,
        "Clients that are asked to take part in a round, of which the first `num_selected` reports "
        "are used; 0 asks `num_selected`.",
    )
    deadline: AtLeast0 = setting(
        0.0,
        "Longest time that a round waits for reports, in units of virtual time; 0 for no limit.",
        simpler_at=(0.0,),
    )
    server_interact: AtLeast0 = setting(
        0.0,
        "Duration of the server's exchange with clients, in units of virtual time.",
        of_time=True,
    )
    round_time: Literal["sum", "one_draw", "mean"] = setting(
        "sum",
        "Time that the cohort's work takes: the longest sum of K running times, K times the "
        "longest single draw, or K times the longest mean.",
    )
    last_batch: Literal["shared", "filled", "dropped"] = setting(
        "shared",
        'The last mini-batch of an epoch, if m / batch_size is not whole. "shared": the next epoch '
        'completes it, and the round\'s last one is rounded up. "filled": each epoch has one '
        'more, E ceil(m / batch_size) steps. "dropped": none has (PyTorch\'s `drop_last`), E '
        "floor(m / batch_size) steps, but at least one.",
    )


@struct
class Cohort(Checked):
    """Settings of the choice of clients in a round, and of the weights of reports.

    They are a group of the settings of FedAvg, for example.

        by_size = Cohort(selection="by_examples", with_replacement=True)
        hyper = fedavg.Hyper(num_selected=5, cohort=by_size)
    """

    weighting: cohorts.Weighting = cohorts.client_weighting("the mean of the reports that are used")
    selection: Literal["uniform", "by_examples", "poisson"] = setting(
        "uniform",
        'Who is asked. "uniform": a uniform set of clients. "by_examples": chances in proportion '
        'to numbers of examples. "poisson": each client independently with probability S / N, S '
        "being `num_selected`, and all weights are 1 / S.",
    )
    with_replacement: bool = setting(
        False,
        "Whether a client may be drawn several times in a round. It works once, and its weight is "
        "counted as often as it was drawn.",
    )


@struct
class CohortRounds(laws.Clients):
    """Settings of rounds of sampled clients.

    With `selection="by_examples"`, `with_replacement` and equal weights, the mean of the reports
    is an unbiased estimate of the mean over all clients weighted by their examples.

        hyper = CohortRounds(num_selected=2, weighting="examples")
        assert hyper.shares(jnp.array([1.0, 3.0])).tolist() == [1 / 4, 3 / 4]
    """

    local_epochs: AtLeast0 = setting(
        0.0,
        "Passes over its m examples that a client makes in a round, E, instead of `local_steps`: "
        "by default ceil(E m / batch_size) steps. 0 for the same number of steps for all clients.",
    )
    num_selected: Count = setting(10, "Size of the cohort, S.")
    cohort: Cohort = settings.group(Cohort(), "who is asked, and what the reports weigh")
    clock: CohortClock = settings.group(CohortClock(), "how long a round takes")
    # Filled in by `completed`: whether rounds last for epochs, and the clients' numbers of
    # examples, `f64[N]`, if something depends on them.
    has_epochs: bool = settings.fixed(False)
    examples: np.ndarray | None = settings.filled()

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If fewer are asked than are needed, or more than there are, or if a trace
            lacks rows of some client.
        """
        super().check_together()
        if not self.has_cohorts:
            return
        if self.cohort.selection == "poisson":
            values = {"cohort.weighting": "equal", "cohort.with_replacement": False}
            settings.check_left(self, values | {"clock.num_asked": 0}, 'with selection = "poisson"')
        are_distinct = not self.cohort.with_replacement
        check_clients(self, are_distinct=are_distinct)
        if are_distinct:
            self.check_at_most_clients("clock.num_asked")
        if 0 < self.clock.num_asked < self.num_selected:
            allowed = f"0, or at least num_selected = {self.num_selected}"
            raise ConfigError("clock.num_asked", self.clock.num_asked, allowed)

    def decided(self) -> dict[str, str]:
        """Settings without effect by name, with words for their replacements."""
        found = super().decided()
        # The privacy of single examples bounds updates by local_steps in any case.
        is_bound = getattr(getattr(self, "privacy", None), "name", "") == "examples"
        if np.all(np.asarray(self.local_epochs) > 0) and not is_bound:
            found["local_steps"] = "local_epochs"
        if np.all(np.asarray(self.local_epochs) == 0):
            of_clock = {"clock.last_batch"} & settings.fields(type(self)).keys()
            found |= dict.fromkeys(of_clock, "local_steps")
        return found

    @property
    def has_cohorts(self) -> bool:
        """Whether rounds are of sampled clients; false where another clock is chosen."""
        return True

    def work_of(self, clients: Array) -> Array | None:
        """Count the local steps of clients in a round, as far as examples are known.

        Args:
          clients: `i[T, A]`, their numbers.

        Returns:
          `i[T, A]`; None if all do `local_steps`.
        """
        if not self.has_epochs or self.examples is None:
            return None
        of_epoch = self.examples / self.batch_size  # type: ignore[attr-defined]
        if self.clock.last_batch == "filled":
            of_epoch = jnp.ceil(of_epoch)
        elif self.clock.last_batch == "dropped":
            of_epoch = jnp.maximum(jnp.floor(of_epoch), 1)
        # A quotient that is a whole number must not become the next one by rounding.
        return jnp.ceil(self.local_epochs * of_epoch - 1e-9).astype(int)[clients]

    def completed(self, problem: Problem | None) -> Settings:
        """Fill in the clients' numbers of examples, if something depends on them.

        Args:
          problem: What is learnt. Without one, None, all clients have equally many examples.

        Returns:
          The settings with what was missing.

        Raises:
          ConfigError: If rounds last for epochs and there is no problem, or if the settings do not
            fit the problem.
        """
        hyper, cohort = super().completed(problem), self.cohort
        has_epochs = bool(self.local_epochs > 0)
        needs_examples = cohort.weighting != "equal" or cohort.selection == "by_examples"
        if not needs_examples and not has_epochs:
            return hyper
        if problem is None and has_epochs:
            allowed = "0 for a schedule without a problem, which says how many examples there are"
            raise ConfigError("local_epochs", self.local_epochs, allowed)
        counts = np.ones(self.num_clients) if problem is None else np.asarray(problem.counts, float)
        return hyper.replace(examples=counts, has_epochs=has_epochs)

    def shares(self, counts: Array) -> Array:
        """Compute the clients' weights in the objective, `f[N]` of sum 1, from their examples."""
        share = counts if self.cohort.weighting == "examples" else jnp.ones_like(counts)
        return share / share.sum()


def check_clients(hyper: Settings, *, are_distinct: bool) -> None:
    """Check that there are enough clients for a cohort, and that a trace has rows of each.

    Args:
      hyper: Settings of a clock in rounds.
      are_distinct: Whether the cohort has `num_selected` different clients.

    Raises:
      ConfigError: If the cohort exceeds the clients, or the trace lacks rows of some client.
    """
    if are_distinct:
        hyper.check_at_most_clients("num_selected")
    has_trace = hyper.delays.trace is not None
    if has_trace and len(set(hyper.recorded.client.tolist())) < hyper.num_clients:
        allowed = "with rows of every client, as any may be selected"
        raise ConfigError("delays.trace", "a client without rows", allowed)


@checked
def rounds_within(hyper: Settings, time: Above0) -> float:
    """Estimate how many rounds fit in a stretch of time: those of fast clients, of mean length.

    With a recorded trace these are rounds of its mean work.

        hyper = fedavg.Hyper(local_steps=4, rate_fast=2.0, server_interact=3.0)
        assert rounds_within(hyper, 50.0) == 50 / (3 + 4 / 2)

    Args:
      time: Units of virtual time.
    """
    if hyper.delays.trace is None:
        work = hyper.times_per_update / hyper.delays.largest_rate
    else:
        work = (hyper.delays.trace.finish - hyper.delays.trace.start).mean()
    # Work of a trace may take no time.
    return time / np.maximum(hyper.clock.server_interact + work, 1e-200)


HyperT = TypeVar("HyperT", bound=CohortRounds)


@checked
def cohort_system(
    name: str,
    hyper: type[HyperT],
    algorithm: Callable[[Problem, HyperT, types.Plan], types.Algorithm[types.StateT, types.InfoT]],
    summary: str,
    *,
    messages: types.Messages | None = None,
) -> types.System[HyperT, types.StateT, types.InfoT]:
    """Combine an algorithm with rounds of sampled clients; `paper` is FAVANO's comparison.

    `algorithm` and `summary` are those of `System`.

        system = cohort_system("mine", fedavg.Hyper, fedavg.algorithm, "FedAvg by another name.")
        assert system.Hyper is fedavg.Hyper

    Args:
      name: Name on the command line.
      hyper: Class of the settings.
      messages: As in `System`; by default what the settings say in `counted`, or whole models.

    Returns:
      The system.
    """
    counted = getattr(hyper, "counted", types.Messages()) if messages is None else messages
    found = types.System(name, hyper, schedule_cohort_rounds, algorithm, summary, messages=counted)
    fit = types.Fit(complete=lambda hyper, problem: hyper.completed(problem))
    paper = presets.preset(hyper, presets.FAVANO)
    return found._replace(hints=types.Hints(rounds_within), paper=paper, fit=fit)


@checked
def schedule_cohort_rounds(key: Key, hyper: Settings, num_ticks: Count) -> Timeline:
    """Schedule rounds of sampled clients.

    Reports that are not used leave no trace in the timeline, nor in the local steps and bits that
    are counted. The first rounds do not depend on `num_ticks`.

        rounds = schedule_cohort_rounds(key, fedavg.Hyper(num_clients=8, num_selected=3), 5)
        assert rounds.clients.shape == (5, 3) and (rounds.version == jnp.arange(5)[:, None]).all()

    Args:
      hyper: Settings of `CohortRounds`; completed if needed, and with a `batch_size`.
      num_ticks: Number of rounds T.

    Returns:
      A timeline whose weights sum to 1 in every round in which somebody reports; under Poisson
      sampling they are all 1 / S.
    """
    num_asked = hyper.clock.num_asked or hyper.num_selected
    clients, times = _draw_asked(streams.lane_stream(key, "cohorts"), hyper, num_asked, num_ticks)
    share = times.astype(float)
    if hyper.cohort.weighting == "examples" and hyper.examples is not None:
        share = share * hyper.examples[clients]
    is_poisson = hyper.cohort.selection == "poisson"

    def weigh(share: Array) -> Array:
        total = jnp.maximum(share.sum(axis=1, keepdims=True), jnp.finfo(share.dtype).tiny)
        return share / (hyper.num_selected if is_poisson else total)

    num_used, steps = clients.shape[1] if is_poisson else hyper.num_selected, hyper.work_of(clients)
    return assemble_rounds(key, hyper, clients, share, weigh, num_used=num_used, steps=steps)


def _draw_asked(key: Key, hyper: CohortRounds, num: int, num_ticks: int) -> cohorts.Draws:
    """Draw the clients that are asked, and how often each was drawn: `[T, A]`."""
    if hyper.cohort.selection == "poisson":
        cohort, is_member = cohorts.draw_poisson_cohorts(key, hyper.num_clients, num, num_ticks)
        return cohort, is_member.astype(cohort.dtype)
    if hyper.cohort.selection == "uniform" and not hyper.cohort.with_replacement:
        clients = cohorts.draw_cohorts(key, hyper.num_clients, num, num_ticks)
        return clients, jnp.ones_like(clients)
    share: Leaf = jnp.ones(hyper.num_clients)
    if hyper.cohort.selection == "by_examples" and hyper.examples is not None:
        share = hyper.examples
    if hyper.cohort.with_replacement:
        return cohorts.draw_with_replacement(key, share, num, num_ticks)
    clients = cohorts.draw_by_share(key, share, num, num_ticks)
    return clients, jnp.ones_like(clients)


def assemble_rounds(
    key: Key,
    hyper: Settings,
    clients: Array,
    share: Array,
    weigh: Callable[[Array], Array],
    *,
    num_used: int,
    steps: Array | None = None,
) -> Timeline:
    """Make the timeline of rounds in which given clients are asked.

    A round ends when `num_used` reports are in, or when nobody is left to wait for, or at the
    deadline. A report that is lost is waited for until the deadline or, if there is none, until it
    should have come. Clients keep the model from which they started until they are selected again.

    Args:
      hyper: Settings of a clock in rounds.
      clients: `i[T, A]`, who is asked; `EMPTY` in empty slots. With a recorded trace a client's
        work takes as long as its rows say, which are used in order, and then again.
      share: `f[T, A]`, weights of reports, up to a factor; 0 for clients that do nothing.
      weigh: Function from shares `f[T, S]`, 0 for reports that are not in, to weights.
      num_used: Reports S that are used in a round, at most A: the first ones.
      steps: `i[T, A]`, local steps of the clients; None for `hyper.local_steps` everywhere.

    Returns:
      The timeline. Slots without a report are `EMPTY`.
    """
    work_time = draw_work_times(key, clients, hyper, steps)
    if steps is None:
        steps = jnp.full(clients.shape, hyper.local_steps)
    devices, tick = draw_devices(key, hyper), jnp.arange(len(clients))[:, None]
    is_asked = clients != EMPTY
    has_work = is_asked & (share > 0)
    lost = devices.are_lost(jnp.maximum(clients, 0), tick) & has_work
    limit = jnp.where(hyper.clock.deadline > 0, hyper.clock.deadline, jnp.inf)

    def one_round(begins: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
        running, clients, is_asked, has_work, lost = given
        start = jnp.broadcast_to(begins, clients.shape)
        finish = devices.times_of_work(jnp.maximum(clients, 0), start, running)[1]
        taken = jnp.where(has_work, finish - begins, 0)
        waits = end_round((), taken, is_asked, lost, num_used=num_used, limit=limit)[-1]
        return begins + (hyper.clock.server_interact + waits), taken

    # Without hours rounds do not depend on when they begin, and are computed together.
    given, begins = (work_time, clients, is_asked, has_work, lost), jnp.zeros(())
    in_turn = one_round if devices.windows is None else partial(jax.lax.scan, one_round)
    taken, slots = in_turn(begins, given)[1], (clients, share, steps)
    slots, _, is_in, waits = end_round(slots, taken, is_asked, lost, num_used=num_used, limit=limit)
    clients, share, steps = slots
    version = jnp.broadcast_to(tick, clients.shape)
    steps, weight = jnp.where(is_in & (share > 0), steps, 0), weigh(jnp.where(is_in, share, 0))
    clients = jnp.where(is_in, clients, EMPTY)
    time = jnp.cumsum(hyper.clock.server_interact + waits)
    return Timeline(time, clients, steps, version, weight, holds=version)


def end_round(
    slots: SlotsT, taken: Array, is_asked: Array, lost: Array, *, num_used: int, limit: Array
) -> tuple[SlotsT, Array, Array, Array]:
    """Find out which reports are in when a round ends, and when that is.

    Args:
      slots: Facts of the clients that are asked, `[..., A]` each.
      taken: Times after which their reports should be in, `f[..., A]`.
      is_asked: `bool[..., A]`, which places hold a client.
      lost: `bool[..., A]`, which reports are lost. Without a deadline, that is known when they
        should have come.
      num_used: Reports S that are used, the first ones.
      limit: Longest time to wait, `f[]`, or inf. It ends a round in which a report is missing.

    Returns:
      Facts of the reports that are used, `[..., S]` each; when these are in, `f[..., S]`, inf for
      those that never are; which are in by the deadline, `bool[..., S]`; and how long the server
      waits for them, `f[...]`.
    """
    arrival = jnp.where(is_asked & ~lost, taken, jnp.inf)
    if arrival.shape[-1] > num_used:
        first = jnp.argsort(arrival, axis=-1, stable=True)[..., :num_used]
        pick = partial(jnp.take_along_axis, indices=first, axis=-1)
        slots, arrival = jax.tree.map(pick, (slots, arrival))
    is_in = are_in_time(arrival, limit)
    last = jnp.where(is_in, arrival, 0).max(axis=-1)
    is_whole = is_in.sum(axis=-1) >= jnp.minimum(is_asked.sum(axis=-1), num_used)
    known = jnp.maximum(last, jnp.where(lost, taken, 0).max(axis=-1))
    waits = jnp.where(is_whole, last, jnp.where(jnp.isfinite(limit), limit, known))
    return slots, arrival, is_in, waits


def are_in_time(arrival: Array, limit: Array) -> Array:
    """Mask of the reports that are in time for a deadline, up to last bits.

    Args:
      arrival: Times at which they are in, `f[...]`.
      limit: Longest time to wait, `f[]`, infinite for no limit.
    """
    return jnp.isfinite(arrival) & (arrival <= limit * (1 + close(arrival)))


def draw_work_times(key: Key, clients: Array, hyper: Settings, steps: Array | None = None) -> Array:
    """Draw how long each slot's work takes under the delay law, or look it up in the trace.

    Args:
      clients: `i[T, S]`.
      steps: `i[T, S]`, local steps of each slot; None for `hyper.local_steps` everywhere.

    Returns:
      Virtual times, `f64[T, S]`; of any value in empty slots.
    """
    if hyper.delays.trace is not None:
        rows = hyper.recorded.by_client(hyper.num_clients)
        return rows.durations(clients, cohorts.previous_visits(clients)[1])
    speeds = laws.Speeds(*(leaf[clients] for leaf in laws.draw_client_speeds(key, hyper)))
    law, ticks, num_slots = hyper.delays.law, jnp.arange(len(clients)), clients.shape[1]
    if steps is None or hyper.delays.time_of != "step" or hyper.clock.round_time != "sum":
        standard = jax.vmap(lambda t: draw_standard_times(key, t, num_slots, hyper))(ticks)
        return work_times(standard, speeds, hyper, steps)

    def add(q: Array, total: Array) -> Array:
        of_step = jax.vmap(lambda t: _draw_standard_of_step(key, q, t, num_slots, hyper))(ticks)
        return total + jnp.where(q < steps, law.times(of_step, speeds)[..., 0], 0)

    return jax.lax.fori_loop(0, steps.max(), add, jnp.zeros(clients.shape, speeds.rate.dtype))


def draw_standard_times(
    key: Key, tick: Array, num_slots: int, hyper: Settings, most_steps: int | None = None
) -> Array:
    """Draw the unit-scale times of a tick's work.

    Args:
      tick: `i32[]`, its number.
      num_slots: Slots S. The first ones have the same draws if there are more.
      most_steps: The most local steps if slots have different numbers of them, None if all have
        `local_steps`.

    Returns:
      Unit-scale numbers, `f[S, num]`; num is 0 where nothing is drawn.
    """
    is_by_step = most_steps is not None and hyper.delays.time_of == "step"
    if hyper.clock.round_time == "sum" and is_by_step:
        steps = jnp.arange(most_steps)
        drawn = jax.vmap(lambda q: _draw_standard_of_step(key, q, tick, num_slots, hyper))(steps)
        return jnp.moveaxis(drawn[..., 0], 0, 1)
    num = {"mean": 0, "one_draw": 1, "sum": hyper.times_per_update}[hyper.clock.round_time]
    tick_key = jax.random.fold_in(streams.lane_stream(key, "runtimes"), tick)
    return hyper.delays.law.draw(tick_key, (num_slots, num), float)


def _draw_standard_of_step(
    key: Key, q: Array, tick: Array, num_slots: int, hyper: Settings
) -> Array:
    """Draw the same of one local step, number q: `f[S, 1]`."""
    step_key = jax.random.fold_in(jax.random.fold_in(streams.lane_stream(key, "runtimes"), q), tick)
    return hyper.delays.law.draw(step_key, (num_slots, 1), float)


def work_times(
    standard: Array, speeds: laws.Speeds, hyper: Settings, steps: Array | None = None
) -> Array:
    """Scale the results of `draw_standard_times` to times of work.

    Args:
      standard: `f[..., S, num]`.
      speeds: Of each slot's client, `f[..., S]` each.
      steps: Local steps of each slot, `i[..., S]`; None for `local_steps`. Where single steps take
        time and times are summed, `standard` was drawn with as many as they may be.

    Returns:
      Virtual times, `f[..., S]`.
    """
    is_by_step = steps is not None and hyper.delays.time_of == "step"
    num_times: Leaf = steps if is_by_step else hyper.times_per_update
    if hyper.clock.round_time == "mean":
        return num_times / speeds.rate
    times = hyper.delays.law.times(standard, speeds)
    if hyper.clock.round_time == "one_draw":
        return times.sum(axis=-1) * num_times
    if is_by_step:
        q = jax.lax.broadcasted_iota("int32", times.shape, times.ndim - 1)
        times = jnp.where(q < num_times[..., None], times, 0)
    return times.sum(axis=-1)


@struct
class WeightedRounds(laws.Clients):
    """Settings of synchronous rounds of weighted clients.

    They are inherited by the settings of FA-LD, for example.

        hyper = WeightedRounds(num_clients=3, client_weights=np.array([1.0, 1.0, 2.0]))
        assert hyper.shares().tolist() == [1 / 4, 1 / 4, 1 / 2]
    """

    local_steps: Count = setting(10, "Local steps of a client's update, K.", traced=True)
    averaging: Literal["periodic", "random"] = setting(
        "periodic",
        'When clients average. "periodic": after K local steps. "random": after each local step '
        "with probability 1 / K, by one coin for all, so that K is the mean.",
    )
    participants: Literal["full", "with_replacement", "without_replacement"] = setting(
        "full",
        'Which clients take part. "full": all, with weights p_c. "with_replacement": S independent '
        "draws of client c with probability p_c; a client drawn j times has weight j/S. "
        '"without_replacement": a uniform subset of S clients with weights 1/S; needs equal p_c.',
    )
    client_weights: Above0 | Sequence[Above0] | None = setting(
        None,
        "Weights p_c of the clients up to a common factor. None takes their numbers of examples, "
        "or equal weights for a schedule without a problem.",
        allowed="None, one finite number above 0, or one for each client",
    )
    num_selected: Count = setting(
        10,
        "Size of the cohort, S.",
        only_with={"participants": ("with_replacement", "without_replacement")},
    )
    clock: CohortClock = settings.group(
        CohortClock(round_time="mean"), "how long a round takes", without=("num_asked", "deadline")
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the cohort exceeds the clients, a trace lacks rows of some client, or the
            K running times of a client are to be summed.
        """
        super().check_together()
        check_clients(self, are_distinct=self.participants == "without_replacement")
        if self.clock.round_time == "sum":
            allowed = "one_draw or mean, because local_steps can be swept in one program here"
            raise ConfigError("clock.round_time", "sum", allowed)

    def weighted(self, counts: np.ndarray) -> Settings:
        """Replace the client weights by weights of sum 1. Runs on the host.

        Args:
          counts: `i[N]`, the clients' numbers of examples, which are the weights if none are set.

        Returns:
          The same settings with `client_weights` `f64[N]`.

        Raises:
          ConfigError: If the number of weights is wrong, or they are unequal although a uniform
            subset takes part, which would be biased.
        """
        weights = counts if self.client_weights is None else np.asarray(self.client_weights, float)
        if weights.shape not in ((), counts.shape):
            allowed = f"one number, or {counts.size}: one per client"
            raise ConfigError("client_weights", f"of {weights.size} numbers", allowed)
        weights = np.broadcast_to(weights, counts.shape)
        if self.participants == "without_replacement" and np.ptp(weights) > 1e-6 * weights.max():
            unequal = f"with weights from {weights.min():g} to {weights.max():g}"
            allowed = "full or with_replacement unless all weights are equal"
            raise ConfigError("participants", f"without_replacement {unequal}", allowed)
        this: Settings = self
        return this.replace(client_weights=weights / weights.sum())

    def shares(self, counts: Array | None = None) -> Array:
        """Compute the clients' weights p_c.

        Args:
          counts: `i32[N]`, the clients' numbers of examples, which are the weights if no
            `client_weights` are set; None for equal weights.

        Returns:
          `f[N]`, of sum 1.
        """
        given = self.client_weights if self.client_weights is not None else counts
        given = jnp.asarray(1.0 if given is None else given, float)
        weight = jnp.broadcast_to(given, (self.num_clients,))
        return weight / weight.sum()


@checked
def schedule_weighted_rounds(key: Key, hyper: WeightedRounds, num_ticks: Count) -> Timeline:
    """Schedule synchronous rounds of weighted clients.

    A client that is drawn more than once in a round works once, in one slot. Where updates are lost
    the weights of the others are scaled to the same sum. The first rounds do not depend on
    `num_ticks`.

        everyone = schedule_weighted_rounds(key, WeightedRounds(num_clients=4), 5)
        assert (everyone.clients == jnp.arange(4)[None]).all() and (everyone.weight == 1 / 4).all()

    Args:
      num_ticks: Number of rounds T.

    Returns:
      A timeline whose weights sum to 1 in every round. Full participation has a slot for each
      client. With replacement there are S slots, and those left over by repeated draws are `EMPTY`.
    """
    own_key, size = streams.lane_stream(key, "cohorts"), hyper.num_selected
    share = hyper.shares()
    if hyper.participants == "full":
        shape = (num_ticks, hyper.num_clients)
        clients = jnp.broadcast_to(jnp.arange(hyper.num_clients), shape)
        weight = jnp.broadcast_to(share, shape)
    elif hyper.participants == "with_replacement":
        clients, times = cohorts.draw_with_replacement(own_key, share, size, num_ticks)
        weight = times.astype(share.dtype) / size
    else:
        clients = cohorts.draw_cohorts(own_key, hyper.num_clients, size, num_ticks)
        weight = jnp.full(clients.shape, 1 / size)

    def weigh(left: Array) -> Array:
        if loss_shares(hyper) is None:
            return weight
        total, kept = (x.sum(axis=1, keepdims=True) for x in (weight, left))
        return left * (total / jnp.where(kept > 0, kept, 1))

    steps = None
    if hyper.averaging == "random":
        coins = streams.lane_stream(key, "averaging")
        draw = jax.vmap(lambda t: jax.random.exponential(jax.random.fold_in(coins, t), (), float))
        # Geometric on 1, 2, ... with mean K.
        after = jnp.floor(draw(jnp.arange(num_ticks)) / -jnp.log1p(-1 / hyper.local_steps))
        steps = jnp.broadcast_to(1 + after.astype(int)[:, None], clients.shape)
    used = clients.shape[1]
    return assemble_rounds(key, hyper, clients, weight, weigh, num_used=used, steps=steps)


@struct
class CoinRounds(Checked):
    """Settings of rounds with Bernoulli participation.

    They are inherited by the settings of FedEM, for example.

        hyper = CoinRounds(num_clients=8, participation=0.5, round_length=2.0)
        assert schedule_coin_rounds(key, hyper, 3).time.tolist() == [2.0, 4.0, 6.0]

        from fedjax_sim.core.schedules import Table

        unlike = CoinRounds(participation_schedule=Table(factors=(1.0, 0.25), by="client"))
        assert unlike.chances(jnp.arange(2)).tolist() == [1.0, 0.25]
    """

    num_clients: Count = setting(
        100, "Number of clients, N; in a run, if not given, those of the problem."
    )
    participation: Portion = setting(
        1.0, "Probability p that a client takes part in a round, independently of all else."
    )
    participation_schedule: schedules.Schedule = schedules.schedule_of("participation", ("client",))
    round_length: Above0 = setting(1.0, "Duration of a round, in units of virtual time.")

    def check_together(self) -> None:
        """Check the probabilities of all clients.

        Raises:
          ConfigError: If one is not above 0 and at most 1.
        """
        super().check_together()
        # Arrays of JAX would fix the number of devices, before `use_cores` may be called.
        if self.participation_schedule.is_constant:
            return
        of_all = np.asarray(self.participation)[..., None]
        everyone = jnp.arange(self.num_clients)
        found = np.asarray(self.participation_schedule.of(of_all, everyone))
        if not np.all((found > 0) & (found <= 1)):
            words = f"probabilities above 0 and at most 1, not from {found.min()} to {found.max()}"
            raise ConfigError("participation_schedule", str(self.participation_schedule), words)

    def chances(self, clients: Array) -> Array | float:
        """Find the probabilities p_i that clients take part.

        Args:
          clients: `i32[...]`, their numbers.

        Returns:
          `f[...]`, or p if that is everyone's.
        """
        chances: Array | float = self.participation_schedule.of(self.participation, clients)
        return chances


@checked
def schedule_coin_rounds(key: Key, hyper: CoinRounds, num_ticks: Count) -> Timeline:
    """Schedule rounds in which each client takes part with its probability.

        rounds = schedule_coin_rounds(key, CoinRounds(num_clients=8, participation=0.5), 5)
        assert ((rounds.weight == 0) | (rounds.weight == 1)).all()

    Args:
      num_ticks: Number of rounds T.

    Returns:
      A timeline with one slot per client. Clients that take part do one step and have weight 1;
      the other slots have no step and weight 0, but are not `EMPTY`.
    """
    shape, coins = (num_ticks, hyper.num_clients), streams.lane_stream(key, "participation")
    chances = hyper.chances(jnp.arange(hyper.num_clients))

    def takes_part(t: Array) -> Array:
        """Toss everyone's coin of a round, which depends only on its number."""
        return jax.random.uniform(jax.random.fold_in(coins, t), shape[1:]) < chances

    present = jax.vmap(takes_part)(jnp.arange(num_ticks)).astype("int32")
    version = jnp.broadcast_to(jnp.arange(num_ticks)[:, None], shape)
    time = hyper.round_length * (1.0 + jnp.arange(num_ticks))
    clients = jnp.broadcast_to(jnp.arange(hyper.num_clients)[None], shape)
    return Timeline(time, clients, present, version, present.astype(float), holds=version)
