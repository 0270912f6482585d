"""Local privacy: every client clips its own update and adds its own noise before it sends it.

Nobody else is trusted: neither the server, nor other clients, nor who reads messages on their way.
The guarantee is for one client that follows the protocol, against everybody else. Neighbours differ
in all of that client's data, except for its number of examples, which is public because schedules
may depend on it. Two updates of norm at most C are up to 2 C apart, so that noise in units of C
counts half.

Composition. A client's messages are composed over all that it has sent, whose number k is counted
from the schedule (`participation`). With asynchronous servers a message may have
been sent and be on its way, or in a buffer that is not full. So an update that a client had begun,
and that no tick has received so far, counts as sent (`most_sent`), up to the time of the last tick.
With synchronous servers and periodic contacts nothing is on its way when a tick ends. No
amplification is claimed: the server knows who sends what. A client may use what it
has kept of earlier rounds, such as a control variate or the state of an optimizer. Once its random
draws are fixed, each message is fresh noise on a function of its data and of what was sent before,
which is adaptive composition; drawing at random among such mechanisms makes them no easier to tell
apart. Everything after the
noise is post-processing: compression, estimates of error feedback, attacks of other clients on what
they hear, rules, and the server's step.

Not covered is what a client keeps for itself and never sends, such as personal models, although
runs evaluate them and report their metrics.

Dimension letter: `S` slots of a tick.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree

from fedjax_sim.clients.clipping import clip_sums, clip_updates, finite
from fedjax_sim.core.settings import Named, checked, fixed, parse_kind, setting, struct
from fedjax_sim.core.settings.declared import Above0, AtLeast0, Limit
from fedjax_sim.core.types import Key, Keys, Params
from fedjax_sim.server.privacy.accounting import check_package, once_each
from fedjax_sim.server.privacy.kinds import OfNoise, gaussian_like

FINEST = 1e-4
"""Grid of privacy losses: dp-accounting's default, or this share of the loss of one message."""


class LocalPrivacy(OfNoise):
    """The common base of the kinds."""


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
        """Check that the package that computes epsilon is there.

        Raises:
          ConfigError: If it is not.
        """
        check_package(self.name)

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

    delta: Annotated[float, Limit(above=0, most=0.5)] = setting(
        1e-6, "Probability delta with which the guarantee may fail."
    )

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
    delta: Annotated[float, Limit(least=0, most=0.5)] = setting(
        0.0, "Probability delta with which the guarantee may fail; with 0, epsilons are added."
    )

    def check_package(self) -> None:
        """Check that the package that computes epsilon is there, if it is needed.

        Raises:
          ConfigError: If it is not.
        """
        if np.any(np.asarray(self.delta) > 0):
            check_package(self.name)

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


@checked
def local_epsilon(
    messages: Annotated[npt.ArrayLike, Limit(least=0, is_whole=True)], privacy: OwnNoise
) -> npt.NDArray[np.float64]:
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
    NoLocalPrivacy,
    LocalGaussian,
    LocalLaplace,
    example="gaussian:clip=0.1:noise=8",
)
"""Every kind, by name."""


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
    return parse_kind("local_privacy", LOCAL_PRIVACY, text)
