"""Count what a run of FedAvg with six clients executes: files, functions and frames.

    python scripts/executed.py

Only functions of the package count, from the call of `simulate` to its result, while nothing is
cached yet. A frame of another package between two of ours does not count. Code that runs in other
threads is not seen.
"""

import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import jax.numpy as jnp

import fedjax_sim
from fedjax_sim import problems
from fedjax_sim.systems import fedavg

PACKAGE = str(Path(fedjax_sim.__file__).parent)


class Counter:
    """What was executed.

    Attributes:
      files: The files, as paths within the package.
      functions: The functions, with their files.
      deepest: The most frames of the package that were on the stack at one time.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.deepest = 0
        self._depth = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Listen to calls and returns, as `sys.setprofile` asks."""
        path = frame.f_code.co_filename
        is_call = event in ("call", "return") and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if not is_call or not path.startswith(PACKAGE):  # Bodies of modules and classes are not.
            return
        self._depth += 1 if event == "call" else -1
        self.deepest = max(self.deepest, self._depth)
        self.files.add(path.removeprefix(PACKAGE)[1:])
        self.functions.add((path, frame.f_code.co_qualname))


def main() -> None:
    """Run FedAvg and print the counts."""
    centres = jnp.linspace(-1.0, 1.0, 12).reshape(6, 2)
    problem = problems.Quadratic.of(centres)
    hyper = fedavg.paper(num_clients=6, num_selected=3, batch_size=1)
    counter = Counter()
    sys.setprofile(counter)
    try:
        fedjax_sim.simulate(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(10), num_evals=5)
    finally:
        sys.setprofile(None)
    print(
        f"files {len(counter.files)}, functions {len(counter.functions)}, "
        f"frames {counter.deepest} deep"
    )
    for path in sorted(counter.files):
        print(f"  {path}")


if __name__ == "__main__":
    main()
