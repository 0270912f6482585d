"""Another rule on the means of a few messages each.

Dimension letters: those of `fedjax_sim.core.types`; `B` buckets, n messages present.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.batching import weighted_sum
from fedjax_sim.core.checking import Count
from fedjax_sim.core.settings import ConfigError, Named, fixed, parse_kind, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import divisor, wide_of
from fedjax_sim.server.rules import centres, coordinates, distances
from fedjax_sim.server.rules.base import Mean, Rule
from fedjax_sim.server.rules.coordinates import Median
from fedjax_sim.server.rules.trust import FLTrust

_KINDS = Mean, *coordinates.KINDS, *centres.KINDS, *distances.KINDS, FLTrust
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
    return parse_kind("inner", INNER, text)


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
        """Draw which messages are in which bucket.

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
