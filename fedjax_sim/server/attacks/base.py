"""The interface of attacks, and honest clients.

Dimension letters: those of `fedjax_sim.types`.
"""

from typing import NamedTuple

from fedjax_sim.settings import Checked, fixed, struct, write_kind
from fedjax_sim.types import Array, Key, Params


class Cohort(NamedTuple):
    """The slots of a tick as attackers see them.

    Attributes:
      clients: `i32[S]`.
      is_malicious: `bool[S]`, slots of attackers that are at work.
      is_present: `bool[S]`, slots in which somebody reports, attackers included.
      weight: `f[S]`, weights that the server gives the slots; 0 where nobody is present.
    """

    clients: Array
    is_malicious: Array
    is_present: Array
    weight: Array


class Attack(Checked):
    """The interface of attacks on messages: what malicious clients send instead of their progress.

    Attributes:
      name: Name on the command line.
    """

    name: str

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

    def __str__(self) -> str:
        """Write the attack as `parse_attack` reads it: name and non-default values."""
        return write_kind(self)


@struct
class Honest(Attack):
    """Nobody sends anything else than what was learnt."""

    name: str = fixed("none")

    def forge(self, key: Key, messages: Params, cohort: Cohort) -> Params:
        """Return the messages."""
        return messages
