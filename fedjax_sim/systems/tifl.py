"""TiFL (Chai et al. 2020, HPDC, arXiv 2001.09249): rounds of clients that are equally fast.

    T -> `choice.num_tiers`       C_r -> `clients`           I -> `choice.interval`
    A_t -> `accuracy`             NewProbs -> `probability`  Credits_t -> `credits`
    T_max -> `choice.time_limit`  sync_rounds -> `choice.profile_rounds`

Before learning, the server measures how long every client takes to respond, in a number of rounds,
and sorts the clients into tiers by that (Sec. 4.2). Each round asks clients of one tier, so that
nobody waits for much slower ones. The static policy (Sec. 4.3) draws the tier with given
probabilities. The adaptive one (Sec. 4.4, Algorithm 2) looks at the test accuracy of every tier
every I rounds: if that of the tier asked last has not grown, tiers of low accuracy become more
probable. Credits limit how often a tier is asked. Learning is FedAvg's, but the clock is live.

Deviation: where a problem has no test examples of clients, the loss of one mini-batch of each of
them takes the place of accuracy, and less is better.

Deviation: the algorithm evaluates tiers after every round and reads that every I rounds; here they
are evaluated when it is read, so of the model with which a round begins. An evaluation of a client
counts as one, and takes no time.

Readings. Tiers have equally many clients, as in the paper's experiments; its histogram leaves the
borders open. The first round begins after profiling, whose running times are drawn apart from those
of rounds, and whose local steps and bits are not counted. Clients that never respond within T_max
are dropouts, and are never asked. The paper does not spell out ChangeProbs: here, as in public
implementations, the tier of the k-th lowest accuracy has the probability (T + 1 - k) / (1 + ... +
T). Where no tier has credits left, which would be an endless loop, all get theirs again. If clients
have hours, the choice is among tiers with clients that are available and among these clients; if
there are none, among all. Tiers are not formed again.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients import LastingTraining, batch_loss
from fedjax_sim.core import batching, streams, trees
from fedjax_sim.core.settings import Checked, ConfigError, group, is_known, setting, struct
from fedjax_sim.core.settings.declared import AtLeast0, AtLeast1, Count
from fedjax_sim.core.targets import put
from fedjax_sim.core.types import EMPTY, Array, Key, Params, Problem
from fedjax_sim.server import Reports
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import live
from fedjax_sim.timelines.delays.devices import draw_devices

CLIENTS_AT_ONCE = 50
"""Clients evaluated together, on one mini-batch each."""


@struct
class Choice(Checked):
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
    credits: AtLeast1 | tuple[AtLeast1, ...] = setting(
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

    choice: Choice = group(Choice(), "tiers, and which of them the server asks")

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
class Hyper(Tiered, LastingTraining, Reports):
    """Settings of TiFL: rounds, local training, messages, and the choice of tiers."""

    tells_losses = True


class Memory(NamedTuple):
    """Memory of the choice.

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


def selector(problem: Problem, hyper: Tiered) -> live.Selector:
    """Bind TiFL's choice."""
    settings, num_clients = hyper.choice, hyper.num_clients
    is_adaptive = settings.policy == "adaptive"

    def members(tier: Array) -> Array:
        """Membership of clients in tiers: `bool[T, N]`."""
        return tier[None] == jnp.arange(settings.num_tiers)[:, None]

    def first(hyper: Tiered, drawn: live.Drawn) -> Memory:
        given = settings.by_tier(1.0 if is_adaptive else settings.probability)
        credits, zero = settings.by_tier(settings.credits), jnp.int32(0)
        return Memory(jnp.zeros(num_clients, "int32"), zero, given, credits, jnp.zeros_like(given))

    def draw(key: Key, number: Array) -> tuple[Array, Array]:
        round_key = jax.random.fold_in(streams.lane_stream(key, "choice"), number)
        tier_key, client_key = jax.random.split(round_key)
        noise = jax.random.gumbel(tier_key, (settings.num_tiers,), float)
        return noise, jax.random.uniform(client_key, (num_clients,), float)

    def select(key: Key, now: live.Choosing) -> live.Asked:
        memory, number, (noise, draws) = now.memory, now.round.number, now.drawn
        executed = needed = jnp.int32(0)
        if is_adaptive:
            is_read = number % settings.interval == 0
            some_read = batching.any_lane(is_read)

            def read() -> Array:
                quality = client_accuracies(problem, hyper, key, number, now.state.server)
                in_tier = jnp.where(members(memory.tier), quality[None].astype(float), jnp.nan)
                return jnp.where(is_read, jnp.nanmean(in_tier, axis=1), memory.accuracy)

            accuracy = jax.lax.cond(some_read, read, lambda: memory.accuracy)
            stalls = accuracy[memory.current] <= memory.accuracy[memory.current]
            changed = is_read & (number > 0) & stalls
            # ChangeProbs: the lowest accuracy is the most probable, T, ..., 2, 1 times a factor.
            num, rank = settings.num_tiers, jnp.argsort(jnp.argsort(accuracy, stable=True))
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
            credits = jnp.where(is_over, settings.by_tier(settings.credits), memory.credits)
            is_open = is_open & (credits > 0)
        logits = jnp.log(jnp.maximum(memory.probability, 1e-30))
        current = jnp.argmax(jnp.where(is_open, logits, -jnp.inf) + noise).astype("int32")
        memory = memory._replace(current=current)
        if is_adaptive:
            memory = memory._replace(credits=put(credits, current, credits[current] - 1))
        # Clients of it, uniformly.
        draws = jnp.where(is_here & (memory.tier == current), draws, -1)
        largest, found = jax.lax.top_k(draws, hyper.num_asked)
        clients = jnp.where(largest >= 0, found, EMPTY)
        return live.Asked(clients, executed=executed, needed=needed, memory=memory)

    def opens(key: Key, begun: live.Round[Memory]) -> live.Round[Memory]:
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
    settings, everyone = hyper.choice, jnp.arange(hyper.num_clients, dtype="int32")
    devices = draw_devices(key, hyper, drawn)
    limit = jnp.where(settings.time_limit > 0, settings.time_limit, jnp.inf)

    def measure(now: live.Instant, number: Array) -> tuple[live.Instant, Array]:
        _, taken = devices.follow(everyone, jnp.full_like(everyone, number), now)
        taken = jnp.minimum(taken, limit.astype(taken.dtype))
        return now.later(taken.max()), taken

    rounds = jnp.arange(settings.profile_rounds, dtype="int32")
    now, taken = jax.lax.scan(measure, live.Instant.at(0.0), rounds)
    responds = (taken < limit).any(axis=0)
    order = jnp.argsort(jnp.where(responds, taken.sum(axis=0), jnp.inf), stable=True)
    rank = jnp.zeros_like(everyone).at[order].set(everyone)
    tier = rank * settings.num_tiers // jnp.maximum(responds.sum(dtype="int32"), 1)
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


SUMMARY = "rounds of clients that are equally fast, from tiers chosen by their accuracy"
# Nobody can be missing either, or left out of all tiers.
selection = live.Selection(
    selector, is_full=lambda hyper: hyper.misses_nobody and is_known(hyper.choice.time_limit, 0)
)
"""TiFL's choice, for any system of rounds."""
system = selection.on(fedavg.system, name="tifl", Hyper=Hyper, summary=SUMMARY)
paper = system.paper
