"""Settings of rules of aggregation and malicious clients, and the checks of them.

`fedjax_sim.server.stages` says what happens to messages in which order, and why.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from typing import Any

import numpy as np

from fedjax_sim.core.settings import Checked, ConfigError, fields, group, setting, struct, value_of
from fedjax_sim.core.types import EMPTY, Settings, Timeline
from fedjax_sim.server.attacks import Adversary, Honest
from fedjax_sim.server.compression import Identity
from fedjax_sim.server.rules import RULES, Mean, Rule, SecureSum, parse_rule

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
    check_heard("aggregator", hyper.aggregator, np.minimum(heard, most) if most else heard)


def check_heard(name: str, rule: Rule, heard: Any) -> None:
    """Check that a rule can do with numbers of messages.

    Args:
      name: Full name of the rule's setting.
      rule: The rule.
      heard: The numbers, `i64[...]`; 0 where nothing happens.

    Raises:
      ConfigError: If it needs more.
    """
    rule = rule.chosen
    least = rule.least_present()
    fewest = np.asarray(heard)[np.asarray(heard) > 0].min(initial=least)
    if fewest < least:
        allowed = (
            f"a rule that can do with {fewest} messages, as few as a tick has; it needs {least}"
        )
        raise ConfigError(name, str(rule), allowed)


def check_weights(hyper: Any, name: str, timeline: Timeline) -> None:
    """Check that the weights of every tick are equal unless the rule weighs.

    Args:
      name: Full name of the rule's setting.

    Raises:
      ConfigError: If they differ.
    """
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
