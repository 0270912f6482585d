"""Rules of aggregation: from the messages of a tick to one centre.

A rule is a random map from the messages of the clients that are present, with weights, to a centre.
The server moves by the sum of the weights times the centre. Robust rules bound what a few malicious
clients, who may send anything, can do to it. Rules are frozen structs whose numbers are traced
leaves: rules of one kind with equal sizes share a compiled program.

| rule                 | paper                                     | weighs   | withstands      |
|----------------------|-------------------------------------------|----------|-----------------|
| `mean`               |                                           | yes      | none            |
| `median`             | Yin et al. 2018, arXiv 1803.01498         | yes      | less than half  |
| `trimmed_mean`       | Yin et al. 2018, arXiv 1803.01498         | no       | floor(share n)  |
| `sign_majority`      | Bernstein et al. 2019, arXiv 1810.05291   | yes      | less than half  |
| `geometric_median`   | Pillutla et al. 2022, arXiv 1912.13445    | yes      | less than half  |
| `centred_clipping`   | Karimireddy et al. 2021, arXiv 2012.10333 | yes      | see radius      |
| `norm_bound`         | Sun et al. 2019, arXiv 1911.07963         | yes      | see bound       |
| `krum`, `multi_krum` | Blanchard et al. 2017, arXiv 1703.02757   | no       | f, n >= 2 f + 3 |
| `bulyan`             | El Mhamdi et al. 2018, arXiv 1802.07927   | no       | f, n >= 4 f + 3 |
| `fltrust`            | Cao et al. 2021, arXiv 2012.13995         | yes      | see below       |
| `secure_sum`         | Bonawitz et al. 2017, arXiv 1611.04482    | yes      | none            |
| `bucketing`          | Karimireddy et al. 2022, arXiv 2006.09365 | as inner | as inner        |

A rule that weighs withstands malicious clients with less than half of the weight, instead of less
than half of the clients. Under norm bounds, a message moves the centre by at most its share of the
weight times the bound, and under centred clipping by at most its share times the radius in each
iteration. Buckets withstand as many malicious clients as their rule withstands malicious buckets.
FLTrust withstands any number, as far as the server's own update shows the way: the centre is no
longer than that update, and never points against it.

The mean needs the sum of the messages only; all other rules hold the messages of all S slots at
once, S times a model. The mean, centred clipping and norm bounds read them in place; rules that
sort make a second copy, and so do buckets of their means.

A rule computes in at least 32 bits. Where fewer clients are present than it needs
(`Rule.least_present`), its centre is nan.

Dimension letters: those of `fedjax_sim.core.types`; `C` coordinates of a block, `B` buckets,
n messages present, of which f are assumed to be malicious.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.clients.rows import along
from fedjax_sim.core import batching, settings
from fedjax_sim.core.settings import Above0, Count, Limit, Named, Whole, fixed, setting, struct
from fedjax_sim.core.types import EMPTY, Array, Key, Params, Settings, Timeline
from fedjax_sim.kernels.rounding import divisor, root, wide_of
from fedjax_sim.server import compression, ordering

__all__ = ["RULES", "Bucketing", "Bulyan", "CentredClipping", "FLTrust", "GeometricMedian", "Krum"]
__all__ += ["Mean", "Median", "MultiKrum", "NormBound", "OneOf", "Rule", "SecureSum"]
__all__ += ["SignMajority", "TrimmedMean", "parse_rule", "rules_of_one_program"]


class Rule(settings.Kind):
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

    def least(self) -> compression.Number:
        """Return the fewest messages that the rule needs: a number, traced if its settings are."""
        return 1

    def least_present(self) -> int:
        """Return the fewest messages that the rule needs, on the host, as a Python number.

        Of settings with several values, it is that of the value that needs most.
        """
        return int(np.max(np.asarray(self.least())))

    def check_heard(self, name: str, heard: np.ndarray) -> None:
        """Check that the rule can do with numbers of messages. On the host.

        Args:
          name: Full name of its setting.
          heard: The numbers, `i64[...]`; 0 where nothing happens.

        Raises:
          ConfigError: If it needs more.
        """
        least = self.least_present()
        fewest = heard[heard > 0].min(initial=least)
        if fewest < least:
            allowed = (
                f"a rule that can do with {fewest} messages, as few as a tick has; it needs {least}"
            )
            raise settings.ConfigError(name, str(self), allowed)

    def check_ticks(
        self,
        hyper: Settings,
        name: str,
        timeline: Timeline,
        *,
        most: int | None = None,
        has_weights: bool = True,
    ) -> None:
        """Check that ticks have messages enough, of equal weights unless it weighs. On the host.

            four_reports, hyper = run.timelines[0], fedavg.Hyper()
            Krum(assumed=0).check_ticks(hyper, "aggregator", four_reports)  # needs three

        Args:
          name: Full name of its setting.
          timeline: Ticks of one lane's schedule, or of several.
          most: The most messages of a tick, if not all clients that take part send one.
          has_weights: Whether the weights of the schedule are those of the messages.

        Raises:
          ConfigError: If a tick has too few messages, or weights differ.
        """
        is_present = timeline.clients != EMPTY
        heard = is_present.sum(axis=1)
        self.check_heard(name, np.minimum(heard, most) if most else heard)
        if self.weighs or not has_weights:
            return
        largest = np.where(is_present, timeline.weight, -np.inf).max(axis=1, initial=-np.inf)
        least = np.where(is_present, timeline.weight, np.inf).min(axis=1, initial=np.inf)
        differs = least < (1 - 1e-6) * largest
        if differs.any():
            tick = int(np.argmax(differs))
            weights = f"weights from {least[tick]:.3g} to {largest[tick]:.3g}"
            allowed = f"one that weighs messages, because those of tick {tick} have {weights}"
            if "staleness.rule" in settings.fields(type(hyper)) and hyper.staleness.rule != "mean":
                allowed += ' (with staleness.rule = "mean" they are equal)'
            raise settings.ConfigError(name, str(self), allowed)

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

    def needs_own(self) -> Array | bool:
        """Tell whether messages are compared with an update of the server's own.

        Returns:
          A bool, traced if the settings are; False itself if it is known that they are not.
        """
        return bool(self.roots())

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

    def message_bits(self, compressor: compression.Compressor, params: Params) -> int:
        """Count the bits of a message that the rule can read. On the host.

        Args:
          compressor: The compressor of messages.
          params: What is sent, leaves `[...]` or their shapes.
        """
        return compression.count_message_bits(compressor, params)


@struct
class Mean(Rule):
    """The weighted mean, which a single message can move anywhere.

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
        return batching.weighted_sum(weight, messages)


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

    share: Annotated[float, Limit(least=0, below=0.5)] = setting(
        0.1, "Share of the messages left out on each side, beta; below 0.5."
    )

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


@struct
class GeometricMedian(Rule):
    """The point with the least weighted sum of distances (Pillutla et al. 2022, arXiv 1912.13445).

    The smoothed Weiszfeld algorithm: v <- sum_i b_i x_i / sum_i b_i, b_i = w_i / max(nu,
    ||v - x_i||). With a share a of the weight malicious, a < 1/2, the geometric median is at most
    2 (1 - a) / (1 - 2 a) times as far from any point as the farthest honest message is.

    Deviation: v starts at the weighted median of each coordinate instead of the weighted mean, from
    which a message of 1e30 would leave no digit of the others, and few iterations are enough.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = GeometricMedian().centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, 2.0, rtol=1e-3)  # on a line, it is the median
    """

    name: str = fixed("geometric_median")
    weighs: ClassVar[bool] = True

    iterations: Count = setting(3, "Number of Weiszfeld iterations, R.")
    smoothing: Above0 = setting(1e-6, "Distance below which a message does not weigh more, nu.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return an approximate geometric median; the key is not used."""
        wide = jax.tree.map(wide_of, messages)

        def improve(_: Array, point: Params) -> Params:
            pull = weight / jnp.maximum(distances_to(point, wide), self.smoothing)
            return batching.weighted_sum(pull / pull.sum(), wide)

        start = Median().centre(key, wide, weight, is_present)
        centre = jax.lax.fori_loop(0, self.iterations, improve, start)
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), centre, messages)


@struct
class CentredClipping(Rule):
    """Steps towards the messages, of bounded length (Karimireddy et al. 2021, arXiv 2012.10333).

    v <- v + sum_i w_i (x_i - v) min(1, tau / ||x_i - v||), with weights that sum to 1.
    Each message moves the centre by at most its weight times tau in an iteration. Of equal
    messages, the centre is that message if it is not longer than tau times the iterations;
    otherwise it is shortened to this length.

    Deviation: in the paper, v starts at the last tick's centre, and clients send momenta, so that
    this is close to the next messages. Here v starts at 0, that is at the server's model, and the
    rule remembers nothing.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = CentredClipping(radius=3.0).centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, (1 + 2 + 3) / 3)  # a step of 3 towards 90
    """

    name: str = fixed("centred_clipping")
    weighs: ClassVar[bool] = True

    radius: Above0 = setting(1.0, "Largest step towards a message, tau.")
    iterations: Count = setting(1, "Number of iterations, L.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the centre after all iterations; the key is not used."""
        wide = jax.tree.map(wide_of, messages)
        share = weight / weight.sum()

        def step(_: Array, point: Params) -> Params:
            pull = share * shortening(distances_to(point, wide), self.radius)
            stays = 1 - pull.sum()
            kept = jax.tree.map(lambda leaf: (stays * leaf).astype(leaf.dtype), point)
            return jax.tree.map(jnp.add, batching.weighted_sum(pull, wide), kept)

        start = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), wide)
        centre = jax.lax.fori_loop(0, self.iterations, step, start)
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), centre, messages)


@struct
class NormBound(Rule):
    """The weighted mean of messages of bounded norm (Sun et al. 2019, arXiv 1911.07963).

    Each message moves the centre by at most its weight's share times the bound. Of equal messages,
    the centre is that message, shortened to the bound if it is longer.

        messages = jnp.array([[1.0], [2.0], [90.0]])
        weight, is_present = jnp.full(3, 1 / 3), jnp.ones(3, bool)
        centre = NormBound(bound=3.0).centre(key, messages, weight, is_present)
        assert jnp.allclose(centre, (1 + 2 + 3) / 3)
    """

    name: str = fixed("norm_bound")
    weighs: ClassVar[bool] = True

    bound: Above0 = setting(1.0, "Largest L2 norm of a message, M.")

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the weighted mean of shortened messages; the key is not used."""
        origin = jax.tree.map(lambda leaf: jnp.zeros_like(wide_of(leaf[0])), messages)
        pull = shortening(distances_to(origin, messages), self.bound)
        return batching.weighted_sum(weight / weight.sum() * pull, messages)


def shortening(norms: Array, most: compression.Number) -> Array:
    """Compute the factors that shorten vectors to at most a norm: min(1, most / norm).

    Args:
      norms: `f[S]`.
      most: The largest norm.

    Returns:
      `f[S]`, 1 for vectors that are short enough.
    """
    return jnp.where(norms > most, most / divisor(norms), 1)


def distances_to(point: Params, messages: Params) -> Array:
    """Compute the distance of each message from a point.

    It is exact, up to rounding, even where its square is too large for the type.

    Args:
      point: Leaves `f[...]`.
      messages: Leaves `[S, ...]`.

    Returns:
      `f[S]`; infinite where the distance itself is too large for the type.
    """

    norms = jax.tree.map(_leaf_distances, messages, point)
    parts = jnp.stack(jnp.broadcast_arrays(*jax.tree.leaves(norms)))
    largest = parts.max(axis=0)
    ratios = parts / divisor(largest)[None]
    return jnp.where(jnp.isfinite(largest), largest * root(jnp.square(ratios).sum(axis=0)), jnp.inf)


def _leaf_distances(leaf: Array, start: Array) -> Array:
    """Compute distances in one leaf: `f[S]`."""
    wide, axes = wide_of(leaf), tuple(range(1, leaf.ndim))
    # Squares of numbers times this power of two are never too large.
    small = 2.0 ** -(jnp.finfo(wide.dtype).maxexp * 5 // 8)
    plain = jnp.square(wide - start[None]).sum(axis=axes)
    scaled = jnp.square(wide * small - (start * small)[None]).sum(axis=axes)
    fits = jnp.isfinite(plain)
    return root(jnp.where(fits, plain, scaled)) / jnp.where(fits, 1, small)


@struct
class FLTrust(Rule):
    """The mean of the messages that agree with the server's own update (Cao et al. 2021, NDSS).

    The server has a few examples, the root data, and trains on them as clients do, which gives an
    update g_0 (arXiv 2012.13995). The trust in a message is the positive part of the
    cosine of its angle to g_0. Messages get the length of g_0, and the centre is their mean with
    the trust as weight. It is 0 if nobody is trusted. Of equal messages, the centre is that message
    with the length of g_0.

    Deviation: the paper has no weights. Here trust is multiplied by the weights of the tick, which
    with equal weights is the paper's rule.

    See `fedjax_sim.server.reports` for how the server trains.

        rule = FLTrust(examples=50).with_own(jnp.array([2.0, 0.0]))  # the server's own update
        messages = jnp.array([[5.0, 0.0], [-90.0, 0.0], [0.0, 7.0]])
        centre = rule.centre(key, messages, jnp.full(3, 1 / 3), jnp.ones(3, bool))
        assert jnp.allclose(centre, jnp.array([2.0, 0.0]))  # only the first points the same way
    """

    name: str = fixed("fltrust")
    weighs: ClassVar[bool] = True

    examples: Count = setting(
        100, "Examples of the root data, drawn once for each seed; at most all that there are."
    )
    owners: tuple[Whole, ...] = settings.clients_named(
        "Numbers of the clients among whose examples the root data are drawn, instead of all. Of a "
        "poisoned problem, name clients whose examples are clean."
    )
    own: Params = settings.filled()

    def with_own(self, update: Params) -> Rule:
        """Return the rule that compares messages with this update."""
        return dataclasses.replace(self, own=update)

    def roots(self) -> tuple["FLTrust", ...]:
        """Return the rule itself."""
        return (self,)

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return the trusted mean; the key is not used."""
        own = jax.tree.map(wide_of, self.own)
        origin = jax.tree.map(jnp.zeros_like, own)
        norms = distances_to(origin, messages)
        [length] = distances_to(origin, jax.tree.map(lambda leaf: leaf[None], own))

        def products(leaf: Array, own: Array) -> Array:
            # With a vector of length 1 they are no larger than the norms.
            unit = own / divisor(length).astype(own.dtype)
            flat = wide_of(leaf).reshape(leaf.shape[0], -1)
            return jnp.matmul(flat, unit.ravel(), precision="highest")

        along = functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(products, messages, own)))
        # Messages whose norm is too large for the type have no trust.
        cosines = jnp.where(jnp.isfinite(norms), along / divisor(norms), 0)
        trust = jnp.maximum(cosines, 0) * weight
        pull = trust / divisor(trust.sum()) * length / divisor(norms)
        return batching.weighted_sum(pull, messages)


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

    def least(self) -> compression.Number:
        """Return 2 f + 3, as 2 f + 2 < n is assumed."""
        return 2 * self.assumed + 3

    def centre(self, key: Key, messages: Params, weight: Array, is_present: Array) -> Params:
        """Return a centre by neighbours, nan if there are too few; key and weights are not used."""
        distances = squared_distances(messages, is_present)
        slots = jnp.argsort(distances, axis=1)
        near = Neighbours(slots, jnp.take_along_axis(distances, slots, axis=1))
        centre = self._of(messages, near, is_present)
        is_enough = is_present.sum() >= self.least()
        return jax.tree.map(lambda leaf: jnp.where(is_enough, leaf, jnp.nan), centre)

    def _of(self, messages: Params, near: "Neighbours", is_present: Array) -> Params:
        """Find the centre of messages with these neighbours, as `centre` does."""
        raise NotImplementedError


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

    def _of(self, messages: Params, near: "Neighbours", is_present: Array) -> Params:
        """Return one message."""
        best = near.by_score(is_present, is_present.sum() - self.assumed - 2)[0]
        return jax.tree.map(lambda leaf: leaf[best], messages)


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

    def least(self) -> compression.Number:
        """Return 2 f + 3, or the number of messages averaged if that is larger."""
        least = super().least()
        return least + (self.selected > least) * (self.selected - least)

    def _of(self, messages: Params, near: "Neighbours", is_present: Array) -> Params:
        """Return the mean of several messages."""
        present = is_present.sum()
        order = near.by_score(is_present, present - self.assumed - 2)
        number = jnp.where(self.selected > 0, self.selected, present - self.assumed)
        is_selected = jnp.argsort(order) < number
        return batching.weighted_sum(is_selected / jnp.maximum(number, 1), messages)


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

    def least(self) -> compression.Number:
        """Return 4 f + 3."""
        return 4 * self.assumed + 3

    def _of(self, messages: Params, near: "Neighbours", is_present: Array) -> Params:
        """Return the mean about the median of the selected."""
        # In a sweep, whole numbers are traced as floats.
        assumed = jnp.asarray(self.assumed).astype("int32")
        selected = is_present.sum() - 2 * assumed
        kept = jnp.maximum(selected - 2 * assumed, 1)
        is_selected = self._select(near, is_present, selected)
        row = jnp.arange(is_present.size)

        def mean(block: Array) -> Array:
            ordered = ordering.sort_slots(jnp.where(is_selected[:, None], block, jnp.inf))
            median = (ordered[(selected - 1) // 2] + ordered[selected // 2]) / 2
            # The closest values stand next to each other. From the smallest ones on, this window
            # moves up while the value that it takes in is closer than the one that it leaves.
            is_closer = jnp.roll(ordered, -kept, axis=0) - median[None] < median[None] - ordered
            first = jnp.sum(is_closer & (row < selected - kept)[:, None], axis=0)
            offset = row[:, None] - first[None]
            is_kept = (offset >= 0) & (offset < kept)
            return jnp.where(is_kept, ordered, 0).sum(axis=0) / kept.astype(block.dtype)

        return jax.tree.map(lambda leaf: ordering.by_coordinate(mean, leaf), messages)

    def _select(self, near: "Neighbours", is_present: Array, number: Array) -> Array:
        """Select messages by Krum, one after another: `bool[S]`."""

        def select(turn: Array, is_left: Array) -> Array:
            # Deviation: Krum is asked to select from as few as 2 f + 1 messages, with which it has
            # f - 1 neighbours to count. It has at least one here, as with none all are equal.
            best = near.by_score(is_left, is_left.sum() - self.assumed - 2)[0]
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

    def by_score(self, is_left: Array, counted: compression.Number) -> Array:
        """Order slots by Krum's scores.

        Args:
          is_left: `bool[S]`, slots that are ordered and counted as neighbours.
          counted: Number of neighbours that are counted; at least one is.

        Returns:
          `i32[S]`, the best slot first. Those that are not left are last.
        """
        counted = jnp.maximum(counted, 1)
        is_near = is_left[self.slots]
        rank = jnp.cumsum(is_near, axis=1)
        scores = jnp.where(is_near & (rank <= counted), self.distances, 0).sum(axis=1)
        following = jnp.where(is_near & (rank == counted + 1), self.distances, 0).sum(axis=1)
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
    parts = [jnp.matmul(leaf, leaf.T, precision="highest") for leaf in flat]
    products = functools.reduce(jnp.add, parts)
    squares = jnp.diagonal(products)
    # Of a product of matrices, rounding need not be symmetric.
    distances = squares[:, None] + squares[None] - products - products.T
    is_pair = is_present[:, None] & is_present[None] & ~jnp.eye(is_present.size, dtype=bool)
    is_known = is_pair & jnp.isfinite(distances)
    return jnp.where(is_known, jnp.maximum(distances, 0), jnp.inf)


INNER: Named[type[Rule]] = Named.of(
    "rule other than bucketing",
    *(Mean, Median, TrimmedMean, SignMajority, GeometricMedian, CentredClipping, NormBound),
    *(Krum, MultiKrum, Bulyan, FLTrust),
    example="trimmed_mean:share=0.2",
)
"""Every kind of rule that buckets can be given to, by name."""


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
        parse=functools.partial(settings.parse_kind, "inner", INNER),
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
            raise settings.ConfigError("inner", str(self.inner), "a rule of " + ", ".join(INNER))

    def _with_inner(self, change: Callable[[Rule], Rule]) -> Rule:
        return dataclasses.replace(self, inner=change(self.inner))

    def roots(self) -> tuple[Rule, ...]:
        """Return the `roots` of the inner rule."""
        return self.inner.roots()

    def least(self) -> compression.Number:
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
        means = jax.vmap(batching.weighted_sum, (0, None))(shares, jax.tree.map(wide_of, messages))
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
class OneOf(settings.OneOfSeveral, Rule):
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
        return jax.lax.switch(self.number, branches, key, messages, weight, is_present)

    def _with_inner(self, change: Callable[[Rule], Rule]) -> Rule:
        return dataclasses.replace(self, options=tuple(map(change, self.options)))

    def needs_own(self) -> Array | bool:
        """Tell whether the chosen rule needs the server's own update; False itself if none does."""
        needs = [rule.needs_own() for rule in self.options]
        if len(set(needs)) == 1:
            return needs[0]
        return jnp.asarray(needs)[self.number]

    def roots(self) -> tuple[Rule, ...]:
        """Return the `roots` of all its rules."""
        return tuple(root for rule in self.options for root in rule.roots())

    def least(self) -> compression.Number:
        """Fewest messages of the chosen rule."""
        return jnp.stack([jnp.asarray(rule.least(), "int32") for rule in self.options])[self.number]

    def least_present(self) -> int:
        """Fewest messages of the chosen rule."""
        return self.chosen.least_present()


@struct
class SecureSum(Rule):
    """The mean as secure aggregation computes it (Bonawitz et al. 2017, arXiv 1611.04482).

    A client multiplies its progress by its share of the weight of those who report, rounds each
    number at random to a multiple of `step`, without bias, and sends it modulo 2^b. The server only
    learns the sum modulo 2^b, which it takes for a number between -2^(b-1) and 2^(b-1) steps, and
    multiplies by the sum of the weights if that is not 1. If the sum of one number is not among
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
        share = along(weight.astype(wide.dtype), wide)
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

    def message_bits(self, compressor: compression.Compressor, params: Params) -> int:
        """Count b bits for each number."""
        return int(self.width) * compression.count_parameters(params)


RULES: Named[type[Rule]] = Named(
    "rule",
    {**INNER, **{kind.name: kind for kind in (Bucketing, SecureSum, OneOf)}},
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
