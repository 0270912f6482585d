"""Rules by the names of the command line."""

from fedjax_sim.checking import checked
from fedjax_sim.server.rules.base import Rule
from fedjax_sim.server.rules.bucketing import INNER, Bucketing
from fedjax_sim.server.rules.choosing import OneOf
from fedjax_sim.settings import parse_kind

RULES: dict[str, type[Rule]] = {**INNER, Bucketing.name: Bucketing, OneOf.name: OneOf}
"""Every kind of rule, by name."""


@checked
def parse_rule(text: str) -> Rule:
    """Read a rule from text.

        assert parse_rule("krum:assumed=2") == Krum(assumed=2)
        parse_rule("bucketing:size=3:inner=trimmed_mean:share=0.2")

    Args:
      text: A name of `RULES`, followed by values for its fields. Other fields have their defaults.
        What follows ":inner=" is all about the rule of buckets.

    Returns:
      The rule.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    last = "options" if text.startswith(f"{OneOf.name}:") else "inner"
    return parse_kind("rule", RULES, text, "krum:assumed=2", last=last)
