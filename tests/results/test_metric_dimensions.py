"""Metrics with dimensions: from the program to labelled curves, summaries, files and pictures."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.problems import Quadratic
from fedjax_sim.results import reports
from fedjax_sim.results.curves import describe_metrics
from fedjax_sim.results.plots import clients_figure, metric_figures
from fedjax_sim.results.runs import join_runs
from fedjax_sim.systems import fedavg

N = 11


@struct.dataclass
class Watched(Quadratic):
    """A quadratic that reports every client's distance, and a table with a gap."""

    kind: str = struct.field(pytree_node=False, default="right")

    @property
    def metric_labels(self) -> dict[str, Any]:
        return {"client": [f"c{i}" for i in range(N)], "axis": ("x", "y")}

    @property
    def less_is_better(self) -> list[str]:
        return ["away"]

    def evaluate(self, params: jax.Array) -> dict[str, jax.Array]:
        away = jnp.abs(params[None] - self.centers)
        shapes = {
            "right": {"away[client]": away.sum(axis=1), "table[axis, client]": away.T},
            "unnamed": {"away": away.sum(axis=1)},
            "too few": {"away[client]": away},
            "twice": {"loss[client]": away.sum(axis=1)},
            "a setting": {"lr": away.sum()},
            "a coordinate": {"ticks": away.sum()},
            "a fact": {"finite": away.sum()},
            "along seeds": {"away[seed]": away.sum(axis=1)},
            "with a slash": {"top/5": away.sum()},
            "along a slash": {"away[a/b]": away.sum(axis=1)},
            "along itself": {"client": away.sum(), "away[client]": away.sum(axis=1)},
        }
        gap = {"gap[axis]": jnp.array([jnp.nan, 1.0])} if self.kind == "right" else {}
        return super().evaluate(params) | shapes[self.kind] | gap


CENTERS = np.random.default_rng(0).normal(size=(N, 2)).astype("float32")
HYPER = fedavg.paper(num_clients=N, num_selected=4, local_steps=2)
OPTIONS: dict[str, Any] = {
    "seeds": 2,
    "settings": {"lr": [0.1, 0.2]},
    "budget": fedjax_sim.Ticks(4),
    "num_evals": 2,
    "layout": Layout(1, False, 1),
}


def problem_of(kind: str = "right") -> Watched:
    return Watched(**vars(Quadratic.of(CENTERS)), kind=kind)


@pytest.fixture(scope="module")
def run() -> fedjax_sim.Run:
    return fedjax_sim.sweep(fedavg.system, problem_of(), HYPER, **OPTIONS)


def test_curves_have_the_dimensions_and_labels(run: fedjax_sim.Run) -> None:
    curves = run.curves
    assert curves.away.dims == ("lr", "seed", "eval", "client")
    assert curves.table.dims == ("lr", "seed", "eval", "axis", "client")
    assert curves.client.values.tolist() == [f"c{i}" for i in range(N)]
    assert curves.axis.values.tolist() == ["x", "y"]
    assert curves.loss.dims == ("lr", "seed", "eval")
    models = np.asarray(run.models).reshape(2, 2, 1, 2)
    expected = np.abs(models - CENTERS)
    np.testing.assert_allclose(curves.away.values[:, :, -1], expected.sum(axis=-1), rtol=1e-5)
    table = curves.table.values[:, :, -1]
    np.testing.assert_allclose(np.swapaxes(table, -1, -2), expected, rtol=1e-5)
    # There nan is nothing to measure; no lane failed by it.
    assert np.isnan(curves.gap.sel(axis="x")).all()
    assert not curves.failed.any()


def test_the_summary_has_mean_worst_decile_and_spread(run: fedjax_sim.Run) -> None:
    """Of eleven clients the two that are farthest away are the worst tenth."""
    entries = reports.summary({"fedavg": run.curves})["systems"]["fedavg"]["settings"]
    final = entries[1]["final"]
    assert "table" not in final
    away = np.sort(run.curves.away.values[1, :, -1].astype(float), axis=-1)
    assert final["away"] == {
        "mean": pytest.approx(away.mean()),
        "std": pytest.approx(away.mean(axis=1).std()),
        "worst_decile": pytest.approx(away[:, -2:].mean()),
        "spread": pytest.approx(away.std(axis=1).mean()),
    }


def test_parts_and_files_keep_them(run: fedjax_sim.Run, tmp_path: Path) -> None:
    """Two parts that are joined, from checkpoints, and a file that is read are the whole."""
    parts = [
        fedjax_sim.sweep(
            fedavg.system,
            problem_of(),
            HYPER,
            lanes=fedjax_sim.Part(i, 2),
            checkpoints=fedjax_sim.Checkpoints(tmp_path / str(i)),
            **OPTIONS,
        )
        for i in range(2)
    ]
    again = fedjax_sim.sweep(
        fedavg.system,
        problem_of(),
        HYPER,
        lanes=fedjax_sim.Part(0, 2),
        checkpoints=fedjax_sim.Checkpoints(tmp_path / "0", resume=True),
        **OPTIONS,
    )
    joined = join_runs([again, parts[1]]).curves
    folder = reports.Folder(tmp_path / "out")
    folder.open()
    reports.save(folder, {"fedavg": run.curves}, {})
    read = reports.load(tmp_path / "out").curves["fedavg"]
    for name in ("away", "table", "gap", "loss"):
        np.testing.assert_array_equal(joined[name].values, run.curves[name].values)
        np.testing.assert_array_equal(read[name].values, run.curves[name].values)
        assert joined[name].dims == read[name].dims == run.curves[name].dims
    for curves in (joined, read):
        assert curves.client.values.tolist() == run.curves.client.values.tolist()
        assert curves.away.attrs["less_is_better"] == 1


def test_a_histogram_shows_all_clients_and_other_tables_are_left_out(run: fedjax_sim.Run) -> None:
    figures = metric_figures({"fedavg": run.curves})
    assert set(figures) == {"loss.png", "away.png"}
    axes = clients_figure({"fedavg": run.curves}, "away").axes[0]
    shares = [patch.get_data().values for patch in axes.patches]
    assert [share.sum() for share in shares] == pytest.approx([1, 1])
    # A line for each of the two settings, and a mark at each of its ends.
    ends = np.stack([line.get_xdata() for line in axes.lines[::3]])
    marks = np.stack([[line.get_xdata()[0] for line in axes.lines[i::3]] for i in (1, 2)], axis=1)
    np.testing.assert_array_equal(ends, marks)
    final = run.curves.away.values[:, :, -1].astype(float)
    np.testing.assert_allclose(ends[:, 1], final.mean(axis=(1, 2)))
    np.testing.assert_allclose(ends[:, 0], np.sort(final)[..., -2:].mean(axis=(1, 2)))


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "unnamed",
            r"shape of the metric away is \(11,\), but must be \(\); if it has dimensions, n",
        ),
        ("too few", r"shape of the metric away\[client\] is \(11, 2\), but must be \(client,\)"),
        ("twice", r"name of a metric is 'loss\[client\]', but must be another one"),
        ("a setting", "name of a metric is 'lr', but must be another one, as lr already names a"),
        ("a coordinate", "name of a metric is 'ticks', but must be another one, as ticks already"),
        ("a fact", "name of a metric is 'finite', but must be another one, as finite already"),
        ("along seeds", r"a metric is 'away\[seed\]', but must be another one, as seed already"),
        ("with a slash", "name of a metric is 'top/5', but must be without \"/\""),
        ("along a slash", r"name of a metric is 'away\[a/b\]', but must be without"),
        ("along itself", "name of a metric is 'client', but must be another one, as there is a cl"),
    ],
)
def test_wrong_shapes_are_refused_before_compilation(
    kind: str, words: str, compiled: list[str]
) -> None:
    with pytest.raises(ConfigError, match=words):
        fedjax_sim.sweep(fedavg.system, problem_of(kind), HYPER, **OPTIONS)
    assert not [name for name in compiled if "advance" in name or "begin" in name]


class Steps(NamedTuple):
    """An `Info` that counts what it calls away."""

    away: jax.Array


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": lambda state: {"loss": jnp.float32(1)}}, "'loss', but must be another one"),
        (
            {"step": lambda key, state, event: (state, Steps(jnp.int32(1)))},
            r"'away\[client\]', but",
        ),
    ],
)
def test_an_algorithm_replaces_no_metric_of_a_problem(
    changes: dict[str, Any], words: str, compiled: list[str]
) -> None:
    def algorithm(*given: Any) -> Any:
        return fedavg.system.algorithm(*given)._replace(**changes)

    system = fedavg.system._replace(algorithm=algorithm)
    compiled.clear()
    with pytest.raises(ConfigError, match=f"name of a metric is {words}"):
        fedjax_sim.sweep(system, problem_of(), HYPER, **OPTIONS)
    assert not [name for name in compiled if "advance" in name]


@pytest.mark.slow
def test_numbers_of_numpy_label_as_numbers(run: fedjax_sim.Run) -> None:
    """Clients by an array of their numbers, and settings swept over an array."""

    @struct.dataclass
    class Numbered(Watched):
        @property
        def metric_labels(self) -> dict[str, Any]:
            return {"client": np.arange(3, 3 + N)}

    problem = Numbered(**vars(problem_of()))
    assert describe_metrics(run.curves, [problem]).client.dtype.kind == "i"
    swept = OPTIONS | {"settings": {"local_steps": np.array([1, 2])}}
    found = fedjax_sim.sweep(fedavg.system, problem, HYPER, **swept)
    assert found.lane(local_steps=2, seed=0).hypers[0].local_steps == 2
    assert found.curves.local_steps_setting.dtype.kind == "i"
