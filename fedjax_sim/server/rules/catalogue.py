"""Rules by the names of the command line, and rules on rules: buckets, and one of several.

Dimension letters: those of `fedjax_sim.core.types`; `B` buckets, n messages present.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.core import settings
from fedjax_sim.core.batching import weighted_sum
from fedjax_sim.core.settings import ConfigError, Named, OneOfSeveral, fixed, setting, struct
from fedjax_sim.core.settings.declared import Above0, Count, Limit, Whole
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import divisor, wide_of
from fedjax_sim.server.compression import Compressor
from fedjax_sim.server.compression.messages import count_parameters
from fedjax_sim.server.rules import centres, coordinates, distances
from fedjax_sim.server.rules.base import Mean, Rule, checked_centre
from fedjax_sim.server.rules.coordinates import Median

_KINDS = Mean, *coordinates.KINDS, *centres.KINDS, *distances.KINDS, centres.FLTrust
INNER: Named[type[Rule]] = Named.of(
    "rule other than bucketing", *_KINDS, example="trimmed_mean:share=0.2"
)
"""Every kind of rule that buckets can be given to, by name."""


def parse_inner(text: str) -> Rule:
    """Read a rule without buckets from text.

    Args:
      text: A name of `INNER`, followed by values for its fields, such as "trimmed_mean:share=0.2".

    Returns:
      The rule.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("inner", INNER, text)


@struct
class Bucketing(Rule):
    """A rule on the means of buckets (Karimireddy et al. 2022, arXiv 2006.09365).

    Messages are put in random order and then into buckets of s, the last of which may have fewer.
    The means of different clients' messages differ less than the messages, so that a robust rule
    harms less where clients have different data. But k malicious messages may be in k buckets.

    The rule of the buckets sees the mean of a bucket as a message, and the sum of the weights in it
    as its weight.

        messages = jnp.array([[1.0], [2.0], [3.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = Bucketing(size=3, inner=Median()).centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, (1 + 2 + 3) / 3)  # one bucket
        hyper = fedavg.Hyper(aggregator=Bucketing(size=2, inner=Krum(assumed=1)))
    """

    name: str = fixed("bucketing")

    size: Count = setting(2, "Messages of a bucket, s.")
    inner: Rule = setting(
        Median(),
        "Rule that is applied to the means of the buckets; as text, written last.",
        allowed=INNER,
        parse=parse_inner,
    )

    @property
    def weighs(self) -> bool:  # type: ignore[override]
        """Whether the rule of the buckets weighs."""
        return self.inner.weighs

    def check_together(self) -> None:
        """Check that the inner rule neither makes buckets nor stands for other rules.

        Raises:
          ConfigError: If it does.
        """
        super().check_together()
        kind = type(self.inner).__name__
        if isinstance(self.inner, Bucketing) or kind in ("OneOf", "SecureSum"):
            raise ConfigError("inner", str(self.inner), "a rule of " + ", ".join(INNER))

    def _with_inner(self, change: Callable[[Rule], Rule]) -> Rule:
        return dataclasses.replace(self, inner=change(self.inner))

    def needs_own(self) -> Any:
        """Tell whether the inner rule needs it."""
        return self.inner.needs_own()

    def roots(self) -> tuple[Rule, ...]:
        """Return the inner rule's."""
        return self.inner.roots()

    def least(self) -> Any:
        """Return the fewest messages that fill as many buckets as the inner rule needs."""
        return self.size * (self.inner.least() - 1) + 1

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the inner rule's centre of the means of buckets."""
        key, inner_key = jax.random.split(key)
        is_in = self.buckets(key, is_present)
        if not self.weighs:
            weight = is_present.astype(weight.dtype)
        parts = is_in * weight[None]
        total = parts.sum(axis=1)
        shares = parts / divisor(total)[:, None]
        # The means are not rounded to the messages' type.
        means = jax.vmap(weighted_sum, (0, None))(shares, jax.tree.map(wide_of, messages))
        centre = self.inner.centre(inner_key, means, total, is_in.any(axis=1))
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), centre, messages)

    def buckets(self, key: Key, is_present: Array) -> Array:
        """Draw the bucket of each message.

        Args:
          key: Key of the draw.
          is_present: `bool[S]`.

        Returns:
          `bool[B, S]`. Those present are in the first buckets, others in none.
        """
        slots = is_present.size
        draws = jax.random.uniform(key, (slots,), "float32")
        place = jnp.argsort(jnp.argsort(jnp.where(is_present, draws, 2)))
        bucket = np.arange(-(-slots // self.size))
        return (place[None] // self.size == bucket[:, None]) & is_present[None]

    def __str__(self) -> str:
        """Write the rule as `parse_rule` reads it: values that are not defaults, the rule last."""
        if self.inner == Median():
            return super().__str__()
        return f"{dataclasses.replace(self, inner=Median())}:inner={self.inner}"


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


@struct
class SecureSum(Rule):
    """The mean as secure aggregation computes it (Bonawitz et al. 2017, arXiv 1611.04482).

    A client multiplies its progress by its weight, rounds each number at random to a multiple of
    `step`, without bias, and sends it modulo 2^b. The server only learns the sum modulo 2^b, which
    it takes for a number between -2^(b-1) and 2^(b-1) steps. If the sum of one number is not among
    these, it comes out wrong by 2^b steps; what single clients send may be, as long as the sum is
    not. Who drops out is left out of the sum, as after the protocol's recovery.

    The keys, masks and shares of the protocol, and their traffic, are not simulated. Nothing else
    than the sum can be learnt from such messages, so that this is a rule and excludes all others,
    and compression. A number that is not finite has no code, and its message is missing.

        messages = jnp.array([[1.0], [2.0], [6.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = SecureSum(width=24, step=0.001).centre(key, messages, weight, is_present)
        assert jnp.abs(centre - (1 + 2 + 6) / 3) < 3 * 0.001  # each message is rounded to a step
    """

    name: str = fixed("secure_sum")
    weighs: ClassVar[bool] = True

    width: Annotated[int, Limit(least=2, most=31)] = setting(
        24, "Bits of a number, b.", traced=True
    )
    step: Above0 = setting(1e-6, "Distance between two numbers that can be sent.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the sum of the coded messages, decoded."""
        width = jnp.asarray(self.width).astype("int32")
        keys = optax.tree.split_key_like(key, messages)
        return jax.tree.map(lambda own, x: self._sum(own, x, weight, width), keys, messages)

    def _sum(self, key: Key, leaf: Array, weight: Array, width: Array) -> Array:
        """Sum a leaf `[S, ...]` with weights: `[...]`."""
        wide = wide_of(leaf)
        share = weight.astype(wide.dtype).reshape(-1, *(1,) * (wide.ndim - 1))
        steps = share * wide / jnp.asarray(self.step, wide.dtype)
        below = jnp.floor(steps)
        goes_up = jax.random.uniform(key, steps.shape, steps.dtype) < steps - below
        coded = below + goes_up.astype(steps.dtype)
        size = jnp.ldexp(jnp.ones((), wide.dtype), width)
        # The remainder with the sign of the number is exact. Sums of whole numbers without sign are
        # modulo 2^32, of which 2^b is a divisor.
        parts = jnp.fmod(coded, size).astype("int32").astype("uint32")
        total = parts.sum(axis=0, dtype="uint32")
        mask = (jnp.uint32(1) << width.astype("uint32")) - 1
        total = (total & mask).astype("int32")
        half = jnp.int32(1) << (width - 1)
        signed = jnp.where(total >= half, (total - half) - half, total)
        return (signed.astype(wide.dtype) * self.step).astype(leaf.dtype)

    def message_bits(self, compressor: Compressor, params: Params) -> int:
        """Count b bits for each number."""
        return int(self.width) * count_parameters(params)


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
