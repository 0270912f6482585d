"""Rules by the names of the command line, and one of several, chosen by a number."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.core import settings
from fedjax_sim.core.checking import Whole
from fedjax_sim.core.settings import Named, OneOfSeveral, fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.server.rules.base import Mean, Rule, checked_centre
from fedjax_sim.server.rules.bucketing import INNER, Bucketing
from fedjax_sim.server.rules.secure import SecureSum


@struct
class OneOf(OneOfSeveral, Rule):
    """One of several rules, chosen by its number, which is traced and can be swept.

    `rules_of_one_program` makes such rules of a list. Where lanes run one after another only the
    chosen rule is executed (`Layout(lanes_at_once=False)`); where they are batched, all are, and
    one is taken.

        second = OneOf(which=1, options=(Mean(), Median()))
        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        assert second.centre(key, messages, weight, is_present) == 2.0
    """

    name: str = fixed("one_of")
    weighs: ClassVar[bool] = True  # Those that do not are checked one by one.

    which: Whole = setting(0, "Number of the rule, counted from 0.", traced=True)
    options: tuple[Rule, ...] = setting(
        (Mean(),),
        "The rules.",
        allowed="a tuple of rules; on the command line joined by |, and written last",
        parse=lambda text: tuple(map(parse_rule, text.split("|"))),
    )

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the chosen rule's centre."""
        branches = [functools.partial(checked_centre, rule) for rule in self.options]
        number = jnp.asarray(self.which).astype("int32")
        return jax.lax.switch(number, branches, key, messages, weight, is_present)

    def _with_inner(self, change: Callable[[Rule], Rule]) -> Rule:
        return dataclasses.replace(self, options=tuple(map(change, self.options)))

    def needs_own(self) -> Any:
        """Tell whether the chosen rule needs it; False itself if none does."""
        needs = [rule.needs_own() for rule in self.options]
        if len(set(needs)) == 1:
            return needs[0]
        return jnp.asarray(needs)[jnp.asarray(self.which).astype("int32")]

    def roots(self) -> tuple[Rule, ...]:
        """Return those of all rules."""
        return tuple(root for rule in self.options for root in rule.roots())

    def least(self) -> Any:
        """Fewest messages of the chosen rule."""
        needs = jnp.stack([jnp.asarray(rule.least(), "int32") for rule in self.options])
        return needs[jnp.asarray(self.which).astype("int32")]

    def least_present(self) -> int:
        """Fewest messages of the chosen rule."""
        return self.chosen.least_present()


RULES: Named[type[Rule]] = Named(
    "rule",
    {
        **INNER,
        **{kind.name: kind for kind in (Bucketing, SecureSum, OneOf)},
    },
    "krum:assumed=2",
)
"""Every kind of rule, by name."""


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
    return settings.parse_kind("rule", RULES, text, last=last)


def rules_of_one_program(rules: Sequence[Rule]) -> list[OneOf]:
    """Make rules that share the compiled program of a sweep, one for each of a list.

        rules = rules_of_one_program([Mean(), Median(), Krum(assumed=1), Krum(assumed=2)])
        settings = {"aggregator": rules, "malicious": [0.0, 0.1, 0.2]}

    Args:
      rules: Rules, several of which may differ in numbers alone.

    Returns:
      As many rules, each of which is one of the same kinds.
    """
    return [OneOf(which=which, options=options) for which, options in settings.alternatives(rules)]
