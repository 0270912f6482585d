"""The comparison of standard algorithms, in its smallest size."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.baselines import cifar10, setup
from experiments.baselines.cifar10 import PatchNet
from experiments.baselines.mnist import COMPARISON
from experiments.baselines.setup import (
    AT_ONCE,
    CLOCK,
    FAMILIES,
    GRIDS,
    SMOKE,
    families_figure,
    standard_algorithms,
)
from experiments.harness import Arguments
from fedjax_sim.cli.comparison import MAIN_JOB
from fedjax_sim.cli.defaults import DEFAULTS
from fedjax_sim.core.settings import check, idle_of, names_of, value_of
from tests.experiments.running import REPOSITORY, run

RESULTS = REPOSITORY / "experiments" / "baselines" / "results"


@pytest.mark.slow
@pytest.mark.parametrize("systems", [SMOKE[:1], pytest.param(SMOKE, marks=pytest.mark.slow)])
def test_every_method_is_tuned_and_compared(
    systems: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices are points of the grids, and the table has a row for each method."""
    monkeypatch.setattr(setup, "SMOKE", systems)
    done = run("baselines/mnist", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    methods = set(config["grids"])
    assert len(config["chosen"]) == len(methods) == len(systems)
    for key, found in config["chosen"].items():
        grid = config["grids"][key.split(", ")[-1]]
        assert all(value in grid[name] for name, value in found["choice"].items())
        assert set(found["choice"]) == set(grid)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| fed")]
    assert {line.split()[1] for line in lines} == methods and len(lines) == len(systems)
    assert (tmp_path / "out" / "accuracy_0.png").exists()
    assert (tmp_path / "out" / "sensitivity_0.png").exists()


def test_all_methods_have_the_same_clients_and_clock() -> None:
    """Speeds, clock and the number of clients at work are equal, whatever a method's paper uses."""
    sizes = COMPARISON.study.full
    for name, each in standard_algorithms(sizes, smoke=False).items():
        first = {key: values[0] for key, values in each.grid.items()}
        hyper = each.hyper.replace(**first)
        check(hyper)
        shared = {**CLOCK, "num_clients": 100, "num_selected": 20}
        shared |= {"concurrency": 20, "num_tasks": 20}
        if name in AT_ONCE:
            shared["server_interact"] = 0.0
        known, idle = names_of(type(hyper)), idle_of(hyper)
        read = {key for key in shared.keys() & known.keys() if known[key] not in idle}
        values = {key: value_of(hyper, known[key]) for key in read}
        found = {key: getattr(value, "name", value) for key, value in values.items()}
        assert found == {key: shared[key] for key in found}, name
        assert {"rate_fast", "rate_slow", "slow_fraction"} <= found.keys(), name
        assert (hyper.local_steps, hyper.batch_size) == (20, sizes.batch), name


def test_the_small_network_of_the_reduced_size() -> None:
    """It has the stated number of parameters, and takes one image as well as many."""
    (logits, params) = jax.eval_shape(
        lambda key, images: PatchNet(10).init_with_output(key, images),
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.ShapeDtypeStruct((7, 32, 32, 3), "float32"),
    )
    assert logits.shape == (7, 10)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 25_834


@pytest.mark.parametrize(
    ("arguments", "image"),
    [
        (Arguments(smoke=True), (8, 8, 1)),
        (Arguments(reduced=True), (32, 32, 3)),
        (Arguments(), (32, 32, 3)),
    ],
)
def test_the_network_of_each_size_takes_its_images(
    arguments: Arguments, image: tuple[int, ...]
) -> None:
    (logits, _) = jax.eval_shape(
        cifar10.network_of(arguments)(10).init_with_output,
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.ShapeDtypeStruct((7, *image), "float32"),
    )
    assert logits.shape == (7, 10)


def test_families_of_methods_have_a_panel_each() -> None:
    """Every method is drawn, FedAvg in every panel, and marks lie where errors do."""
    accuracy = xr.DataArray(np.linspace(0.1, 0.55, 10).reshape(2, 5), dims=("seed", "eval"))
    curves = xr.Dataset({"accuracy": accuracy}).assign_coords(time=1000 * accuracy)
    names = {name for family in FAMILIES.values() for name in family}
    assert names == set(GRIDS)
    figure = families_figure(dict.fromkeys(names, curves), "title")
    labels = [axes.get_legend_handles_labels()[1] for axes in figure.axes]
    assert [tuple(each) for each in labels] == list(FAMILIES.values())
    assert all(each[0] == "fedavg" for each in labels)
    assert next(label.get_text() for label in figure.axes[0].get_yticklabels()) == "60"


def test_the_main_job_runs_what_validation_chose() -> None:
    """The command line's tuned settings are the committed choices, made inside of the grids."""
    text = json.loads((RESULTS / "digits.json").read_text())["text"]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if " lr " in line]
    chosen = {row[0].strip(): row[1].strip() for row in rows}
    tuned = {
        name: ", ".join(f"{key} {value:g}" for key, value in settings.items())
        for name, settings in DEFAULTS["digits"].tuned.items()
    }
    assert {name: chosen[name] for name in MAIN_JOB} == tuned
    assert "edge" not in text


def test_summaries_show_what_a_mean_hides() -> None:
    """A diverged seed counts as 0 and is not counted as collapsed."""
    accuracy = [[0.1, 0.5, 0.6, 0.7], [0.1, 0.9, 0.2, 0.1], [0.1, 0.8, np.nan, np.nan]]
    time = [[0, 10, 20, 30], [0, 11, 22, 33], [0, 9, 18, 27]]
    curves = xr.Dataset(
        {
            "accuracy": (("seed", "eval"), accuracy),
            "failed": ("seed", [False, False, True]),
            "collapsed_at": ("seed", [-1, 3, 2]),
        },
        {"time": (("seed", "eval"), time), "ticks": ("eval", [0, 1, 2, 3])},
    )
    found = setup.summarise(curves, (0.6, 0.85))
    assert found.mean == pytest.approx(100 / 3) and found.std == pytest.approx(np.sqrt(2800 / 3))
    assert (found.median, found.worst) == pytest.approx((40, 0))
    assert (found.failed, found.collapsed) == (1, 1)
    assert found.rounds == {"0.6": 1, "0.85": None}
    assert found.times == {"0.6": 11, "0.85": None}
