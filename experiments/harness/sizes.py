"""How large a study is run: in full, reduced to what a CPU can do, or in seconds to see it run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_sim.core.settings import ConfigError

if TYPE_CHECKING:
    from experiments.harness.experiment import Arguments


@dataclass(frozen=True, init=False)
class Sizes:
    """The numbers that say how large one run of a study is.

    What only one study has is given by name and read as an attribute:

    >>> sizes = Sizes(seeds=4, rounds=200)
    >>> sizes.seeds, sizes.rounds
    (4, 200)
    >>> sizes.replace(rounds=50).rounds
    50

    Attributes:
      seeds: Number of independent repetitions: seeds, lanes or chains. `--seeds` replaces it.
        0 for a study that repeats nothing.
      first_seed: The first of them; `--seeds 5-9` replaces it, in studies whose records take more.
      dataset: Name or file of the data set; empty for a study without one. `--dataset`
        replaces it.
      words: How this size is smaller than the paper's; empty if it is not.
      extras: Further numbers by name, such as ticks, rounds or a time budget.
    """

    seeds: int
    dataset: str
    words: str
    first_seed: int
    extras: Mapping[str, Any]

    def __init__(
        self,
        seeds: int = 0,
        *,
        dataset: str = "",
        words: str = "",
        first_seed: int = 0,
        **extras: Any,
    ):
        values = {"seeds": seeds, "dataset": dataset, "words": words, "first_seed": first_seed}
        for name, value in {**values, "extras": extras}.items():
            object.__setattr__(self, name, value)  # The fields are frozen.

    def __getattr__(self, name: str) -> Any:
        extras = self.__dict__.get("extras", {})
        if name not in extras:
            raise AttributeError(f"sizes have no {name!r}, but {', '.join(extras) or 'no extras'}")
        return extras[name]

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def replace(self, **changes: Any) -> "Sizes":
        """Return the same sizes with some numbers changed, extras included.

        Raises:
          AttributeError: If the sizes have no number of this name.
        """
        for name in changes:
            getattr(self, name)
        fields = ("seeds", "dataset", "words", "first_seed")
        known = {name: getattr(self, name) for name in fields}
        return Sizes(**{**known, **self.extras, **changes})

    def config(self) -> dict[str, Any]:
        """Return all numbers by name, as an experiment writes them to `config.json`."""
        known = {name: getattr(self, name) for name in ("seeds", "dataset", "first_seed")}
        return {**{name: value for name, value in known.items() if value}, **self.extras}


def other_data(given: str, usual: str) -> str:
    """Say which data stand in for the usual ones; empty if none do.

    A file never counts as a data set of its name, as it may hold anything, such as JPEG images.
    """
    return "" if str(given) == usual else f"{Path(given).name} in place of {usual}"


class Study(NamedTuple):
    """The sizes at which a study can be run.

    Attributes:
      full: The size of the paper's figure, or of the check of a theory.
      smoke: A few seconds on bundled data, to see that everything runs (`--smoke`).
      reduced: Smaller than full on the same data, or None if the full size is meant for a CPU
        (`--reduced`).
    """

    full: Sizes
    smoke: Sizes
    reduced: Sizes | None = None

    def choose(self, arguments: "Arguments", *, least_seeds: int = 1) -> Sizes:
        """Return the size asked for on the command line.

        Args:
          arguments: The command line. Its seeds and data set replace those of the size.
          least_seeds: Fewer seeds than this are raised to it, as a standard error needs two.

        Raises:
          ConfigError: If `--reduced` is given and the study has no reduced size.
        """
        if arguments.reduced and self.reduced is None:
            raise ConfigError("reduced", True, "left out: the study has no smaller size")
        size = self.smoke if arguments.smoke else self.reduced if arguments.reduced else self.full
        assert size is not None
        if arguments.dataset is not None and size.dataset:
            size = size.replace(dataset=arguments.dataset)
        if arguments.seeds is not None and size.seeds:
            size = size.replace(seeds=max(least_seeds, arguments.seeds))
        return size.replace(first_seed=arguments.first_seed)
