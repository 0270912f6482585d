"""The interface of attacks, honest clients, and statistics of the honest messages.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.settings import Kind, fixed, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import wide_of


class Cohort(NamedTuple):
    """The slots of a tick as attackers see them.

        cohort = Cohort(jnp.arange(3), jnp.arange(3) == 2, jnp.ones(3, bool), jnp.full(3, 1 / 3))
        assert cohort.references().tolist() == [True, True, False]  # client 2 is malicious

    Attributes:
      clients: `i32[S]`.
      is_malicious: `bool[S]`, slots of attackers that are at work.
      is_present: `bool[S]`, slots in which somebody reports, attackers included.
      weight: `f[S]`, weights that the server gives the slots; 0 where nobody is present.
      memory: What attackers remember of the ticks until now, see `Attack.remember`.
    """

    clients: Array
    is_malicious: Array
    is_present: Array
    weight: Array
    memory: Params = ()

    def references(self) -> Array:
        """Find the slots of the messages that attackers imitate or work against: `bool[S]`.

        These are the honest ones. In a tick without an honest message, such as a tick of one slot,
        they are those of the attackers, who know what they would have sent honestly.
        """
        is_honest = self.is_present & ~self.is_malicious
        return jnp.where(is_honest.any(), is_honest, self.is_present)


class Attack(Kind):
    """The interface of attacks on messages: malicious clients send forgeries, not their progress.

    @settings.struct
    class Silence(Attack):
        "Send zeros."
        name: str = settings.fixed("silence")

        def forge(self, key, messages, cohort):
            return jax.tree.map(jnp.zeros_like, messages)

    hyper = fedavg.Hyper(attack=Silence(), malicious=0.2)
    """

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Make the messages of malicious clients. Those of others are not used.

        Attackers know everything: they may read all messages of the tick.

        Args:
          key: Key of the attack's draws in this tick.
          messages: Progress that all clients of the tick have made, attackers too, leaves
            `[S, ...]`; any numbers where nobody is present.
          cohort: The slots.

        Returns:
          Leaves `[S, ...]`, or leaves that broadcast to these, in the messages' types.
        """
        raise NotImplementedError

    def is_forging(self) -> Any:
        """Tell whether it forges anything: a bool, traced if its settings are."""
        return True

    def first_memory(self, message: Params) -> Params:
        """Return the memory of attackers before the first tick; () if they have none.

        Args:
          message: A message, leaves `[...]`, for its shapes.
        """
        return ()

    def remember(self, key: Key, messages: Params, cohort: Cohort, memory: Params) -> Params:
        """Return the memory of attackers after the messages of a tick.

        `messages` and `cohort` are those of `forge`.

        Args:
          memory: What they remembered before.
        """
        return memory


@struct
class Honest(Attack):
    """No attack."""

    name: str = fixed("none")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the messages."""
        return messages

    def is_forging(self) -> bool:
        """No."""
        return False


def in_wide(function: Callable[..., Array], messages: Params, *others: Params) -> Params:
    """Apply a function to every leaf in at least 32 bits.

    Args:
      function: From leaves `f[S, ...]` to new ones.
      messages: Leaves `[S, ...]`.
      others: Further arguments, with leaves in the same places, of at least 32 bits.

    Returns:
      The new leaves, in the messages' types.
    """
    return jax.tree.map(
        lambda leaf, *more: function(wide_of(leaf), *more).astype(leaf.dtype), messages, *others
    )


def along(slots: Array, leaf: Array) -> Array:
    """Give an array `[S]` trailing axes of length 1 to fit a leaf `[S, ...]`."""
    return slots.reshape(slots.shape + (1,) * (leaf.ndim - 1))


def mean_over(slots: Array, leaf: Array) -> Array:
    """Average over some of the slots, each with the same weight.

    Args:
      slots: `bool[S]`, which of them.
      leaf: `f[S, ...]`, of at least 32 bits; any numbers in other slots.

    Returns:
      `f[1, ...]`, which broadcasts to the leaf's shape; 0 if there are no such slots.
    """
    number = jnp.maximum(slots.sum(), 1).astype(leaf.dtype)
    return jnp.where(along(slots, leaf), leaf, 0).sum(axis=0, keepdims=True) / number
