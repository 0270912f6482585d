"""`fedjax-sim tune`, `compare`, and `plot` into one file, in an empty folder."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import datasets
from fedjax_sim.cli import studying
from fedjax_sim.cli.commands import main, make_parser

WORDS = [
    *("fedavg", "--set", "num_clients=5,num_selected=5,local_steps=5,batch_size=8"),
    *("--set", "lr=1e-6,0.3", "--widenings", "0", "--model", "logistic", "--partition", "iid"),
    *("--seeds", "2", "--tuning-seeds", "2", "--time-budget", "150", "--evals", "3"),
]


def write(name: str, labels: np.ndarray) -> None:
    """Write the digits with other test labels."""
    data = datasets.load("digits")
    arrays = {"train_images": data.train_images, "train_labels": data.train_labels}
    np.savez(name, **arrays, test_images=data.test_images, test_labels=labels)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_grid_to_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The test set decides nothing: with wrong test labels the same rate has the same scores."""
    labels = datasets.load("digits").test_labels
    write("right.npz", labels)
    write("wrong.npz", (labels + 1) % 10)
    found = {}
    for name in ("right", "wrong"):
        assert main(["tune", *WORDS, "--dataset", f"{name}.npz", "--out", name]) == 0
        found[name] = json.loads(Path(name, "choices.json").read_text())["fedavg"]
    assert found["right"] == found["wrong"] and found["right"]["choice"] == {"lr": 0.3}
    assert found["right"]["lanes"] == 4
    runs = fedjax_sim.load_runs("right")
    assert runs["fedavg"].hypers[0].lr == 0.3
    assert fedjax_sim.load("right").curves.equals(runs["fedavg"].curves)
    wrong = fedjax_sim.load("wrong").curves.accuracy.isel(eval=-1)
    assert (runs["fedavg"].curves.accuracy.isel(eval=-1) > 0.7).all() and (wrong < 0.3).all()
    assert "fedjax-sim tune fedavg" in Path("right/rerun.sh").read_text()
    out = capsys.readouterr().out
    assert "lr 0.3" in out and "tuning seeds 1000, 1001" in out
    # Resumed, nothing runs again.
    assert main(["tune", *WORDS, "--dataset", "right.npz", "--out", "right", "--resume"]) == 0
    assert "its result is read" in capsys.readouterr().err
    assert json.loads(Path("right/choices.json").read_text())["fedavg"] == found["right"]
    for criterion in ([], ["--criterion", "time", "--level", "0.5", "--against", "bits"]):
        words = ["compare", "right", "wrong", "--format", "pdf,svg", "--width", "column"]
        assert main([*words, "--out", "c", "--overwrite", *criterion]) == 0
        out = capsys.readouterr().out
        assert "fedavg (right)" in out and "seeds needed" in out
        assert r"\toprule" in Path("c/comparison.tex").read_text()
        assert Path("c/differences.csv").read_text().startswith("pair,difference,± difference")
    assert Path("c/accuracy_bits.svg").exists()
    assert Path("c/times.pdf").read_bytes().startswith(b"%PDF")
    assert main(["compare", "right", "--out", "alone"]) == 0  # One system has no pairs.
    assert main(["plot", "right", "--plot", "accuracy", "--out", "x.svg"]) == 0
    assert "<svg" in Path("x.svg").read_text()
    again = ["tune", *WORDS, "--dataset", "right.npz", "--out", "right"]
    for words, sentence in (
        (["plot", "right", "--out", "two.pdf"], "2 pictures"),
        (["plot", "right", "--plot", "accuracy", "--out", "x.svg"], "a new file"),
        (["plot", "right", "--plot", "accuracy", "--against", "energy"], "an axis of all systems"),
        (["compare", "right", "--metric", "epsilon"], "metric is 'epsilon'"),
        (["compare", "right", "--against", "energy"], "an axis of all systems"),
        (again, "new or empty"),
        ([*again, "--resume", "--halving", "2"], "halving of the checkpoint"),
    ):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
    assert {each.name for each in folder.iterdir()} >= {"right", "wrong", "c", "alone", "x.svg"}
    assert not Path("two.pdf").exists()


def test_rows_of_a_table_go_to_the_clients_they_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `run`; seeds that are reported must not draw other clients either."""
    rows = [f"{client},{0.1 + client}" for client in range(30)]
    Path("falling.csv").write_text("\n".join(["client,rate", *rows[::-1]]))
    Path("fewer.csv").write_text("\n".join(["client,rate", *rows[1:]]))
    words = ["fedbuff", "--dataset", "synthetic_iid", "--time-budget", "9", "--seeds", "2"]
    words += ["--tuning-seeds", "1", "--set", "lr=0.1,0.2", "--out", "out", "--set"]
    study = studying._read(make_parser("tune").read([*words, "client_table=falling.csv"]))
    np.testing.assert_allclose(
        study.asked.contenders[0].hyper.delays.client_table.rate, 0.1 + np.arange(30)
    )
    assert main(["tune", *words, "client_table=fewer.csv,num_clients=29"]) == 2
    assert "num_clients is 29, but must be that of all clients" in capsys.readouterr().err
