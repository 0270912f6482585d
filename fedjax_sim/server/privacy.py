"""Differential privacy of training: clipped updates, Gaussian noise on their sum, and accounting.

The server is trusted, except with `local` noise. Whoever sees the models that it makes, all of
them, learns little about any one client: its update in a round has a bounded norm, and noise of a
size in proportion to the bound is added once to the sum. The guarantee is for whole clients, not
for single examples.

`fedjax_sim.server.accounting` computes epsilon. Runs of FA-LD are accounted for in
`fedjax_sim.theory.langevin`.

What the guarantee of `fixed`, `adaptive` and `examples` needs. Updates are summed with one weight
that is fixed before any round: 1 / m for cohorts of m expected clients. A mean over those who
happen to report would divide by a number that depends on a client's presence. An update may depend
on the client's data, on the models sent so far and on fresh random draws, but not on what the
client did in earlier rounds; memories of clients are therefore refused, and so are mini-batches
from epochs that last from one round to the next. Which clients take part must stay secret, and with
it how long a round takes.

Two samplings are covered by them. Each client takes part in a round independently with probability
q = m / N (Poisson sampling): data sets are neighbours if one has one client more, and the sum
changes by at most the bound C. Or the cohort is a uniform set of m clients: neighbours differ in
one client's data, and the sum changes by at most 2 C, so that noise of the same size protects half
as well before the sampling is taken into account. Everything else is refused, not approximated.

`correlated` and local noise use no sampling, and need less. Epsilons of different neighbours cannot
be compared; each kind names its own.

Numbers are floats. A clipped norm may exceed C by rounding, and Gaussian noise on floats is not
exactly Gaussian (Mironov 2012): this is for studying learning under privacy, not for release.

With local privacy every client clips its own update and adds its own noise before it sends it.
Nobody else is trusted: neither the server, nor other clients, nor who reads messages on their way.
The guarantee is for one client that follows the protocol, against everybody else. Neighbours differ
in all of that client's data, except for its number of examples, which is public because schedules
may depend on it. Two updates of norm at most C are up to 2 C apart, so that noise in units of C
counts half.

Composition. A client's messages are composed over all that it has sent, whose number k is counted
from the schedule. With asynchronous servers a message may have been sent and be on its way, or in a
buffer that is not full. So an update that a client had begun, and that no tick has received so far,
counts as sent (`most_sent`), up to the time of the last tick. With synchronous servers and periodic
contacts nothing is on its way when a tick ends. No amplification is claimed: the server knows who
sends what. A client may use what it has kept of earlier rounds, such as a control variate or the
state of an optimizer. Once its random draws are fixed, each message is fresh noise on a function of
its data and of what was sent before, which is adaptive composition; drawing at random among such
mechanisms makes them no easier to tell apart. Everything after the noise is post-processing:
compression, estimates of error feedback, attacks of other clients on what they hear, rules, and the
server's step.

Not covered is what a client keeps for itself and never sends, such as personal models, although
runs evaluate them and report their metrics.

Dimension letter: `S` slots of a tick.
"""

import functools
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedjax_sim.clients.clipping import clip_sums as clip_sums
from fedjax_sim.clients.clipping import clip_updates as clip_updates
from fedjax_sim.clients.clipping import finite
from fedjax_sim.core import batching, settings, streams
from fedjax_sim.core.settings import Above0, AtLeast0, ConfigError, Named, fixed, setting, struct
from fedjax_sim.core.types import Array, Event, Key, Keys, Leaf, Params, Settings, Timeline
from fedjax_sim.kernels.rounding import wide_of
from fedjax_sim.server.accounting import Audit as Audit
from fedjax_sim.server.accounting import Floats, Mechanism, Numbers, check_package, once_each
from fedjax_sim.server.accounting import NoisySteps as NoisySteps
from fedjax_sim.server.accounting import Participations as Participations
from fedjax_sim.server.accounting import audit_canaries as audit_canaries
from fedjax_sim.server.accounting import epsilon_after as epsilon_after
from fedjax_sim.server.accounting import find_noise as find_noise
from fedjax_sim.server.accounting import gaussian_epsilon as gaussian_epsilon
from fedjax_sim.server.accounting import most_participations as most_participations
from fedjax_sim.server.accounting import most_sent as most_sent
from fedjax_sim.server.accounting import one_run_bound as one_run_bound
from fedjax_sim.server.accounting import participations_of as participations_of
from fedjax_sim.server.accounting import sensitivities as sensitivities
from fedjax_sim.server.accounting import separated_sensitivity as separated_sensitivity
from fedjax_sim.server.accounting import square_root_bands as square_root_bands
from fedjax_sim.server.attacks import BLIND, Attack, Canary
from fedjax_sim.server.compression import Number
from fedjax_sim.server.rules import Mean
from fedjax_sim.timelines import Arrivals, ClientQueues, Clients, CohortRounds, Contacts, Groups

__all__ = ["LOCAL_PRIVACY", "PRIVACY", "AdaptiveClipping", "Audit", "Clipping", "CorrelatedNoise"]
__all__ += ["ExampleClipping", "FixedClipping", "LocalGaussian", "LocalLaplace", "LocalPrivacy"]
__all__ += ["NoLocalPrivacy", "NoPrivacy", "NoisySteps", "OwnNoise", "Participations"]
__all__ += ["audit_canaries", "clip_sums", "clip_updates", "epsilon_after", "find_noise"]
__all__ += ["gaussian_epsilon", "gaussian_like", "local_epsilon", "most_participations"]
__all__ += ["most_sent", "one_run_bound", "parse_local_privacy", "parse_privacy"]
__all__ += ["participations_of", "privatise", "sensitivities", "separated_sensitivity"]
__all__ += ["square_root_bands"]


PRIVATE: dict[str, tuple[Any, str]] = {
    "messages.error_feedback": (False, "an estimate remembers earlier rounds"),
    "cohort.weighting": ("equal", "weights must be fixed before any round"),
    "cohort.with_replacement": (False, "no accountant covers draws with replacement"),
    "clock.num_asked": (0, "no accountant covers which reports come first"),
    "clock.deadline": (0.0, "no accountant covers which reports come in time"),
    "delays.drop_rate": (0.0, "no accountant covers updates that are lost"),
    "training.optimizer_state": ("fresh", "a state that lasts remembers earlier rounds"),
}
"""Values of other settings with privacy by sampled cohorts, and the reasons."""
ALL_HEARD = ("clock.num_asked", "clock.deadline", "delays.drop_rate")
"""Those of them at which schedules name all messages that clients with their own noise send."""
DRAWN = CohortRounds | Contacts | Arrivals | ClientQueues | Groups
"""Clocks that draw their schedules before any learning."""
UNHEARD = "messages that are sent and not used are not in the schedule, which epsilon is counted by"


class OfNoise(settings.Kind):
    """The common base of kinds that may have the setting `noise`."""

    @property
    def has_noise(self) -> bool:
        """Whether there is noise, so that there is an epsilon. Not for traced settings."""
        return bool(np.any(np.asarray(getattr(self, "noise", 0.0)) > 0))

    def check_with(self, hyper: Settings) -> None:
        """Check that a system's other settings allow to account for it.

        Args:
          hyper: `fedjax_sim.server.Reports` settings, this among them.

        Raises:
          ConfigError: If they do not.
        """

    def epsilon_of(self, hyper: Settings, ticks: Leaf, timeline: Timeline | None) -> Leaf | None:
        """Compute the epsilon spent before each evaluation.

        Args:
          hyper: As in `check_with`.
          ticks: `i64[V + 1]`, ticks before each evaluation.
          timeline: One lane's schedule; None if only the settings are known.

        Returns:
          `f64[V + 1]`; None if there is none, or it follows from the other of the two.

        Raises:
          ConfigError: If there are more rounds than the noise was found for.
        """
        return None


def _attacks_of(hyper: Settings) -> tuple[Attack, ...]:
    """List the attacks of settings, which may be one of several."""
    attack = hyper.adversary.attack
    return getattr(attack, "options", (attack,))


def _check_table(hyper: Settings, why: str) -> None:
    """Check that a table of clients loses no message, or say why it must not."""
    table = getattr(getattr(hyper, "delays", None), "client_table", None)
    if table is not None and table.drop_rate is not None:
        allowed = f"a table without drop_rate {why}"
        raise ConfigError("delays.client_table", "with drop_rate", allowed)


class Privacy(OfNoise):
    """The common base of the kinds. See `fedjax_sim.server.stages.PrivateSum` for their use."""

    def first_memory(self, update: Params) -> Params:
        """Return the first memory; () if nothing is remembered.

        Args:
          update: An update, leaves `[...]`, for its shapes and types.
        """
        return ()

    def update_noise(self, cohort: int) -> Number:
        """Compute the noise multiplier of the sum of updates; `cohort` is the expected size."""
        return self.noise  # type: ignore[attr-defined]

    def bound(self, hyper: Settings, memory: Params = None) -> Number:
        """Bound of the norm of a client's update, C, by the memory before a tick: `f[]`.

        Args:
          hyper: As in `check_with`.
        """
        return self.clip  # type: ignore[attr-defined]

    def metrics(self, memory: Params) -> dict[str, Array]:
        """Numbers of the memory for the curves, by name."""
        return {}

    def completed(self, hyper: Settings) -> Self:
        """The kind with its noise, if that follows from a target. hyper: As in `check_with`."""
        return self

    def check_sum(self, hyper: Settings) -> None:
        """Check that the noise is on a clipped sum to which each client gives its own update.

        Args:
          hyper: As in `check_with`.

        Raises:
          ConfigError: If it is not.
        """
        if not isinstance(hyper.aggregator, Mean):
            allowed = "mean with privacy, because noise is accounted for the clipped sum only"
            raise ConfigError("aggregator", str(hyper.aggregator), allowed)
        if not self.has_noise:
            return
        if not all(isinstance(each, BLIND) for each in _attacks_of(hyper)):
            # A client's update would be in several messages.
            names = ", ".join(kind.name for kind in BLIND)
            allowed = f"one that reads no messages with privacy that has noise: {names}"
            raise ConfigError("adversary.attack", str(hyper.adversary.attack), allowed)
        if hyper.messages.local_privacy.has_noise:
            allowed = "without noise with privacy that has noise: a run states one epsilon"
            raise ConfigError("messages.local_privacy", str(hyper.messages.local_privacy), allowed)

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
    delta: Annotated[float, settings.Limit(above=0, most=0.5)] = setting(
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
    rounds: settings.Whole = setting(0, "Number of rounds in which `epsilon` may be spent.")

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

    def check_with(self, hyper: Settings) -> None:
        """Check that an accountant covers sampling, and that clients remember nothing.

        The argument is that of `OfNoise.check_with`.
        """
        if not hyper.accounts_for_cohorts:
            allowed = (
                "none or correlated here, because no accountant covers how clients are sampled"
            )
            raise ConfigError("privacy", str(self), allowed)
        self.check_sum(hyper)
        for name, (only, why) in PRIVATE.items():
            settings.check_left(hyper, {name: only}, f"with privacy, because {why}")
        _check_table(hyper, f"with privacy, because {PRIVATE['delays.drop_rate'][1]}")
        if hyper.training.sampling == "shuffled_epochs":
            allowed = (
                "reshuffled or another one with privacy, because an epoch that lasts from one "
                "round to the next remembers them"
            )
            raise ConfigError("training.sampling", "shuffled_epochs", allowed)
        if self.has_noise:
            self.mechanism(hyper).check()
        self.check_noise(hyper)

    def mechanism(self, hyper: Settings) -> Mechanism:
        """Return a round as accountants see it. hyper: As in `check_with`."""
        cohort = hyper.cohort.selection, hyper.num_clients, hyper.num_selected
        return Mechanism(*cohort, self.accountant, float(self.delta))

    def check_noise(self, hyper: Settings) -> None:
        """Check the noise multiplier. hyper: As in `check_with`."""

    def completed(self, hyper: Settings) -> Self:
        """Find the noise multiplier of a target epsilon. Runs on the host.

        The argument is that of `Privacy.completed`.
        """
        if not self.epsilon > 0 or self.noise > 0:
            return self
        noise = find_noise(float(self.epsilon), self.rounds, self.mechanism(hyper))
        found: Self = self.replace(noise=noise)  # type: ignore[attr-defined]
        found.check_noise(hyper)
        return found

    def epsilon_of(self, hyper: Settings, ticks: Leaf, timeline: Timeline | None) -> Leaf | None:
        """Compute epsilon by the accountant. The arguments are those of `OfNoise.epsilon_of`."""
        if timeline is not None or not self.has_noise:
            return None
        if 0 < self.rounds < ticks[-1]:
            allowed = f"at least {ticks[-1]}, the rounds of this run"
            raise ConfigError("privacy.rounds", self.rounds, allowed)
        return epsilon_after(ticks, self.mechanism(hyper), float(self.noise))


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

    Deviation: the paper's b is the mean of indicators b_i. Here it is 1/2 plus the sum of the
    b_i - 1/2 over the expected size of the cohort, which is the same for cohorts of fixed size. By
    Poisson sampling a client's presence then changes the sum by 1/2, as Theorem 1 needs.

        median_norm = AdaptiveClipping(clip=0.1, quantile=0.5, noise=1.0)
        hyper = fedavg.Hyper(num_selected=20, privacy=median_norm, sampling="reshuffled")
    """

    name: str = fixed("adaptive")

    clip: Above0 = setting(0.1, "First bound of the norms, C.")
    quantile: settings.Probability = setting(
        0.5, "Share of updates that shall need no clipping, gamma."
    )
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

    def check_noise(self, hyper: Settings) -> None:
        """Check that the noise on the count leaves something for the updates.

        The argument is that of `OfNoise.check_with`.
        """
        most = 2 * np.asarray(self.count_noise) * hyper.num_selected
        if np.any(np.asarray(self.noise) >= most):
            allowed = f"below {float(np.min(most)):g}, twice count_noise times the cohort"
            raise ConfigError("privacy.noise", float(np.max(self.noise)), allowed)

    def bound(self, hyper: Settings, memory: Params = None) -> Number:
        """Return the bound in memory, or the first. The arguments are those of `Privacy.bound`."""
        return self.clip if memory is None else memory

    def metrics(self, memory: Params) -> dict[str, Array]:
        """Return the bound as `clip_norm`. memory: The bound."""
        return {"clip_norm": memory}

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
        excess = jnp.sum(jnp.where(event.weight > 0, is_short - 0.5, 0)).astype(memory.dtype)
        deviation = jnp.where(self.noise > 0, self.count_noise * cohort, 0).astype(memory.dtype)
        share = 0.5 + (excess + deviation * jax.random.normal(own, (), memory.dtype)) / cohort
        moved = jnp.exp(-self.rate * (share - self.quantile))
        return noise, memory * moved.astype(memory.dtype)


@struct
class ExampleClipping(Clipping):
    """The gradients of single examples are clipped in local steps, instead of whole updates.

    With gradients of norm at most c (the setting `example_clip`), K steps of SGD with learning rate
    lr cover at most the distance lr K c, which takes the place of C. What goes further, by another
    optimizer, is clipped.

        training = ClientTraining(example_clip=2.0, sampling="reshuffled")
        private = ExampleClipping(epsilon=2.0, rounds=100)  # the noise is found
        hyper = fedavg.Hyper(lr=0.1, local_steps=5, training=training, privacy=private)
        assert hyper.privacy.bound(hyper) == 0.1 * 5 * 2.0
    """

    name: str = fixed("examples")

    def bound(self, hyper: Settings, memory: Params = None) -> Number:
        """Compute the longest way of local steps. The arguments are those of `Privacy.bound`."""
        return hyper.lr * hyper.local_steps * hyper.training.example_clip

    def check_sum(self, hyper: Settings) -> None:
        """Check that gradients are clipped too. The argument is that of `Privacy.check_sum`."""
        super().check_sum(hyper)
        if not np.all(np.asarray(hyper.training.example_clip)):
            allowed = 'above 0 with privacy = "examples"'
            raise ConfigError("training.example_clip", hyper.training.example_clip, allowed)


@struct
class CorrelatedNoise(Privacy):
    """Updates are clipped to a fixed norm, and the noises of ticks may be correlated.

    The noise is accounted for by the schedule, without sampling, so that asynchronous servers can
    have it too. `fedjax_sim.server.accounting` says how, and has the papers.

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
    bands: settings.Count = setting(
        1,
        "Bands of the matrix that makes the noises independent: 1 for noises that are, b for "
        "DP-FTRL with a square root of the sum of all ticks that is cut off. The server keeps "
        "b - 1 noises, each as large as the model.",
    )
    delta: float = settings.redefault(Clipping, "delta", 1e-6)

    def check_with(self, hyper: Settings) -> None:
        """Check the sum, and that the package that computes epsilon is there.

        The argument is that of `OfNoise.check_with`.
        """
        self.check_sum(hyper)
        if self.has_noise:
            check_package(self.name)

    def epsilon_of(self, hyper: Settings, ticks: Leaf, timeline: Timeline | None) -> Leaf | None:
        """Compute epsilon by the schedule. The arguments are those of `OfNoise.epsilon_of`."""
        if timeline is None or not self.has_noise:
            return None
        bands = square_root_bands(self.bands)
        change = hyper.expected_reports * sensitivities(timeline, hyper.num_clients, bands, ticks)
        return gaussian_epsilon(change, float(self.noise), float(self.delta))

    def first_memory(self, update: Params) -> Params:
        """Return the noises before the first tick: zeros `[b - 1, ...]`; () for one band.

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
    *(NoPrivacy, FixedClipping, AdaptiveClipping, ExampleClipping, CorrelatedNoise),
    example="fixed:clip=0.1:noise=1",
)
"""Every kind of privacy on the server's sum, by name."""


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


@settings.checked
def gaussian_like(
    key: Key,
    model: Params,
    deviation: Annotated[Array | float, settings.shape(""), settings.Limit(least=0)],
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


FINEST = 1e-4
"""Grid of privacy losses: dp-accounting's default, or this share of the loss of one message."""


class LocalPrivacy(OfNoise):
    """The common base of the kinds of clients' own noise."""


@struct
class NoLocalPrivacy(LocalPrivacy):
    """Neither clipping nor noise."""

    name: str = fixed("none")


@struct
class OwnNoise(LocalPrivacy):
    """The common base of the kinds with which clients clip and add noise."""

    clip: Above0 = setting(1.0, "Largest norm of what a client sends before its own noise, C.")
    noise: AtLeast0 = setting(
        0.0,
        "Size of the client's own noise in each number, in units of `clip`: a standard deviation "
        "for Gaussian noise, the scale for Laplace noise. 0 only clips.",
    )

    def check_package(self) -> None:
        """Check that the package that computes epsilon is there, if it is needed.

        Raises:
          ConfigError: If it is not.
        """
        if np.any(np.asarray(self.delta) > 0):  # type: ignore[attr-defined]
            check_package(self.name)

    def check_with(self, hyper: Settings) -> None:
        """Check that every message that is sent is in the schedule, and nothing else is told.

        The argument is that of `OfNoise.check_with`.
        """
        if not self.has_noise:
            return
        self.check_package()
        if any(isinstance(each, Canary) for each in _attacks_of(hyper)):
            allowed = "none or another one with local_privacy: attackers add no noise to audit"
            raise ConfigError("adversary.attack", str(hyper.adversary.attack), allowed)
        if hyper.aggregator.needs_own() is not False:
            allowed = "one without root data with local_privacy: they are examples of clients"
            raise ConfigError("aggregator", str(hyper.aggregator), allowed)
        if hyper.tells:
            allowed = f"without noise here, because clients tell the server {hyper.tells} as well"
            raise ConfigError("messages.local_privacy", str(self), allowed)
        if isinstance(hyper, Clients) and not isinstance(hyper, DRAWN):
            allowed = "without noise here, because a live clock says what is sent"
            raise ConfigError("messages.local_privacy", str(self), allowed)
        why = f"with local_privacy, because {UNHEARD}"
        settings.check_left(hyper, {name: PRIVATE[name][0] for name in ALL_HEARD}, why)
        _check_table(hyper, why)

    def epsilon_of(self, hyper: Settings, ticks: Leaf, timeline: Timeline | None) -> Leaf | None:
        """Compute the epsilon of the messages that a client has sent.

        Of asynchronous servers, messages that are on their way to it are counted too.

        The arguments are those of `OfNoise.epsilon_of`.
        """
        if timeline is None or not self.has_noise:
            return None
        is_asynchronous = isinstance(hyper, Arrivals | ClientQueues)
        count = most_sent if is_asynchronous else most_participations
        return local_epsilon(count(timeline, hyper.num_clients, ticks), self)

    def clipped(self, updates: Params) -> Params:
        """Shorten updates to the largest norm.

        Args:
          updates: Leaves `[S, ...]`.

        Returns:
          Leaves `[S, ...]`.
        """
        raise NotImplementedError

    def draw(self, key: Key, update: Params) -> Params:
        """Draw the noise of one client. update: leaves `[...]`, for their shapes."""
        raise NotImplementedError

    def spent(self, messages: int) -> float:
        """Compute epsilon after some messages of a client.

        Args:
          messages: Their number, at least 1.

        Returns:
          Epsilon.
        """
        raise NotImplementedError


@struct
class LocalGaussian(OwnNoise):
    """Gaussian noise on updates that are clipped in L2 norm.

    k messages are as private as one with noise z / (2 sqrt(k)) in units of the largest change, and
    no more: Gaussian mechanisms compose exactly (Dong, Roth and Su 2022, arXiv 1905.02383,
    Corollary 3.3). Epsilon is that of one Gaussian mechanism (Balle and Wang 2018, arXiv
    1805.06530, Theorem 8), computed by dp-accounting.

        messages = ClientMessages(local_privacy=LocalGaussian(clip=0.1, noise=8.0))
        hyper = fedavg.Hyper(messages=messages)
    """

    name: str = fixed("gaussian")

    delta: float = settings.redefault(Clipping, "delta", 1e-6)

    def clipped(self, updates: Params) -> Params:
        """Shorten updates to an L2 norm of at most C.

        Args:
          updates: Leaves `[S, ...]`.

        Returns:
          Leaves `[S, ...]`.
        """
        return clip_updates(updates, self.clip)[0]

    def draw(self, key: Key, update: Params) -> Params:
        """Draw Gaussian noise of standard deviation z C. update: leaves `[...]`."""
        return gaussian_like(key, update, self.noise * self.clip)

    def spent(self, messages: int) -> float:
        """Compute epsilon after some messages of a client.

        Args:
          messages: Their number, at least 1.

        Returns:
          Epsilon.
        """
        from dp_accounting import get_epsilon_gaussian

        return float(get_epsilon_gaussian(float(self.noise) / 2 / messages**0.5, float(self.delta)))


@struct
class LocalLaplace(OwnNoise):
    """Laplace noise on updates that are clipped in L1 norm (Dwork et al. 2006).

    One message has epsilon 2 / z. With `delta` 0, k messages have epsilon 2 k / z. With another
    `delta`, privacy loss distributions of one number with Laplace noise are composed, by
    dp-accounting, for a change of that number by 2 C.

    That one number is the worst case for a vector. Let s_1 and s_2 be the changes of two numbers in
    units of the scale, s = s_1 + s_2, and 0 <= e <= s. Integrating the profile of the second number
    over the loss of the first one, delta(e) is

        1 - (1 + u / 4) exp(-u / 2)      if e >= |s_1 - s_2|, with u = s - e,
        1 - (1 + min(s_1, s_2) / 2) exp(-u / 2)      otherwise,

    where one number that changes by s has 1 - exp(-u / 2) (Balle, Barthe and Gaboardi 2020, arXiv
    1807.01647), which is larger. Both pairs are symmetric, so that one number dominates
    two, and by induction any number of them; domination is kept by adaptive composition (Zhu, Dong
    and Wang 2022, arXiv 2106.08567, Theorem 10).

        private = LocalLaplace(clip=0.1, noise=20.0)
        assert np.isclose(private.spent(3), 3 * 2 / 20)  # epsilon of three messages
        hyper = fedavg.Hyper(messages=ClientMessages(local_privacy=private))
    """

    name: str = fixed("laplace")

    clip: Above0 = setting(1.0, "Largest L1 norm of what a client sends before its own noise, C.")
    delta: Annotated[float, settings.Limit(least=0, most=0.5)] = setting(
        0.0, "Probability delta with which the guarantee may fail; with 0, epsilons are added."
    )

    def clipped(self, updates: Params) -> Params:
        """Shorten updates to an L1 norm of at most C.

        Args:
          updates: Leaves `[S, ...]`.

        Returns:
          Leaves `[S, ...]`.
        """
        return clip_sums(updates, self.clip)

    def draw(self, key: Key, update: Params) -> Params:
        """Draw Laplace noise of scale z C. update: leaves `[...]`."""
        vector, restored = ravel_pytree(update)
        noise = jax.random.laplace(key, vector.shape, vector.dtype)
        return restored(jnp.asarray(self.noise * self.clip, vector.dtype) * noise)

    def spent(self, messages: int) -> float:
        """Compute epsilon after some messages of a client.

        Args:
          messages: Their number, at least 1.

        Returns:
          Epsilon.
        """
        pure = messages * 2 / float(self.noise)
        if self.delta == 0:
            return pure
        return min(pure, _laplace_epsilon(float(self.noise) / 2, messages, float(self.delta)))


@functools.cache
def _laplace_epsilon(scale: float, messages: int, delta: float) -> float:
    """Compute epsilon of one number with Laplace noise; the scale is relative to its change."""
    import dp_accounting
    from dp_accounting import pld

    # The relation only names the pair of laws here: 0 and a number at most 1 / scale from it.
    accountant = pld.PLDAccountant(value_discretization_interval=FINEST * max(1.0, 1 / scale))
    accountant.compose(dp_accounting.LaplaceDpEvent(scale), messages)
    return float(accountant.get_epsilon(delta))


@settings.checked
def local_epsilon(messages: Numbers, privacy: OwnNoise) -> Floats:
    """Compute the epsilon that a client has spent after numbers of messages.

        local_epsilon([0, 1, 20], parse_local_privacy("gaussian:clip=0.1:noise=8"))

    Args:
      messages: Numbers of messages, which are its participations, integers `[...]`.
      privacy: The client's own noise.

    Returns:
      `f64[...]`: 0 before the first message, infinity without noise.
    """
    numbers = np.asarray(messages, int)
    if not privacy.has_noise:
        return np.where(numbers > 0, np.inf, 0.0)
    privacy.check_package()
    return once_each(privacy.spent, numbers)


@settings.checked
def privatise(keys: Keys, privacy: OwnNoise, updates: Params) -> Params:
    """Clip the updates of clients, and add each client's own noise.

    An update that is not finite has no norm, and counts as 0: otherwise whether it is would show.

        keys, updates = jax.random.split(key, 2), jnp.array([[3.0, 4.0], [jnp.nan, 1.0]])
        only_clipped = privatise(keys, LocalGaussian(clip=1.0, noise=0.0), updates)
        assert jnp.allclose(only_clipped, jnp.array([[3 / 5, 4 / 5], [0.0, 0.0]]))

    Args:
      keys: A key for every slot, `[S]`.
      privacy: The clients' own noise.
      updates: Leaves `[S, ...]`.

    Returns:
      What clients send, leaves `[S, ...]`.
    """
    clipped = privacy.clipped(finite(updates)[0])
    return jax.tree.map(jnp.add, clipped, jax.vmap(privacy.draw)(keys, clipped))


LOCAL_PRIVACY: Named[type[LocalPrivacy]] = Named.of(
    "kind of local privacy",
    *(NoLocalPrivacy, LocalGaussian, LocalLaplace),
    example="gaussian:clip=0.1:noise=8",
)
"""Every kind of clients' own noise, by name."""


def parse_local_privacy(text: str) -> LocalPrivacy:
    """Read a kind from text, such as "gaussian:clip=0.1:noise=8".

        private = fedavg.Hyper(local_privacy=parse_local_privacy("laplace:clip=0.1:noise=20"))

    Args:
      text: A kind, followed by values for its fields.

    Returns:
      The kind with these values.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return settings.parse_kind("local_privacy", LOCAL_PRIVACY, text)
