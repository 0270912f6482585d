"""Models that belong in part or as a whole to single clients, and their evaluation."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core import trees
from fedjax_sim.core.settings import Checked, ConfigError, setting, struct
from fedjax_sim.core.types import Array, Params


@struct
class PersonalLeaves(Checked):
    """Settings that say which leaves of the model are personal.

    They are inherited by the settings of systems with personal models.

        model = {"params": {"Dense_0": {"bias": jnp.zeros(4)}, "Dense_1": {"bias": jnp.zeros(2)}}}
        shared, personal = PersonalLeaves().split(model)  # the last dense layer is personal
        assert personal["params"]["Dense_1"]["bias"].shape == (2,)
        assert shared["params"]["Dense_1"]["bias"] is None
    """

    personal: str | Callable[[str], bool] = setting(
        "",
        "Which leaves are personal, found in paths such as params/Dense_1/kernel; by "
        "default those of the last dense layer.",
        allowed="a regular expression, or a function from a path to whether its leaf is personal",
        accepts=trees.is_predicate,
    )

    def are_personal(self, model: Params) -> Any:
        """Tell which leaves of a model are personal: bools in the model's structure.

        Args:
          model: A model, or its shapes.

        Raises:
          ConfigError: If `personal` is left out, and the outermost dense layers are of several
            modules.
        """
        chosen = self.personal
        if not chosen:
            chosen = f"^{re.escape(_last_dense(trees.paths_of(model)))}/"
        return trees.leaves_that(chosen, model)

    def split(self, model: Params) -> tuple[Params, Params]:
        """Split a model, or models, into shared and personal leaves; the others are None.

        Args:
          model: Leaves `[...]`.

        Returns:
          Shared leaves and personal leaves.
        """
        return trees.split(model, self.are_personal(model))

    def completed(self, problem: Any) -> Any:
        """Check that some leaves are personal and others are shared.

        Args:
          problem: What is learnt; None for a schedule alone.

        Returns:
          The settings, unchanged.

        Raises:
          ConfigError: If all leaves are personal, or none, or `are_personal` cannot tell.
        """
        if problem is not None:
            flags = self.are_personal(trees.shapes_of_model(problem))
            if len(set(jax.tree.leaves(flags))) < 2:
                allowed = "such that some leaves of the model are personal and others are shared"
                raise ConfigError("personal", self.personal, allowed)
        return super().completed(problem)


def _last_dense(paths: Sequence[str]) -> str:
    """Find the last of the outermost dense layers; "" if there is none."""
    layers = [each for path in paths if (each := re.match(r"(.*/|)Dense_(\d+)/", path))]
    depth = min((each[1].count("/") for each in layers), default=0)
    outermost = {(each[1], int(each[2])) for each in layers if each[1].count("/") == depth}
    modules = sorted({module for module, _ in outermost})
    if len(modules) > 1:
        raise ConfigError("personal", "", f"given, as dense layers are in {', '.join(modules)}")
    return "{}Dense_{}".format(*max(outermost)) if outermost else ""


def personal_metrics(problem: Any, model_of: Callable[[Array], Params]) -> dict[str, Array]:
    """Report the problem's metrics of each client's own model.

        people = supervised(MLP((4,), 1), squared_error, (inputs, targets), clients=names)
        zeros = jax.tree.map(jnp.zeros_like, people.init(key))
        metrics = personal_metrics(people, lambda client: zeros)
        assert metrics["personal_loss"] == (0 - 1) ** 2  # all targets are 1

    Args:
      model_of: From the number of a client, `i32[]`, to its model.

    Returns:
      Means over clients such as "personal_accuracy", and, if the problem reports clients one by
      one, "personal_client_accuracy[client]" and so on: `f[N]`. Clients whose value is nan are left
      out of means. Nothing if the problem has no examples of single clients, see
      `fedjax_sim.core.types.Problem`.
    """
    if not trees.has(problem, "evaluate_clients"):
        return {}
    values = problem.evaluate_clients(model_of)
    metrics = {f"personal_{name}": jnp.nanmean(value) for name, value in values.items()}
    if trees.has(problem, "per_client") and problem.per_client:
        metrics |= {f"personal_client_{name}[client]": value for name, value in values.items()}
    return metrics


def adapted_metrics(
    problem: Any, adapt: Callable[[Callable[[Params], Params]], Params]
) -> dict[str, Array]:
    """Report the problem's metrics of models that clients adapt to all of their examples.

        metrics = adapted_metrics(problem, lambda gradient: model - 0.1 * gradient(model))
        assert metrics == {}  # `Quadratic` has no examples of single clients

    Args:
      adapt: From the gradient of a client's loss, a function of a model, to the client's model.
        Noise in losses is that of one key.

    Returns:
      Those of `personal_metrics`; nothing if the problem has no `client_loss`.
    """
    if not trees.has(problem, "client_loss"):
        return {}

    def model_of(client: Array) -> Params:
        return adapt(jax.grad(lambda m: problem.client_loss(m, client, jax.random.key(0))))

    return personal_metrics(problem, model_of)
