"""The options of a sweep that apply to all of its lanes."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from fedjax_sim.checking import OneOf
from fedjax_sim.engine.placement import Layout
from fedjax_sim.engine.progress import Shown, is_shown
from fedjax_sim.engine.watching import OnEvaluation
from fedjax_sim.settings import plain
from fedjax_sim.types import PRECISIONS, Tracker

Precision = Annotated[str, OneOf(PRECISIONS)]
"""How exact matrix products are on accelerators."""

ANY_JAX: Literal["any_jax"] = "any_jax"
"""Value of `resume` that accepts a checkpoint of another version of JAX."""
Resume = bool | Literal["any_jax"]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `sweep` that apply to all lanes; see there.

    Attributes:
      devices: Devices to compile for, if these are only described; () to run on the local ones.
    """

    time_budget: float | None
    num_ticks: int | None
    num_evals: int
    layout: Layout
    max_lanes: int | None = None
    evals_per_chunk: int | None = None
    client_variance: bool = False
    keep_models: bool = False
    checkpoint: Path | None = None
    checkpoint_every: float = 20.0
    resume: Resume = False
    progress: Shown = False
    precision: str = "float32"
    on_evaluation: OnEvaluation | None = None
    trackers: tuple[Tracker, ...] = ()
    devices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        """Turn numbers of NumPy into those of Python, which files can hold."""
        for name, value in vars(self).items():
            if isinstance(value, Layout):
                value = Layout(*map(plain, value))
            object.__setattr__(self, name, plain(value))

    @property
    def is_watched(self) -> bool:
        """Whether the host wants to see every evaluation."""
        shows = self.progress is not False and is_shown(self.progress)
        return shows or self.on_evaluation is not None or bool(self.trackers)
