"""Models that belong in part or as a whole to single clients, and their evaluation."""

import re
from collections.abc import Callable
from typing import Any

import jax

from fedjax_sim.settings import Checked, ConfigError, static, struct
from fedjax_sim.types import Array, Params


def _is_predicate(value: Any) -> bool:
    try:
        return callable(value) or bool(re.compile(value))
    except (re.error, TypeError):
        return False


@struct
class PersonalLeaves(Checked):
    """Settings that say which leaves of the model are personal."""

    personal: Any = static(
        "",
        "a regular expression, or a function from a path to whether its leaf is personal",
        _is_predicate,
        meaning="Which leaves are personal, found in paths such as params/Dense_1/kernel; by "
        "default those of the last dense layer.",
    )

    def are_personal(self, model: Params) -> Any:
        """Tell which leaves of a model are personal: bools in the model's structure."""
        leaves, structure = jax.tree.flatten_with_path(model)
        paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
        is_personal = self.personal
        if not is_personal:
            layers = [path.rpartition("/")[0] for path in paths if "Dense" in path]
            last = max(layers, key=lambda layer: (len(layer), layer), default="")
            is_personal = f"^{re.escape(last)}/"
        if not callable(is_personal):
            is_personal = re.compile(is_personal).search
        return jax.tree.unflatten(structure, [bool(is_personal(path)) for path in paths])

    def split(self, model: Params) -> tuple[Params, Params]:
        """Split a model, or models, into shared and personal leaves; the others are None."""
        flags = self.are_personal(model)
        shared = jax.tree.map(lambda leaf, is_own: None if is_own else leaf, model, flags)
        return shared, jax.tree.map(lambda leaf, is_own: leaf if is_own else None, model, flags)

    def completed(self, problem: Any) -> Any:
        """Check that some leaves are personal and others are shared.

        Raises:
          ConfigError: If all leaves are personal, or none.
        """
        if problem is not None:
            flags = self.are_personal(jax.eval_shape(problem.init, jax.random.key(0)))
            if len(set(jax.tree.leaves(flags))) < 2:
                allowed = "such that some leaves of the model are personal and others are shared"
                raise ConfigError("personal", self.personal, allowed)
        return super().completed(problem)


def join(shared: Params, own: Params) -> Params:
    """Put shared and personal leaves together, as `PersonalLeaves.split` makes them."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, shared, own, is_leaf=lambda leaf: leaf is None
    )


def personal_metrics(problem: Any, model_of: Callable[[Array], Params]) -> dict[str, Array]:
    """Average over clients what the problem measures of each client's own model.

    Args:
      problem: What is learnt.
      model_of: From the number of a client, `i32[]`, to its model.

    Returns:
      Metrics such as "personal_accuracy", each a scalar; none if the problem is no
      `fedjax_sim.types.PersonalProblem`.
    """
    if not hasattr(problem, "evaluate_clients"):
        return {}
    values = problem.evaluate_clients(model_of)
    return {f"personal_{name}": value.mean() for name, value in values.items()}
