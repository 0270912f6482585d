"""The contract of problems: clients' data with a loss, or with a latent model.

Dimension letters: those of `fedjax_sim.core.types`.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax

Key = Annotated[jax.Array, "a random key"]
"""One typed JAX random key."""
Keys = Annotated[jax.Array, "random keys"]
"""Random keys, one for each of several slots."""
Array = jax.Array
Params = Annotated[Any, "a pytree of arrays"]
"""A pytree of arrays: one model."""
Settings = Annotated[Any, "settings"]
"""A system's settings, whatever their class."""


class Batch(NamedTuple):
    """The mini-batch of a local step.

    Attributes:
      examples: `i32[B]`, positions among the client's examples.
      key: For noise or augmentation.
    """

    examples: Array
    key: Key


class Extras(NamedTuple):
    """Further inputs of the loss of a local step, besides the model and the mini-batch.

    Attributes:
      start: The model that the client started from.
      own: Its rows of what the system keeps for clients, such as its own model; () for none.
      client: `i32[]`, its number.
    """

    start: Params
    own: Params
    client: Array


LocalLoss = Callable[[Params, Params, Any, Extras], tuple[Array, Params]]
"""From a model, the aux that steps carry, a mini-batch and `Extras` to the loss of a local step,
`f[]`, and the aux of the next one."""


class Losses(Protocol):
    """The part of a problem that local training needs: see `Problem`."""

    @property
    def counts(self) -> Array:
        """Number of examples of each client, without padding: `i32[N]`."""

    def loss(self, params: Params, client: Array, examples: Array, key: Key) -> Array:
        """Compute the mean loss of some of a client's examples; local steps differentiate it.

        Args:
          params: The model.
          client: `i32[]`, the client's number.
          examples: `i32[B]`, positions of the examples, below `counts[client]`.
          key: For noise or augmentation.

        Returns:
          `f[]`.
        """


@runtime_checkable
class Problem(Losses, Protocol):
    """A problem to learn: clients' data and a loss.

    A problem is a frozen struct whose arrays are pytree leaves. It is passed to compiled functions
    as an argument and never closed over. Some methods and attributes are optional:

    - `client_loss(params, client, key)`: the mean loss of all of a client's examples, `f[]`.
    - `local_loss(params, aux, batch, extras)`: the loss of local steps in place of `loss`, a
      `LocalLoss` with a `Batch`. `first_aux(params)` is the aux of the first step from a model, ()
      by default. The aux after the last one is the field `aux` of `Work`, leaves `[S, ...]`.
    - `untrained(params)`: bools in the model's structure: leaves that are averaged but not trained,
      such as running statistics. No step moves them: their new values are the aux that `local_loss`
      returns, the model with None in the places of the other leaves.
    - `alone(client)`: the losses of one client, with the methods `loss` and `client_loss`, whose
      argument `client` is ignored. Its data are then looked up once for many tiny local steps.
    - `evaluate_clients(model_of)`: metrics of every client's model on examples like the client's
      own, `f[N]` each; `model_of` gives the model of a client by its number, `i32[]`. nan stands
      for nothing to measure and is left out of means; a loss that diverged is inf. Systems with
      personal models report the means, and with a true attribute `per_client` every client's.
    - `chance()`: by name of metrics of which more is better, the value of the best constant guess.
      A lane that is no better in all of them has collapsed, or has not learnt; results say so.
    - `check_values()`: raises a `ConfigError` about data that are out of range or do not fit
      together. It is called before each run, with all arrays known.
    - `metric_labels`: labels along dimensions of metrics, by the dimension's name; others are
      numbered. `less_is_better`: names of the metrics of which small values are good ones.
    """

    def init(self, key: Key) -> Params:
        """Draw initial parameters.

        Args:
          key: A random key.

        Returns:
          One model.
        """

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Compute the metrics of a model.

        Returns:
          Scalars, `f[]`, by name. A metric that has dimensions names them in brackets, such as
          "error[client]", `f[N]`, or "hits[class, client]"; curves call it "error", with the
          dimension "client". There nan stands for nothing to measure, and is no failure. Names of
          settings, and of what curves have besides, such as "time" and "failed", are refused.
        """


@runtime_checkable
class LatentProblem(Protocol):
    """A problem of expectation maximisation: clients' data and an exponential-family latent model.

    Expected statistics s and natural parameters phi(theta) are vectors of q numbers, with
    p(y, z; theta) = rho(y, z) exp(<s(y, z), phi(theta)> - psi(theta)). The E-step of an example
    depends on theta only through phi.
    """

    @property
    def counts(self) -> Array:
        """Number of examples of each client, without padding: `i32[N]`."""

    def init(self, key: Key) -> Array:
        """Draw initial expected statistics: `f[q]`.

        Args:
          key: A random key.
        """

    def maximise(self, statistics: Array) -> Params:
        """Compute the M-step T: parameters that maximise the penalised complete-data likelihood.

        Args:
          statistics: `f[q]`, expected statistics.
        """

    def natural(self, params: Params) -> Array:
        """Compute the natural parameters phi(theta): `f[q]`.

        Args:
          params: theta.
        """

    def statistics(self, natural: Array, client: Array, examples: Array, weight: Array) -> Array:
        """Compute the E-step: the weighted sum of the expected statistics of some examples.

        Args:
          natural: `f[q]`, phi(theta).
          client: `i32[]`, the client's number.
          examples: `i32[B]`, positions of the examples, below `counts[client]`.
          weight: `f[B]`, weight of each example.

        Returns:
          `f[q]`.
        """

    def client_statistics(self, natural: Array) -> Array:
        """Compute every client's mean expected statistics over all its examples: `f[N, q]`."""

    def evaluate(self, statistics: Array) -> Mapping[str, Array]:
        """Compute the metrics of a server's statistics `f[q]`, each a scalar."""


AnyProblem = Problem | LatentProblem
