"""The command line as a user meets it, in an empty folder, with good input.

What depends on the process is called in a new one. All else runs in this process, which shares its
compiled programs and spares the start of Python and JAX.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

import fedjax_sim
from experiments.harness.command import main as experiments
from fedjax_sim import privacy, timelines
from fedjax_sim.cli import comparison
from fedjax_sim.cli.arguments import read_seeds, read_settings
from fedjax_sim.cli.commands import main, make_parser
from fedjax_sim.cli.defaults import defaults_of
from fedjax_sim.cli.tables import print_table
from fedjax_sim.core.lifecycle import BAD_INPUT, EXIT_CODES, read_json
from fedjax_sim.core.settings import ConfigError, check, fields, idle_of
from fedjax_sim.results.runs import plain_settings
from fedjax_sim.server.attacks import ATTACKS
from fedjax_sim.server.compression import COMPRESSORS
from fedjax_sim.server.rules import RULES

ROOT = Path(fedjax_sim.__file__).parents[1]
SIZES = {"num_clients": 5, "num_selected": 2, "local_steps": 2, "batch_size": 8}
SMALL = [
    *("--preset", "paper"),
    *(word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")),
    "--seeds",
    "2",
    "--time-budget",
    "60",
]
QUICK = [*SMALL, "--model", "logistic", "--evals", "3"]
BUFFER = ["--set", "buffer_size=2"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return os.environ | {"PYTHONPATH": str(ROOT), "FEDJAX_SIM_CACHE": str(cache)}


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Print as into a file, however wide the terminal of the tests is."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def call(environment, tmp_path, monkeypatch, capsys):
    """Run `fedjax-sim` with words in an empty folder, and return what it printed.

    As for a user, JAX promotes ranks; any warning is an error.
    """
    monkeypatch.setenv("FEDJAX_SIM_CACHE", environment["FEDJAX_SIM_CACHE"])

    def run(*words, said=""):
        with contextlib.chdir(tmp_path), jax.numpy_rank_promotion("allow"):
            code = main(words)
        out, err = capsys.readouterr()
        assert code == 0, err
        assert err == said
        return out

    return run


@pytest.fixture
def call_anew(environment, tmp_path):
    """Do the same in a new process."""

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "fedjax_sim", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run


def groups(path):
    with xr.open_datatree(path / "results.nc", engine="h5netcdf") as tree:
        return {name: node.to_dataset().load() for name, node in tree.children.items()}


def test_without_words_it_lists_its_commands(call_anew):
    out = call_anew()
    assert all(command in out for command in ("list", "run", "timeline"))
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"^ +{code}  {re.escape(meaning)}$", out, re.M)
    assert call_anew("--version").strip() == fedjax_sim.__version__
    assert "--time-budget" in call_anew("run", "--help")


OF_LATENT = "cells"
"""A compressor that is known once `fedjax_sim.problems.latent` is imported."""


def test_list_names_everything(call):
    out = call("list")
    kinds = (RULES, ATTACKS, COMPRESSORS, privacy.PRIVACY, privacy.LOCAL_PRIVACY)
    names = [name for each in kinds for name in each if name != OF_LATENT]
    for name in (*fedjax_sim.SYSTEMS, *names, "digits", "mnist", "classes", "dirichlet", "mlp32"):
        assert re.search(rf"^ +{name} ", out, re.M), name
    settings = call("list", "fedbuff")
    assert "buffer_size" in settings
    assert "after_interaction" in settings


@pytest.mark.parametrize(
    ("field", "kinds"),
    [
        ("aggregator", RULES),
        ("adversary.attack", ATTACKS),
        ("messages.compression", COMPRESSORS),
        ("messages.downlink", COMPRESSORS),
        ("privacy", privacy.PRIVACY),
        ("messages.local_privacy", privacy.LOCAL_PRIVACY),
    ],
)
def test_lists_and_errors_name_all_kinds(call, field, kinds):
    allowed = fields(fedjax_sim.SYSTEMS["fedavg"].Hyper)[field].metadata["allowed"]
    kinds = [name for name in kinds if name != OF_LATENT]
    assert f"one of {', '.join(kinds)}, " in allowed and ", with values such as" in allowed
    with pytest.raises(ConfigError) as caught:
        check(fedjax_sim.SYSTEMS["fedavg"].Hyper(**{field: 3}))
    assert all(re.search(rf"[ :]{name}[,.]", str(caught.value)) for name in kinds)


def test_list_shows_each_setting_with_meaning_default_and_allowed_values(call):
    text = " ".join(call("list", "favano").split())
    idle = idle_of(fedjax_sim.SYSTEMS["favano"].Hyper())
    assert {"delays.on_time", "delays.spread_fast"} <= idle.keys()
    for name, field in fields(fedjax_sim.SYSTEMS["favano"].Hyper).items():
        meaning, allowed = field.metadata["meaning"], field.metadata["allowed"]
        is_shown = " ".join(f"{meaning} Allowed: {allowed}.".split()) in text
        assert is_shown == (name not in idle), name
        assert re.search(rf" {name if name in idle else name.rpartition('.')[2]}[ ,]", f"{text} ")
    assert " lr 0.1 " in text
    assert " server_wait 1 " in text
    assert " reweight stochastic " in text


def test_the_help_of_a_system_lists_its_settings(call):
    text = " ".join(call("run", "favano", "--help").split())
    meaning = fields(fedjax_sim.SYSTEMS["favano"].Hyper)["reweight"].metadata["meaning"]
    assert "--time-budget" in text
    assert " ".join(meaning.split()) in text
    assert "reweight" not in call("run", "--help")


@pytest.mark.parametrize(
    ("forms", "expected"),
    [
        (["lr=0.1,0.2,batch_size=5"], {"lr": ["0.1", "0.2"], "batch_size": ["5"]}),
        (["lr=1", "batch_size=5"], {"lr": ["1"], "batch_size": ["5"]}),
        (["local_steps=2..4,9"], {"local_steps": ["2", "3", "4", "9"]}),
        (["compression=block:norm=2,lr=1"], {"compression": ["block:norm=2"], "lr": ["1"]}),
        (["lr=1,delays.rate_fast=0.1,0.2"], {"lr": ["1"], "delays.rate_fast": ["0.1", "0.2"]}),
    ],
)
def test_the_forms_of_set(forms, expected):
    words = ["fedavg", *(word for form in forms for word in ("--set", form))]
    assert read_settings(make_parser("run").read(words)) == expected


def test_a_range_of_seeds():
    assert read_seeds("3..5") == [3, 4, 5]
    assert read_seeds("2,7..8") == [2, 7, 8]


def test_tables_fit_the_terminal(monkeypatch, capsys):
    """Columns that do not fit are named, and labels are folded; a wide terminal has them all."""
    titles = ["system", *(f"long title of number {k}" for k in range(9))]
    row = dict.fromkeys(titles, "0.123 +- 0.456")
    row["system"] = "favano " + " ".join(f"setting={k}" for k in range(9))
    monkeypatch.setenv("COLUMNS", "80")
    print_table([row] * 3)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "Not shown in 80 columns: long title of number 3" in out
    assert out.count("0.123 +- 0.456") == 9
    monkeypatch.setenv("COLUMNS", "400")
    print_table([row] * 3)
    assert capsys.readouterr().out.count("0.123 +- 0.456") == 27


@pytest.mark.few(1)
@pytest.mark.parametrize("words", [["--version"], ["list"]])
def test_a_reader_that_stops_early_ends_it_in_silence(words, environment):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fedjax_sim", *words]
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_folders_are_compared_and_everything_prints_json(call, tmp_path, capsys):
    pictures = ["--plot", "accuracy", "--against", "rounds,bits"]
    first = json.loads(call("run", "fedavg", *QUICK, *pictures, "--json", "--out", "a"))
    assert first == {"folder": "a"} | read_json(tmp_path / "a" / "summary.json")
    assert {path.name for path in (tmp_path / "a").glob("*.png")} == {
        *("accuracy_rounds.png", "accuracy_bits.png")
    }
    for part in ("0/2", "1/2"):
        out = call("run", "fedavg", *QUICK, "--part", part, "--json", "--out", part[0])
        assert json.loads(out)["folder"] == part[0]
    merged = json.loads(call("merge", "0", "1", "--json", "--out", "b"))
    assert merged["systems"] == first["systems"]
    drawn = json.loads(call("plot", "a", "b", "--plot", "loss", "--json"))
    assert (drawn["folder"], drawn["pictures"]) == ("results-plot", ["loss.png"])
    assert drawn["systems"] == {
        f"fedavg ({name})": first["systems"]["fedavg"] for name in ("a", "b")
    }
    out = call("plot", "a", "--against", "steps")
    assert "Written to results-plot-2: accuracy_steps.png, loss_steps.png" in out
    with contextlib.chdir(tmp_path):
        assert main(["plot", "a", "--plot", "los"]) == BAD_INPUT
        assert main(["plot", "0"]) == BAD_INPUT
    said = capsys.readouterr().err
    assert "did you mean 'loss'" in said
    assert "merge its parts first" in said
    named = json.loads(call("list", "--json"))
    assert named["systems"].keys() == fedjax_sim.SYSTEMS.keys()
    assert "favano/table2" in named["experiments"]
    settings = json.loads(call("list", "favano", "--json"))["favano"]["settings"]
    assert settings.keys() == fields(fedjax_sim.SYSTEMS["favano"].Hyper).keys()
    assert settings["lr"]["default"] == "0.1"
    assert experiments(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == named["experiments"]


@pytest.mark.slow
def test_run_without_a_system_is_the_main_job(call, tmp_path):
    out = call("run", *QUICK, *BUFFER, "--client-variance", "--per-client")
    names = {"fedavg", "quafl", "fedbuff", "favano"}
    assert all(name in out for name in names)
    assert "Written to results " in out
    folder = tmp_path / "results"
    pictures = {"accuracy.png", "loss.png", "client_variance.png"}
    pictures |= {"client_accuracy.png", "client_loss.png"}
    assert {path.name for path in folder.iterdir()} == {
        *("results.nc", "models.nc", "timelines.nc", "settings.json"),
        *("summary.json", "config.json", "checkpoint"),
    } | pictures
    summary = read_json(folder / "summary.json")
    assert set(summary) == {
        *("lanes", "failed_lanes", "collapsed_lanes", "flagged", "seconds", "systems")
    }
    assert (summary["lanes"], summary["failed_lanes"]) == (8, 0)
    assert set(summary["seconds"]) == {"compile", "run"}
    assert set(summary["systems"]) == names
    curves = groups(folder)
    for name, entry in summary["systems"].items():
        assert set(entry) == {"final", "virtual_time", "ticks", "local_steps", "uplink_bits"}
        assert {"accuracy", "loss"} <= set(entry["final"])
        for metric, value in entry["final"].items():
            is_of_clients = metric in ("client_accuracy", "client_loss")
            more = ("worst_decile", "spread") if is_of_clients else ("median", "min")
            assert set(value) == {"mean", "std", *more}
        assert all(
            isinstance(entry[whole], int) and entry[whole] > 0
            for whole in ("ticks", "local_steps", "uplink_bits")
        )
        accuracy = curves[name]["accuracy"]
        assert set(accuracy.dims) == {"seed", "eval"}
        assert {"time", "ticks", "local_steps", "uplink_bits", "downlink_bits"} <= set(
            accuracy.coords
        )
        assert entry["final"]["accuracy"]["mean"] == pytest.approx(
            float(accuracy.isel(eval=-1).mean())
        )
    # The same initial model and the same contacts for all.
    first = [data["accuracy"].isel(eval=0).values for data in curves.values()]
    assert all(np.array_equal(first[0], each) for each in first)
    assert np.array_equal(curves["quafl"]["local_steps"], curves["favano"]["local_steps"])
    config = json.loads((folder / "config.json").read_text())
    assert config["systems"]["favano"].items() >= SIZES.items()
    assert config["systems"]["fedbuff"]["buffer_size"] == 2
    assert config["partition"] == {"name": "classes", "classes": 2}
    assert config["seeds"] == [0, 1]


@pytest.mark.slow
def test_mixtures_are_fitted_by_systems_of_expectation_maximisation(call, tmp_path):
    sizes = [
        "--components",
        "3",
        "--dimensions",
        "4",
        "--set",
        "num_clients=5",
        "--set",
        "batch_size=8",
        "--set",
        "gamma=0.02,0.1",
    ]
    out = call(
        "run",
        "em",
        "fedem",
        *sizes,
        "--seeds",
        "2",
        "--time-budget",
        "30",
        "--evals",
        "3",
        "--set",
        "compression=block",
        said="fedjax-sim: set for fedem only: gamma, compression.\n",
    )
    assert out.startswith("digits, partition iid, model gaussian_mixture")
    assert "final objective" in out
    summary = read_json(tmp_path / "results" / "summary.json")
    assert (summary["lanes"], summary["failed_lanes"]) == (6, 0)
    slow, fast = (
        entry["final"]["objective"]["mean"] for entry in summary["systems"]["fedem"]["settings"]
    )
    exact = summary["systems"]["em"]["final"]
    assert exact["objective"]["mean"] < fast < slow
    assert set(exact) >= {"mean_field", "pi_0", "pi_2", "least_weight", "least_eigenvalue"}
    config = json.loads((tmp_path / "results" / "config.json").read_text())
    assert (
        config["components"],
        config["dimensions"],
        config["systems"]["fedem"]["memories.compression"],
    ) == (3, 4, "block")
    curves = groups(tmp_path / "results")
    np.testing.assert_array_equal(
        curves["fedem"]["uplink_bits"] < curves["em"]["uplink_bits"], curves["fedem"]["ticks"] > 0
    )
    pictures = {path.stem for path in (tmp_path / "results").glob("*.png")}
    assert pictures >= {"objective", "mean_field", "field", "memory_error", "epochs"}
    assert not any(name.startswith("pi_") for name in pictures)


@pytest.mark.slow
def test_a_second_run_takes_another_folder(call, tmp_path):
    call("run", "fedavg", *QUICK)

    def listing():
        paths = (tmp_path / "results").rglob("*")
        return {path.name: path.read_bytes() for path in paths if path.is_file()}

    before = listing()
    assert "client_variance.png" not in before
    out = call("run", "fedavg", *QUICK)
    assert "Written to results-2 " in out
    assert listing() == before
    assert groups(tmp_path / "results")["fedavg"].equals(groups(tmp_path / "results-2")["fedavg"])


@pytest.mark.slow
def test_settings_are_swept_by_those_systems_that_have_them(call, tmp_path):
    single = [*BUFFER, "--set", "server_lr=0.5", "--set", "lr=0.1"]
    out = call(
        "run", "favano", "fedbuff", *QUICK, *single, "--set", "server_wait=2,4", "--out", "mine"
    )
    assert "favano server_wait=2" in out
    summary = read_json(tmp_path / "mine" / "summary.json")
    assert [entry["set"] for entry in summary["systems"]["favano"]["settings"]] == [
        {"server_wait": 2.0},
        {"server_wait": 4.0},
    ]
    assert "final" in summary["systems"]["fedbuff"]
    assert summary["lanes"] == 6
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert config["systems"]["favano"]["clock.server_wait"] == [2.0, 4.0]
    assert (config["systems"]["fedbuff"]["server_lr"], config["systems"]["favano"]["lr"]) == (
        0.5,
        0.1,
    )


def test_a_setting_without_use_is_left_to_other_systems(tmp_path):
    """Clients' speeds go to the systems that use them; it is an error if none does.

    A system does not use them if delays are drawn for groups, or if a trace decides them.
    """

    def points(entrant):
        return [hyper for _, hyper in entrant.points()]

    def rates(*systems, **texts):
        entrants = comparison.resolve_contenders(
            systems, {name: text.split(",") for name, text in texts.items()}, defaults_of("digits")
        )
        return [plain_settings(points(each))["delays.rate_fast"] for each in entrants]

    table = tmp_path / "rates.csv"
    table.write_text("rate\n" + "0.5\n" * 30)
    assert rates("fedavg", "hierarchical", rate_fast="0.1") == [0.1, 1.0]
    assert rates("hierarchical", "fedavg", rate_fast="0.1,0.2") == [1.0, [0.1, 0.2]]
    for kinds in ("client", "group,client"):  # Used at one point of the sweep, which is enough.
        assert rates("fedavg", "hierarchical", rate_fast="0.1", delays_of=kinds) == [0.1, 0.1]
    for systems, texts in (
        (["hierarchical"], {}),
        (["fedavg", "hierarchical"], {"client_table": str(table)}),
    ):
        with pytest.raises(
            ConfigError, match=r"^delays\.rate_fast is 0\.1, but must be left at 1\.0 with "
        ):
            rates(*systems, rate_fast="0.1", **texts)


@pytest.mark.slow
def test_the_swept_local_steps_are_not_the_steps_received(call, tmp_path):
    sizes = [word.replace("local_steps=2", "local_steps=1,2") for word in QUICK]
    said = "fedjax-sim: each of the 2 values of local_steps compiles a program of fedavg.\n"
    call("run", "fedavg", *sizes, said=said)
    entries = read_json(tmp_path / "results" / "summary.json")["systems"]["fedavg"]["settings"]
    assert [entry["set"] for entry in entries] == [{"local_steps": 1}, {"local_steps": 2}]
    data = groups(tmp_path / "results")["fedavg"]
    assert data["accuracy"].dims == ("local_steps_setting", "seed", "eval")
    assert np.array_equal(
        data["local_steps"], data["ticks"] * SIZES["num_selected"] * data["local_steps_setting"]
    )


@pytest.mark.slow
def test_diverged_lanes_are_reported_and_everything_is_kept(call, tmp_path):
    words = [word for word in QUICK if word not in ("--seeds", "2")]
    kept = ["--tracker", "csv,tensorboard", "--keep-samples"]
    out = call("run", "fedavg", *words, *kept, "--seeds", "3,7", "--set", "lr=0.1,1e38")
    assert "fedavg lr=1e+38: 2 of 2 lanes diverged (seeds 3, 7)" in out
    summary = read_json(tmp_path / "results" / "summary.json")
    assert (summary["lanes"], summary["failed_lanes"]) == (4, 2)
    good, bad = summary["systems"]["fedavg"]["settings"]
    assert set(bad["final"]["accuracy"].values()) == {None}
    assert 0 <= good["final"]["accuracy"]["mean"] <= 1
    # What was asked for is there, with labels.
    run = fedjax_sim.load(tmp_path / "results")
    assert run.curves.equals(groups(tmp_path / "results")["fedavg"])
    assert [hyper.lr for hyper in run.hypers] == [0.1, 0.1, 1e38, 1e38]
    ends = jax.tree.map(lambda leaf: leaf[:, -1], run.samples)
    jax.tree.map(np.testing.assert_array_equal, ends, run.models)
    lines = (tmp_path / "results" / "log.csv").read_text().splitlines()
    assert sum(",accuracy," in line for line in lines) == 4 * run.curves.sizes["eval"]
    assert len([*(tmp_path / "results" / "tensorboard").glob("fedavg lr=* seed=*/events*")]) == 4


@pytest.mark.slow
def test_a_users_data_with_partition_and_trace(call, tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(60, 3)).astype("float32"), np.arange(60) % 3
    np.savez(
        tmp_path / "own.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    rows = [
        f"{client},{start},{start + 2 + client}"
        for start in range(0, 60, 10)
        for client in range(5)
    ]
    (tmp_path / "trace.csv").write_text("client,start,finish\n" + "\n".join(rows))
    data = ("--dataset", "own.npz", "--partition", "dirichlet", "--alpha", "1")
    words = [word for word in QUICK if word not in ("--time-budget", "60")]
    out = call(
        "run",
        "fedbuff",
        "quafl",
        *words,
        *BUFFER,
        "--time-budget",
        "40",
        *data,
        "--trace",
        "trace.csv",
        "--set",
        "server_wait=4",
        "--set",
        "server_interact=3",
        said="fedjax-sim: set for quafl only: num_selected, server_wait, server_interact; "
        "for fedbuff only: buffer_size.\n",
    )
    assert out.startswith("own, partition dirichlet")


def test_timeline_of_a_calibrated_cluster(call, tmp_path):
    rng, rows = np.random.default_rng(0), []
    for client in range(3):
        finish = np.cumsum(rng.lognormal(client, 0.3, 40))
        start = np.concatenate([[0], finish[:-1]])
        rows += [f"b{client},{a:.4f},{b:.4f}" for a, b in zip(start, finish, strict=True)]
    log = "\n".join(["client,start,finish", *rows, "b1,3,2"])
    (tmp_path / "log.csv").write_text(log)
    words = ("timeline", "fedbuff", "--seeds", "1", "--log", "log.csv", "--set", "buffer_size=2")
    found = json.loads(call(*words, "--json", "--out", "there"))
    assert found["calibration"]["law"] == "runtime_lognormal"
    assert "Left out: 1 with finish before start, first row 121." in found["calibration"]["words"]
    assert (tmp_path / "there" / "calibration.png").stat().st_size > 10_000
    table = timelines.read_client_table(tmp_path / "there" / "clients.csv")
    assert table.rate == pytest.approx(np.exp([-0.045, -1.045, -2.045]), rel=0.2)
    arrivals = float(np.sum(table.rate))  # Two of them make a server step.
    facts = found["systems"]["fedbuff"]
    assert facts["time_per_tick"] == pytest.approx(2 / arrivals, rel=0.3)
    assert facts["throughput"] == pytest.approx(2 / facts["time_per_tick"])
    # Of three clients at work, two end between two server steps on average.
    assert facts["staleness_median"] <= facts["staleness_mean"] <= facts["staleness_95"]


def test_idle_shares_in_rounds_of_constant_length(call, tmp_path):
    """Fast clients wait for three quarters of a round of four units."""
    clients = "num_clients=4,num_selected=4,slow_fraction=0.5,slow_clients=last,rate_spread=0"
    speeds = "rate_fast=1,rate_slow=0.25,runtime_law=runtime_constant,time_of=update"
    words = ("timeline", "fedavg", "--seeds", "2", "--time-budget", "40", "--set", clients)
    found = json.loads(call(*words, "--set", speeds + ",server_interact=0", "--json"))
    facts = found["systems"]["fedavg"]
    assert facts["idle_share"] == {"fast": pytest.approx(0.75), "slow": pytest.approx(0)}
    assert facts["throughput"] == pytest.approx(1) and facts["staleness_95"] == 0


@pytest.mark.slow
def test_convolutional_networks_in_few_bits_by_name(call, tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 10, 10, 3)).astype(np.uint8), np.arange(60) % 3
    np.savez(
        tmp_path / "cifar10_jpeg.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    words = [
        "--dataset",
        "cifar10_jpeg.npz",
        "--model",
        "cnn_small",
        "--partition",
        "iid",
        "--low-bit",
        "3,3,4",
        "--convolution",
        "patches",
    ]
    sizes = [word for word in SMALL if word not in ("--time-budget", "60")]
    out = call("run", "favano", *sizes, "--time-budget", "25", *words, "--evals", "2")
    assert out.startswith("cifar10_jpeg, partition iid, model cnn_small")
    config = json.loads((tmp_path / "results" / "config.json").read_text())
    assert (config["low_bit"], config["convolution"], config["augmentation"]) == (
        "3,3,4",
        "patches",
        "crop_flip",
    )
    assert (config["mean"], config["systems"]["favano"]["lr"]) == ([0.4914, 0.4822, 0.4465], 0.005)


@pytest.mark.slow
def test_timeline_needs_no_training(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = call(
        "timeline",
        "favano",
        "fedbuff",
        *SMALL,
        *BUFFER,
        "--set",
        "server_wait=2,4",
        "--out",
        "when",
        said="fedjax-sim: set for favano only: num_selected, server_wait; for fedbuff only: "
        "buffer_size.\n",
    )
    assert "favano server_wait=4" in out
    assert max(map(len, out.splitlines())) <= 80
    folder = tmp_path / "when"
    assert {path.name for path in folder.iterdir()} == {
        "results.nc",
        "summary.json",
        "config.json",
        "timeline.png",
        "influence.png",
    }
    summary = read_json(folder / "summary.json")
    assert (
        summary["systems"]["favano server_wait=2"]["time_per_tick"],
        summary["systems"]["favano server_wait=4"]["ticks"],
    ) == (5.0, 8)
    assert (
        summary["systems"]["fedbuff"]["staleness_max"]
        >= summary["systems"]["fedbuff"]["staleness_mean"]
        > 0
    )
    assert set(groups(folder)["fedbuff"].dims) == {"seed", "tick", "slot", "client"}
    facts = summary["systems"]["favano server_wait=2"]
    assert 1 / 5 < facts["jain_index"] <= 1
    assert 0 < facts["fast_influence"] < 1
    np.testing.assert_allclose(groups(folder)["fedbuff"].influence.sum("client"), 1)


def test_points_that_differ_in_their_last_digits_have_labels_of_their_own():
    """Schedules are kept by label; seven digits are too many for the usual one."""
    settings = {"server_wait": ["1000000", "1000001"], "lr": ["0.5"]}
    [favano] = comparison.resolve_contenders(["favano"], settings, defaults_of("digits", None))
    labels = [label for label, _ in favano.points()]
    assert labels == ["favano server_wait=1000000.0", "favano server_wait=1000001.0"]


@pytest.mark.slow
def test_rates_fall_over_the_planned_ticks_and_local_steps_are_measured(call, call_anew, tmp_path):
    """In a new process and in this one, with the same bits."""
    words = [*QUICK, "--measures", "gradient_norm,drift", "--set", "lr_schedule=cosine:final=0.01"]
    call_anew("run", "fedavg", *words, "--out", "new")
    call("run", "fedavg", *words, "--out", "here")
    runs = [fedjax_sim.load(tmp_path / name, "fedavg") for name in ("new", "here")]
    jax.tree.map(np.testing.assert_array_equal, *(run.models for run in runs))
    for timeline, hyper in zip(runs[0].timelines, runs[0].hypers, strict=True):
        assert hyper.training.lr_schedule.over == len(timeline.time) > 1
        assert hyper.training.lr_schedule.final == 0.01
    for name in ("drift", "gradient_norm"):
        values = runs[0].curves[name].values
        assert np.isnan(values[:, 0]).all() and (values[:, 1] > 0).all()
        assert runs[0].curves[f"client_{name}"].dims == ("seed", "eval", "client")
        assert {f"{name}.png", f"client_{name}.png"} <= {
            path.name for path in (tmp_path / "here").iterdir()
        }


@pytest.mark.filterwarnings("error")
def test_schedules_may_have_no_report(call, tmp_path):
    """As with a deadline that nobody meets."""
    words = ("--preset", "paper", "--seeds", "2", "--time-budget", "20", "--out", "when")
    out = call("timeline", "fedavg", *words, "--set", "deadline=1e-6")
    assert "nan" not in out
    facts = read_json(tmp_path / "when" / "summary.json")["systems"]["fedavg"]
    assert (facts["staleness_mean"], facts["staleness_max"], facts["reports_per_tick"]) == (
        None,
        0,
        0,
    )
    assert (tmp_path / "when" / "timeline.png").stat().st_size > 1000


def test_groups_are_drawn_and_swept(call, tmp_path):
    """A delay may be one number per group. The schedule names groups, not clients."""
    words = (
        "--seeds",
        "2",
        "--time-budget",
        "100",
        "--set",
        "num_clients=6",
        "--set",
        "shift=0.85,1+7",
    )
    out = call("timeline", "hierarchical", *words, "--out", "when")
    assert "hierarchical shift=(1.0, 7.0)" in out
    summary = read_json(tmp_path / "when" / "summary.json")["systems"]
    assert summary["hierarchical shift=0.85"]["reports_per_tick"] == 2
    assert summary["hierarchical shift=0.85"]["jain_index"] == pytest.approx(1)
    assert (
        summary["hierarchical shift=(1.0, 7.0)"]["steps_per_tick"]
        < summary["hierarchical shift=0.85"]["steps_per_tick"] - 1
    )
    assert groups(tmp_path / "when")["hierarchical shift=0.85"].sizes["client"] == 2


def test_a_killed_run_resumes_with_the_same_bits(call, environment, tmp_path, capsys):
    """With a layout that is given, because processes here have other numbers of devices."""
    layout = "slots_at_once=2,lanes_at_once=false,client_devices=1,lane_devices=1"
    words = ["run", "quafl", "fedavg", *SMALL, "--model", "logistic", "--evals", "12"]
    words += ["--layout", layout, "--out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedjax_sim", *words, "broken", "--checkpoint-every", "0.001"],
        cwd=tmp_path,
        env=environment,
    )
    states = tmp_path / "broken" / "checkpoint" / "quafl" / "part_0"
    deadline = time.monotonic() + 120
    while not any(states.glob("state-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "broken" / "summary.json").exists()
    assert not any(states.glob("result-*"))

    with contextlib.chdir(tmp_path):
        assert main([*words, "broken", "--resume", "--set", "lr=0.3"]) == 2
    refused = capsys.readouterr().err
    assert "lr of the checkpoint in broken is 0.5, but must be 0.3" in refused

    with contextlib.chdir(tmp_path), jax.numpy_rank_promotion("allow"):
        assert main([*words, "broken", "--resume"]) == 0
    said = capsys.readouterr().err
    assert re.fullmatch(r"fedjax-sim: quafl goes on after \d of 8 ticks \(lanes: 2\)\.\n", said)
    call(*words, "whole")
    broken, whole = groups(tmp_path / "broken"), groups(tmp_path / "whole")
    assert set(broken) == {"quafl", "fedavg"}
    for name in broken:
        assert broken[name].equals(whole[name])
    assert (tmp_path / "broken" / "checkpoint" / "ended.json").exists()


def test_the_exit_code_is_returned(capsys):
    assert main(["--version"]) == 0
    assert main(["nonsense"]) == BAD_INPUT
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.slow
def test_rows_of_a_table_go_to_the_clients_they_name(
    call, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clients that the data come with; the order of the rows is of no matter."""
    rows = [f"{client},{0.1 + client % 7}" for client in range(30)]
    tables = {"rising": rows, "falling": rows[::-1], "wrong": [*rows[1:], "watch,1"]}
    tables["positions"] = [row.partition(",")[2] for row in tables["falling"]]
    for name, lines in tables.items():
        header = "rate" if name == "positions" else "client,rate"
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]))
    words = ["run", "fedbuff", "--dataset", "synthetic_iid", "--set", "local_steps=2"]
    words += ["--time-budget", "9", "--evals", "1", "--seeds"]
    call(*words, "1", "--set", "client_table=rising.csv", "--out", "single")
    call(*words, "1", "--set", "client_table=falling.csv,positions.csv", "--out", "swept")
    rising = fedjax_sim.load(tmp_path / "single").timelines[0].clients
    falling, positions = (each.clients for each in fedjax_sim.load(tmp_path / "swept").timelines)
    assert np.array_equal(rising, falling) and not np.array_equal(rising, positions)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fewer.csv").write_text("\n".join(["client,rate", *rows[1:]]))
    for settings, sentence in (
        ("client_table=wrong.csv", "is 'watch', but must be a name of one of the 30 clients"),
        ("client_table=fewer.csv,num_clients=29", "num_clients is 29, but must be that of all"),
    ):
        flags = ["2", "--set", settings, "--out", "refused"]
        assert main([*words, *flags]) == BAD_INPUT
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1, said
        assert not (tmp_path / "refused").exists()
