"""Clients' reports and the server's model on the wire: compression, feedback, rules, privacy.

A system binds it once, `wire = Wire(problem, hyper, plan)`, carries what both sides remember of
earlier messages as a `Memo`, and ends with `wire.algorithm(init, step)`. Everything that is not
switched on costs nothing and changes no bit.

    Q -> `hyper.messages.compression`    Delta_i -> a client's progress from where it started

- Up: a client sends Q(Delta_i). With error feedback (EF21, Richtarik, Sokolov and Fatkhullin 2021,
  arXiv 2106.05203, Algorithm 2) both sides keep an estimate d_i, the client sends
  c_i = Q(Delta_i - d_i), and d_i + c_i is what the server decodes and the next estimate. EF21 has
  -gamma times gradients for Delta_i, which are what one local step of SGD makes of them.
- Down: the server sends Q(w - v), where v is the model that clients know, and v moves by it
  (EF21-P, Gruntkowska, Tyurin and Richtarik 2023, arXiv 2209.15218). Clients start from v. Where
  a message has more than a model, such as a control variate, it is one vector.
- Private: what the server decodes is clipped and summed with one fixed weight, and noise is added
  once to the sum (`fedjax_sim.server.privacy`).
- Locally private: clients clip their progress and add their own noise before anything else
  (`server.privacy.local`). With error feedback Delta_i is that noisy progress, so that the
  estimates are made of what was sent.
- Private by the schedule: the same with noise that needs no sampling and may be correlated over
  ticks (`fedjax_sim.server.privacy.participation`).
- Malicious clients forge their progress, and the server makes a centre of what it hears by a rule
  (`fedjax_sim.server.robustness`, which has the order of all parts).

Readings. An unbiased Q need not be contractive, as both schemes ask: its messages are divided by
1 + omega there. Estimates d_i begin at 0. With cohorts, the server takes the mean of the estimates
of those who report; with everyone that is EF21.

Deviation: under partial participation EF21-PP (Fatkhullin et al. 2021, arXiv 2110.03294) averages
the estimates of all clients, old ones included. Here old estimates do not move the model, so that a
tick's weights mean the same with and without error feedback.

Dimension letters: those of `fedjax_sim.core.types`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.clients import SumRequest, read_clients, write_clients
from fedjax_sim.clients.clipping import finite
from fedjax_sim.core import batching, streams
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import (
    EMPTY,
    Algorithm,
    Array,
    Event,
    InfoT,
    Key,
    Losses,
    Params,
    Plan,
    Settings,
    StateT,
)
from fedjax_sim.kernels import rounding
from fedjax_sim.server import attacks, own_updates, privacy, report_settings, versions
from fedjax_sim.server.aggregation import keep_if_empty, weighted_sum, where_slots
from fedjax_sim.server.attacks.adversary import malicious_slots_of
from fedjax_sim.server.compression import Compressor, Identity, messages
from fedjax_sim.server.own_updates import Training
from fedjax_sim.server.privacy import (
    AdaptiveClipping,
    Clipping,
    CorrelatedNoise,
    NoPrivacy,
    OwnNoise,
)
from fedjax_sim.server.robustness import COMBINED, Combination, combination_of
from fedjax_sim.server.versions import Memo, Versioned
from fedjax_sim.timelines.cohorts import previous_visits


class RoundState(NamedTuple):
    """The state of a system of rounds.

    Attributes:
      server: The server's model, leaves `[...]`.
      memory: What else the server keeps; () for nothing.
      clients: What is kept for every client, leaves `[N, ...]`; () for nothing.
      memo: What both sides remember of messages.
    """

    server: Params
    memory: Params = ()
    clients: Params = ()
    memo: Memo = Memo()


class Sent(Protocol):
    """A state with the server's model, and the memory of messages on both sides."""

    @property
    def server(self) -> Params:
        """The model."""

    @property
    def memo(self) -> Memo:
        """The memory."""


class Wire:
    """The messages between clients and server, bound to a problem, settings and a plan.

        wire = Wire(problem, hyper, plan)
        memo, ends = wire.first(model), jnp.array([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
        reports, memo = wire.receive(key, event, memo, jnp.zeros((2, 3)), ends)
        assert wire.mean(key, event, model, reports)[0] == (1 + 3) / 2  # with weights 1/2

    Attributes:
      supports: Full names of the settings that it obeys, for `Algorithm.supports`.
    """

    supports = tuple(name for name, _ in report_settings.RELIED_ON if (name, _) not in COMBINED)

    def __init__(
        self,
        problem: Losses,
        hyper: Settings,
        plan: Plan,
        *,
        can_repeat: bool = False,
        compression: Compressor | None = None,
        num_senders: int | None = None,
        combination: Combination | None = None,
        train: Training | None = None,
    ):
        """Bind.

        Args:
          hyper: Settings, such as `Reports` or `PrivateReports`.
          can_repeat: Whether a client may fill several slots of a tick.
          compression: The compressor of reports, if it is another than that of the settings.
          num_senders: How many senders slots can name, if these are not the problem's clients.
          combination: The rule and who is malicious, if these are not those of the settings.
          train: How clients make progress from the server's model, if that is what they send: the
            server then trains so too, for rules that compare messages with its own update.
        """
        self.problem, self.hyper, self.plan, self.train = problem, hyper, plan, train
        self.can_repeat = can_repeat
        self.compression = hyper.messages.compression if compression is None else compression
        self.num_senders = num_senders or problem.counts.shape[0]
        is_scheduled = isinstance(hyper, report_settings.ScheduledReports)
        self.privacy: Any = hyper.privacy if is_scheduled else NoPrivacy()
        self.is_private = isinstance(self.privacy, Clipping | CorrelatedNoise)
        has_bands = isinstance(self.privacy, CorrelatedNoise) and self.privacy.bands > 1
        self.has_memory_of_noise = has_bands
        is_report = isinstance(hyper, report_settings.Reports)
        local = hyper.messages.local_privacy if is_report else None
        self.own_noise = local if isinstance(local, OwnNoise) else None
        self.has_estimates = hyper.messages.error_feedback and not isinstance(
            self.compression, Identity
        )
        self.is_compressed_down = not isinstance(hyper.messages.downlink, Identity)
        self.combination = combination or combination_of(hyper, has_own=train is not None)
        # In a tick with an update of the server's own, the rule knows it. Of a step that is traced
        # it is noted for what it asks.
        self._of_tick, self._asked = self.combination, set[str]()
        # A plain mean of models needs weights that sum to 1.
        has_mean = self.combination.is_plain and not report_settings.has_poisson_cohorts(hyper)
        self.has_mean = has_mean and not self.is_private and not self.is_compressed_down

    def algorithm(
        self,
        init: Callable[[Key], StateT],
        step: Callable[[Key, StateT, Event], tuple[StateT, InfoT]],
        **others: Any,
    ) -> Algorithm[StateT, InfoT]:
        """Make an algorithm; its state has the fields `server` and `memo`.

        `init` and `step` are those of `Algorithm`.

        Args:
          others: Further fields of `Algorithm`. By default the model is the server's, the metrics
            are `metrics`, and clients receive `received`, which is right if only the model is sent.
            If more is, say what part of it is the model, such as
            `received=lambda state: wire.start(state.memo, (state.server, state.control))[0]`.

        Returns:
          The algorithm.
        """
        rule, adversary = self.combination.rule, self.combination.adversary
        is_coded, own = not isinstance(self.compression, Identity), self.own_noise
        # Settings that a step must heed, if they have more than their idle values.
        heeded = [
            ("aggregator", rule.name, "mean", not self.combination.has_mean),
            ("adversary.attack", adversary.attack.name, "none", not adversary.is_idle),
            ("local_privacy", "" if own is None else own.name, "none", own is not None),
            ("privacy", self.privacy.name, "none", self.is_private),
            ("messages.compression", self.compression.name, "identity", is_coded),
            ("messages.downlink", "compressed", "identity", self.is_compressed_down),
        ]

        @functools.wraps(step)
        def heeding(key: Key, state: Any, event: Event) -> tuple[StateT, Any]:
            self._of_tick, self._asked, work = self.combination, set(), None
            if self.train is not None and rule.needs_own() is not False:
                bound = self.problem, self.hyper, self.plan, self.train
                start = self.received(state)
                update, work = own_updates.own_update(*bound, key, event, rule=rule, start=start)
                self._of_tick = self.combination.with_own(update)
            after, info = step(key, state, event)
            self._of_tick = self.combination
            for name, value, idle, is_needed in heeded:
                if is_needed and name not in self._asked:
                    allowed = f"{idle}: this system's step does not ask its wire for that"
                    raise ConfigError(name, value, allowed)
            if work is None:
                return after, info
            more: Any = info
            executed, needed = more.executed + work.executed, more.needed + work.needed
            return after, more._replace(executed=executed, needed=needed)

        made: Algorithm[Any, Any] = Algorithm(
            init,
            heeding if any(is_needed for *_, is_needed in heeded) else step,
            lambda state: state.server,
            self.metrics,
            received=self.received,
            supports=(*self.supports, *dict(COMBINED)),
        )
        return made._replace(**others)

    def first(self, sent: Params, *, report: Params | None = None) -> Memo:
        """Begin with the initial model, which clients know.

        Args:
          sent: What the server sends: its model, or a pytree of this and more.
          report: What a client reports, if it is not shaped like `sent`.

        Returns:
          What both sides remember.
        """
        report, adversary = sent if report is None else report, self.combination.adversary
        zeros = jax.tree.map(jnp.zeros_like, report)
        is_adaptive = isinstance(self.privacy, AdaptiveClipping)
        precision = jnp.result_type(jnp.float32, *jax.tree.leaves(sent))
        return Memo(
            batching.replicate(zeros, self.num_senders) if self.has_estimates else (),
            sent if self.is_compressed_down else (),
            jnp.asarray(self.privacy.clip, precision) if is_adaptive else (),
            noises=(
                batching.replicate(jax.tree.map(rounding.wide_of, zeros), self.privacy.bands - 1)
                if self.has_memory_of_noise
                else ()
            ),
            attackers=() if adversary.is_idle else adversary.attack.first_memory(report),
        )

    def start(self, memo: Memo, sent: Params) -> Params:
        """Return the model as clients receive it, after compression on the way down.

        Args:
          memo: What both sides remember.
          sent: What the server sends, leaves `[...]`.
        """
        return memo.known if self.is_compressed_down else sent

    def received(self, state: Sent) -> Params:
        """Return the server's model of a state as clients receive it.

        Args:
          state: A state with the fields `memo` and `server`.
        """
        return self.start(state.memo, state.server)

    def receive(
        self, key: Key, event: Event, memo: Memo, starts: Params, local: Params
    ) -> tuple[Params, Memo]:
        """Decode the models that the clients of a tick report, malicious ones among them.

        Args:
          memo: What both sides remember.
          starts: Models that the clients started from, leaves `[S, ...]`.
          local: Models that they reached, leaves `[S, ...]`.

        Returns:
          What the server decodes, leaves `[S, ...]`, and what both sides remember.
        """
        self._asked |= {"local_privacy", "adversary.attack", "messages.compression"}
        if self.own_noise is not None:
            local = self._privatised(self.own_noise, key, event, starts, local)
        seen = key, event, starts, local, self.num_senders
        adversary, remembered = attacks.remembering(
            self.combination.adversary, memo.attackers, *seen
        )
        memo = memo._replace(attackers=remembered)
        local = attacks.attacked(adversary, *seen)
        if not self.has_estimates:
            turns = event.offset if self.can_repeat else None
            return self.decode(key, event, (), starts, local, turns=turns)[0], memo
        # A client without a step sends nothing, unless it is malicious. It keeps its estimate, and
        # counts as one without progress.
        sends = event.steps > 0
        if not self.combination.is_honest:
            sends = sends | malicious_slots_of(adversary, key, event, self.num_senders)
        senders = jnp.where(sends, event.clients, EMPTY)

        def exchange(estimates: Params, slots: tuple[Array, ...]) -> tuple[Params, Params]:
            """Decode some slots' models, and write their estimates."""
            senders, clients, turns, *models = slots
            known = read_clients(estimates, clients)
            here = event.within(clients=clients)
            reports, sent = self.decode(key, here, known, *models, turns=turns)
            reports = where_slots(senders != EMPTY, reports, models[0])
            finite_clients = self.combination.finite_clients(here, sent)
            senders = jnp.where(finite_clients == EMPTY, EMPTY, senders)
            return write_clients(estimates, senders, sent), reports

        slots = (senders, event.clients, event.offset, starts, local)
        if self.can_repeat:
            # In order of arrival: a client's next message counts on its last one.
            single = jax.tree.map(lambda leaf: leaf[:, None], slots)
            estimates, reports = jax.lax.scan(exchange, memo.estimates, single)
            reports = jax.tree.map(lambda leaf: leaf[:, 0], reports)
        else:
            estimates, reports = exchange(memo.estimates, slots)
        return reports, memo._replace(estimates=estimates)

    def _privatised(
        self, own_noise: OwnNoise, key: Key, event: Event, starts: Params, local: Params
    ) -> Params:
        """Let honest clients clip their progress and add their own noise.

        Args:
          own_noise: The noise.
          starts: Models that clients started from, leaves `[S, ...]`.
          local: Models that they reached, leaves `[S, ...]`.

        Returns:
          Models that honest clients say they reached, and those that attackers did reach, leaves
          `[S, ...]`.
        """
        if not event.facts.keeps("clients", "steps"):
            allowed = "none where a step changes who takes part or with how many steps"
            reason = "epsilon is the schedule's"
            raise ConfigError("messages.local_privacy", own_noise.name, f"{allowed}: {reason}")
        tick_key = jax.random.fold_in(streams.lane_stream(key, "local privacy"), event.tick)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(tick_key, jnp.maximum(event.clients, 0))
        if self.can_repeat:
            _, earlier = previous_visits(event.clients[None])
            keys = jax.vmap(jax.random.fold_in)(keys, earlier[0])
        # In at least 32 bits: in 16, noise has so few values that it gives the message away.
        progress = jax.tree.map(
            lambda y, x: rounding.wide_of(y) - rounding.wide_of(x), local, starts
        )
        noisy = privacy.privatise(keys, own_noise, progress)
        claimed = jax.tree.map(
            lambda x, d: (rounding.wide_of(x) + d).astype(x.dtype), starts, noisy
        )
        if self.combination.is_honest:
            return claimed
        adversary = self.combination.adversary
        is_attacker = malicious_slots_of(adversary, key, event, self.num_senders)
        return where_slots(is_attacker, local, claimed)

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
          turns: As in `fedjax_sim.server.compression.messages.decode_messages`.

        Returns:
          What is decoded, leaves `[S, ...]`, and the next estimates.
        """
        compressor, decode = self.compression, messages.decode_messages
        if not self.has_estimates:
            return decode(compressor, key, event, starts, local, turns=turns), ()
        progress = jax.tree.map(jnp.subtract, local, starts)
        sent = decode(compressor, key, event, estimates, progress, turns=turns)
        if compressor.has_omega:
            size = messages.count_parameters(jax.tree.map(lambda leaf: leaf[0], local))
            pace = compressor.pace(size)
            sent = jax.tree.map(
                lambda d, v: d + jnp.asarray(pace, d.dtype) * (v - d), estimates, sent
            )
        return jax.tree.map(jnp.add, starts, sent), sent

    def sum(self, key: Key, event: Event, updates: Params, **weights: Array | None) -> Params:
        """Aggregate: weighted sum, or the rule's centre times the total weight.

        Args:
          event: The tick.
          updates: Decoded progress, leaves `[S, ...]`.
          weights: `weight` and `scale`, as in `Combination.sum`.

        Returns:
          The total weight times the rule's centre, leaves `[...]`; 0 if nobody is heard.
        """
        self._asked |= {"aggregator"}
        return self._of_tick.sum(key, event, updates, **weights)

    def mean(self, key: Key, event: Event, start: Params, models: Params) -> Params:
        """Average decoded models with the weights of a tick, or as the rule does.

        Args:
          event: The tick.
          start: The model that all clients started from, leaves `[...]`.
          models: Decoded models, leaves `[S, ...]`.

        Returns:
          Leaves `[...]`.
        """
        self._asked |= {"aggregator"}
        return self._of_tick.mean(key, event, start, models)

    def mean_with_server(self, key: Key, event: Event, server: Params, models: Params) -> Params:
        """Average decoded models and the server's, as `Combination.mean_with_server`.

        Args:
          event: The tick.
          server: The server's model, leaves `[...]`.
          models: Decoded models, leaves `[S, ...]`.

        Returns:
          Leaves `[...]`.
        """
        self._asked |= {"aggregator"}
        return self._of_tick.mean_with_server(key, event, server, models)

    def total(
        self, event: Event, *, of_progress: bool = False, scale: Array | None = None
    ) -> SumRequest | None:
        """Let training return a sum over clients where the server needs no client's own message.

        Training that is given it makes that sum itself, for `average` or `progress`, so that the
        models of a round need not be in memory together.

        Args:
          event: The round.
          of_progress: Whether progress is wanted. It is also summed where a mean of models is not
            enough: if clients start from another model than the server's, or weights do not sum to
            1.
          scale: As in `progress`.

        Returns:
          The sum to make; None if the message of each client is looked at.
        """
        is_summed = self.combination.is_plain and not self.is_private and self.own_noise is None
        if not is_summed or not isinstance(self.compression, Identity):
            return None
        weight = event.weight if scale is None else scale * event.weight
        return SumRequest(weight, of_progress or not self.is_plain(event))

    def is_plain(self, event: Event) -> bool:
        """Tell whether a mean of models is enough, as weights sum to 1 and nothing else is done.

        Args:
          event: The round.
        """
        return self.has_mean and event.facts.keeps("clients", "weight")

    def average(
        self, key: Key, event: Event, state: Sent, local: Params, *, total: SumRequest | None = None
    ) -> tuple[Params, Memo]:
        """Average the models that the clients of a round report, and publish the mean.

        Args:
          event: The round.
          state: A state with the fields `memo` and `server`.
          local: Models that clients reached, leaves `[S, ...]`, or the sum, leaves `[...]`.
          total: What training was given; None if local has each client's model.

        Returns:
          The mean, leaves `[...]`, and what both sides remember. In an empty tick these are those
          of the state.
        """
        if not self.is_plain(event):
            progress, memo = self.progress(key, event, state, local, total=total)
            mean = jax.tree.map(jnp.add, state.server, progress)
            return mean, self.publish(key, event, memo, mean)
        memo = state.memo
        if total is None:
            starts = batching.replicate(state.server, event.clients.shape[0])
            reports, memo = self.receive(key, event, memo, starts, local)
            local = weighted_sum(event.weight, reports)
        return keep_if_empty(event, local, state.server), memo

    def progress(
        self,
        key: Key,
        event: Event,
        state: Sent,
        local: Params,
        *,
        total: SumRequest | None = None,
        scale: Array | None = None,
    ) -> tuple[Params, Memo]:
        """Sum the progress that the clients of a round report, with the round's weights.

        Args:
          local: As in `average`; a sum is of progress.
          total: As in `average`.
          scale: `f[S]`, by which the server multiplies each client's progress, as in `sum`; None
            with privacy.

        Returns:
          The sum, leaves `[...]`, with noise if that is set, and what both sides remember. In an
          empty tick these are 0 and the state's.

        Raises:
          ConfigError: If messages are scaled with privacy, or a step has changed the event.
        """
        if total is not None:
            return local, state.memo
        starts = batching.replicate(self.received(state), event.clients.shape[0])
        reports, memo = self.receive(key, event, state.memo, starts, local)
        updates = jax.tree.map(jnp.subtract, reports, starts)
        if not self.is_private:
            return self.sum(key, event, updates, scale=scale), memo
        if scale is not None:
            allowed = "none where the server scales messages: they are clipped as they come"
            raise ConfigError("privacy", self.privacy.name, allowed)
        if isinstance(self.privacy, CorrelatedNoise):
            return self.noisy_sum(key, event, updates, memo)
        cohort, is_adaptive = self.hyper.num_selected, isinstance(self.privacy, AdaptiveClipping)
        bound = memo.bound if is_adaptive else self.hyper.bound
        clipped, is_short = self._clipped(event, updates, bound)
        exact = weighted_sum(event.weight, clipped)
        # Of the sum with weights 1 / m, once and not for each client or device.
        deviation = self.privacy.update_noise(cohort) * bound / cohort
        noise_key = jax.random.fold_in(streams.lane_stream(key, "privacy noise"), event.tick)
        noisy = jax.tree.map(jnp.add, exact, privacy.gaussian_like(noise_key, exact, deviation))
        if is_adaptive:
            count_key = jax.random.fold_in(streams.lane_stream(key, "privacy count"), event.tick)
            is_present = event.weight > 0
            moved = privacy.next_bound(count_key, self.privacy, bound, is_short, is_present, cohort)
            noisy, moved = keep_if_empty(event, (noisy, moved), (exact, bound))
            return optax.tree.cast_like(noisy, state.server), memo._replace(bound=moved)
        return optax.tree.cast_like(keep_if_empty(event, noisy, exact), state.server), memo

    def noisy_sum(self, key: Key, event: Event, updates: Params, memo: Memo) -> tuple[Params, Memo]:
        """Sum clipped updates with the tick's weights, with noise that the schedule accounts for.

        Args:
          updates: Decoded progress, leaves `[S, ...]`; what is not finite counts as 0.
          memo: What both sides remember.

        Returns:
          The sum, leaves `[...]`, and what both sides remember, the noise among it. Without such
          noise in the settings they are those of `sum` and unchanged.
        """
        if not isinstance(self.privacy, CorrelatedNoise):
            return self.sum(key, event, updates), memo
        exact = weighted_sum(event.weight, self._clipped(event, updates, self.privacy.clip)[0])
        deviation = self.privacy.noise * self.privacy.clip / self.hyper.expected_reports
        noise_key = jax.random.fold_in(streams.lane_stream(key, "privacy noise"), event.tick)
        noise = privacy.gaussian_like(noise_key, exact, deviation)
        noises = memo.noises
        if self.has_memory_of_noise:
            # B y = z: y_t = z_t - sum_{j > 0} b_j y_{t-j}.
            later = privacy.square_root_bands(self.privacy.bands)[1:]
            noise = jax.tree.map(
                lambda z, y: z - weighted_sum(jnp.asarray(later, y.dtype), y), noise, noises
            )
            noises = jax.tree.map(
                lambda y, old: jnp.concatenate([y[None], old[:-1]]), noise, noises
            )
        noisy = jax.tree.map(jnp.add, exact, noise)
        noisy, noises = keep_if_empty(event, (noisy, noises), (exact, memo.noises))
        return optax.tree.cast_like(noisy, updates), memo._replace(noises=noises)

    def _clipped(self, event: Event, updates: Params, bound: Array | float) -> tuple[Params, Array]:
        """Clip updates of the schedule's clients in at least 32 bits, as `clip_updates` does.

        What is not finite counts as 0, because no norm bounds it.
        """
        if not event.facts.keeps("clients", "weight"):
            allowed = "none where a step changes who takes part or with which weight"
            raise ConfigError("privacy", self.privacy.name, f"{allowed}: epsilon is the schedule's")
        self._asked |= {"privacy"}
        known, _ = finite(jax.tree.map(rounding.wide_of, updates), event.clients != EMPTY)
        return privacy.clip_updates(known, bound)

    def publish(self, key: Key, event: Event, memo: Memo, sent: Params) -> Memo:
        """Send the server's new model to the clients.

        Args:
          event: The tick that made the model.
          memo: What both sides remember.
          sent: The model, leaves `[...]`, or a pytree of this and more as in `first`.

        Returns:
          What both sides remember.
        """
        self._asked |= {"messages.downlink"}
        if not self.is_compressed_down:
            return memo
        compressor = self.hyper.messages.downlink
        change = jax.tree.map(jnp.subtract, sent, memo.known)
        down_key = jax.random.fold_in(streams.lane_stream(key, "compression down"), event.tick)
        heard = messages.compress(compressor, down_key, change)
        pace = compressor.pace(messages.count_parameters(sent))
        known = jax.tree.map(lambda v, c: v + jnp.asarray(pace, v.dtype) * c, memo.known, heard)
        return memo._replace(known=keep_if_empty(event, known, memo.known))

    def first_version(self, server: Params) -> Versioned:
        """Begin with the initial model, for systems with a store of old models.

        Args:
          server: The initial model, leaves `[...]`.

        Returns:
          The first state.
        """
        return versions.first_version(server, self.plan)._replace(memo=self.first(server))

    def next_version(
        self, key: Key, event: Event, state: Sent, memo: Memo, server: Params
    ) -> Versioned:
        """Publish the server's new model, and keep the version that clients receive.

        Args:
          state: The state before it.
          memo: What both sides remember.
          server: The new model, leaves `[...]`.

        Returns:
          The next state.
        """
        memo = self.publish(key, event, memo, server)
        kept = versions.next_version(state, event, self.start(memo, server))
        return Versioned(server, kept.versions, memo)

    def first_step(self, server: Params) -> RoundState:
        """Begin with the initial model and a fresh server optimizer, which the settings have.

        Args:
          server: The initial model, leaves `[...]`.

        Returns:
          The first state.
        """
        optimizer = self.hyper.server_transformation().init(server)
        return RoundState(server, optimizer, memo=self.first(server))

    def step(
        self, key: Key, event: Event, state: RoundState, memo: Memo, progress: Params
    ) -> RoundState:
        """Step along the clients' mean progress by the server's optimizer, and publish.

        Args:
          state: The state before it.
          memo: What both sides remember.
          progress: The clients' mean progress, leaves `[...]`.

        Returns:
          The next state.
        """
        slope = jax.tree.map(lambda leaf: -leaf, progress)
        optimizer = self.hyper.at_tick(event).server_transformation()
        updates, memory = optimizer.update(slope, state.memory, state.server)
        after = optax.apply_updates(state.server, updates), memory
        server, optimizer = keep_if_empty(event, after, (state.server, state.memory))
        return RoundState(server, optimizer, memo=self.publish(key, event, memo, server))

    def metrics(self, state: Sent) -> dict[str, Array]:
        """Report the bound of updates' norms, `clip_norm`, if it adapts.

        Args:
          state: A state with the field `memo`.

        Returns:
          The bound by its name, or nothing.
        """
        is_adaptive = isinstance(self.privacy, AdaptiveClipping)
        return {"clip_norm": state.memo.bound} if is_adaptive else {}
