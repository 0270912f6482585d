"""Count what a run of FedAvg with six clients executes: files, functions, lines and frames.

    python scripts/executed.py

Only functions of the package count, from the call of `simulate` to its result, while nothing is
cached yet. Functions inside others, lambdas and comprehensions count too. The lines are the source
lines of these functions, executed or not, from `def` or the first decorator to the end, each once.
Frames are those of the package on the stack when the first gradient is asked for, through
`simulate` and through `bind`; frames of other packages between them do not count. Code that runs
in other threads is not seen.
"""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import jax.numpy as jnp
from structure import code_lines

import fedjax_sim
from fedjax_sim import problems
from fedjax_sim.systems import fedavg

PACKAGE = str(Path(fedjax_sim.__file__).parent)
GRADIENTS = {inspect.unwrap(function).__code__ for function in (jax.grad, jax.value_and_grad)}


class Listener:
    """A listener to calls.

    Attributes:
      functions: The functions that were called.
      at_gradient: The functions on the stack when the first gradient was asked for, innermost
        first.
    """

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.at_gradient: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Listen to calls, as `sys.setprofile` asks."""
        if event != "call":
            return
        if frame.f_code in GRADIENTS and not self.at_gradient:
            outer: FrameType | None = frame
            while outer := outer and outer.f_back:
                if is_ours(outer.f_code):
                    self.at_gradient.append(outer.f_code)
        if is_ours(frame.f_code):
            self.functions.add(frame.f_code)

    def files(self) -> list[str]:
        """List the files of the functions that were called, as paths within the package."""
        return sorted({code.co_filename.removeprefix(PACKAGE)[1:] for code in self.functions})

    def lines(self) -> set[tuple[str, int]]:
        """List the source lines of the functions that were called, by file and number."""
        found = set()
        for code in self.functions:
            lines, start = inspect.getsourcelines(code)
            found |= {(code.co_filename, start + offset) for offset in range(len(lines))}
        return found


def is_ours(code: CodeType) -> bool:
    """Tell whether code is a function of the package; bodies of modules and classes are none."""
    return code.co_filename.startswith(PACKAGE) and bool(code.co_flags & inspect.CO_OPTIMIZED)


def listen(call: Callable[[], object]) -> Listener:
    """Call a function and return what was heard."""
    listener = Listener()
    sys.setprofile(listener)
    try:
        call()
    finally:
        sys.setprofile(None)
    return listener


def simulated() -> Listener:
    """Listen to a run of FedAvg."""
    six = problems.Quadratic.of(jnp.linspace(-1.0, 1.0, 12).reshape(6, 2))
    hyper = fedavg.paper(num_clients=6, num_selected=3, batch_size=1)
    budget = fedjax_sim.Ticks(10)
    return listen(
        lambda: fedjax_sim.simulate(fedavg.system, six, hyper, budget=budget, num_evals=5)
    )


def bound() -> Listener:
    """Listen to the first step of the same run through `bind`."""
    six = problems.Quadratic.of(jnp.linspace(-1.0, 1.0, 12).reshape(6, 2))
    hyper = fedavg.paper(num_clients=6, num_selected=3, batch_size=1)
    run = fedjax_sim.bind(fedavg.system, six, hyper, budget=fedjax_sim.Ticks(10))
    state, event = run.init(), run.event(0)
    return listen(lambda: run.step(state, event))


def main() -> None:
    """Print the counts."""
    run = simulated()
    lines, files = run.lines(), run.files()
    code = {
        (file, line)
        for file in {file for file, _ in lines}
        for line in code_lines(Path(file).read_text())
    }
    print(
        f"files {len(files)}, functions {len(run.functions)}, lines {len(lines)}, of these lines "
        f"of code {len(lines & code)}, frames at the first gradient {len(run.at_gradient)}, "
        f"through bind {len(bound().at_gradient)}"
    )
    for path in files:
        print(f"  {path}")


if __name__ == "__main__":
    main()
