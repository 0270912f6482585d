"""A posterior of the user's own, from functions for its log-likelihood and log-prior.

The functions are blackjax's (`blackjax.sgmcmc.gradients.logdensity_estimator`): `log_likelihood`
takes the parameters and one example, `log_prior` the parameters, and both return a log density.

Conventions, which hold for all systems:

- The energy is f = -(log prior + the *sum* of the log-likelihoods of all n examples), so that FA-LD
  at temperature 1 samples the posterior, and `log_density` is -f.
- The loss of some of a client's examples is the *mean* of -log-likelihood over them, plus
  -log prior / n. The energy is the sum of the losses of all examples.
- The prior is thus divided evenly among examples: a client with n_c of them has the share n_c / n
  of it, whatever its weight p_c in the average is. Systems that minimise the mean loss (FedAvg)
  seek the maximum of the posterior.

Dimension letters: `N` clients, `M` places for examples of a client (the rest is padding), `B`
examples of a mini-batch, `n` examples of all clients, `m` further examples, `K` classes. Examples
in the data that no client holds are not among the posterior's; one that two clients hold counts
twice.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from fedjax_sim.core import settings, trees
from fedjax_sim.core.types import Array, Key, Params
from fedjax_sim.datasets import files
from fedjax_sim.models.calls import outputs_of
from fedjax_sim.partition import Partition
from fedjax_sim.problems import classification, client_data

LogLikelihood = Callable[[Params, Params], Array]
"""From parameters and one example, a pytree like the data without its first axis, to `f[]`."""
LogPrior = Callable[[Params], Array]
"""From parameters to `f[]`."""


@struct.dataclass
class LogDensity(client_data.ExampleLosses, client_data.ClientLosses):
    """A posterior of examples that clients hold; see the module for its conventions.

    Attributes:
      data: All examples, and perhaps others that no client holds: a pytree of leaves `[n, ...]`.
      held: The positions of the clients' examples in `data`.
      start: The initial parameters; () if `draws_start` draws them.
      log_likelihood: The log-likelihood of one example.
      log_prior: The logarithm of the prior's density, up to a constant.
      draws_start: Draws the initial parameters from a key; None if they are `start`.
      probabilities: From parameters and one example's inputs to class probabilities `f[K]`; None
        if the target of an example is no class.
      simulate: From a key, parameters and one example's inputs to a draw of its target; None if it
        is not known, or follows from `probabilities`.
      per_client: Whether every client's loss is measured too.
      client_ids: What the clients are called; None for numbers.
    """

    data: Params
    held: client_data.Held
    start: Params
    log_likelihood: LogLikelihood = struct.field(pytree_node=False)
    log_prior: LogPrior = struct.field(pytree_node=False)
    draws_start: Callable[[Key], Params] | None = struct.field(pytree_node=False, default=None)
    probabilities: Callable[..., Array] | None = struct.field(pytree_node=False, default=None)
    simulate: Callable[..., Array] | None = struct.field(pytree_node=False, default=None)
    per_client: bool = struct.field(pytree_node=False, default=False, kw_only=True)
    client_ids: tuple[Hashable, ...] | None = struct.field(
        pytree_node=False, default=None, kw_only=True
    )

    def _check_together(self) -> None:
        super()._check_together()
        params = jax.eval_shape(lambda: self.init(jax.random.key(0)))
        example = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], self.data))
        given = {"log_likelihood": (params, example), "log_prior": (params,)}
        for name, arguments in given.items():
            words = f"a function of {' and '.join(map(files.form_of, arguments))}"
            with files.refusing(name, "another one", words):
                found = jax.eval_shape(getattr(self, name), *arguments)
            if getattr(found, "shape", None) != ():
                shape = f"a function to {getattr(found, 'shape', type(found).__name__)}"
                raise settings.ConfigError(name, shape, "a function to one number, for one example")

    def init(self, key: Key) -> Params:
        """Return the initial parameters, or draw them."""
        return self.start if self.draws_start is None else self.draws_start(key)

    def log_likelihoods(self, params: Params, examples: Params = None) -> Array:
        """Compute the log-likelihood of each example.

        Args:
          params: The parameters.
          examples: A pytree of leaves `[m, ...]`; the problem's own data if None.

        Returns:
          `f[m]`, in nats.
        """
        examples = self.data if examples is None else examples
        return trees.in_32_bits(jax.vmap(self.log_likelihood, (None, 0))(params, examples))

    def log_density(self, params: Params) -> Array:
        """Compute the logarithm of the posterior's density, up to a constant: `f[]`, in nats.

        Args:
          params: The parameters.
        """
        return self._log_likelihood_of_clients(params) + self.log_prior(params)

    def evaluate(self, params: Params) -> Mapping[str, Array]:
        """Compute "log_density", and "loss": the mean of -log-likelihood over clients' examples.

        With `per_client` also `client_loss` of every client, "client_loss[client]": `f[N]`.
        """
        total = self._log_likelihood_of_clients(params)
        loss = -total / self.counts.sum()
        single = {"log_density": total + self.log_prior(params), "loss": loss}
        return {**single, **self.losses_of_clients(params)}

    def _log_likelihood_of_clients(self, params: Params) -> Array:
        """Sum the log-likelihoods of all clients' examples: `f[]`."""
        found = self.log_likelihoods(params)
        is_there = self.held.owners()[1].astype("int32")
        holders = jnp.zeros(found.shape, "int32").at[self.held.index].add(is_there)
        return jnp.where(holders > 0, holders * found, 0).sum()

    def _losses(
        self, params: Params, rows: Array, key: Key, *, train: bool = True
    ) -> tuple[Array, None, Params]:
        """Compute -log-likelihoods, in nats, of examples `i32[B]`."""
        return -self.log_likelihoods(params, client_data.rows_of(self.data, rows)), None, ()

    def _penalty(self, params: Params) -> Array:
        """Compute the prior's part of one example's loss."""
        return -self.log_prior(params) / self.counts.sum()


@settings.checked
def from_logdensity(
    log_likelihood: LogLikelihood,
    log_prior: LogPrior,
    data: Any,
    split: Partition | Iterable[Hashable],
    start: Params | Callable[[Key], Params],
    *,
    probabilities: Callable[..., Array] | None = None,
    simulate: Callable[..., Array] | None = None,
    per_client: bool = False,
) -> LogDensity:
    """Make a problem of a posterior.

        def log_likelihood(mean, example):
            return -((example - mean) ** 2).sum() / 2

        def log_prior(mean):
            return -(mean**2).sum() / 2

        data, owners = np.array([[1.0], [2.0], [3.0]]), np.array([0, 0, 1])
        problem = from_logdensity(log_likelihood, log_prior, data, owners, start=jnp.zeros(1))
        assert problem.counts.tolist() == [2, 1]

    Args:
      log_likelihood: As in `LogDensity`; the function that blackjax takes.
      log_prior: As in `LogDensity`; the function that blackjax takes.
      data: All examples: a pytree of leaves `[n, ...]`, such as the tuple (inputs, targets).
      split: Who holds which example: from a function of `fedjax_sim.partition`, or the client of
        each of the n examples, by ids as in `partition_by_ids`, which also numbers them.
      start: Initial parameters, a pytree of arrays, or a function that draws them from a key, as
        chains that start far apart show best whether they have mixed.
      probabilities: As in `LogDensity`, for class predictions.
      simulate: As in `LogDensity`, for draws of targets.
      per_client: Whether every client's loss is measured too.

    Returns:
      The problem.

    Raises:
      ConfigError: If the data's leaves differ in length or have numbers that are not finite or do
        not fit 32 bits, a log density is no single number, a client has no example, or a position
        is out of range.
    """
    data, num = client_data.read_arrays("data", data)
    draw = start if callable(start) else None
    owned: tuple[Any, Any] = (split, None) if isinstance(split, Partition) else (None, split)
    [partition], names = client_data.read_owners(*owned, num, "split")
    [held] = client_data.hold([partition], num)
    given = () if draw else jax.tree.map(jnp.asarray, start)
    functions = log_likelihood, log_prior, draw, probabilities, simulate
    made = LogDensity(data, held, given, *functions, per_client=per_client, client_ids=names)
    made.check_values()
    return made


def log_density_of(problem: classification.Classification | classification.Logistic) -> LogDensity:
    """Write a problem of classes as a log-density, for `fedjax_sim.results.diagnostics.predictive`.

    Runs of the problem can then predict new inputs, and have pointwise likelihoods. What a
    classification does in local steps alone (augmentation, dropout) is left out.

        clients = iid(data.train_labels, num_clients=5, seed=0)
        posterior = log_density_of(make_classification(MLP((4,), 10), data, clients))

    Args:
      problem: A classification, whose prior is flat without `prior_precision`, or a logistic
        regression, whose inputs have the constant 1 as their last number.

    Returns:
      The same posterior. Examples are pairs of an input and a label.

    Raises:
      ConfigError: If the problem is of another kind, or its network has state.
    """
    if not isinstance(problem, classification.Classification | classification.Logistic):
        allowed = "a Classification or a Logistic; make others with from_logdensity"
        raise settings.ConfigError("problem", type(problem).__name__, allowed)
    if problem.state:
        allowed = "of parameters alone: a posterior has no running statistics"
        raise settings.ConfigError("network", ", ".join(problem.state), allowed)
    data = problem.data[0], problem.data[1].astype("int32")

    def logits(params: Params, inputs: Array) -> Array:
        prepared, _ = problem.prepare((inputs[None], jnp.zeros(1, "int32")))
        found = outputs_of(problem.model, problem.parameters(params), prepared)[0]
        return found if found.ndim else jnp.stack([jnp.zeros_like(found), found])

    precision = 0.0 if problem.prior_precision is None else problem.prior_precision

    def log_likelihood(params: Params, example: Params) -> Array:
        inputs, label = example
        return jax.nn.log_softmax(logits(params, inputs))[label]

    def log_prior(params: Params) -> Array:
        return -precision / 2 * optax.tree.norm(trees.in_32_bits(params), squared=True)

    def probabilities(params: Params, inputs: Array) -> Array:
        return jax.nn.softmax(logits(params, inputs))

    functions = log_likelihood, log_prior, problem.init, probabilities
    return LogDensity(data, problem.held, (), *functions, client_ids=problem.client_ids)
