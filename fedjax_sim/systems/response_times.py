"""Rounds that follow the times and losses of clients: TiFL, FedCS and AdaComm.

TiFL and FedCS choose clients by how long they take, AdaComm a number of local steps by the loss.
Each choice is a `live.Selection`, for any system of rounds; these have FedAvg's learning.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import LastingTraining, batch_loss, seeing_losses
from fedjax_sim.core import batching, settings, streams, targets, trees, types
from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Probability, setting, struct
from fedjax_sim.core.types import EMPTY, Algorithm, Array, Key, Params, Plan, Problem
from fedjax_sim.server import Reports, ServerStep
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import live
from fedjax_sim.timelines.delays.devices import close, draw_devices
from fedjax_sim.timelines.rounds import CohortClock, rounds_within

# TiFL.


CLIENTS_AT_ONCE = 50
"""Clients evaluated together, on one mini-batch each."""


@struct
class TierChoice(settings.Checked):
    """Settings of TiFL's tiers, and of the choice among them."""

    num_tiers: Count = setting(5, "Tiers into which clients are sorted by response latency, T.")
    policy: Literal["adaptive", "static"] = setting(
        "adaptive",
        "How the tier of a round is drawn: with probabilities that follow from the tiers' "
        "accuracies, or with given ones.",
    )
    probability: AtLeast0 | tuple[AtLeast0, ...] = setting(
        1.0,
        "Probabilities of the tiers, the fastest first, up to a common factor; one number for "
        "equal ones.",
        only_with={"policy": ("static",)},
    )
    interval: Count = setting(
        10,
        "Rounds after which the tiers are evaluated again, I.",
        begins="the evaluation of tiers",
        only_with={"policy": ("adaptive",)},
    )
    credits: settings.AtLeast1 | tuple[settings.AtLeast1, ...] = setting(
        100.0,
        "Rounds for which a tier may be asked, the fastest tier first; one number for all. When "
        "none is left, all tiers get theirs again.",
        only_with={"policy": ("adaptive",)},
    )
    profile_rounds: Count = setting(
        5, "Rounds in which clients' times are measured before learning."
    )
    time_limit: AtLeast0 = setting(
        0.0,
        "Longest time to wait for a client when times are measured, T_max, in units of virtual "
        "time; 0 for no limit. Clients that are never in by then are left out.",
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If there are not as many numbers as tiers, or no tier has a probability.
        """
        super().check_together()
        for name in ("probability", "credits"):
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != self.num_tiers:
                allowed = f"one number, or {self.num_tiers}: one for each of num_tiers"
                raise ConfigError(name, given, allowed)
        value = self.probability
        if not np.all(sum(value) if isinstance(value, tuple) else value):
            raise ConfigError("probability", self.probability, "above 0 for some tier")

    def by_tier(self, value: float | tuple[float, ...]) -> Array:
        """Return a setting of each tier: `f[T]`."""
        return jnp.broadcast_to(jnp.asarray(value, float), (self.num_tiers,))


@struct
class Tiered(live.LiveCohorts):
    """Settings of rounds of clients from one tier."""

    choice: TierChoice = settings.group(TierChoice(), "tiers, and which of them the server asks")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If tiers have fewer clients than are asked in a round.
        """
        super().check_together()
        if self.num_clients // self.choice.num_tiers < self.num_asked:
            allowed = f"at most {self.num_clients // self.num_asked}, so that every tier has the "
            allowed += f"{self.num_asked} clients that a round asks"
            raise ConfigError("choice.num_tiers", self.choice.num_tiers, allowed)


@struct
class TiFL(Tiered, LastingTraining, ServerStep, Reports):
    """TiFL (Chai et al. 2020, HPDC, arXiv 2001.09249): rounds of clients that are equally fast.

        T -> `choice.num_tiers`       C_r -> `clients`           I -> `choice.interval`
        A_t -> `accuracy`             NewProbs -> `probability`  Credits_t -> `credits`
        T_max -> `choice.time_limit`  sync_rounds -> `choice.profile_rounds`

    Before learning, the server measures how long every client takes to respond, in a number of
    rounds, and sorts the clients into tiers by that (Sec. 4.2). Each round asks clients of one
    tier, so that nobody waits for much slower ones. The static policy (Sec. 4.3) draws the tier
    with given probabilities. The adaptive one (Sec. 4.4, Algorithm 2) looks at the test accuracy of
    every tier every I rounds: if that of the tier asked last has not grown, tiers of low accuracy
    become more probable. Credits limit how often a tier is asked. Learning is FedAvg's, but the
    clock is live.

    Deviation: where a problem has no test examples of clients, the loss of one mini-batch of each
    of them takes the place of accuracy, and less is better.

    Deviation: the algorithm evaluates tiers after every round and reads that every I rounds; here
    they are evaluated when it is read, so of the model with which a round begins. An evaluation of
    a client counts as one, and takes no time.

    Readings. Tiers have equally many clients, as in the paper's experiments; its histogram leaves
    the borders open. The first round begins after profiling, whose running times are drawn apart
    from those of rounds, and whose local steps and bits are not counted. Clients that never respond
    within T_max are dropouts, and are never asked. The paper does not spell out ChangeProbs: here,
    as in public implementations, the tier of the k-th lowest accuracy has the probability (T + 1 -
    k) / (1 + ... + T). Where no tier has credits left, which would be an endless loop, all get
    theirs again. If clients have hours, the choice is among tiers with clients that are available
    and among these clients; if there are none, among all. Tiers are not formed again.
    """

    tells = "their losses"


class TierMemory(NamedTuple):
    """TierMemory of the choice.

    Attributes:
      tier: `i32[N]`, each client's tier, 0 for the fastest; `EMPTY` for clients left out.
      current: `i32[]`, the tier that was asked last.
      probability: `f[T]`, with which tiers are drawn, up to a factor.
      credits: `f[T]`, for how many rounds each may still be asked.
      accuracy: `f[T]`, of tiers at the last evaluation.
    """

    tier: Array
    current: Array
    probability: Array
    credits: Array
    accuracy: Array


def tiers_of(problem: Problem, hyper: Tiered) -> live.Selector:
    """Bind TiFL's choice."""
    choice, num_clients = hyper.choice, hyper.num_clients
    is_adaptive = choice.policy == "adaptive"

    def members(tier: Array) -> Array:
        """Membership of clients in tiers: `bool[T, N]`."""
        return tier[None] == jnp.arange(choice.num_tiers)[:, None]

    def first(hyper: Tiered, drawn: live.Drawn) -> TierMemory:
        given = choice.by_tier(1.0 if is_adaptive else choice.probability)
        credits, zero = choice.by_tier(choice.credits), jnp.int32(0)
        return TierMemory(
            jnp.zeros(num_clients, "int32"), zero, given, credits, jnp.zeros_like(given)
        )

    def draw(key: Key, number: Array) -> tuple[Array, Array]:
        tier_key, client_key = jax.random.split(live.choice_key(key, number))
        noise = jax.random.gumbel(tier_key, (choice.num_tiers,), float)
        return noise, jax.random.uniform(client_key, (num_clients,), float)

    def select(key: Key, now: live.Choosing) -> live.Asked:
        memory, number, (noise, draws) = now.memory, now.round.number, now.drawn
        executed = needed = jnp.int32(0)
        if is_adaptive:
            is_read = number % choice.interval == 0
            some_read = batching.any_lane(is_read)

            def read() -> Array:
                quality = client_accuracies(problem, hyper, key, number, now.state.server)
                in_tier = jnp.where(members(memory.tier), quality[None].astype(float), jnp.nan)
                return jnp.where(is_read, jnp.nanmean(in_tier, axis=1), memory.accuracy)

            accuracy = jax.lax.cond(some_read, read, lambda: memory.accuracy)
            stalls = accuracy[memory.current] <= memory.accuracy[memory.current]
            changed = is_read & (number > 0) & stalls
            # ChangeProbs: the lowest accuracy is the most probable, T, ..., 2, 1 times a factor.
            num, rank = choice.num_tiers, jnp.argsort(jnp.argsort(accuracy, stable=True))
            probability = (num - rank) / (num * (num + 1) / 2)
            probability = jnp.where(changed, probability, memory.probability)
            memory = memory._replace(probability=probability, accuracy=accuracy)
            executed = jnp.where(some_read, num_clients, 0)
            needed = jnp.where(is_read, num_clients, 0)
        # The tier, among those with credits and with clients.
        is_here = now.available() & (memory.tier != EMPTY)
        is_here = jnp.where(is_here.any(), is_here, memory.tier != EMPTY)
        has_clients = (is_here[None] & members(memory.tier)).any(axis=1)
        is_open = has_clients & (memory.probability > 0)
        is_open = jnp.where(is_open.any(), is_open, has_clients)
        if is_adaptive:
            is_over = ~(is_open & (memory.credits > 0)).any()
            credits = jnp.where(is_over, choice.by_tier(choice.credits), memory.credits)
            is_open = is_open & (credits > 0)
        logits = jnp.log(jnp.maximum(memory.probability, 1e-30))
        current = jnp.argmax(jnp.where(is_open, logits, -jnp.inf) + noise).astype("int32")
        memory = memory._replace(current=current)
        if is_adaptive:
            memory = memory._replace(credits=targets.put(credits, current, credits[current] - 1))
        # Clients of it, uniformly.
        draws = jnp.where(is_here & (memory.tier == current), draws, -1)
        largest, found = jax.lax.top_k(draws, hyper.num_asked)
        clients = jnp.where(largest >= 0, found, EMPTY)
        return live.Asked(clients, executed=executed, needed=needed, memory=memory)

    def opens(key: Key, begun: live.Round[TierMemory]) -> live.Round[TierMemory]:
        tier, now = profile(streams.lane_stream(key, "profile"), hyper, begun.drawn)
        return begun._replace(now=now, memory=begun.memory._replace(tier=tier))

    return live.Selector(select, first, draw=draw, opens=opens)


def profile(key: Key, hyper: Tiered, drawn: live.Drawn) -> tuple[Array, live.Instant]:
    """Measure how long clients take and sort them into tiers.

    Args:
      key: The key of profiling.
      drawn: The clients' speeds and hours.

    Returns:
      Everyone's tier, `i32[N]`, `EMPTY` for those left out, and when profiling ends.
    """
    choice, everyone = hyper.choice, jnp.arange(hyper.num_clients, dtype="int32")
    devices = draw_devices(key, hyper, drawn)
    limit = jnp.where(choice.time_limit > 0, choice.time_limit, jnp.inf)

    def measure(now: live.Instant, number: Array) -> tuple[live.Instant, Array]:
        _, taken = devices.follow(everyone, jnp.full_like(everyone, number), now)
        taken = jnp.minimum(taken, limit.astype(taken.dtype))
        return now.later(taken.max()), taken

    rounds = jnp.arange(choice.profile_rounds, dtype="int32")
    now, taken = jax.lax.scan(measure, live.Instant.at(0.0), rounds)
    responds = (taken < limit).any(axis=0)
    order = jnp.argsort(jnp.where(responds, taken.sum(axis=0), jnp.inf), stable=True)
    rank = jnp.zeros_like(everyone).at[order].set(everyone)
    tier = rank * choice.num_tiers // jnp.maximum(responds.sum(dtype="int32"), 1)
    return jnp.where(responds, tier, EMPTY), now


def client_accuracies(problem: Any, hyper: Tiered, key: Key, number: Array, model: Params) -> Array:
    """Evaluate a model on the test examples of each client: `f[N]`.

    Args:
      key: The lane's clock key.
      number: `i32[]`, the number of the round.
    """
    if trees.has(problem, "has_tests_of_clients") and problem.has_tests_of_clients:
        found = problem.evaluate_clients(lambda client: model)
        return found["accuracy"] if "accuracy" in found else -found["loss"]

    def loss(client: Array) -> Array:
        return batch_loss(problem, hyper, key, client, number)(model, jnp.int32(0))

    everyone = jnp.arange(hyper.num_clients, dtype="int32")
    return -jax.lax.map(loss, everyone, batch_size=CLIENTS_AT_ONCE)


# Nobody can be missing either, or left out of all tiers.
tiers = live.Selection(
    tiers_of,
    is_full=lambda hyper: hyper.misses_nobody and settings.is_known(hyper.choice.time_limit, 0),
)
"""TiFL's choice, for any system of rounds."""
SUMMARY = "rounds of clients that are equally fast, from tiers chosen by their accuracy"
tifl = tiers.on(fedavg.system, name="tifl", Hyper=TiFL, summary=SUMMARY)


# FedCS.


ROUNDING = 1e-5
"""Share by which deadlines are longer, because a client's time is a rounded sum of many."""


@struct
class DeadlineChoice(settings.Checked):
    """Settings of FedCS's choice, and of its deadlines."""

    num_candidates: settings.Whole = setting(
        0,
        "Clients that tell the server in each round how long they would take; 0 for "
        "`num_selected`.",
    )
    quantile: Probability = setting(0.5, "Quantile of response times that is the deadline.")
    follows: Literal["times", "loss"] = setting(
        "times", "What the deadline follows: response times alone, or the loss as well."
    )
    lengthen: settings.AtLeast1 = setting(
        1.2,
        "Factor of the deadline after a window of rounds in which the loss did not fall.",
        only_with={"follows": ("loss",)},
    )
    shorten: settings.Portion = setting(
        1.0,
        "Factor of the deadline after a window of rounds in which the loss fell.",
        only_with={"follows": ("loss",)},
    )
    loss_window: Count = setting(
        10,
        "Rounds of which the mean loss is compared with that of as many rounds before.",
        begins="the comparison of losses",
        only_with={"follows": ("loss",)},
    )
    most: settings.AtLeast1 = setting(
        10.0,
        "How many times the quantile the deadline is at most; it is at least the quantile divided "
        "by this.",
        only_with={"follows": ("loss",)},
    )


@struct
class InTime(live.LiveCohorts):
    """Settings of rounds of clients that are expected to report before the round ends."""

    tells = "late reports, which do not count, or their losses,"
    clock: CohortClock = settings.group(
        CohortClock(), "how long a round takes", without=("deadline", "num_asked", "last_batch")
    )
    choice: DeadlineChoice = settings.group(
        DeadlineChoice(), "whom the server asks, and how long it waits"
    )

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If there are fewer candidates than a round asks, or more than clients.
        """
        super().check_together()
        num = self.choice.num_candidates
        if num and not self.num_selected <= num <= self.num_clients:
            allowed = f"0, or from num_selected = {self.num_selected} to {self.num_clients}"
            raise ConfigError("choice.num_candidates", num, allowed)


@struct
class FedCS(InTime, LastingTraining, ServerStep, Reports):
    """FedCS (Nishio and Yonetani 2019, ICC, arXiv 1804.08333): as many clients as a deadline
    allows.

        K' -> `is_candidate`    t_k -> `expected`    T_round -> `deadline`    S -> `clients`
        ceil(K C) -> `choice.num_candidates`

    In each round some random clients tell the server how long they would take (Protocol 2, resource
    request). Of these it asks, greedily, those that add least to the round's length, as long as
    they are expected before the deadline (Algorithm 3). Reports that are late are not used: the
    round ends at the deadline, or when all are in. Learning is FedAvg's.

    Here the deadline follows from what was observed, so the clock is live. It is a quantile of all
    clients' response times: for each client the last one that was observed or, if there is none,
    what it expects. A late client has taken at least as long as the server waited. With
    `follows="loss"` the quantile is multiplied by a factor that becomes larger where the loss did
    not fall from one window of rounds to the next, so that slower clients are asked, and smaller
    where it did. In the paper the deadline is constant and tuned by hand.

    Deviation: clients send at the same time, each with its own bandwidth, and not one after another
    over a shared channel. So no client delays another, and the greedy choice asks the fastest
    candidates first. With the default of `num_selected` candidates it asks all that will be in
    time.

    Deviation: clients expect the mean time of their work, or the mean of their rows in a trace,
    with their transfers and hours. The resource request takes neither time nor bits.

    Readings. If no candidate is expected in time, the deadline of that round is long enough for the
    fastest one. The loss is that of the first mini-batches of those who report, with the model that
    they receive. It costs one evaluation more for each, which is counted, only with
    `follows="loss"`.
    """


class DeadlineMemory(NamedTuple):
    """DeadlineMemory of the choice.

    Attributes:
      taken: `f[N]`, how long each client took when it was asked last; nan for never.
      asked: `i32[S]`, whom the server has asked in this round.
      deadline: `f[]`, how long it waits for them.
      factor: `f[]`, by which the quantile is multiplied.
      loss: `f[]`, mean loss of the last window; nan before there is one.
      losses: `f[2]`, sum and number of the losses of rounds in this window.
    """

    taken: Array
    asked: Array
    deadline: Array
    factor: Array
    loss: Array
    losses: Array


def in_time_of(problem: Problem, hyper: InTime) -> live.Selector:
    """Bind FedCS's choice."""
    choice, num_clients, used = hyper.choice, hyper.num_clients, hyper.num_selected
    num_candidates = choice.num_candidates or used

    def first(hyper: InTime, drawn: live.Drawn) -> DeadlineMemory:
        nothing = jnp.zeros_like(drawn.speeds.rate, shape=())
        taken, losses = jnp.full_like(drawn.speeds.rate, jnp.nan), jnp.zeros_like(nothing, shape=2)
        nobody = jnp.full(used, EMPTY, "int32")
        return DeadlineMemory(taken, nobody, nothing, nothing + 1, nothing + jnp.nan, losses)

    def draw(key: Key, number: Array) -> Array:
        return jax.random.permutation(live.choice_key(key, number), num_clients)[:num_candidates]

    def select(key: Key, now: live.Choosing) -> live.Asked:
        memory, devices = now.memory, now.devices
        # How long clients expect to take if they are asked now.
        everyone, mean = jnp.arange(num_clients), devices.mean_times()
        expected = devices.times_of_work(everyone, now.round.now, mean)[1]
        known = jnp.where(jnp.isnan(memory.taken), expected, memory.taken)
        deadline = memory.factor * jnp.quantile(known, choice.quantile)
        # The candidates, and those of them that are expected in time.
        is_candidate = jnp.zeros(num_clients, bool).at[now.drawn].set(True)
        wait, fastest = jax.lax.top_k(jnp.where(is_candidate, -expected, -jnp.inf), used)
        deadline = jnp.maximum(deadline, -wait[0]) * (1 + ROUNDING)
        clients = jnp.where(-wait <= deadline, fastest, EMPTY)
        memory = memory._replace(asked=clients, deadline=deadline.astype(memory.deadline.dtype))
        return live.Asked(clients, deadline=deadline, memory=memory)

    def learn(key: Key, shown: live.Shown) -> DeadlineMemory:
        memory, reporters = shown.memory, shown.event.clients
        is_in = reporters != EMPTY
        asked, who = (jnp.where(x == EMPTY, num_clients, x) for x in (memory.asked, reporters))
        # Who was asked has taken at least as long as the server waited, unless the report is in.
        least = jnp.fmax(memory.taken[memory.asked], memory.deadline)
        taken = targets.put_all(targets.put_all(memory.taken, asked, least), who, shown.taken)
        memory = memory._replace(taken=taken)
        if choice.follows == "times":
            return memory
        mean = live.mean_loss(shown)
        losses = memory.losses + jnp.where(is_in.any(), jnp.stack([mean, jnp.ones_like(mean)]), 0)
        is_over = shown.round.number % choice.loss_window == 0
        loss = jnp.where(is_over, losses[0] / losses[1], memory.loss)  # nan without reports
        factor = memory.factor * jnp.where(loss < memory.loss, choice.shorten, choice.lengthen)
        factor = jnp.clip(factor, 1 / choice.most, choice.most)
        is_due = is_over & ~jnp.isnan(loss) & ~jnp.isnan(memory.loss)
        return memory._replace(
            factor=jnp.where(is_due, factor, memory.factor).astype(memory.factor.dtype),
            loss=jnp.where(jnp.isnan(loss), memory.loss, loss).astype(memory.loss.dtype),
            losses=jnp.where(is_over, 0, losses).astype(memory.losses.dtype),
        )

    return live.Selector(select, first, learn, draw)


def shows_losses(algorithm: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """Return an algorithm that shows losses to the choice if the deadline follows them."""

    def bind(problem: Problem, hyper: InTime, plan: Plan) -> Algorithm:
        own = algorithm if hyper.choice.follows == "times" else seeing_losses(algorithm)
        return own(problem, hyper, plan)

    return bind


in_time = live.Selection(in_time_of, sees=shows_losses)
"""FedCS's choice, for any system of rounds."""
SUMMARY = "as many clients as are expected before a deadline that follows what was observed"
fedcs = in_time.on(fedavg.system, name="fedcs", Hyper=FedCS, summary=SUMMARY)


# AdaComm.


@struct
class Communication(settings.Checked):
    """Settings of how many local steps there are between two averages."""

    adapt_every: settings.Above0 = setting(
        100.0,
        "Virtual time after which the number of local steps is chosen again, T_0.",
        of_time=True,
    )
    shrink: settings.Portion = setting(
        0.5,
        "Factor of the number of local steps where the loss alone would not reduce it, gamma; 1 "
        "keeps the number then.",
    )
    pace: Literal["equal", "speed"] = setting(
        "equal",
        "Local steps of a cohort's clients: equally many, or in proportion to their speeds.",
    )


@struct
class AdaptiveSteps(live.LiveCohorts):
    """Settings of rounds with fewer local steps in the course of learning.

    `local_steps` is the first number of local steps, tau_0, which is never exceeded.
    """

    communication: Communication = settings.group(Communication(), "how often clients communicate")

    def check_together(self) -> None:
        """Check combinations of settings.

        Raises:
          ConfigError: If the time of work does not depend on the number of local steps.
        """
        super().check_together()
        live.check_steps_take_time(self)


@struct
class AdaComm(AdaptiveSteps, LastingTraining, ServerStep, Reports):
    """AdaComm (Wang and Joshi 2019, SysML, arXiv 1810.08313): local steps that follow the loss.

        x -> `state.server`    tau_0 -> `hyper.local_steps`     tau -> `steps`    l T_0 -> `due`
        F(x) -> `loss`      T_0 -> `communication.adapt_every`      gamma -> `communication.shrink`

    Rare averaging is cheap in time, and frequent averaging attains a lower loss. So clients do many
    local steps between two averages at first, and fewer as the loss falls. At the beginning of each
    interval of T_0 units of virtual time, the paper's rule and its refinement choose

        tau <- ceil(sqrt(F(x) / F(x_0)) tau_0)   if that is less than tau,
        tau <- gamma tau                         otherwise.

    How long a round lasts follows from tau, so the clock is live. Learning is FedAvg's. In the
    paper everyone takes part, `num_selected = num_clients`; a smaller cohort is drawn uniformly.

    With `pace="speed"` the fastest client of a cohort does tau steps, and others as many fewer as
    they are slower, but at least one, so that all finish at about the same time. This is not in the
    paper. The mean then gives fast clients more influence, as in FedAvg with local epochs (see
    `fednova`).

    Deviation: F is the mean loss of the cohort's first mini-batches of the last round, with the
    model that it received, and not of all examples with the newest model, which would cost a pass
    over all data. It costs one evaluation more for each client, which is counted, and neither time
    nor bits.

    Deviation: the learning rate is constant here, so the factor by which the paper lets tau grow
    when the learning rate is reduced is always 1, and is left out.

    Readings. Rounds are not cut off at the end of an interval: the first round that begins after it
    has the new tau, and intervals that passed within one round count as one. gamma tau is rounded
    down, and is at least 1. If clients have hours, a cohort is drawn from all, as in planned
    rounds: whoever is away begins when it is back, and the round waits for it.
    """

    tells = "their losses"


class StepsMemory(NamedTuple):
    """StepsMemory of the choice.

    Attributes:
      steps: `i32[]`, local steps of the next round, tau.
      first_loss: `f[]`, F(x_0); nan until the first reports are in.
      due: When the number of local steps is chosen again.
    """

    steps: Array
    first_loss: Array
    due: live.Instant


def steps_of(problem: Problem, hyper: AdaptiveSteps) -> live.Selector:
    """Bind AdaComm's numbers of local steps."""
    pace = hyper.communication

    def first(hyper: AdaptiveSteps, drawn: live.Drawn) -> StepsMemory:
        unknown = jnp.full((), jnp.nan, drawn.speeds.rate.dtype)
        return StepsMemory(jnp.int32(hyper.local_steps), unknown, live.Instant.at(pace.adapt_every))

    def draw(key: Key, number: Array) -> Array:
        order = jax.random.permutation(live.choice_key(key, number), hyper.num_clients)
        return order[: hyper.num_asked].astype("int32")

    def select(key: Key, now: live.Choosing) -> live.Asked:
        clients, steps = now.drawn, now.memory.steps
        if pace.pace == "speed":
            rate = now.devices.speeds.rate[clients]
            steps = _rounded_down(steps * (rate / rate.max())).astype("int32")
        return live.Asked(clients, steps=steps)

    def learn(key: Key, shown: live.Shown) -> StepsMemory:
        steps, first_loss, due = shown.memory
        is_there, now = shown.event.clients != EMPTY, shown.round.now
        loss = jnp.where(is_there.any(), live.mean_loss(shown), jnp.nan).astype(first_loss.dtype)
        first_loss = jnp.where(jnp.isnan(first_loss), loss, first_loss)
        wanted = jnp.ceil(jnp.sqrt(loss / first_loss) * hyper.local_steps)
        shrunk = _rounded_down(pace.shrink * steps)
        fewer = jnp.where(wanted < steps, jnp.maximum(wanted, 1), shrunk)
        # Without a report the loss is unknown: the next round with one decides.
        # Rounds that exactly fill an interval do so whatever the last bits of their times.
        late = now.since(due) / pace.adapt_every
        late += close(late)
        is_due = (late >= 0) & ~jnp.isnan(loss)
        next_due = due.later((jnp.floor(late) + 1) * pace.adapt_every).where(is_due, due)
        return StepsMemory(jnp.where(is_due, fewer, steps).astype("int32"), first_loss, next_due)

    return live.Selector(select, first, learn, draw)


def _rounded_down(steps: Array) -> Array:
    """Round numbers of local steps down, but to at least 1, whatever their last bits.

    A compiled quotient of equal rates need not be 1: x / y may be x times the rounded 1 / y.
    """
    return jnp.maximum(jnp.floor(steps * (1 + close(steps))), 1)


fewer_steps = live.Selection(steps_of, has_steps=True, sees=seeing_losses)
"""AdaComm's local steps, for any system of rounds."""
SUMMARY = "federated averaging with fewer local steps as the loss falls"
adacomm = fewer_steps.on(
    fedavg.system,
    name="adacomm",
    Hyper=AdaComm,
    summary=SUMMARY,
    hints=types.Hints(lambda hyper, time: rounds_within(hyper.replace(local_steps=1), time)),
)
