"""How clients' updates are clipped and noised, by the names of the command line, and the noise."""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedjax_sim.core import batching, settings, streams
from fedjax_sim.core.settings import ConfigError, Kind, Named, fixed, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Count, Limit, Probability, Whole
from fedjax_sim.core.types import Array, Event, Key, Params
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.privacy.participation import square_root_bands


class OfNoise(Kind):
    """The common base of kinds that may have the setting `noise`."""

    @property
    def has_noise(self) -> bool:
        """Whether there is noise, so that there is an epsilon. Not for traced settings."""
        return bool(np.any(np.asarray(getattr(self, "noise", 0.0)) > 0))


class Privacy(OfNoise):
    """The common base of the kinds. See `fedjax_sim.server.stages.PrivateSum` for their use."""

    def first_memory(self, update: Params) -> Params:
        """Return the first memory; () if nothing is remembered.

        Args:
          update: An update, leaves `[...]`, for its shapes and types.
        """
        return ()

    def update_noise(self, cohort: int) -> Any:
        """Compute the noise multiplier of the sum of updates; `cohort` is the expected size."""
        return self.noise  # type: ignore[attr-defined]

    def remember(
        self, key: Key, event: Event, memory: Params, noise: Params, is_short: Array, cohort: int
    ) -> tuple[Params, Params]:
        """Return the noise of a tick, leaves `[...]`, and the memory after it.

        Args:
          key: The lane's learning key.
          event: The tick.
          memory: The memory before.
          noise: Independent noise, leaves `[...]`.
          is_short: `bool[S]`, updates that needed no clipping.
          cohort: Expected number of reports, m.
        """
        return noise, memory


@struct
class NoPrivacy(Privacy):
    """Neither clipping nor noise."""

    name: str = fixed("none")


@struct
class Clipping(Privacy):
    """The common base of the kinds that clip: the noise on the sum, and its accounting."""

    noise: AtLeast0 = setting(
        0.0,
        "Noise multiplier z: standard deviation of the noise in each number of the updates' sum, "
        "in units of the bound of their norms. 0 only clips.",
    )
    delta: Annotated[float, Limit(above=0, most=0.5)] = setting(
        1e-6, "Probability delta with which the guarantee may fail."
    )
    accountant: Literal["rdp", "pld"] = setting(
        "rdp",
        "How epsilon is computed: from Renyi divergences, or from privacy loss distributions, "
        "which are tighter and cover Poisson sampling only.",
    )
    epsilon: AtLeast0 = setting(
        0.0,
        "If above 0, the noise multiplier is found with which `rounds` rounds have this epsilon.",
    )
    rounds: Whole = setting(0, "Number of rounds in which `epsilon` may be spent.")

    def check_together(self) -> None:
        """Check that a target has a number of rounds, and no noise multiplier.

        Raises:
          ConfigError: If it is not so.
        """
        super().check_together()
        has_target = bool(np.all(np.asarray(self.epsilon) > 0))
        if has_target and not self.rounds:
            raise ConfigError("rounds", self.rounds, "at least 1 with a target epsilon")
        if has_target and bool(np.any(np.asarray(self.noise) > 0)):
            raise ConfigError("noise", self.noise, "left at 0 with a target epsilon")

    @property
    def has_noise(self) -> bool:
        """Whether there is noise, given or to be found. Not for traced settings."""
        return super().has_noise or bool(np.any(np.asarray(self.epsilon) > 0))


@struct
class FixedClipping(Clipping):
    """Updates are clipped to a fixed norm (McMahan et al. 2018, arXiv 1710.06963).

    It is a value of the setting `privacy`.

        private = FixedClipping(clip=0.5, noise=1.0, delta=1e-5)
        hyper = fedavg.Hyper(privacy=private, sampling="reshuffled")
    """

    name: str = fixed("fixed")

    clip: Above0 = setting(1.0, "Largest L2 norm of a client's update, C.")


@struct
class AdaptiveClipping(Clipping):
    """The bound follows a quantile of the norms (Andrew et al. 2021, arXiv 1905.03871).

    C <- C exp(-eta_C (b - gamma)), where b is the share of updates that need no
    clipping, with noise. The noise multiplier z is that of both sums together. The sum of updates
    has the multiplier (z^-2 - (2 sigma_b)^-2)^(-1/2), where sigma_b is the standard deviation of
    the noise on the number of updates that need no clipping (Theorem 1).

        median_norm = AdaptiveClipping(clip=0.1, quantile=0.5, noise=1.0)
        hyper = fedavg.Hyper(num_selected=20, privacy=median_norm, sampling="reshuffled")
    """

    name: str = fixed("adaptive")

    clip: Above0 = setting(0.1, "First bound of the norms, C.")
    quantile: Probability = setting(0.5, "Share of updates that shall need no clipping, gamma.")
    rate: AtLeast0 = setting(0.2, "Learning rate of the bound, eta_C.")
    count_noise: Above0 = setting(
        0.05,
        "Standard deviation sigma_b of the noise on the number of updates that need no clipping, "
        "as a share of the cohort. Has no effect if `noise` is 0.",
    )

    def update_noise(self, cohort: int) -> Array:
        """Compute the noise multiplier of the sum of updates: `f[]`.

        Args:
          cohort: Expected number of clients in a round.
        """
        is_noisy = self.noise > 0
        z = jnp.where(is_noisy, self.noise, 1)
        return jnp.where(is_noisy, (z**-2 - (2 * self.count_noise * cohort) ** -2) ** -0.5, 0)

    def first_memory(self, update: Params) -> Array:
        """Return the first bound, `f[]`.

        The arguments are those of `Privacy.first_memory`.
        """
        precision = jnp.result_type(jnp.float32, *jax.tree.leaves(update))
        return jnp.asarray(self.clip, precision)

    def remember(
        self, key: Key, event: Event, memory: Params, noise: Params, is_short: Array, cohort: int
    ) -> tuple[Params, Params]:
        """Return the noise as it is, and the moved bound.

        The arguments are those of `Privacy.remember`.
        """
        own = jax.random.fold_in(streams.lane_stream(key, "privacy count"), event.tick)
        return noise, next_bound(own, self, memory, is_short, event.weight > 0, cohort)


@struct
class ExampleClipping(Clipping):
    """The gradients of single examples are clipped in local steps, instead of whole updates.

    With gradients of norm at most c (the setting `example_clip`), K steps of SGD with learning rate
    lr cover at most the distance lr K c, which takes the place of C. What goes further, by another
    optimizer, is clipped.

        training = ClientTraining(example_clip=2.0, sampling="reshuffled")
        private = ExampleClipping(epsilon=2.0, rounds=100)  # the noise is found
        hyper = fedavg.Hyper(lr=0.1, local_steps=5, training=training, privacy=private)
        assert hyper.bound == 0.1 * 5 * 2.0
    """

    name: str = fixed("examples")


@struct
class CorrelatedNoise(Privacy):
    """Updates are clipped to a fixed norm, and the noises of ticks may be correlated.

    The noise is accounted for by the schedule, without sampling, so that asynchronous servers can
    have it too. `fedjax_sim.server.privacy.participation` says how, and has the papers.

        correlated = CorrelatedNoise(clip=0.1, noise=4.0, bands=8)
        hyper = fedjax_sim.SYSTEMS["fedbuff"].Hyper(privacy=correlated)
    """

    name: str = fixed("correlated")

    clip: Above0 = setting(1.0, "Largest L2 norm of a client's update, C.")
    noise: AtLeast0 = setting(
        0.0,
        "Noise multiplier z: standard deviation of the independent noises of which those of ticks "
        "are made, in each number of the updates' sum, in units of `clip` times the weight 1 / m, "
        "where m is the number of reports for which a tick is meant. 0 only clips.",
    )
    bands: Count = setting(
        1,
        "Bands of the matrix that makes the noises independent: 1 for noises that are, b for "
        "DP-FTRL with a square root of the sum of all ticks that is cut off. The server keeps "
        "b - 1 noises, each as large as the model.",
    )
    delta: Annotated[float, Limit(above=0, most=0.5)] = setting(
        1e-6, "Probability delta with which the guarantee may fail."
    )

    def first_memory(self, update: Params) -> Params:
        """Return the noises of ticks that there were not: zeros `[b - 1, ...]`; () for one band.

        The arguments are those of `Privacy.first_memory`.
        """
        if self.bands == 1:
            return ()
        zeros = jax.tree.map(lambda leaf: jnp.zeros_like(wide_of(leaf)), update)
        return batching.replicate(zeros, self.bands - 1)

    def remember(
        self, key: Key, event: Event, memory: Params, noise: Params, is_short: Array, cohort: int
    ) -> tuple[Params, Params]:
        """Correlate the noise with the last ones, and keep it: B y = z.

        The arguments are those of `Privacy.remember`.

        Returns:
          The noise y of the tick, leaves `[...]`, and the last ones, leaves `[b - 1, ...]`.
        """
        if self.bands == 1:
            return noise, memory
        # y_t = z_t - sum_{j > 0} b_j y_{t-j}.
        later = square_root_bands(self.bands)[1:]
        noise = jax.tree.map(
            lambda z, y: z - batching.weighted_sum(jnp.asarray(later, y.dtype), y), noise, memory
        )
        keep = lambda y, old: jnp.concatenate([y[None], old[:-1]])  # noqa: E731
        return noise, jax.tree.map(keep, noise, memory)


PRIVACY: Named[type[Privacy]] = Named.of(
    "kind of privacy",
    NoPrivacy,
    FixedClipping,
    AdaptiveClipping,
    ExampleClipping,
    CorrelatedNoise,
    example="fixed:clip=0.1:noise=1",
)
"""Every kind, by name."""


def parse_privacy(text: str) -> Privacy:
    """Read a kind from text, such as "fixed:clip=0.1:noise=1".

        private = parse_privacy("fixed:clip=0.1:noise=1")
        hyper = fedavg.Hyper(privacy=private, sampling="reshuffled")

    Args:
      text: A kind, followed by values for its fields.

    Returns:
      The kind with these values.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("privacy", PRIVACY, text)


def gaussian_like(
    key: Key, model: Params, deviation: Annotated[Array | float, settings.shape(""), Limit(least=0)]
) -> Params:
    """Draw Gaussian noise in the shape of a model.

        noise = gaussian_like(key, {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}, 0.1)
        assert noise["w"].shape == (2, 3)

    Args:
      key: Key of the draws.
      model: Pytree of arrays.
      deviation: Standard deviation of every number, `f[]`.
    """
    vector, restored = ravel_pytree(model)
    noise = jax.random.normal(key, vector.shape, vector.dtype)
    return restored(jnp.asarray(deviation, vector.dtype) * noise)


def next_bound(
    key: Key, privacy: Any, bound: Array, is_short: Array, is_present: Array, cohort: Count
) -> Array:
    """Move the bound towards a quantile of the norms: C <- C exp(-eta_C (b - gamma)).

    Deviation: the paper's b is the mean of indicators b_i. Here it is 1/2 plus the sum of the
    b_i - 1/2 over the expected size of the cohort, which is the same for cohorts of fixed size. By
    Poisson sampling a client's presence then changes the sum by 1/2, as Theorem 1 needs.

        privacy = AdaptiveClipping(quantile=0.5, rate=0.2)  # without noise
        both = jnp.ones(2, bool)
        bound = next_bound(key, privacy, jnp.float32(3.0), both, both, 2)
        assert jnp.allclose(bound, 3.0 * jnp.exp(-0.2 * (1 - 0.5)))  # all were short enough

    Args:
      key: Key of the noise.
      privacy: The settings, an `AdaptiveClipping`.
      bound: C, `f[]`, above 0.
      is_short: `bool[S]`, updates that needed no clipping.
      is_present: `bool[S]`, slots of clients that take part.
      cohort: Expected number of clients that take part, m.

    Returns:
      The next bound, `f[]`.
    """
    excess = jnp.sum(jnp.where(is_present, is_short - 0.5, 0)).astype(bound.dtype)
    deviation = jnp.where(privacy.noise > 0, privacy.count_noise * cohort, 0).astype(bound.dtype)
    share = 0.5 + (excess + deviation * jax.random.normal(key, (), bound.dtype)) / cohort
    moved = jnp.exp(-privacy.rate * (share - privacy.quantile))
    return bound * moved.astype(bound.dtype)
