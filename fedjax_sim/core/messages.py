"""Messages between clients and server as the engine counts them: senders, bits, spent privacy."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from fedjax_sim.core.events import Leaf, Timeline
from fedjax_sim.core.problem import Params, Settings


def full_precision_bits(params: Params) -> int:
    """Count the bits of an uncompressed model. Leaves are arrays or `ShapeDtypeStruct`s.

    Args:
      params: A model, or only its shapes and types.
    """
    return sum(8 * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


class Messages:
    """The messages of a system: senders, bits, and spent privacy.

    A system whose clients send something else than whole models in full precision inherits from it
    and replaces some methods. All of them run on the host, before or after learning.

        class Halves(Messages):
            def bits(self, params, hyper):
                whole = full_precision_bits(params)
                return whole // 2, whole

        halved = fedavg.system._replace(messages=Halves())

    Attributes:
      relies_on: Settings from which the counts and facts follow only if the algorithm obeys them:
        full names, each with the value, or a setting of the kind, at which there is nothing to
        obey. With another one, an algorithm that does not name the setting in `supports` is
        refused: bits would be counted, and an epsilon stated, of what is not done.
    """

    relies_on: ClassVar[tuple[tuple[str, Any], ...]] = ()

    def replaces(self, *names: str) -> bool:
        """Whether a system replaces one of some methods. names: Their names."""
        return any(getattr(type(self), name) is not getattr(Messages, name) for name in names)

    def bits(self, params: Params, hyper: Settings) -> tuple[int, int]:
        """Count the bits of a client's message to the server, and of the server's to a client.

        They are sent for every filled slot.

        Args:
          params: A model, or its shapes and types.
          hyper: The settings.
        """
        return (full_precision_bits(params),) * 2

    def per_tick(
        self, problem: Any, hyper: Settings, timeline: Timeline
    ) -> tuple[Leaf, Leaf] | None:
        """Count the bits sent up and down at each tick, where they are not those of `bits`.

        Args:
          problem: The problem.
          hyper: The settings.
          timeline: One lane's schedule.

        Returns:
          `i64[T]` each; None if every filled slot is one message each way.
        """
        return None

    def by_client(self, problem: Any, hyper: Settings, timeline: Timeline) -> Leaf | None:
        """Count the bits that each client sends and receives at each tick.

        It is for systems that also send to clients which do not report. The energy of messages
        follows from it. The arguments are those of `per_tick`.

        Returns:
          `i64[T, N]`; None if those who report take equal shares of a tick's bits.
        """
        return None

    def further(self, problem: Any, hyper: Settings, timeline: Timeline) -> Mapping[str, Leaf]:
        """Count traffic that does not reach the server. The arguments are those of `per_tick`.

        Returns:
          Bits at each tick, `i64[T]`, by name of their coordinate in the curves.
        """
        return {}

    def facts(self, hyper: Settings, ticks: Leaf) -> Mapping[str, Leaf]:
        """Compute further coordinates of a lane's curves, such as the epsilon spent.

        Args:
          hyper: The settings.
          ticks: `i64[V + 1]`, ticks before each evaluation.

        Returns:
          `f64[V + 1]` by name.
        """
        return {}

    def facts_of_schedule(
        self, hyper: Settings, timeline: Timeline, ticks: Leaf
    ) -> Mapping[str, Leaf]:
        """Compute coordinates that follow from who takes part when.

        The arguments are those of `per_tick` and `facts`.

        Returns:
          As `facts`. The names follow from the settings alone.
        """
        return {}

    def num_senders(self, hyper: Settings) -> int | None:
        """Count the senders that slots of a timeline can name; None for the problem's clients."""
        return None

    def check(self, hyper: Settings, timeline: Timeline) -> None:
        """Check before compiling that the server can do with the messages of every tick.

        It looks at each tick alone.

        Args:
          hyper: The settings.
          timeline: Ticks of one lane's schedule, or of several.

        Raises:
          ConfigError: If a tick has too few messages, say.
        """
