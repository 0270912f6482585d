"""Start lanes from given models instead of drawn ones: from a model, or from the models of a run.

A system draws its first model by `problem.init` and by nothing else, whatever else its state
holds. So a lane starts from a given model (from given statistics in expectation maximisation) if
`init` of its problem returns that. Everything else begins as in any run: memories, optimizers and
control variates are fresh. To go on with these too, resume a checkpoint with a larger budget.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.engine.curves import label_of_value
from fedjax_sim.engine.lanes import Lane
from fedjax_sim.engine.runs import Run, lane_labels
from fedjax_sim.settings import ConfigError
from fedjax_sim.types import AnyProblem, Params


def give_starts(lanes: Sequence[Lane], start: Run | Params | None) -> list[Lane]:
    """Give each lane the model that it starts from.

    Args:
      lanes: The lanes of a sweep.
      start: A model for all lanes; or a run, of which each lane takes the final model of the lane
        with the same seed and the same values of those settings that the run swept; or None.

    Returns:
      The lanes.

    Raises:
      ConfigError: If the run lacks a lane, or a model is not of the shape that a problem draws.
    """
    if start is None:
        return list(lanes)
    found = [_model_of(start, lane) for lane in lanes]
    fitted: dict[tuple[int, int], Params] = {}
    for lane, model in zip(lanes, found, strict=True):
        if (id(model), id(lane.problem)) not in fitted:
            fitted[id(model), id(lane.problem)] = _fitted(model, lane.problem)
    return [
        lane._replace(start=fitted[id(model), id(lane.problem)])
        for lane, model in zip(lanes, found, strict=True)
    ]


def stack_starts(lanes: Sequence[Lane]) -> Params | None:
    """Stack the models that lanes start from: leaves `[L, ...]`; None if they are drawn."""
    if lanes[0].start is None:
        return None
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(lane.start for lane in lanes))


def _model_of(start: Run | Params, lane: Lane) -> Params:
    """Find the model that a lane starts from."""
    if not isinstance(start, Run):
        return start
    if not start.lane_dims:
        return start.models
    wanted = {
        name: lane.seed if name == "seed" else label_of_value(getattr(lane.hyper, name, None))
        for name in lane_labels(start.curves)[0]
    }
    for i, labels in enumerate(lane_labels(start.curves)):
        if labels == wanted:
            return start.model(i)
    words = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
    allowed = f"one with a lane of {words}, or for all lanes one model or one run.lane(...)"
    raise ConfigError("start", f"a run of {start.curves.attrs['system']}", allowed)


def _fitted(model: Params, problem: AnyProblem) -> Params:
    """Check a model against what a problem draws, and give it the same types."""
    drawn = jax.eval_shape(problem.init, jax.random.key(0))
    ours: Any = jax.tree.structure(drawn)
    theirs: Any = jax.tree.structure(model)
    if ours != theirs:
        raise ConfigError("structure of start", theirs, f"{ours}, as of models of the problem")

    def fit(path: Any, like: Any, leaf: Any) -> np.ndarray:
        found = jnp.result_type(leaf)
        if np.shape(leaf) != like.shape or not np.can_cast(found, like.dtype, "same_kind"):
            place = jax.tree_util.keystr(path) or "the model"
            raise ConfigError(
                f"start at {place}",
                f"{found}{list(np.shape(leaf))}",
                f"{like.dtype}{list(like.shape)}, as in models of the problem",
            )
        return np.asarray(leaf, like.dtype)

    return jax.tree_util.tree_map_with_path(fit, drawn, model)
