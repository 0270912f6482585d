"""The interface of rules, and the weighted mean.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.batching import weighted_sum
from fedjax_sim.core.settings import Kind, fixed, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.server.compression import Compressor
from fedjax_sim.server.compression.messages import count_message_bits


class Rule(Kind):
    """The interface of rules: from the messages of a tick to one centre.

    A rule returns a centre: of equal messages, that message, but for FLTrust. The server moves by
    the sum of the tick's weights times the centre, so that weights which do not sum to 1, such as
    those of stale updates, mean the same under every rule.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        assert Median().centre(key, messages, weight, is_present) == 2.0

    Attributes:
      weighs: Whether messages with larger weights count for more. Where a rule does not weigh, the
        weights of a tick must be equal.
    """

    weighs: ClassVar[bool] = False

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Find the centre of the messages of a tick.

        Args:
          key: Key of the rule's draws in this tick.
          messages: Finite, leaves `[S, ...]`; 0 where nobody is present. All leaves together are
            the vector of a message.
          weight: `f[S]`, at least 0 and with sum 1; 0 where nobody is present.
          is_present: `bool[S]`, at least one of them true.

        Returns:
          Leaves `[...]` in the messages' types; nan if fewer are present than `least_present`.
        """
        raise NotImplementedError

    def least(self) -> Any:
        """Return the fewest messages that the rule needs: a number, traced if its settings are."""
        return 1

    def least_present(self) -> int:
        """Return the fewest messages that the rule needs, on the host, as a Python number.

        Of settings with several values, it is that of the value that needs most.
        """
        return int(np.max(np.asarray(self.least())))

    def knowing(self, dropped: Array) -> "Rule":
        """Return the rule that is left if some messages were seen to be malicious, and dropped.

        Args:
          dropped: `i32[]`, their number.

        Returns:
          The rule, which assumes so many fewer of the others to be malicious.
        """
        return self._with_inner(lambda rule: rule.knowing(dropped))

    def _with_inner(self, change: Callable[["Rule"], "Rule"]) -> "Rule":
        """The rule with changes of the rules that it is made of, if there are such."""
        return self

    def needs_own(self) -> Any:
        """Tell whether messages are compared with an update of the server's own.

        Returns:
          A bool, traced if the settings are; False itself if it is known that they are not.
        """
        return False

    def with_own(self, update: Params) -> "Rule":
        """Return the rule that compares messages with the server's own update.

        Args:
          update: Leaves `[...]`, shaped as a message.

        Returns:
          The rule.
        """
        return self._with_inner(lambda rule: rule.with_own(update))

    def roots(self) -> tuple["Rule", ...]:
        """Return the rules with settings of the examples on which the server trains."""
        return ()

    @property
    def chosen(self) -> "Rule":
        """The rule itself, or the one that it stands for. On the host."""
        return self

    def message_bits(self, compressor: Compressor, params: Params) -> int:
        """Count the bits of a message that the rule can read. On the host.

        Args:
          compressor: The compressor of messages.
          params: What is sent, leaves `[...]` or their shapes.
        """
        return count_message_bits(compressor, params)

    def unless_few(self, centre: Params, is_present: Array) -> Params:
        """Replace a centre by nan if fewer messages are present than the rule needs.

        Args:
          centre: Leaves `[...]`.
          is_present: `bool[S]`.

        Returns:
          Leaves `[...]`.
        """
        is_enough = is_present.sum() >= self.least()
        return jax.tree.map(lambda leaf: jnp.where(is_enough, leaf, jnp.nan), centre)


@struct
class Mean(Rule):
    """The weighted mean, of which any one message can make anything.

    It is the default of every system.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = Mean().centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, (1 + 2 + 90) / 3)
    """

    name: str = fixed("mean")
    weighs: ClassVar[bool] = True

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the mean with the weights of the tick."""
        return weighted_sum(weight, messages)


def checked_centre(
    rule: Rule, key: Key, messages: Params, weight: Array, is_present: Array
) -> Params:
    """Find a centre as `Rule.centre` does; nan if weights differ and the rule does not weigh.

    Whatever can be checked before compiling is: weights and numbers of messages that a step
    changes cannot.

    `messages`, `weight` and `is_present` are those of `Rule.centre`.

    Returns:
      Leaves `[...]`.
    """
    centre = rule.centre(key, messages, weight, is_present)
    if rule.weighs:
        return centre
    least = jnp.where(is_present, weight, jnp.inf).min()
    is_even = least >= (1 - 1e-5) * weight.max()
    return jax.tree.map(lambda leaf: jnp.where(is_even, leaf, jnp.nan).astype(leaf.dtype), centre)
