"""The stages of a message's way, from the client's progress to the server's model.

The order, and why:

1. `LocalNoise`: honest clients clip their progress and add their own noise
   (`server.privacy`). Whatever a client does to its own message, an attacker need not do:
   those at work in the tick keep what they have learnt.
2. `Forgery`: an attacker replaces its progress (`fedjax_sim.server.attacks`). It knows what it has
   learnt itself and, of others, what they send: noise of theirs would not protect them from
   somebody who sees through it.
3. `Coding`: the message is compressed and decoded (`fedjax_sim.server.compression`): an attacker
   too can only send what the code can carry.
4. `PrivateSum`, with privacy: the server bounds the norm of what it decodes, and what is not finite
   counts as 0, which no attacker can skip. Noise is added to the sum. It is accounted for the
   clipped sum only, so that no other rule than the mean is allowed.
5. `Aggregation`, otherwise: a rule makes a centre of the messages (`fedjax_sim.server.rules`), and
   the server moves by the sum of the tick's weights times the centre. It may compare them with an
   update that the server has made itself (`fedjax_sim.server.reports`).
6. The server's optimizer makes its step (`fedjax_sim.server.aggregation`).
7. `Downlink`: the server sends its new model.

A stage is bound to its setting once, and never changes. What it remembers between ticks is a part
of `Memo`, which its functions take and return. `CHAIN` lists the stages, each with the value of its
setting that switches it off, and `RELIED_ON` follows from it. The equations of a stage have its
name in a traced program, by which a step that leaves it out is found.

The value of a stage's setting also counts its bits (`Rule.message_bits`, `Compressor.bits`), checks
the other settings and the schedule (`Rule.check_ticks`, `check_with` of `privacy.OfNoise`) and
states its epsilon (`epsilon_of`). `ReportMessages` puts these together.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import dataclasses
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Jaxpr, Var

from fedjax_sim.clients import clipping, read_clients, write_clients
from fedjax_sim.core import batching, streams, trees
from fedjax_sim.core.settings import ConfigError, Kind
from fedjax_sim.core.types import EMPTY, Array, Event, Key, Params, Settings
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server import aggregation, attacks, compression, privacy, rules
from fedjax_sim.timelines.cohorts import previous_visits

Pair = tuple[Params, Params]
"""Models that a stage passes on, and its memory."""

StageT = TypeVar("StageT", bound="Stage")
Given = ParamSpec("Given")
Result = TypeVar("Result")


def named(
    method: Callable[Concatenate[StageT, Given], Result],
) -> Callable[Concatenate[StageT, Given], Result]:
    """Give the equations of a stage's method the name of the stage, as a scope of the program."""

    @wraps(method)
    def within(stage: StageT, *args: Given.args, **options: Given.kwargs) -> Result:
        with jax.named_scope(stage.name):
            return method(stage, *args, **options)

    return within


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage on the way of messages. By default it passes them on, and remembers nothing.

    Attributes:
      name: Full name of its setting.
      idle: The setting's value that switches the stage off.
      kind: The setting's value.
      senders: Who sends.
    """

    name: ClassVar[str]
    idle: ClassVar[Kind]
    kind: Any
    senders: attacks.Senders

    @property
    def is_on(self) -> bool:
        """Whether it does anything. A stage that is off costs nothing and changes no bit."""
        return self.kind.name != self.idle.name

    def first(self, sent: Params) -> Params:
        """Return the first memory. sent: A message, leaves `[...]`."""
        return ()


class LocalNoise(Stage):
    """Honest clients clip their progress and add their own noise, see `server.privacy`."""

    name = "messages.local_privacy"
    idle = privacy.NoLocalPrivacy()

    @named
    def client(self, key: Key, event: Event, memory: Params, starts: Params, local: Params) -> Pair:
        """Return noisy models of honest clients, and those that attackers did reach.

        Args:
          event: The tick.
          memory: What the stage remembers.
          starts: Models that clients started from, leaves `[S, ...]`.
          local: Models that they reached, or that the stage before says so, leaves `[S, ...]`.

        Returns:
          Models that clients say they reached, leaves `[S, ...]`, and the memory.
        """
        if not self.is_on:
            return local, memory
        if not event.facts.keeps("clients", "steps"):
            allowed = "none where a step changes who takes part or with how many steps"
            reason = "epsilon is the schedule's"
            raise ConfigError(self.name, self.kind.name, f"{allowed}: {reason}")
        tick_key = jax.random.fold_in(streams.lane_stream(key, "local privacy"), event.tick)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(tick_key, jnp.maximum(event.clients, 0))
        if self.senders.can_repeat:
            _, earlier = previous_visits(event.clients[None])
            keys = jax.vmap(jax.random.fold_in)(keys, earlier[0])
        # In at least 32 bits: in 16, noise has so few values that it gives the message away.
        ends, begun = (jax.tree.map(wide_of, models) for models in (local, starts))
        noisy = privacy.privatise(keys, self.kind, optax.tree.sub(ends, begun))
        claimed = optax.tree.cast_like(optax.tree.add(begun, noisy), starts)
        if self.senders.adversary.is_idle:
            return claimed, memory
        return aggregation.where_slots(self.senders.attackers(key, event), local, claimed), memory


class Forgery(Stage):
    """Malicious clients forge their progress, and may remember ticks, see `server.attacks`.

    forgery = Forgery(SignFlip(), Senders(8, Adversary(attack=SignFlip(), attackers=(3,))))
    starts, local = jnp.ones((2, 1)), jnp.full((2, 1), 5.0)  # of clients 0 and 3
    claimed, _ = forgery.client(key, event, (), starts, local)
    assert claimed.ravel().tolist() == [5.0, 1.0 - 4.0]
    """

    name = "adversary.attack"
    idle = attacks.Honest()

    @property
    def is_on(self) -> bool:
        """Whether anybody may attack."""
        return not self.senders.adversary.is_idle

    def first(self, sent: Params) -> Params:
        """Return the attackers' first memory."""
        return self.kind.first_memory(sent) if self.is_on else ()

    @named
    def client(
        self,
        key: Key,
        event: Event,
        memory: Params,
        starts: Params,
        local: Params,
        *,
        draws: Key | None = None,
    ) -> Pair:
        """Replace the progress of attackers by forgeries, and let attackers remember the tick.

        They learn from finite messages of clients that are no attackers, whether attackers are at
        work or not. A tick without such a message teaches them nothing.

        Args:
          event: The tick.
          memory: What attackers remember of earlier ticks, see `attacks.Attack.first_memory`.
          starts: Models from which the clients started, leaves `[S, ...]`.
          local: Models that they have reached, leaves `[S, ...]`.
          draws: Key of the forgeries' draws; by default one of each tick.

        Returns:
          Models that they claim to have reached, leaves `[S, ...]` in their types: the start plus
          the forged progress for attackers, the same bits as before for others. And the memory
          after the tick.
        """
        if not self.is_on:
            return local, memory
        clients, weight = jnp.asarray(event.clients), jnp.asarray(event.weight)
        slots, of_tick = self.senders.attackers(key, event), streams.lane_stream(key, "attack")
        of_tick = jax.random.fold_in(of_tick, event.tick)
        ends, begun = (jax.tree.map(wide_of, models) for models in (local, starts))
        messages = optax.tree.sub(ends, begun)
        cohort = attacks.Cohort(clients, slots, clients >= 0, weight)
        if jax.tree.leaves(memory):
            # They learn from clients that are always honest, as far as their messages are finite.
            of = self.senders
            is_foe = attacks.are_malicious(of.adversary, key, of.number, clients)
            _, honest = clipping.finite(messages, cohort.is_present & ~is_foe)
            seen = cohort._replace(is_malicious=cohort.is_present & ~honest)
            # A key that draws independently of the forgeries of the same tick.
            own_key = streams.tick_key(of_tick, event.tick, "remember")
            learnt = self.kind.remember(own_key, messages, seen, memory)
            memory = optax.tree.where(honest.any(), learnt, memory)
        draws = of_tick if draws is None else draws
        forged = self.kind.forge(draws, messages, cohort._replace(memory=memory))
        reached = optax.tree.cast_like(jax.tree.map(jnp.add, begun, forged), local)
        return aggregation.where_slots(slots, reached, local), memory


@dataclasses.dataclass(frozen=True)
class Coding(Stage):
    """Clients compress their progress, and the server decodes it.

    With error feedback (EF21, Richtarik, Sokolov and Fatkhullin 2021, arXiv 2106.05203, Algorithm
    2) both sides keep an estimate d_i of a client's progress Delta_i, the client sends
    c_i = Q(Delta_i - d_i), and d_i + c_i is what the server decodes and the next estimate. EF21 has
    -gamma times gradients for Delta_i, which are what one local step of SGD makes of them. The
    memory are all estimates, leaves `[N, ...]`, which begin at 0.

    Readings. An unbiased Q need not be contractive, as EF21 asks: its messages are divided by
    1 + omega. With cohorts, the server takes the mean of the estimates of those who report; with
    everyone that is EF21.

    Deviation: under partial participation EF21-PP (Fatkhullin et al. 2021, arXiv 2110.03294)
    averages the estimates of all clients, old ones included. Here old estimates do not move the
    model, so that a tick's weights mean the same with and without error feedback.

    Attributes:
      has_feedback: Whether error feedback is wanted.
    """

    name = "messages.compression"
    idle = compression.Identity()
    kind: compression.Compressor
    has_feedback: bool = False

    @property
    def has_estimates(self) -> bool:
        """Whether both sides keep estimates."""
        return self.has_feedback and self.is_on

    def first(self, sent: Params) -> Params:
        """Return estimates of 0; () without error feedback."""
        zeros = jax.tree.map(jnp.zeros_like, sent)
        return batching.replicate(zeros, self.senders.number) if self.has_estimates else ()

    def client(self, key: Key, event: Event, memory: Params, starts: Params, local: Params) -> Pair:
        """Return the models that the server decodes, and the estimates."""
        if not self.has_estimates:
            turns = event.offset if self.senders.can_repeat else None
            return self.decode(key, event, (), starts, local, turns=turns)
        # A client without a step sends nothing, unless it is malicious. It keeps its estimate, and
        # counts as one without progress.
        sends = event.steps > 0
        if not self.senders.adversary.is_idle:
            sends = sends | self.senders.attackers(key, event)

        def exchange(estimates: Params, slots: tuple[Array, ...]) -> tuple[Params, Params]:
            """Decode some slots' models, and write their estimates."""
            senders, clients, turns, *models = slots
            known = read_clients(estimates, clients)
            here = event.within(clients=clients)
            reports, sent = self.decode(key, here, known, *models, turns=turns)
            reports = aggregation.where_slots(senders != EMPTY, reports, models[0])
            finite_clients = self.senders.finite_clients(here, sent)
            senders = jnp.where(finite_clients == EMPTY, EMPTY, senders)
            return write_clients(estimates, senders, sent), reports

        senders = jnp.where(sends, event.clients, EMPTY)
        slots = (senders, event.clients, event.offset, starts, local)
        if not self.senders.can_repeat:
            memory, reports = exchange(memory, slots)
            return reports, memory
        # In order of arrival: a client's next message counts on its last one.
        single = jax.tree.map(lambda leaf: leaf[:, None], slots)
        memory, reports = jax.lax.scan(exchange, memory, single)
        return jax.tree.map(lambda leaf: leaf[:, 0], reports), memory

    @named
    def decode(
        self,
        key: Key,
        event: Event,
        estimates: Params,
        starts: Params,
        local: Params,
        *,
        turns: Array | None,
    ) -> tuple[Params, Params]:
        """Decode models that are sent from slots, each of which sends one.

        Args:
          event: The tick, whose number and clients determine the draws.
          estimates: Estimates of the slots' progress, leaves `[S, ...]`; () without error feedback.
          starts: Models that the slots started from, leaves `[S, ...]`.
          local: Models that they reached, leaves `[S, ...]`.
          turns: As in `fedjax_sim.server.compression.decode_messages`.

        Returns:
          What is decoded, leaves `[S, ...]`, and the next estimates.
        """
        decode = compression.decode_messages
        if not self.has_estimates:
            return decode(self.kind, key, event, starts, local, turns=turns), ()
        progress = jax.tree.map(jnp.subtract, local, starts)
        sent = decode(self.kind, key, event, estimates, progress, turns=turns)
        if self.kind.has_omega:
            size = compression.count_parameters(jax.tree.map(lambda leaf: leaf[0], local))
            pace = self.kind.pace(size)
            sent = jax.tree.map(
                lambda d, v: d + jnp.asarray(pace, d.dtype) * (v - d), estimates, sent
            )
        return jax.tree.map(jnp.add, starts, sent), sent


@dataclasses.dataclass(frozen=True)
class PrivateSum(Stage):
    """The server clips decoded progress, sums it with fixed weights, and adds noise to the sum.

    The noise is accounted for by `fedjax_sim.server.privacy`.

    Attributes:
      hyper: The settings, which say how many reports a tick is meant for, and the bound of each.
    """

    name = "privacy"
    idle = privacy.NoPrivacy()
    kind: privacy.Privacy
    hyper: Settings = None

    def first(self, sent: Params) -> Params:
        """Return the first bound if it adapts, or the noises of ticks that there were not."""
        return self.kind.first_memory(sent)

    @named
    def server(self, key: Key, event: Event, memory: Params, updates: Params) -> Pair:
        """Sum clipped updates with the tick's weights, and add noise.

        Args:
          memory: What the kind of privacy remembers.
          updates: Decoded progress, leaves `[S, ...]`; what is not finite counts as 0, because no
            norm bounds it.

        Returns:
          The sum, leaves `[...]`, and the memory. In an empty tick these are 0 and as before.

        Raises:
          ConfigError: If a step has changed the event.
        """
        if not event.facts.keeps("clients", "weight"):
            allowed = "none where a step changes who takes part or with which weight"
            raise ConfigError("privacy", self.kind.name, f"{allowed}: epsilon is the schedule's")
        number = self.hyper.expected_reports
        bound = self.kind.bound(self.hyper, memory)
        # In at least 32 bits.
        known, _ = clipping.finite(jax.tree.map(wide_of, updates), event.clients != EMPTY)
        clipped, is_short = clipping.clip_updates(known, bound)
        exact = aggregation.weighted_sum(event.weight, clipped)
        # Of the sum with weights 1 / m, once and not for each client or device.
        deviation = self.kind.update_noise(number) * bound / number
        noise_key = jax.random.fold_in(streams.lane_stream(key, "privacy noise"), event.tick)
        noise = privacy.gaussian_like(noise_key, exact, deviation)
        noise, after = self.kind.remember(key, event, memory, noise, is_short, number)
        noisy = jax.tree.map(jnp.add, exact, noise)
        noisy, memory = aggregation.keep_if_empty(event, (noisy, after), (exact, memory))
        return optax.tree.cast_like(noisy, updates), memory


class Downlink(Stage):
    """The server sends Q(w - v), where v is the model that clients know, and v moves by it.

    That is EF21-P (Gruntkowska, Tyurin and Richtarik 2023, arXiv 2209.15218). Clients start from v,
    which is the memory. Where a message has more than a model, such as a control variate, it is one
    vector. An unbiased Q is divided by 1 + omega, as in `Coding`.
    """

    name = "messages.downlink"
    idle = compression.Identity()

    def first(self, sent: Params) -> Params:
        """Return the initial model, which clients know."""
        return sent if self.is_on else ()

    @named
    def server(self, key: Key, event: Event, known: Params, sent: Params) -> Params:
        """Send a new model, leaves `[...]`, and return the one that clients know then."""
        if not self.is_on:
            return known
        change = jax.tree.map(jnp.subtract, sent, known)
        down_key = jax.random.fold_in(streams.lane_stream(key, "compression down"), event.tick)
        heard = compression.compress(self.kind, down_key, change)
        pace = self.kind.pace(compression.count_parameters(sent))
        moved = jax.tree.map(lambda v, c: v + jnp.asarray(pace, v.dtype) * c, known, heard)
        return aggregation.keep_if_empty(event, moved, known)


@dataclasses.dataclass(frozen=True)
class Aggregation(Stage):
    """A rule makes a centre of the messages of a tick, with a client in each slot.

    A message that is not finite is left out, if there is an attacker or another rule than the mean.
    Rules that assume a number of malicious clients assume so many fewer of the others; if too few
    are left for the rule, the tick counts as one without progress. With the mean, nobody malicious
    and no privacy messages are not looked at, and a run that diverges fails.

        aggregation = Aggregation(Median(), Senders(8, Adversary()))
        updates = jnp.array([[1.0], [3.0]])
        assert aggregation.sum(key, event, updates) == (1 + 3) / 2  # the median of two

    Attributes:
      has_own: Whether it is given updates of the server's own.
    """

    name = "aggregator"
    idle = rules.Mean()
    kind: rules.Rule
    has_own: bool = False

    def __post_init__(self) -> None:
        """Check that the rule gets the updates of the server's own that it needs.

        Raises:
          ConfigError: If it does not.
        """
        if self.kind.needs_own() is not False and not self.has_own:
            allowed = (
                "a rule without an update of the server's own here, because messages to this "
                "server are something else than the progress of its model by local steps"
            )
            raise ConfigError(self.name, " | ".join(map(str, self.kind.roots())), allowed)

    @property
    def is_plain(self) -> bool:
        """Whether messages are as clients made them, and their weighted sum is wanted."""
        return self.senders.adversary.is_idle and isinstance(self.kind, rules.Mean)

    @named
    def sum(
        self,
        key: Key,
        event: Event,
        updates: Params,
        *,
        weight: Array | None = None,
        scale: Array | None = None,
        own: Params = (),
    ) -> Params:
        """Sum updates with weights, or return the rule's centre times the total weight.

        Args:
          event: The tick.
          updates: Decoded progress, leaves `[S, ...]`.
          weight: `f[S]`, at least 0; by default the tick's.
          scale: `f[S]`, by which the server multiplies each message before it looks at them.
          own: The server's own update of the tick, leaves `[...]`, for rules that need it.

        Returns:
          Leaves `[...]`; 0 if nobody sends anything finite.
        """
        weight = event.weight if weight is None else weight
        if self.is_plain:
            return batching.weighted_sum(weight if scale is None else scale * weight, updates)
        if scale is not None:
            updates = jax.tree.map(lambda leaf: leaf * aggregation.expand(scale, leaf), updates)
        heard, is_heard = clipping.finite(updates, event.clients != EMPTY)
        used = jnp.where(is_heard, weight, 0)
        share = used / jnp.where(used.sum() > 0, used.sum(), 1)
        rule_key = jax.random.fold_in(streams.lane_stream(key, "rule"), event.tick)
        # Who sends nan is known to be malicious, and so fewer of the others are. If these are too
        # few for the rule, there is no progress.
        dropped = (event.clients != EMPTY).sum() - is_heard.sum()
        rule = self.kind.with_own(own) if jax.tree.leaves(own) else self.kind
        rule = rule.knowing(dropped)
        centre = rules.checked_centre(rule, rule_key, heard, share, is_heard)
        is_enough = (dropped == 0) | (is_heard.sum() >= rule.least())
        moves = is_heard.any() & is_enough & (used.sum() > 0)

        def moved(leaf: Array) -> Array:
            wide = jnp.promote_types(leaf.dtype, "float32")
            found = weight.sum().astype(wide) * leaf.astype(wide)
            return jnp.where(moves, found, 0).astype(leaf.dtype)

        return jax.tree.map(moved, centre)

    def mean(
        self, key: Key, event: Event, start: Params, models: Params, *, own: Params = ()
    ) -> Params:
        """Average models with the weights of a tick, or as the rule does.

        Args:
          event: The tick.
          start: The model that all clients started from, leaves `[...]`.
          models: Decoded models, leaves `[S, ...]`.
          own: As in `sum`.

        Returns:
          Leaves `[...]`.
        """
        if self.is_plain:
            return aggregation.mean_of(event, start, models)
        progress = jax.tree.map(lambda y, x: y - x[None], models, start)
        return jax.tree.map(jnp.add, start, self.sum(key, event, progress, own=own))

    def mean_with_server(self, key: Key, event: Event, server: Params, models: Params) -> Params:
        """Average the present clients' models and the server's: s / (s + 1) is the clients' share.

        The server's own model is trusted. Of the clients' models, as progress from it, the rule
        makes a centre.

        Args:
          event: The tick.
          server: Leaves `[...]`.
          models: Decoded models, leaves `[S, ...]`.

        Returns:
          Leaves `[...]`.
        """
        is_present = event.clients != EMPTY
        if self.is_plain:
            return aggregation.mean_with_server(server, models, is_present)
        progress = jax.tree.map(lambda u, w: u - w[None], models, server)
        weight = is_present / (1 + is_present.sum())
        return jax.tree.map(jnp.add, server, self.sum(key, event, progress, weight=weight))


def used_in(program: Jaxpr) -> set[str]:
    """Names of the scopes of those equations of a traced program on which its results depend."""
    needed, names = {var for var in program.outvars if isinstance(var, Var)}, set()
    for equation in reversed(program.eqns):
        if needed.intersection(equation.outvars):
            needed.update(var for var in equation.invars if isinstance(var, Var))
            names.update(re.split(r"[/()]", str(equation.source_info.name_stack)))
            names.update(*map(used_in, trees.programs_within(equation)))
    return names


CHAIN = (LocalNoise, Forgery, Coding, PrivateSum, Aggregation, Downlink)
"""The stages, in their order."""
COMBINED = tuple((stage.name, stage.idle) for stage in (Aggregation, Forgery))
"""Settings that an algorithm must obey, each with a value of the kind that needs no obeying."""
RELIED_ON = (
    *((stage.name, stage.idle) for stage in CHAIN),
    ("messages.error_feedback", False),
    ("messages.edge_compression", compression.Identity()),
    ("edge_aggregator", rules.Mean()),
)
"""Settings by which bits are counted and privacy is accounted for, with their idle values."""
