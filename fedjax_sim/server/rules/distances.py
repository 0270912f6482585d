"""Rules that choose messages by their distances: Krum, Multi-Krum and Bulyan.

Dimension letters: those of `core.types`; n messages present, of which f are assumed to be
malicious.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.batching import weighted_sum
from fedjax_sim.core.settings import Whole, fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.rules.base import Rule
from fedjax_sim.server.rules.ordering import by_coordinate, sort_slots


@struct
class Nearest(Rule):
    """The common base of rules that prefer messages with near neighbours.

    The score of a message is the sum of the squared distances to its n - f - 2 nearest neighbours
    (Blanchard et al. 2017, arXiv 1703.02757). Two messages that are each other's only neighbours
    have equal scores. The better of these is the message whose next neighbour is nearer, and then
    the one in the first slot.
    """

    assumed: Whole = setting(
        1, "Number of messages of a tick assumed to be malicious, f.", traced=True
    )

    def knowing(self, dropped: Array) -> Rule:
        """Assume so many fewer of the messages to be malicious, but no negative number."""
        assumed: Any = jnp.maximum(self.assumed - dropped, 0)
        return dataclasses.replace(self, assumed=assumed)

    def least(self) -> Any:
        """Return 2 f + 3, as 2 f + 2 < n is assumed."""
        return 2 * self.assumed + 3


@struct
class Krum(Nearest):
    """The message with the nearest neighbours (Blanchard et al. 2017, arXiv 1703.02757).

    Assumes that at most f messages are malicious, 2 f + 2 < n. The centre is one of the messages.
    From the nearest honest one it is at most sqrt((n - f - 2) / (n - 2 f - 2)) times as far as
    honest ones are from each other.

        hyper = fedavg.Hyper(aggregator=Krum(assumed=2))

        messages = jnp.array([[0.0], [1.0], [2.0], [4.0], [90.0]])
        weight, is_present = jnp.full(5, 1 / 5), jnp.ones(5, bool)
        assert Krum(assumed=1).centre(key, messages, weight, is_present) == 1.0  # 0 and 2 are near
    """

    name: str = fixed("krum")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return one message; neither key nor weights are used."""
        near = neighbours_of(messages, is_present)
        best = by_score(near, is_present, is_present.sum() - self.assumed - 2)[0]
        return self.unless_few(jax.tree.map(lambda leaf: leaf[best], messages), is_present)


@struct
class MultiKrum(Nearest):
    """The mean of the messages with the nearest neighbours (Blanchard et al. 2017).

    The messages with the m best scores are averaged. Assumes that at most f messages are malicious,
    2 f + 2 < n, and is robust for m up to n - f.

        messages = jnp.array([[0.0], [1.0], [2.0], [4.0], [90.0]])
        weight, is_present = jnp.full(5, 1 / 5), jnp.ones(5, bool)
        centre = MultiKrum(assumed=1).centre(key, messages, weight, is_present)
        assert centre == (0 + 1 + 2 + 4) / 4  # all but one
    """

    name: str = fixed("multi_krum")

    selected: Whole = setting(
        0,
        "Number of messages averaged, m. 0 leaves out as many as are assumed to be malicious, "
        "m = n - f.",
        traced=True,
    )

    def least(self) -> Any:
        """Return 2 f + 3, or the number of messages averaged if that is larger."""
        least = super().least()
        return least + (self.selected > least) * (self.selected - least)

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the mean of several messages; neither key nor weights are used."""
        present = is_present.sum()
        near = neighbours_of(messages, is_present)
        order = by_score(near, is_present, present - self.assumed - 2)
        number = jnp.where(self.selected > 0, self.selected, present - self.assumed)
        is_selected = jnp.argsort(order) < number
        share = is_selected / jnp.maximum(number, 1)
        return self.unless_few(weighted_sum(share, messages), is_present)


@struct
class Bulyan(Nearest):
    """A trimmed mean of messages that Krum selects (El Mhamdi et al. 2018, arXiv 1802.07927).

    Assumes that at most f messages are malicious, 4 f + 3 <= n. First, theta = n - 2 f messages are
    selected, one by one, by Krum on those that are left. In each coordinate, the centre is the mean
    of the theta - 2 f values closest to the median of the selected; of equally close values, the
    smaller is taken.

        assert Bulyan(assumed=2).least_present() == 4 * 2 + 3
        hyper = fedavg.Hyper(num_selected=20, aggregator=Bulyan(assumed=2))
    """

    name: str = fixed("bulyan")

    def least(self) -> Any:
        """Return 4 f + 3."""
        return 4 * self.assumed + 3

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the mean about the median of the selected; neither key nor weights are used."""
        # In a sweep, whole numbers are traced as floats.
        assumed = jnp.asarray(self.assumed).astype("int32")
        selected = is_present.sum() - 2 * assumed
        kept = jnp.maximum(selected - 2 * assumed, 1)
        is_selected = self._select(neighbours_of(messages, is_present), is_present, selected)
        row = jnp.arange(is_present.size)

        def mean(block: Array) -> Array:
            ordered = sort_slots(jnp.where(is_selected[:, None], block, jnp.inf))
            median = (ordered[(selected - 1) // 2] + ordered[selected // 2]) / 2
            # The closest values stand next to each other. From the smallest ones on, this window
            # moves up while the value that it takes in is closer than the one that it leaves.
            is_closer = jnp.roll(ordered, -kept, axis=0) - median[None] < median[None] - ordered
            first = jnp.sum(is_closer & (row < selected - kept)[:, None], axis=0)
            offset = row[:, None] - first[None]
            is_kept = (offset >= 0) & (offset < kept)
            return jnp.where(is_kept, ordered, 0).sum(axis=0) / kept.astype(block.dtype)

        centre = jax.tree.map(lambda leaf: by_coordinate(mean, leaf), messages)
        return self.unless_few(centre, is_present)

    def _select(self, near: "Neighbours", is_present: Array, number: Array) -> Array:
        """Select messages by Krum, one after another: `bool[S]`."""

        def select(turn: Array, is_left: Array) -> Array:
            # Deviation: Krum is asked to select from as few as 2 f + 1 messages, with which it has
            # f - 1 neighbours to count. It has at least one here, as with none all are equal.
            best = by_score(near, is_left, is_left.sum() - self.assumed - 2)[0]
            return is_left.at[best].set(is_left[best] & (turn >= number))

        is_left = jax.lax.fori_loop(0, is_present.size, select, is_present)
        return is_present & ~is_left


class Neighbours(NamedTuple):
    """All slots in the order of their distances from each slot.

    Attributes:
      slots: `i32[S, S]`. Row i has the nearest neighbours of slot i first. The slot itself and
        those in which nobody is present have infinite distances.
      distances: `f[S, S]`, the squared distances from slot i to the slots of row i.
    """

    slots: Array
    distances: Array


def neighbours_of(messages: Params, is_present: Array) -> Neighbours:
    """Order all slots by their distances from each slot.

    Args:
      messages: Leaves `[S, ...]`.
      is_present: `bool[S]`.

    Returns:
      The neighbours.
    """
    distances = squared_distances(messages, is_present)
    slots = jnp.argsort(distances, axis=1)
    return Neighbours(slots, jnp.take_along_axis(distances, slots, axis=1))


def by_score(near: Neighbours, is_left: Array, counted: Any) -> Array:
    """Order slots by Krum's scores.

    Args:
      near: The neighbours.
      is_left: `bool[S]`, slots that are ordered and counted as neighbours.
      counted: Number of neighbours that are counted; at least one is.

    Returns:
      `i32[S]`, the best slot first. Those that are not left are last.
    """
    counted = jnp.maximum(counted, 1)
    is_near = is_left[near.slots]
    rank = jnp.cumsum(is_near, axis=1)
    scores = jnp.where(is_near & (rank <= counted), near.distances, 0).sum(axis=1)
    following = jnp.where(is_near & (rank == counted + 1), near.distances, 0).sum(axis=1)
    return jnp.lexsort((following, scores, ~is_left))


def squared_distances(messages: Params, is_present: Array) -> Array:
    """Compute the squared distance between any two messages.

    They follow from inner products, so that no array is larger than the messages. In 32 bits
    rounding takes those that are about a thousandth of the messages' norms or less; which of such
    messages a rule chooses then matters as little.

    Args:
      messages: Leaves `[S, ...]`.
      is_present: `bool[S]`.

    Returns:
      `f[S, S]`, symmetric; infinite if it is too large for the type, between a message and itself,
      and where nobody is present.
    """
    flat = [wide_of(leaf.reshape(is_present.size, -1)) for leaf in jax.tree.leaves(messages)]
    products = functools.reduce(
        jnp.add, (jnp.matmul(leaf, leaf.T, precision="highest") for leaf in flat)
    )
    squares = jnp.diagonal(products)
    # Of a product of matrices, rounding need not be symmetric.
    distances = squares[:, None] + squares[None] - products - products.T
    is_pair = is_present[:, None] & is_present[None] & ~jnp.eye(is_present.size, dtype=bool)
    is_known = is_pair & jnp.isfinite(distances)
    return jnp.where(is_known, jnp.maximum(distances, 0), jnp.inf)


KINDS = (Krum, MultiKrum, Bulyan)
"""The rules of this file."""
