"""Rules that treat each coordinate alone: median, trimmed mean and majority vote of signs.

Dimension letters: those of `fedjax_sim.core.types`; `C` coordinates of a block, n messages present.
"""

import functools
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.settings import ConfigError, Limit, fixed, setting, struct
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.rules import ordering
from fedjax_sim.server.rules.base import Rule

ROUNDING = 1e-4
"""By how much a share times n may miss a whole number, which it is then taken for."""


@struct
class Median(Rule):
    """The weighted median of each coordinate (Yin et al. 2018, arXiv 1803.01498).

    With less than half of the weight malicious, each coordinate lies between the smallest and the
    largest honest one. With equal weights it is the ordinary median, of an even number the mean of
    the two in the middle.

        hyper = fedavg.Hyper(aggregator=Median())

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        assert Median().centre(key, messages, weight, is_present) == 2.0
    """

    name: str = fixed("median")
    weighs: ClassVar[bool] = True

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the weighted median of each coordinate; the key is not used."""
        find = lambda block: ordering.weighted_median(block, weight)  # noqa: E731
        return jax.tree.map(lambda leaf: ordering.by_coordinate(find, leaf), messages)


@struct
class TrimmedMean(Rule):
    """The mean without the extremes (Yin et al. 2018, arXiv 1803.01498).

    In each coordinate, the b smallest and the b largest values are left out, b = floor(share n).
    With at most b malicious messages, each coordinate lies between the smallest and the largest
    honest one.

        hyper = fedavg.Hyper(aggregator=TrimmedMean(share=0.2))

        messages = jnp.array([[1.0], [2.0], [4.0], [90.0]])
        weight, is_present = jnp.full(4, 1 / 4), jnp.ones(4, bool)
        centre = TrimmedMean(share=0.25).centre(key, messages, weight, is_present)
        assert centre == (2 + 4) / 2
    """

    name: str = fixed("trimmed_mean")

    share: Annotated[float, Limit(least=0, most=0.5)] = setting(
        0.1, "Share of the messages left out on each side, beta; below 0.5."
    )

    def check_together(self) -> None:
        """Check that something is left.

        Raises:
          ConfigError: If it is not so.
        """
        super().check_together()
        if np.any(np.asarray(self.share) >= 0.5):
            raise ConfigError("share", self.share, "at least 0 and below 0.5")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the mean of the values in the middle; neither key nor weights are used."""
        present = is_present.sum()
        # 0.29 * 100 is 28.999999999999996.
        left_out = jnp.floor(self.share * present + ROUNDING).astype(present.dtype)
        left_out = jnp.minimum(left_out, (present - 1) // 2)
        row = jnp.arange(is_present.size)
        is_kept = (row >= left_out) & (row < present - left_out)

        def mean(block: Array) -> Array:
            ordered = ordering.sort_slots(jnp.where(is_present[:, None], block, jnp.inf))
            # Extremes are not subtracted from a sum: after 1e30, nothing would be left of it.
            kept = jnp.where(is_kept[:, None], ordered, 0)
            return kept.sum(axis=0) / (present - 2 * left_out).astype(block.dtype)

        return jax.tree.map(lambda leaf: ordering.by_coordinate(mean, leaf), messages)


@struct
class SignMajority(Rule):
    """The majority vote of signs (Bernstein et al. 2019, arXiv 1810.05291).

    Each coordinate's sign is that of most weight, 0 if the vote is tied.

    Deviation: the paper moves each coordinate by the learning rate. A centre has a length, which is
    found from the magnitudes of the messages by a weighted median, so that less than half of the
    weight cannot make it larger than an honest one. By default each coordinate has its own
    magnitude, so that of equal messages the centre is that message. With scale=vector all
    coordinates have the same magnitude, as in the paper: the median of the messages' mean
    magnitudes. Of equal messages, the centre is then that message as the compressor
    `fedjax_sim.server.compression.ScaledSign` would send it.

        messages = jnp.array([[1.0], [2.0], [-90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        assert SignMajority().centre(key, messages, weight, is_present) == 2.0  # of 1, 2 and 90
    """

    name: str = fixed("sign_majority")
    weighs: ClassVar[bool] = True

    scale: Literal["coordinate", "vector"] = setting(
        "coordinate", "What has a magnitude of its own: each coordinate, or the whole vector."
    )

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the majority's signs times a magnitude; the key is not used."""
        rounding = 2 * weight.size * jnp.finfo(weight.dtype).eps * weight.sum()

        def sign(block: Array) -> Array:
            exact = jnp.promote_types(weight.dtype, block.dtype)
            votes = jnp.sign(block).astype(exact)
            vote = jnp.tensordot(weight.astype(exact), votes, 1, precision="highest")
            return jnp.where(jnp.abs(vote) > rounding, jnp.sign(vote), 0).astype(block.dtype)

        if self.scale == "coordinate":
            find = lambda block: sign(block) * ordering.weighted_median(jnp.abs(block), weight)  # noqa: E731
            return jax.tree.map(lambda leaf: ordering.by_coordinate(find, leaf), messages)
        leaves = [wide_of(leaf.reshape(weight.size, -1)) for leaf in jax.tree.leaves(messages)]
        size = sum(leaf.shape[1] for leaf in leaves)
        parts = (jnp.abs(leaf / size).sum(axis=1) for leaf in leaves)
        magnitude = ordering.weighted_median(functools.reduce(jnp.add, parts), weight)
        scaled = lambda block: sign(block) * magnitude.astype(block.dtype)  # noqa: E731
        return jax.tree.map(lambda leaf: ordering.by_coordinate(scaled, leaf), messages)


KINDS = (Median, TrimmedMean, SignMajority)
"""The rules of this file."""
