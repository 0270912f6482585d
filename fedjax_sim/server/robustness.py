"""Rules of aggregation and malicious clients, as parts of every server that averages messages.

The order of what happens to a message, and why:

1. Honest clients clip their progress and add their own noise, if they do that
   (`server.privacy.local`). Whatever a client does to its own message, an attacker need not do:
   those at work in the tick keep what they have learnt.
2. An attacker replaces its progress (`fedjax_sim.server.attacks`). It knows what it has learnt
   itself and, of others, what they send: noise of theirs would not protect them from somebody who
   sees through it.
3. The message is compressed and decoded (`fedjax_sim.server.reports`): an attacker too can only
   send what the code can carry.
4. With privacy the server bounds the norm of what it decodes, and what is not finite counts as 0.
   No attacker can skip that.
5. A message that is not finite is left out, if there is an attacker or another rule than the mean.
   Rules that assume a number of malicious clients assume so many fewer of the others; if too few
   are left for the rule, the tick counts as one without progress. With the mean, nobody
   malicious and no privacy messages are not looked at, and a run that diverges fails.
6. A rule makes a centre of the messages (`fedjax_sim.server.rules`), and the server moves by the
   sum of the tick's weights times the centre. It may compare them with an update that the server
   has made itself (`fedjax_sim.server.own_updates`).
7. With privacy, noise is added to the sum. It is accounted for the clipped sum only, so that no
   other rule than the mean is allowed.
8. The server's optimizer makes its step.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import timelines
from fedjax_sim.clients.clipping import finite
from fedjax_sim.core import batching, streams
from fedjax_sim.core.checking import unchecked
from fedjax_sim.core.settings import Checked, ConfigError, fields, group, setting, struct, value_of
from fedjax_sim.core.types import EMPTY, Array, Event, Key, Params, Settings, Timeline
from fedjax_sim.server.aggregation import expand, mean_of, mean_with_server
from fedjax_sim.server.attacks import Adversary, Honest
from fedjax_sim.server.compression import Identity
from fedjax_sim.server.rules import RULES, Mean, Rule, SecureSum, base, parse_rule

COMBINED = (("aggregator", Mean()), ("adversary.attack", Honest()))
"""Settings that an algorithm must obey, each with a value of the kind that needs no obeying."""
OF_ATTACKERS = ("attack", "attack_from", "attack_ticks", "attack_when")
"""Settings of an adversary that matter to nobody where nobody is malicious."""


@struct
class Robust(Checked):
    """Settings of servers that average messages: the rule, and who is malicious.

    Where reports are compressed or private as well, inherit from `Reports`.

        adversary = Adversary(attack=SignFlip(scale=2.0), malicious=0.2)
        hyper = fedavg.Hyper(aggregator=TrimmedMean(share=0.25), adversary=adversary)
    """

    aggregator: Rule = setting(
        Mean(), "What the server makes of the messages of a tick.", allowed=RULES, parse=parse_rule
    )
    adversary: Adversary = group(Adversary(), "malicious clients, and what they send")

    def check_together(self) -> None:
        """Check that messages are coded once.

        Raises:
          ConfigError: If messages are compressed and then coded for a secure sum.
        """
        super().check_together()
        check_codes(self, "aggregator", "messages.compression")
        check_codes(self, "aggregator", "compression")

    def decided(self) -> dict[str, str]:
        """Name the settings without effect, and those in their place."""
        names = [f"adversary.{name}" for name in OF_ATTACKERS] if self.adversary.is_nobody else []
        return super().decided() | dict.fromkeys(names, "adversary.malicious 0 and no attackers")


def check_codes(hyper: Any, rule: str, compression: str) -> None:
    """Check that messages are not compressed where the rule itself says how they are coded.

    Args:
      rule: Full name of the rule's setting.
      compression: Full name of the compressor's, which the settings need not have.

    Raises:
      ConfigError: If they are.
    """
    if compression not in fields(type(hyper)) or isinstance(value_of(hyper, compression), Identity):
        return
    if isinstance(value_of(hyper, rule).chosen, SecureSum):
        allowed = f"identity with {rule} secure_sum, which codes messages itself"
        raise ConfigError(compression, str(value_of(hyper, compression)), allowed)


class Combination:
    """A rule and an adversary, bound to a system with a client in each slot.

        combination = Combination(Median(), Adversary())
        updates = jnp.array([[1.0], [3.0]])
        assert combination.sum(key, event, updates) == (1 + 3) / 2  # the median of two

    Attributes:
      is_plain: Whether messages are as clients made them, and their weighted sum is wanted.
    """

    def __init__(self, rule: Rule, adversary: Adversary, *, has_own: bool = False):
        """Bind.

        Args:
          rule: What is made of messages.
          adversary: Who is malicious; by default nobody.
          has_own: Whether the rule is given updates of the server's own, see `with_own`.
        """
        if rule.needs_own() is not False and not has_own:
            allowed = (
                "a rule without an update of the server's own here, because messages to this "
                "server are something else than the progress of its model by local steps"
            )
            raise ConfigError("aggregator", " | ".join(map(str, rule.roots())), allowed)
        self.rule, self.adversary = rule, adversary
        self.is_honest, self.has_mean = adversary.is_idle, isinstance(rule, Mean)
        self.is_plain = self.is_honest and self.has_mean

    def with_own(self, update: Params) -> "Combination":
        """Return the same for a tick in which the server has made an update itself.

        Args:
          update: Its progress, leaves `[...]`.
        """
        return Combination(self.rule.with_own(update), self.adversary, has_own=True)

    def finite_clients(self, event: Event, messages: Params) -> Array:
        """Return the clients of a tick with finite messages: `i32[S]`, `EMPTY` for others.

        Of a message that is not finite nobody keeps anything.

        Args:
          messages: Leaves `[S, ...]`.
        """
        if self.is_honest:
            return event.clients
        return jnp.where(finite(messages, event.clients != EMPTY)[1], event.clients, EMPTY)

    def sum(
        self,
        key: Key,
        event: Event,
        updates: Params,
        *,
        weight: Array | None = None,
        scale: Array | None = None,
    ) -> Params:
        """Aggregate: weighted sum, or the rule's centre times the total weight.

        Args:
          updates: Messages, leaves `[S, ...]`.
          weight: `f[S]`, at least 0; by default the tick's.
          scale: `f[S]`, by which the server multiplies each message before it looks at them.

        Returns:
          Leaves `[...]`; 0 if nobody sends anything finite.
        """
        weight = event.weight if weight is None else weight
        if self.is_plain:
            return batching.weighted_sum(weight if scale is None else scale * weight, updates)
        if scale is not None:
            updates = jax.tree.map(lambda leaf: leaf * expand(scale, leaf), updates)
        messages, is_heard = finite(updates, event.clients != EMPTY)
        used = jnp.where(is_heard, weight, 0)
        share = used / jnp.where(used.sum() > 0, used.sum(), 1)
        rule_key = jax.random.fold_in(streams.lane_stream(key, "rule"), event.tick)
        # Who sends nan is known to be malicious, and so fewer of the others are. If these are too
        # few for the rule, there is no progress.
        dropped = (event.clients != EMPTY).sum() - is_heard.sum()
        rule = self.rule.knowing(dropped)
        centre = base.checked_centre(rule, rule_key, messages, share, is_heard)
        is_enough = (dropped == 0) | (is_heard.sum() >= rule.least())
        moves = is_heard.any() & is_enough & (used.sum() > 0)

        def moved(leaf: Array) -> Array:
            wide = jnp.promote_types(leaf.dtype, "float32")
            found = weight.sum().astype(wide) * leaf.astype(wide)
            return jnp.where(moves, found, 0).astype(leaf.dtype)

        return jax.tree.map(moved, centre)

    def mean(self, key: Key, event: Event, start: Params, models: Params) -> Params:
        """Average models with the weights of a tick, or as the rule does.

        Args:
          start: The model that clients started from, leaves `[...]`.
          models: Leaves `[S, ...]`.

        Returns:
          Leaves `[...]`.
        """
        if self.is_plain:
            return mean_of(event, start, models)
        progress = jax.tree.map(lambda y, x: y - x[None], models, start)
        return jax.tree.map(jnp.add, start, self.sum(key, event, progress))

    def mean_with_server(self, key: Key, event: Event, server: Params, models: Params) -> Params:
        """Average the present clients' models and the server's: s / (s + 1) is the clients' share.

        The server's own model is trusted. Of the clients' models, as progress from it, the rule
        makes a centre.

        Args:
          server: Leaves `[...]`.
          models: Leaves `[S, ...]`.

        Returns:
          Leaves `[...]`.
        """
        is_present = event.clients != EMPTY
        if self.is_plain:
            return mean_with_server(server, models, is_present)
        progress = jax.tree.map(lambda u, w: u - w[None], models, server)
        weight = is_present / (1 + is_present.sum())
        return jax.tree.map(jnp.add, server, self.sum(key, event, progress, weight=weight))


def combination_of(hyper: Settings, *, has_own: bool = False) -> Combination:
    """Bind the rule and the adversary of settings, which need not have them.

        assert combination_of(fedavg.Hyper()).is_plain  # the mean of honest messages
        assert combination_of(fedavg.Hyper(aggregator=Median())).rule == Median()

    Args:
      hyper: Settings of a system.
      has_own: As in `Combination`.

    Returns:
      The combination; of settings that are not `Robust` the plain one.
    """
    if isinstance(hyper, Robust):
        return Combination(hyper.aggregator, hyper.adversary, has_own=has_own)
    return Combination(Mean(), Adversary())


def check_reports(hyper: Any, timeline: Timeline) -> None:
    """Check that the rule of settings can be used for all ticks of a schedule, for `Messages`.

    Args:
      hyper: `Robust` settings.
      timeline: Ticks of one lane's schedule, or of several.

    Raises:
      ConfigError: If a tick has too few messages, or unequal weights for a rule that does not
        weigh.
    """
    check_numbers(hyper, timeline)
    _check_weights(hyper, "aggregator", timeline)


def check_numbers(hyper: Settings, timeline: Timeline, *, most: int | None = None) -> None:
    """Check that a tick has messages enough for the rule, where the server's weights are equal.

        four_reports = run.timelines[0]
        check_numbers(fedavg.Hyper(aggregator=Krum(assumed=0)), four_reports)  # needs three

    Args:
      hyper: `Robust` settings.
      timeline: Ticks of one lane's schedule, or of several.
      most: The most messages of a tick, if not all clients that take part send one.

    Raises:
      ConfigError: If a tick has too few messages.
    """
    heard = (timeline.clients != EMPTY).sum(axis=1)
    _check_numbers("aggregator", hyper.aggregator, np.minimum(heard, most) if most else heard)


def check_edges(hyper: Any, timeline: Timeline) -> None:
    """Check the rules of local servers and of the global one.

    Args:
      hyper: Settings of `EdgeTraining`.
      timeline: Ticks of one lane's schedule, or of several.

    Raises:
      ConfigError: If a rule cannot be used.
    """
    _check_numbers(
        "edge_aggregator", hyper.edge_aggregator, (timeline.clients != EMPTY).sum(axis=1)
    )
    _check_weights(hyper, "edge_aggregator", timeline)
    rule, active = hyper.aggregator.chosen, hyper.grouping.active_per_group
    sizes = np.asarray(timelines.list_members(hyper).size)
    _check_numbers("aggregator", rule, np.minimum(sizes, active) if active else sizes)
    if rule.weighs:
        return
    if hyper.work.weighting != "equal":
        allowed = f"equal with {rule}, which does not weigh messages"
        raise ConfigError("work.weighting", hyper.work.weighting, allowed)
    if rule.least_present() > 1 and unchecked(timelines.loss_shares)(hyper) is not None:
        allowed = f"a rule that can do with one message where messages may be lost; {rule} needs "
        raise ConfigError("aggregator", str(rule), f"{allowed}{rule.least_present()}")


def _check_numbers(name: str, rule: Rule, heard: Any) -> None:
    """Check numbers of messages, `i64[...]`; 0 where nothing happens."""
    rule = rule.chosen
    least = rule.least_present()
    fewest = np.asarray(heard)[np.asarray(heard) > 0].min(initial=least)
    if fewest < least:
        allowed = (
            f"a rule that can do with {fewest} messages, as few as a tick has; it needs {least}"
        )
        raise ConfigError(name, str(rule), allowed)


def _check_weights(hyper: Any, name: str, timeline: Timeline) -> None:
    """Check that the weights of every tick are equal unless the rule weighs."""
    rule = getattr(hyper, name).chosen
    if rule.weighs:
        return
    is_present = timeline.clients != EMPTY
    most = np.where(is_present, timeline.weight, -np.inf).max(axis=1, initial=-np.inf)
    least = np.where(is_present, timeline.weight, np.inf).min(axis=1, initial=np.inf)
    differs = least < (1 - 1e-6) * most
    if differs.any():
        tick = int(np.argmax(differs))
        weights = f"weights from {least[tick]:.3g} to {most[tick]:.3g}"
        allowed = f"one that weighs messages, because those of tick {tick} have {weights}"
        if "staleness.rule" in fields(type(hyper)) and hyper.staleness.rule != "mean":
            allowed += ' (with staleness.rule = "mean" they are equal)'
        raise ConfigError(name, str(rule), allowed)
