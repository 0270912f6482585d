"""Ticks that pad a lane change nothing, for systems of the package, of docstrings and of pages."""

import contextlib
import inspect
import io
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Algorithm, System, problems
from fedjax_sim.clients import local_training
from fedjax_sim.server import mean_of
from fedjax_sim.systems import fedavg
from fedjax_sim.timelines import cohort_system
from tests.systems.conftest import Kind

DOCS = Path(__file__).parents[2] / "docs"
PROBLEM = problems.Quadratic.of(np.random.default_rng(0).normal(3, 1, (8, 3)).astype("float32"))
HYPER = fedavg.Hyper(num_clients=8, num_selected=3, local_steps=2, lr=0.1, batch_size=1)


def run_page(page: Path) -> None:
    """Run the Python of a page or a notebook."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        found = [re.sub(r"^( *)%.*$", r"\1pass", "".join(c["source"]), flags=re.M) for c in cells]
    else:
        found = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    scope: dict[str, Any] = {"__name__": page.stem}
    with contextlib.redirect_stdout(io.StringIO()), jax.numpy_rank_promotion("allow"):
        for block in found:
            exec(compile(block, page.name, "exec"), scope)


def check_any_number_of_ticks(system: System, hyper: Any, problem: Any = PROBLEM) -> None:
    """A number of ticks that evaluations do not divide ends where single ticks end."""
    ends = []
    for num_evals in (2, 5):
        asked = {"budget": fedjax_sim.Ticks(5), "num_evals": num_evals}
        with jax.numpy_rank_promotion("allow"):
            run = fedjax_sim.sweep(system, problem, hyper, seeds=2, **asked)
        ends.append((jax.tree.leaves(run.models), run.curves.needed))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *ends)


@pytest.mark.slow
def test_the_example_of_algorithm() -> None:
    """The docstring of `Algorithm`, word for word."""
    example = textwrap.dedent(
        re.search(r"( {4}def algorithm.*?\n)\n {4}bound", inspect.getdoc(Algorithm), re.DOTALL)[1]
    )
    scope = {"local_training": local_training, "mean_of": mean_of, "Algorithm": Algorithm}
    exec(example, scope)
    system = cohort_system("own", fedavg.Hyper, scope["algorithm"], "an example")
    check_any_number_of_ticks(system, HYPER)
    check_any_number_of_ticks(system, HYPER.replace(num_selected=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "guides/patterns.md",
        "guides/parts.md",
        "notebooks/3_own_algorithm.ipynb",
    ],
)
def test_systems_of_pages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every system that a page defines and runs, with the problem and settings of the page."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    runs: dict[str, tuple[System, Any, Any]] = {}
    for entry in ("simulate", "sweep"):
        run = getattr(fedjax_sim, entry)

        def noted(
            system: Any, problem: Any, hyper: Any, *args: Any, run: Any = run, **kw: Any
        ) -> Any:
            found = run(system, problem, hyper, *args, **kw)
            if system.algorithm.__module__ == Path(name).stem:
                runs[system.name] = system, hyper, problem
            return found

        monkeypatch.setattr(fedjax_sim, entry, noted)
    run_page(DOCS / name)
    monkeypatch.undo()
    assert runs
    for each in runs.values():
        check_any_number_of_ticks(*each)


@pytest.mark.few(2)
@pytest.mark.of_each_kind(3)
def test_any_number_of_ticks(system: System, kind: Kind, small: Callable) -> None:
    """Every system of the package, whose empty ticks change nothing."""
    check_any_number_of_ticks(system, small(system), kind.make())
