"""The messages between clients and server, as a chain of stages that a system binds once.

A system binds it by `wire = Wire(problem, hyper, plan)`, carries what both sides remember of
earlier messages as a `Memo`, and ends with `wire.algorithm(init, step)`. In its step, clients'
models go through `wire.receive`; their mean or sum is made by `wire.sum`, `wire.mean`,
`wire.mean_with_server` or `wire.noisy_sum`; `wire.step` moves the server's model by it, and
`wire.publish` sends the new one. `wire.advance` does all of this for rounds in which clients start
from the server's model. `fedjax_sim.server.stages` has the stages and their order. Those that are
not switched on cost nothing and change no bit. One that is switched on is refused, before anything
is compiled, where the new state of a system's step does not depend on it.

Clients of asynchronous systems report on models that the server made some ticks ago, so these carry
old versions in their state. The engine works out from the schedule how many rows are needed and
which row each version has (`fedjax_sim.engine.planning.schedule`).

**The server's own update**, with which rules such as FLTrust compare the messages of a tick.

The server has root data: examples of the problem, drawn uniformly without replacement among all
clients' examples, or among those of some. They stay the same in a run and differ between seeds. So
any problem will do as it is, and no client has to be set apart, whose data would be of one kind
where clients' data differ.

Deviation: clients keep these examples as well. In the public demonstration of Cao et al. (2021,
arXiv 2012.13995) the server's examples are taken from the training data before clients get theirs.
Here a problem's clients are the same whatever the rule is, so that rules are compared on the same
data.

In every tick the server trains on the root data as clients do: with their batch size, optimizer and
rate, from the model that a client would receive now, with as many local steps as the longest update
of the tick. Updates of asynchronous clients have begun at older models, and are compared with the
one that begins now; but FedAT then moves from its tier's older model. In each tick the root data
are shuffled anew, and the optimizer's state begins anew, also where clients keep theirs. If the
loss is noisy, the noise of each root example is drawn apart, so that the mean over a batch is less
noisy than a client's. In FedNova, messages are scaled to the effective number of steps, and the
server's update is not.

Its steps are counted among those that are executed and needed, as the work of one more slot. They
are not counted in `local_steps`, which are the clients'. Where the slots of a tick run on several
devices, each device does the server's steps. They run in a second loop, after which an accelerator
has launched about twice as many kernels as for the clients' steps alone.

Dimension letters: those of `fedjax_sim.core.types`; `M` root examples.
"""

import operator
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.clients import SumRequest, Train, mini_batches, personal_metrics, rows
from fedjax_sim.core import batching, settings, trees, types
from fedjax_sim.core.streams import lane_stream, shuffle_bits, shuffled_index
from fedjax_sim.core.types import Algorithm, Array, Event, Key, Losses, Params, Plan, Settings
from fedjax_sim.server import aggregation, attacks, privacy, report_settings, rules, stages
from fedjax_sim.server.aggregation import keep_if_empty, weighted_sum


class Memo(NamedTuple):
    """The memories of the stages of messages; () for a stage that remembers nothing.

    Attributes:
      estimates: Estimates of clients' progress d_i, leaves `[N, ...]`.
      known: The model v that clients know, leaves `[...]`.
      privacy: Bound of the norm of an update if it adapts, C, `f[]`; or the last noises on the sum
        if they are correlated, the newest first, leaves `[b - 1, ...]`.
      members: Estimates of the progress of clients behind local servers, leaves `[N, ...]`.
      attackers: What attackers remember of messages.
      own: Within a tick, the update that the server has made itself, leaves `[...]`, for rules that
        compare messages with it.
    """

    estimates: Params = ()
    known: Params = ()
    privacy: Params = ()
    members: Params = ()
    attackers: Params = ()
    own: Params = ()


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


class Versioned(NamedTuple):
    """The state of an asynchronous system.

    Attributes:
      server: The newest model, leaves `[...]`.
      versions: Server models that some client works from, leaves `[R, ...]`.
      memo: What both sides remember of messages.
      memory: What else the server keeps, such as its optimizer's state; () for nothing.
      clients: What is kept for every client, leaves `[N, ...]`; () for nothing.
    """

    server: Params
    versions: Params
    memo: Memo = Memo()
    memory: Params = ()
    clients: Params = ()


Rounds = Algorithm[RoundState, types.Work]
"""An algorithm of rounds."""

State = RoundState | Versioned
"""A state with the server's model, and the memory of messages on both sides."""

Training = Callable[[Any, Any, Plan], Train]
"""From a problem, the settings and a plan to the local training of the system's clients."""


def first_version(model: Params, plan: Plan) -> Versioned:
    """Begin with a model in row 0. Other rows are written before they are read.

        state = first_version(model, Plan(rows=4))
        assert state.server.shape == (3,) and state.versions.shape == (4, 3)

    Args:
      model: Leaves `[...]`.

    Returns:
      The first state.
    """
    return Versioned(model, rows.first_rows(model, plan.rows))


def stale_models(state: Any, event: Event) -> Params:
    """Read the server model that each slot's work started from: leaves `[S, ...]`.

        state = first_version(jnp.full(3, 5.0), Plan(rows=4))
        assert (stale_models(state, event) == 5.0).all()  # both slots read row 0

    Args:
      state: A state that keeps old versions, such as `Versioned`.

    Returns:
      Leaves `[S, ...]`.
    """
    return rows.read_rows(state.versions, event.read)


def next_version(state: Any, event: Event, model: Params) -> Versioned:
    """Make a model the server's, and keep it in the store for clients that will start from it.

        state = next_version(first_version(model, Plan(rows=4)), event, model + 1)
        assert (state.server == 1).all() and (state.versions[event.write] == 1).all()

    Args:
      state: The state before the tick.
      model: The server's new model, leaves `[...]`.

    Returns:
      The next state.
    """
    # Settings have 32 bits, and what they are multiplied with too.
    model = jax.tree.map(lambda new, kept: new.astype(kept.dtype), model, state.versions)
    return Versioned(model, rows.write_row(state.versions, event.write, model))


class RootData(NamedTuple):
    """Examples of some clients, as the data of one client.

    Attributes:
      problem: The problem.
      clients: `i32[M]`, whose examples they are.
      examples: `i32[M]`, their positions.
      counts: `i32[1]`, how many of them there are.
    """

    problem: Losses
    clients: Array
    examples: Array
    counts: Array

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Compute the mean of the losses of single examples, each with another key.

        Args:
          params: The model, leaves `[...]`.
          client: Ignored.
          examples: `i32[B]`, which of the root examples.
          key: For noise or augmentation.

        Returns:
          `f[]`.
        """

        def of_one(example: Array, place: Array) -> Array:
            own = jax.random.fold_in(key, place)
            position = self.examples[example][None]
            return self.problem.loss(params, self.clients[example], position, own)

        return jax.vmap(of_one)(examples, jnp.arange(examples.shape[0])).mean()


def draw_root(problem: Losses, key: Key, rule: rules.Rule) -> RootData:
    """Draw the root data.

    Args:
      problem: What is learnt.
      key: The lane's learning key.
      rule: The rule, whose settings say how many examples of whom they are.

    Returns:
      The root data; fewer examples than the rule asks for if there are no more.

    Raises:
      ConfigError: If alternatives of the rule ask for different ones, or for clients that there are
        not, or if the problem has a `local_loss` or its model a state.
    """
    mini_batches.check_plain(problem)
    root: Any = rule.roots()[0]
    if len({(each.examples, each.owners) for each in rule.roots()}) > 1:  # type: ignore[attr-defined]
        allowed = "rules that all have the same root data, as the server trains once"
        raise settings.ConfigError("aggregator", " | ".join(map(str, rule.roots())), allowed)
    num_clients = problem.counts.shape[0]
    if max(root.owners, default=0) >= num_clients:
        raise settings.ConfigError("owners", root.owners, f"of clients from 0 to {num_clients - 1}")
    owners = jnp.asarray(np.array(root.owners or range(num_clients), "int32"))
    counts = problem.counts[owners]
    ends = jnp.cumsum(counts)
    # Places among all examples of these clients, one client's after the other's.
    numbers = jnp.minimum(jnp.arange(root.examples, dtype="int32"), ends[-1] - 1)
    places = shuffled_index(shuffle_bits(lane_stream(key, "root data")), numbers, ends[-1])
    row = jnp.searchsorted(ends, places, side="right", method="scan_unrolled")
    first = (ends - counts)[row]
    size = jnp.minimum(root.examples, ends[-1])[None].astype("int32")
    return RootData(problem, owners[row], (places - first).astype("int32"), size)


class Wire:
    """The stages of messages between clients and server, bound to a problem, settings and a plan.

        wire = Wire(problem, hyper, plan)
        memo, ends = wire.first(model), jnp.array([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
        reports, memo = wire.receive(key, event, memo, jnp.zeros((2, 3)), ends)
        assert wire.mean(key, event, model, reports)[0] == (1 + 3) / 2  # with weights 1/2

    Attributes:
      senders: Who sends.
      noise: The stage `stages.LocalNoise`.
      attack: The stage `stages.Forgery`.
      code: The stage `stages.Coding`.
      privacy: The stage `stages.PrivateSum`.
      rule: The stage `stages.Aggregation`.
      downlink: The stage `stages.Downlink`.
      sum: The method of `rule`, and so are `mean` and `mean_with_server`.
    """

    _Coding, _Aggregation = stages.Coding, stages.Aggregation

    def __init__(
        self,
        problem: Losses,
        hyper: Settings,
        plan: Plan,
        *,
        can_repeat: bool = False,
        num_senders: int | None = None,
        train: Training | None = None,
    ):
        """Bind.

        Args:
          hyper: Settings, such as `Reports` or `PrivateReports`.
          can_repeat: Whether a client may fill several slots of a tick.
          num_senders: How many senders slots can name, if these are not the problem's clients.
          train: How clients make progress from the server's model, if that is what they send: the
            server then trains so too, for rules that compare messages with its own update.

        Raises:
          ConfigError: If the rule needs an update of the server's own that it does not get.
        """
        self.problem, self.hyper, self.plan, self.train = problem, hyper, plan, train
        messages, number = hyper.messages, num_senders or problem.counts.shape[0]
        kind = getattr(hyper, "privacy", privacy.NoPrivacy())
        are_read = kind.name != "none" or not isinstance(hyper.aggregator, rules.Mean)
        self.senders = senders = attacks.Senders(number, hyper.adversary, can_repeat, are_read)
        self.noise = stages.LocalNoise(messages.local_privacy, senders)
        self.attack = stages.Forgery(hyper.adversary.attack, senders)
        self.code = self._Coding(messages.compression, senders, messages.error_feedback)
        self.privacy = stages.PrivateSum(kind, senders, hyper)
        self.rule = self._Aggregation(hyper.aggregator, senders, train is not None)
        self.downlink = stages.Downlink(messages.downlink, senders)
        self.sum, self.mean = self.rule.sum, self.rule.mean
        self.mean_with_server = self.rule.mean_with_server
        chain = (self.noise, self.attack, self.code, self.privacy, self.rule, self.downlink)
        self.switched_on = [stage for stage in chain if stage.is_on]
        are_changed = self.noise.is_on or self.code.is_on or self.privacy.is_on
        self.is_summed = self.rule.is_plain and not are_changed
        self.has_step = getattr(hyper, "server_transformation", lambda: None)() is not None
        # Weights of Poisson cohorts do not sum to 1: progress is summed there.
        has_mean = self.rule.is_plain and not report_settings.has_poisson_cohorts(hyper)
        has_mean = has_mean and not self.privacy.is_on and not self.downlink.is_on
        self.has_mean = has_mean and not self.has_step

    def algorithm(
        self,
        init: Callable[[Key], types.StateT],
        step: Callable[[Key, types.StateT, Event], tuple[types.StateT, types.InfoT]],
        personal: Callable[[types.StateT, Array], Params] | None = None,
        **others: Any,
    ) -> Algorithm[types.StateT, types.InfoT]:
        """Make an algorithm; its state has the fields `server` and `memo`.

        `init` and `step` are those of `Algorithm`.

        Args:
          personal: From a state and the number of a client, `i32[]`, to its own model, if clients
            have such models. Metrics are then also those of `personal_metrics`.
          others: Further fields of `Algorithm`. By default the model is the server's, the metrics
            are `metrics`, and clients receive `received`, which is right if only the model is sent.
            If more is, say what part of it is the model, such as
            `received=lambda state: wire.start(state.memo, (state.server, state.control))[0]`.

        Returns:
          The algorithm. Its step is refused if it leaves out a stage that is switched on.
        """
        has_own = self.train is not None and self.rule.kind.needs_own() is not False

        @wraps(step)
        def with_own(key: Key, state: Any, event: Event) -> tuple[Any, Any]:
            update, work = self.own_update(key, event, self.received(state))
            state = state._replace(memo=state.memo._replace(own=update))
            made: tuple[Any, Any] = step(key, state, event)
            after, info = made
            after = after._replace(memo=after.memo._replace(own=()))
            executed, needed = info.executed + work.executed, info.needed + work.needed
            return after, info._replace(executed=executed, needed=needed)

        whole = with_own if has_own else step

        @wraps(step)
        def checked(key: Key, state: Any, event: Event) -> tuple[Any, Any]:
            traced = jax.make_jaxpr(lambda *given: whole(*given)[0])(key, state, event)
            used = stages.used_in(traced.jaxpr)
            for stage in self.switched_on:
                if stage.name not in used:
                    allowed = f"{stage.idle}: this system's step does not ask its wire for that"
                    raise settings.ConfigError(stage.name, stage.kind.name, allowed)
            return whole(key, state, event)

        made: Algorithm[Any, Any] = Algorithm(
            init,
            checked if self.switched_on else whole,
            lambda state: state.server,
            self.metrics,
            received=self.received,
            supports=dict(stages.RELIED_ON),
        )
        if personal is None:
            return made._replace(**others)
        everyone = jnp.arange(self.problem.counts.shape[0])

        def metrics(state: Any) -> dict[str, Array]:
            return personal_metrics(self.problem, partial(personal, state)) | self.metrics(state)

        def client_models(state: Any) -> tuple[Params, Array]:
            return jax.vmap(partial(personal, state))(everyone), jnp.ones(everyone.shape)

        return made._replace(**{"metrics": metrics, "client_models": client_models} | others)

    def own_update(self, key: Key, event: Event, start: Params) -> tuple[Params, types.Work]:
        """Train on the root data for a tick, with the training that was given.

        Nothing is trained if the rule was chosen among several and needs no such update.

        Args:
          key: The lane's learning key.
          event: The tick.
          start: The model to start from, leaves `[...]`.

        Returns:
          The progress, leaves `[...]`, 0 in an empty tick; and the work.

        Raises:
          ConfigError: If a setting of training is by client, as the server is none.
        """
        assert self.train is not None
        for name in ("training.lr_schedule", "training.proximal_schedule"):
            if operator.attrgetter(name)(self.hyper).clock == "client":
                allowed = f"another one with {self.rule.kind.name}: the server trains, no client"
                raise settings.ConfigError(f"{name}.by", "client", allowed)
        rule, facts = self.rule.kind, event.facts
        is_needed, longest = rule.needs_own(), jnp.asarray(event.steps).max()
        is_even = facts.same_steps and is_needed is True
        filled, most = facts.all_filled and is_even, facts.most_steps
        inner = types.Facts(is_inner=True, all_filled=filled, most_steps=most, same_steps=is_even)
        none, steps = jnp.zeros(1, "int32"), jnp.where(is_needed, longest, 0)[None]
        alone = {"clients": none, "steps": steps, "offset": none, "version": event.tick[None]}
        plan = self.plan._replace(slots_at_once=1, client_devices=1)
        train = self.train(draw_root(self.problem, key, rule), self.hyper, plan)
        # How many steps the ticks before this one had is not known here, as it depends on the
        # layout.
        own_key = jax.random.fold_in(lane_stream(key, "own update"), event.tick)
        reached, work = train(own_key, event.within(facts=inner, **alone), start=start)
        return jax.tree.map(lambda y, x: y[0] - x, reached, start), work

    def first(self, sent: Params, *, report: Params | None = None) -> Memo:
        """Begin with the initial model, which clients know.

        Args:
          sent: What the server sends: its model, or a pytree of this and more.
          report: What a client reports, if it is not shaped like `sent`.

        Returns:
          What both sides remember.
        """
        report = sent if report is None else report
        return Memo(
            attackers=self.attack.first(report),
            estimates=self.code.first(report),
            privacy=self.privacy.first(report),
            known=self.downlink.first(sent),
        )

    def start(self, memo: Memo, sent: Params) -> Params:
        """Return the model as clients receive it, after compression on the way down.

        Args:
          memo: What both sides remember.
          sent: What the server sends, leaves `[...]`.
        """
        return memo.known if self.downlink.is_on else sent

    def received(self, state: State) -> Params:
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
        local, _ = self.noise.client(key, event, (), starts, local)
        local, attackers = self.attack.client(key, event, memo.attackers, starts, local)
        reports, estimates = self.code.client(key, event, memo.estimates, starts, local)
        return reports, memo._replace(attackers=attackers, estimates=estimates)

    def total(self, event: Event, *, scale: Array | None = None) -> SumRequest | None:
        """Let training return a sum over clients where the server needs no client's own message.

        Training makes that sum itself then, for `advance`, and need not hold the models of a round
        together. It is one of progress where a mean of models is not enough.

        Args:
          event: The round.
          scale: As in `noisy_sum`.

        Returns:
          The sum to make; None if the message of each client is looked at.
        """
        is_mean = scale is None and not report_settings.has_poisson_cohorts(self.hyper)
        if not self.is_summed or (not is_mean and self.has_statistics()):
            return None
        weight = event.weight if scale is None else scale * event.weight
        return SumRequest(weight, not self._is_mean(event, scale))

    def _is_mean(self, event: Event, scale: Array | None) -> bool:
        """Tell whether a sum of models is enough, as nothing else is done with them."""
        return self.has_mean and scale is None and event.facts.keeps("clients", "weight")

    def noisy_sum(
        self, key: Key, event: Event, updates: Params, memo: Memo, *, scale: Array | None = None
    ) -> tuple[Params, Memo]:
        """Sum updates with the tick's weights, privately if that is set, or as the rule does.

        Args:
          updates: Decoded progress, leaves `[S, ...]`.
          memo: What both sides remember.
          scale: `f[S]`, by which the server multiplies each client's progress, except for leaves
            that are not trained, whose weights sum to 1 at most; None with privacy.

        Returns:
          The sum, leaves `[...]`, and what both sides remember, the noise among it.

        Raises:
          ConfigError: If messages are scaled with privacy, or a step has changed the event.
        """
        if not self.privacy.is_on:
            if self.has_statistics():  # They are averaged: without scale, weights sum to 1 at most.
                most = jnp.maximum(event.weight.sum(), 1)
                factor = jnp.ones_like(event.weight) if scale is None else scale
                scaled = jax.tree.map(lambda d: d * aggregation.expand(factor, d), updates)
                means = jax.tree.map(lambda d: d / most.astype(d.dtype), updates)
                updates, scale = self.of_trained(scaled, means), None
            return self.sum(key, event, updates, scale=scale, own=memo.own), memo
        if scale is not None:
            allowed = "none where the server scales messages: they are clipped as they come"
            raise settings.ConfigError("privacy", self.privacy.kind.name, allowed)
        total, memory = self.privacy.server(key, event, memo.privacy, updates)
        return total, memo._replace(privacy=memory)

    def publish(self, key: Key, event: Event, memo: Memo, sent: Params) -> Memo:
        """Send the server's new model to the clients.

        Args:
          event: The tick that made the model.
          memo: What both sides remember.
          sent: The model, leaves `[...]`, or a pytree of this and more as in `first`.

        Returns:
          What both sides remember.
        """
        return memo._replace(known=self.downlink.server(key, event, memo.known, sent))

    def first_version(self, server: Params, clients: Params = ()) -> Versioned:
        """Begin with the initial model, for systems with a store of old models.

        The arguments are those of `first_round`.
        """
        first, memory = first_version(server, self.plan), self.first_optimizer(server)
        return first._replace(memo=self.first(server), memory=memory, clients=clients)

    def next_version(
        self, key: Key, event: Event, state: Versioned, memo: Memo, server: Params, **kept: Params
    ) -> Versioned:
        """Publish the server's new model, and keep the version that clients receive.

        Args:
          state: The state before it.
          memo: What both sides remember.
          server: The new model, leaves `[...]`.
          **kept: Other fields of the state that change.

        Returns:
          The next state.
        """
        memo = self.publish(key, event, memo, server)
        newest = next_version(state, event, self.start(memo, server))
        return state._replace(server=server, versions=newest.versions, memo=memo, **kept)

    def first_round(self, server: Params, clients: Params = ()) -> RoundState:
        """Begin rounds with the initial model, and the first state of the server's optimizer.

        Args:
          server: The initial model, leaves `[...]`.
          clients: What is kept for every client, leaves `[N, ...]`.

        Returns:
          The first state.
        """
        return RoundState(server, self.first_optimizer(server), clients, self.first(server))

    def advance(
        self,
        key: Key,
        event: Event,
        state: RoundState,
        local: Params,
        *,
        total: SumRequest | None = None,
        scale: Array | None = None,
    ) -> RoundState:
        """Make the next model of the models that clients reach in a round, and publish it.

        It is the mean of what they report, or a step of the server's optimizer along their mean
        progress if the settings have one.

        Args:
          event: The round.
          state: The state before it, of `first_round`.
          local: Models that clients reached, leaves `[S, ...]`, or the sum, leaves `[...]`.
          total: What training was given; None if local has each client's model.
          scale: As in `noisy_sum`.

        Returns:
          The next state; in an empty tick that before it.
        """
        memo, is_mean = state.memo, self._is_mean(event, scale)
        if total is None:
            starts = batching.replicate(self.received(state), event.clients.shape[0])
            local, memo = self.receive(key, event, memo, starts, local)
            if is_mean:
                local = weighted_sum(event.weight, local)
            else:
                progress = jax.tree.map(jnp.subtract, local, starts)
                local, memo = self.noisy_sum(key, event, progress, memo, scale=scale)
        if is_mean:
            finish = keep_if_empty if event.facts.sums_to_one else aggregation.with_missing
            return state._replace(server=finish(event, local, state.server), memo=memo)
        server, memory = self.step(event, state.server, local, state.memory)
        memo = self.publish(key, event, memo, server)
        return state._replace(server=server, memory=memory, memo=memo)

    def first_optimizer(self, server: Params) -> Params:
        """Make the first state of the server's optimizer.

        Args:
          server: The initial model, leaves `[...]`.

        Returns:
          The state; () if it has none.
        """
        return self.hyper.server_transformation().init(server) if self.has_step else ()

    def step(
        self, event: Event, server: Params, progress: Params, optimizer: Params = None
    ) -> tuple[Params, Params]:
        """Move the server's model along the clients' mean progress, by its rate and optimizer.

        Running statistics and other leaves that are not trained are averaged: neither a rate nor a
        momentum acts on them.

        Args:
          server: The model before it, leaves `[...]`.
          progress: The clients' mean progress, leaves `[...]`.
          optimizer: The optimizer's state; None for one that remembers nothing.

        Returns:
          The next model and state. In an empty tick they stay.
        """
        if not self.has_step:
            return jax.tree.map(jnp.add, server, progress), optimizer
        follow, slope = self.hyper.at_tick(event).server_transformation(), self.of_trained(progress)
        optimizer = follow.init(server) if optimizer is None else optimizer
        updates, after = follow.update(jax.tree.map(jnp.negative, slope), optimizer, server)
        stepped = optax.apply_updates(server, self.of_trained(updates, progress)), after
        return keep_if_empty(event, stepped, (server, optimizer))

    def of_trained(self, tree: Params, others: Params | None = None) -> Params:
        """Replace leaves that are not trained, such as running statistics.

        Args:
          tree: Like the model, leaves `[...]` or `[S, ...]`.
          others: The same with what takes their place; None for 0.

        Returns:
          The tree.
        """
        flags = mini_batches.untrained_leaves(self.problem, tree)
        if flags is None:
            return tree
        others = optax.tree.zeros_like(tree) if others is None else others
        return jax.tree.map(lambda x, y, is_mean: y if is_mean else x, tree, others, flags)

    def has_statistics(self) -> bool:
        """Tell whether models have leaves that are not trained."""
        problem: Any = self.problem
        return mini_batches.untrained_leaves(problem, trees.shapes_of_model(problem)) is not None

    def metrics(self, state: State) -> dict[str, Array]:
        """Numbers of the memory of privacy, such as a bound that adapts, by name.

        Args:
          state: A state with the field `memo`.
        """
        return self.privacy.kind.metrics(state.memo.privacy)
