"""The benchmark of peers: what is computed, reported and left out; nothing is timed or fetched."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_sim.models import MLP, LogisticRegression, SmallCNN
from scripts.benchmarks.peer_workers import jax_networks
from scripts.benchmarks.peer_workers.protocol import Data, Job, Shuffles, read_data, write_model
from scripts.benchmarks.peers import contest, environments, report, workloads
from scripts.benchmarks.peers.contest import ENGINE, ONE_CORE, ONE_RUN, RUN_PER_CORE

SMALL = workloads.WORKLOADS["d"]._replace(num_clients=4, examples=5, cohort=2, steps=3, batch=2)


def _layers(params: Any) -> list[np.ndarray]:
    """List kernel and bias of each layer, convolutions first."""
    names = sorted(params["params"], key=lambda name: (not name.startswith("Conv"), name))
    return [
        np.asarray(params["params"][name][leaf]) for name in names for leaf in ("kernel", "bias")
    ]


def test_operations_of_a_perceptron_by_hand() -> None:
    """Forward, both gradients of the last layer, and the weights' gradient of the first."""
    first, last = 2 * 32 * 784 * 128, 2 * 32 * 128 * 10
    assert workloads.step_operations(workloads.WORKLOADS["a"]) == 2 * first + 3 * last
    assert workloads.round_operations(workloads.WORKLOADS["a"]) == 400 * (2 * first + 3 * last)


@pytest.mark.slow
def test_operations_of_convolutions_match_the_compiler_within_one_percent() -> None:
    """Only the forward pass, as the compiler leaves out products with zeros in the gradients."""
    images = jnp.zeros((10, 32, 32, 3))
    params = _layers(SmallCNN(10).init(jax.random.key(0), images))
    with jax.numpy_rank_promotion("allow"):
        forward = jax.jit(lambda model, x: jax_networks.logits(model, x, 2)).lower(params, images)
    first = 2 * 10 * 30 * 30 * 32 * 27
    counted = (workloads.step_operations(workloads.WORKLOADS["d"]) + first) / 3
    assert counted == pytest.approx(forward.cost_analysis()["flops"], rel=0.01)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (LogisticRegression(10), (28, 28, 1)),
        (MLP((8,), 10), (28, 28, 1)),
        pytest.param(SmallCNN(10), (32, 32, 3), marks=pytest.mark.slow),
    ],
)
def test_loss_of_a_saved_model_is_that_of_the_library(network: Any, shape: tuple) -> None:
    """NumPy's forward pass agrees with flax, so that all peers' models are read alike."""
    arrays = workloads.shared_arrays(SMALL._replace(images=shape))
    images = jnp.asarray(arrays["images"], "float32") / 255
    params = network.init(jax.random.key(3), images)
    model = _layers(params)
    expected = optax.softmax_cross_entropy_with_integer_labels(
        network.apply(params, images), jnp.asarray(arrays["labels"])
    ).mean()
    assert workloads.mean_loss(model, arrays) == pytest.approx(float(expected), rel=1e-5)
    with jax.numpy_rank_promotion("allow"):
        by_hand = jax_networks.logits(model, images, 2 if isinstance(network, SmallCNN) else 0)
        loss = jax_networks.mean_cross_entropy(by_hand, jnp.asarray(arrays["labels"]))
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_shared_arrays_give_every_example_to_one_client() -> None:
    arrays = workloads.shared_arrays(SMALL)
    assert arrays["images"].shape == (20, 32, 32, 3) and arrays["images"].dtype == np.uint8
    assert sorted(arrays["index"].ravel()) == list(range(20))
    assert set(arrays["labels"]) <= set(range(10)) and len(set(arrays["labels"])) > 1


def test_shared_arrays_keep_real_data() -> None:
    images, labels = np.full((30, 32, 32, 3), 7, np.uint8), np.arange(30) % 10
    arrays = workloads.shared_arrays(SMALL, images, labels)
    assert (arrays["images"] == 7).all() and arrays["labels"].tolist() == labels[:20].tolist()


def test_workers_read_what_was_written_and_draw_whole_epochs(tmp_path: Path) -> None:
    arrays = workloads.shared_arrays(SMALL)
    write_model(tmp_path / "a.npz", [np.ones((2, 3)), np.zeros(3)], **arrays)
    data = read_data(tmp_path / "a.npz")
    assert isinstance(data, Data) and [leaf.shape for leaf in data.initial] == [(2, 3), (3,)]
    job = Job(**workloads.job_of(SMALL, arrays="", cores=1, mode="", lanes=1))
    draw = Shuffles(data, job)
    examples = draw.examples(1)
    assert len(examples) == 6 and sorted(examples[:5]) == sorted(data.index[1])
    assert examples[5] in data.index[1]
    assert len(set(draw.cohort())) == 2


def test_environment_is_made_once_and_again_if_requirements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> tuple[int, str]:
        ran.append(command)
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "python").touch()
        return 0, ""

    for _ in range(2):
        made = environments.environment_of("torch", tmp_path, run=run)
        assert made == (tmp_path / "torch" / "bin" / "python", "")
        assert len(ran) == 2 and "torch==2.13.0" in ran[1]
    monkeypatch.setitem(environments.REQUIREMENTS, "torch", ("torch==1",))
    environments.environment_of("torch", tmp_path, run=run)
    assert len(ran) == 4 and ran[3][-1] == "torch==1"


def test_environment_that_cannot_be_made_has_a_reason(tmp_path: Path) -> None:
    def run(command: Sequence[str]) -> tuple[int, str]:
        return ("pip" in command, "looking\nERROR: No matching distribution found for torch\nbye")

    failed = environments.environment_of("torch", tmp_path, run=run)
    assert failed == (None, "No matching distribution found for torch")


def _results() -> dict[str, Any]:
    def measured(**rates: float) -> dict[str, Any]:
        named = {"one": ONE_CORE, "run": ONE_RUN, "each": RUN_PER_CORE}
        return {
            "rounds_per_second": {named[name]: rate for name, rate in rates.items()},
            "loss": 2.25,
            "first_seconds": 1.5,
        }

    def part(contestants: dict[str, Any], absent: dict[str, str]) -> dict[str, Any]:
        return {
            "title": "a small one, quick",
            "data": "random bytes",
            "operations_per_round": 2e9,
            "initial_loss": 2.3,
            "contestants": contestants,
            "absent": absent,
        }

    return {
        "date": "2026-01-01",
        "machine": "a machine",
        "turns": 3,
        "limits": {
            "one core": {"product GFLOP/s": 100.0, "copy GB/s": 8.0},
            "all cores": {"product GFLOP/s": 180.0, "copy GB/s": 12.0},
        },
        "versions": {"pfl": {"versions": {"pfl": "0.6.0"}, "note": "a note"}},
        "absent": {"FLSim": "no wheel"},
        "workloads": {
            "b": part(
                {ENGINE: measured(one=50, each=90), "pfl": measured(one=5, run=6, each=9)},
                {"Flower": "no | answer"},
            ),
            "b64": part({ENGINE: measured(one=150, each=270)}, {}),
        },
    }


def test_shares_compare_with_the_limit_of_the_same_cores() -> None:
    shares = report.shares_of_limit(
        {ONE_CORE: 25.0, ONE_RUN: 45.0, RUN_PER_CORE: 90.0}, 2e9, _results()["limits"]
    )
    assert shares == pytest.approx({ONE_CORE: 0.5, ONE_RUN: 0.5, RUN_PER_CORE: 1.0})


def test_limits_are_the_largest_measured() -> None:
    other = {
        "one core": {"product GFLOP/s": 90.0, "copy GB/s": 9.0},
        "all cores": {"product GFLOP/s": 190.0, "copy GB/s": 11.0},
    }
    assert report.best_limits([_results()["limits"], other]) == {
        "one core": {"product GFLOP/s": 100.0, "copy GB/s": 9.0},
        "all cores": {"product GFLOP/s": 190.0, "copy GB/s": 12.0},
    }


def test_summary_compares_best_rates_and_runs_sweeps_one_by_one() -> None:
    lines = report.summary_table(_results()).splitlines()
    assert lines[0] == "| rounds per second | (b) | (b64) |"
    assert lines[2] == f"| {ENGINE} | **90.0** | **270** |"
    assert lines[3] == "| pfl | 9.00 (10.0x) | 9.00 (30.0x) |"
    assert len(lines) == 4


def test_details_show_shares_and_who_is_absent() -> None:
    lines = report.detail_table("b", _results()).splitlines()
    assert f"| {ENGINE} | 50.0 | - | 90.0 | 100 % | 2.2500 | 1.5 |" in lines
    assert "| Flower | absent: no / answer | | | | | |" in lines
    assert len({line.count("|") for line in lines}) == 1


def test_document_names_versions_limits_and_absent_peers() -> None:
    text = report.document(_results())
    assert "- pfl: pfl 0.6.0 (a note)" in text and "- FLSim: absent, no wheel" in text
    assert "all cores: a large product 180 GFLOP/s, a copy 12.0 GB/s" in text


def test_picture_is_drawn_from_results_alone(tmp_path: Path) -> None:
    report.draw(_results(), tmp_path / "images" / "peers.png")
    assert (tmp_path / "images" / "peers.png").read_bytes()[:4] == b"\x89PNG"


WORKER = """
import json, sys
import numpy as np
job = json.load(open(sys.argv[1]))
if job["mode"] == "fails":
    print(json.dumps({"error": "TypeError: no"}), flush=True)
if job["mode"] == "dies":
    sys.exit("out of luck")
print(json.dumps({"ready": True, "versions": {"numpy": "1"}, "note": ""}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if command["save"]:
        with np.load(job["arrays"]) as file:
            layers = {name: file[name] for name in file.files if name.startswith("layer")}
        if job["mode"] == "initial":
            layers = {"layer_0": np.zeros((3072, 10)), "layer_1": np.zeros(10)}
        np.savez(command["save"], **layers)
    print(json.dumps({"seconds": 0.5}), flush=True)
"""
"""Says what it is expected to say, in no time."""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="binds processes to cores")
def test_contest_keeps_rates_and_leaves_out_who_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "WORKERS", tmp_path)
    for name in ("engine", "fake"):
        (tmp_path / f"run_{name}.py").write_text(WORKER)
    core = sorted(os.sched_getaffinity(0))[-1]
    workload = SMALL._replace(timed={"loop": 8, "scan": 4, "slow": 2})
    rivals = {
        mode: (contest.Contestant("fake", mode), Path(sys.executable))
        for mode in ("works", "fails", "dies")
    } | {ENGINE: (contest.Contestant("engine", kind="scan"), Path(sys.executable))}
    found = contest.measure(
        workload,
        workloads.shared_arrays(workload),
        rivals,
        cores=[core, core],  # Two settings with two cores, on any machine.
        turns=2,
        say=lambda line: None,
    )
    assert found["absent"] == {"fails": "TypeError: no", "dies": "out of luck"}
    works, engine = found["contestants"]["works"], found["contestants"][ENGINE]
    assert works["rounds_per_second"] == {ONE_CORE: 16.0, ONE_RUN: 16.0, RUN_PER_CORE: 32.0}
    assert engine["rounds_per_second"] == {ONE_CORE: 8.0, ONE_RUN: 8.0, RUN_PER_CORE: 16.0}
    assert works["loss"] == pytest.approx(np.log(10)) == found["initial_loss"]
    assert json.loads(json.dumps(found)) == found
