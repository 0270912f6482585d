"""Bad input on the command line gets one sentence and exit code 2, and no file is changed.

The sentence names the field, the value and what is allowed.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.core.lifecycle import write_record

ROOT = Path(fedjax_sim.__file__).parents[1]
PAPER = ["--preset", "paper"]
RUN = ["run", "fedbuff", "--seeds", "1", "--out", "out", *PAPER]
MIXTURE = ["run", "fedem", "--seeds", "1", "--out", "out"]
COORDINATOR = ["--coordinator", "localhost:9"]
TWO = ["--set", "num_clients=2", "--set", "num_selected=1"]
TIMES = ["--time-budget", "50"]
for setting in ("rate_fast", "server_interact"):
    TIMES += ["--set", f"{setting}=1"]
CASES = {
    "unknown command": (["train"], ["command", "'train'", "list, run, plot, merge, timeline"]),
    "unknown system": (["run", "fedzip", "--out", "out"], ["system", "'fedzip'", "fedavg"]),
    "system named twice": (["run", "fedavg", "fedavg", "--out", "out"], ["systems", "once"]),
    "unknown data set": ([*RUN, "--dataset", "cifar"], ["dataset", "'cifar'", "digits"]),
    "unknown partition": (
        [*RUN, "--partition", "uniform"],
        ["partition", "'uniform'", "dirichlet"],
    ),
    "unknown model": ([*RUN, "--model", "gpt"], ["model", "'gpt'", "mlp32"]),
    "unknown convolution": ([*RUN, "--convolution", "fft"], ["convolution", "'fft'", "patches"]),
    "unknown augmentation": (
        [*RUN, "--augmentation", "rotate"],
        ["augmentation", "'rotate'", "crop_flip"],
    ),
    "two widths of bits": ([*RUN, "--low-bit", "3,3"], ["low_bit", "'3,3'", "three whole numbers"]),
    "one bit": ([*RUN, "--low-bit", "1,3,4"], ["low_bit", "'1,3,4'", "from 2"]),
    "network for larger images": ([*RUN, "--model", "lenet"], ["model", "'LeNet'", "8, 8, 1]"]),
    "unknown setting": (
        [*RUN, "--set", "learning_rate=1"],
        ["setting name", "'learning_rate'", "lr"],
    ),
    "setting of another system": (
        [*RUN, "--set", "server_wait=1"],
        ["setting name", "'server_wait'", "server_interact"],
    ),
    "setting in place of a flag": (
        [*RUN, "--batch-size", "3"],
        ["flag", "'--batch-size'", "did you mean '--set batch_size=VALUE'"],
    ),
    "unknown metric": (
        [*RUN, "--plot", "loss,acuracy"],
        ["metric", "'acuracy'", "did you mean 'accuracy'"],
    ),
    "metric of another system": (
        [*RUN, "--plot", "mean_field"],
        ["metric", "'mean_field'", "accuracy, loss"],
    ),
    "folder without results to plot": (
        ["plot", "old", "--out", "out"],
        ["results folder", "'old'", "finished run"],
    ),
    "folder named twice to plot": (["plot", "old", "./old"], ["results folders", "once each"]),
    "unknown flag": ([*RUN, "--epochs", "3"], ["flag", "'--epochs'", "--evals"]),
    "flag twice": (
        [*RUN, "--model", "mlp32", "--model", "mlp128"],
        ["--model", "'mlp128'", "'mlp32'"],
    ),
    "flag without its value": ([*RUN, "--evals"], ["--evals", "argument"]),
    "set without a value": ([*RUN, "--set", "lr"], ["--set", "'lr'", "name=value"]),
    "set with an empty value": ([*RUN, "--set", "lr=0.1,"], ["--set", "'lr=0.1,'", "name=value"]),
    "setting twice": ([*RUN, "--set", "lr=1", "--set", "lr=2"], ["lr", "'2'", "'1'"]),
    "value twice": ([*RUN, "--set", "lr=1,1"], ["lr", "'1,1'", "different"]),
    "negative rate": ([*RUN, "--set", "rate_slow=-0.1"], ["rate_slow", "-0.1", "above 0"]),
    "rate above 1": ([*RUN, "--set", "rate_fast=1.5"], ["rate_fast", "1.5", "at most 1"]),
    "negative learning rate in a sweep": (
        [*RUN, "--set", "lr=0.1,-0.1"],
        ["lr", "-0.1", "above 0"],
    ),
    "learning rate nan": ([*RUN, "--set", "lr=nan"], ["lr", "nan", "finite"]),
    "learning rate infinite in 32 bits": (
        [*RUN, "--set", "lr=1e39"],
        ["lr", "1e+39", "to 3.4e+38 in size", "float32"],
    ),
    "learning rate zero in 32 bits": ([*RUN, "--set", "lr=1e-320"], ["lr", "1e-320", "1.2e-38"]),
    "rate zero in 32 bits": (
        [*RUN, "--set", "rate_slow=1e-300"],
        ["rate_slow", "1e-300", "1.2e-38"],
    ),
    "batch larger than 32 bits": (
        [*RUN, "--set", "batch_size=1000000000000"],
        ["batch_size", "1000000000000", "at most 2147483647"],
    ),
    "batch not whole": ([*RUN, "--set", "batch_size=1e12"], ["batch_size", "'1e12'", "whole"]),
    "K larger than 32 bits": (
        [*RUN, "--set", "local_steps=100000000000"],
        ["local_steps", "100000000000", "at most 2147483647"],
    ),
    "optax function that chains": (
        [*RUN, "--set", "optimizer=chain"],
        ["optimizer", "chain", "optax optimizer"],
    ),
    "empty data set": ([*RUN, "--dataset", ""], ["--dataset", "''", "leave the flag out"]),
    "hours of planning": (
        ["run", "favano", "--seeds", "1000", "--out", "out", "--time-budget", "1e7", *PAPER],
        ["time_budget", "10000000.0", "1000 schedules", "hours"],
    ),
    "no lanes": ([*RUN, "--max-lanes", "0"], ["max_lanes", "'0'", "at least 1"]),
    "several processes that nobody describes": (
        [*RUN, "--distributed"],
        ["--distributed", "srun", "--coordinator"],
    ),
    "a coordinator for one process": (
        [*RUN, *COORDINATOR],
        ["coordinator", "'localhost:9'", "together with --distributed"],
    ),
    "resuming with several processes": (
        [*RUN, "--distributed", "--resume"],
        ["resume", "--distributed", "no checkpoints"],
    ),
    "a process too many": (
        [
            *RUN,
            *[
                "--distributed",
                "--coordinator",
                "localhost:9",
                "--num-processes",
                "2",
                "--process-id",
                "2",
            ],
        ],
        ["--distributed", "process_id < num_processes"],
    ),
    "not a number": ([*RUN, "--set", "lr=fast"], ["lr", "'fast'", "number"]),
    "K of 0": ([*RUN, "--set", "local_steps=0"], ["local_steps", "0", "at least 1"]),
    "K not whole": ([*RUN, "--set", "local_steps=2.5"], ["local_steps", "'2.5'", "whole"]),
    "unknown choice": ([*RUN, "--set", "restart=never"], ["restart", "'never'", "own_finish"]),
    "optax function that is no optimizer": (
        [*RUN, "--set", "optimizer=global_norm"],
        ["optimizer", "global_norm", "optax optimizer"],
    ),
    "setting that a trace decides": (
        [*RUN, "--trace", "good.csv", "--set", "restart=free"],
        ["restart", "'free'", "recorded trace"],
    ),
    "unknown optimizer": ([*RUN, "--set", "optimizer=best"], ["optimizer", "'best'", "optax"]),
    "sweep of num_clients": (
        [*RUN, "--set", "num_clients=10,20"],
        ["num_clients", "'10,20'", "one"],
    ),
    "buffer larger than clients": (
        [*RUN, "--set", "buffer_size=31", "--set", "restart=own_finish"],
        ["buffer_size", "31", "30"],
    ),
    "more selected than clients": (
        ["run", "favano", "--out", "out", "--set", "num_selected=31"],
        ["num_selected", "31", "30"],
    ),
    "period not whole": (
        ["run", "favano", "--out", "out", "--set", "server_wait=0.5", *PAPER],
        ["server_wait", "3.5", "whole"],
    ),
    "period of 0": (
        ["run", "quafl", "--out", "out", "--set", "server_wait=0", "--set", "server_interact=0"],
        ["server_wait + server_interact", "0.0", "above 0"],
    ),
    "uniform subset of unequal clients": (
        [
            "run",
            "langevin",
            "--out",
            "out",
            "--set",
            "participants=without_replacement",
            "--partition",
            "dirichlet",
            "--alpha",
            "1",
        ],
        ["participants", "without_replacement", "unless all weights are equal"],
    ),
    "rho above 1": (
        ["run", "langevin", "--out", "out", "--set", "rho=0.5,1.5"],
        ["rho", "1.5", "from 0 to 1"],
    ),
    "traced K not whole": (
        ["run", "langevin", "--out", "out", "--set", "local_steps=2.5"],
        ["local_steps", "'2.5'", "whole"],
    ),
    "more classes than there are": ([*RUN, "--classes", "11"], ["classes", "11", "10"]),
    "classes not whole": ([*RUN, "--classes", "two"], ["classes", "'two'", "whole"]),
    "more clients than examples": (
        [*RUN, "--partition", "iid", "--set", "num_clients=2000"],
        ["num_clients", "2000", "1437"],
    ),
    "option of another partition": (
        [*RUN, "--partition", "iid", "--alpha", "1"],
        ["iid", "'alpha'"],
    ),
    "option missing": ([*RUN, "--partition", "dirichlet"], ["alpha", "dirichlet", "given"]),
    "negative alpha": (
        [*RUN, "--partition", "dirichlet", "--alpha", "-1"],
        ["alpha", "-1", "above 0"],
    ),
    "no seeds": ([*RUN[:2], "--out", "out", "--seeds", "0"], ["seeds", "'0'", "from 1"]),
    "seeds twice the same": (
        [*RUN[:2], "--out", "out", "--seeds", "3,3"],
        ["seeds", "'3,3'", "different"],
    ),
    "seeds not a number": (
        [*RUN[:2], "--out", "out", "--seeds", "five"],
        ["seeds", "'five'", "whole numbers"],
    ),
    "time budget of 0": ([*RUN, "--time-budget", "0"], ["time_budget", "'0'", "above 0"]),
    "time budget negative": ([*RUN, "--time-budget", "-5"], ["time_budget", "'-5'", "above 0"]),
    "time budget nan": ([*RUN, "--time-budget", "nan"], ["time_budget", "'nan'", "finite"]),
    "time budget too short for a tick": (
        ["run", "favano", "--out", "out", "--time-budget", "3", *PAPER],
        ["time_budget", "3.0", "at least 7"],
    ),
    "time budget too long": (
        ["timeline", "favano", "--out", "out", "--time-budget", "1e15"],
        ["time_budget", "1000000000000000.0", "ticks"],
    ),
    "no evaluations": ([*RUN, "--evals", "0"], ["evals", "'0'", "at least 1"]),
    "layout unknown": (
        [*RUN, "--layout", "threads=2"],
        ["--layout", "'threads=2'", "lane_devices"],
    ),
    "layout of more devices than there are": (
        [*RUN, "--layout", "lane_devices=4096"],
        ["lane_devices", "4096", "at most"],
    ),
    "unknown law": (
        [*RUN, "--set", "runtime_law=gamma"],
        ["runtime_law", "'gamma'", "runtime_lognormal"],
    ),
    "spread of a law without": (
        [*RUN, "--set", "spread_slow=0.5"],
        ["spread_slow", "0.5", "unless delays.runtime_law is 'runtime_uniform' or"],
    ),
    "all updates lost": (
        [*RUN, "--set", "restart=free", "--set", "drop_rate=1"],
        ["drop_rate", "1.0", "from 0 to 0.99"],
    ),
    "losses where clients wait": (
        [*RUN, "--set", "drop_rate=0.1", "--set", "restart=fresh"],
        ["drop_rate", "0.1", "fresh"],
    ),
    "table of clients missing": (
        [*RUN, "--set", "client_table=none.csv"],
        ["client_table", "none.csv", "CSV"],
    ),
    "table of clients without a known column": (
        [*RUN, "--set", "client_table=speeds.csv"],
        ["client_table", "speeds.csv", "rate"],
    ),
    "cell of a table of clients": (
        [*RUN, "--set", "client_table=cell.csv"],
        ["client_table rate in row 2", "'fast'", "a number"],
    ),
    "unknown name in a trace": (
        [*RUN, "--trace", "names.csv", "--set", "client_table=cast.csv", *TWO[:2]],
        ["trace client in row 3", "'eve'", "ann"],
    ),
    "bandwidths without messages": (
        ["timeline", "fedavg", "--out", "out", "--set", "client_table=links.csv", *TWO, *TIMES],
        ["bits_up", "0.0", "how long messages take"],
    ),
    "table of too few clients": (
        [*RUN, "--set", "client_table=rates.csv"],
        ["client_table", "2 rows", "num_clients = 30"],
    ),
    "trace that some cannot follow": (
        ["run", "fedavg", "hierarchical", "--out", "out", "--trace", "good.csv"],
        ["trace", "hierarchical", "cannot follow"],
    ),
    "trace missing": ([*RUN, "--trace", "none.csv"], ["trace", "none.csv", "CSV"]),
    "trace without a column": ([*RUN, "--trace", "column.csv"], ["trace", "column.csv", "finish"]),
    "trace of a client out of range": (
        [*RUN, "--trace", "client.csv", "--set", "buffer_size=1"],
        ["trace client", "30", "29"],
    ),
    "times in another unit than the trace": (
        ["run", "quafl", "--out", "out", "--trace", "good.csv", *PAPER],
        ["server_wait", "4.0", "given in the unit of time of the trace", "server_interact"],
    ),
    "time budget in another unit than the trace": (
        [*RUN, "--trace", "good.csv", "--set", "buffer_size=1"],
        ["time_budget", "5000.0", "given in the unit of time of the trace"],
    ),
    "trace backwards": ([*RUN, "--trace", "backwards.csv"], ["trace", "finish before start"]),
    "npz missing": ([*RUN, "--dataset", "none.npz"], ["npz file", "none.npz", "existing"]),
    "npz damaged": ([*RUN, "--dataset", "damaged.npz"], ["npz file", "damaged.npz", "numpy.savez"]),
    "npz without an array": (
        [*RUN, "--dataset", "short.npz"],
        ["npz file", "test_labels is missing"],
    ),
    "images of the wrong shape": (
        [*RUN, "--dataset", "shape.npz"],
        ["train_labels", "(11,)", "(12,)"],
    ),
    "NaN in the images": ([*RUN, "--dataset", "nan.npz"], ["train_images", "NaN", "1", "0"]),
    "negative labels": ([*RUN, "--dataset", "negative.npz"], ["train_labels", "-1", "at least 0"]),
    "raw files missing": (
        [*RUN, "--dataset", "mnist", "--data-dir", "."],
        ["data_dir", "mnist", "missing"],
    ),
    "a file in place of the folder": (
        ["run", "fedavg", "--out", "file"],
        ["results folder", "'file'", "not a file"],
    ),
    "a file above the folder": (
        ["run", "fedavg", "--seeds", "1", "--out", "file/out"],
        ["results folder", "file/out", "written"],
    ),
    "a folder in use": (
        ["run", "fedavg", "--out", "old"],
        ["results folder", "'old'", "new or empty"],
    ),
    "timeline into a folder in use": (
        ["timeline", "fedavg", "--out", "old"],
        ["results folder", "'old'", "new or empty"],
    ),
    "nothing to resume": (
        ["run", "fedavg", "--out", "old", "--resume"],
        ["results folder to resume", "'old'", "unfinished run"],
    ),
    "resume and overwrite": (
        ["run", "fedavg", "--out", "old", "--resume", "--overwrite"],
        ["resume", "overwrite"],
    ),
    "checkpoint of another configuration": (
        ["run", "fedavg", "--out", "unfinished", "--resume"],
        ["checkpoint in unfinished", "as in this run"],
    ),
    "bad setting with overwrite": (
        ["run", "fedavg", "--out", "old", "--overwrite", "--set", "lr=0"],
        ["lr", "0.0", "above 0"],
    ),
    "sizes of groups that are not whole": (
        ["run", "hierarchical", "--out", "out", "--set", "group_sizes=5+2.5"],
        ["group_sizes", "'5+2.5'", "5+15"],
    ),
    "sizes of groups that do not add up": (
        ["run", "hierarchical", "--out", "out", "--set", "group_sizes=10+15"],
        ["group_sizes", "(10, 15)", "num_clients = 30"],
    ),
    "speeds of clients without use": (
        ["run", "hierarchical", "--out", "out", "--set", "rate_slow=0.1"],
        ["rate_slow", "0.1", 'left at 0.125 with clock.delays_of "group"'],
    ),
    "setting of none of several systems": (
        ["run", "fedavg", "hierarchical", "--out", "out", "--set", "buffer_size=3"],
        ["setting name", "'buffer_size'", "num_selected", "sync_time"],
    ),
    "negative sync time": (
        ["run", "hierarchical", "--out", "out", "--set", "sync_time=0,-1"],
        ["sync_time", "-1.0", "at least 0"],
    ),
    "unknown aggregation": (
        ["run", "hierarchical", "--out", "out", "--set", "aggregation=sum"],
        ["aggregation", "'sum'", "divide_by_steps"],
    ),
    "gradients and expectation maximisation": (
        ["run", "fedem", "fedavg", "--out", "out"],
        ["systems", "'fedem fedavg'", "share a problem"],
    ),
    "network of a mixture": (
        [*MIXTURE, "--model", "mlp32"],
        ["model", "'mlp32'", "gaussian_mixture"],
    ),
    "convolution of a mixture": (
        [*MIXTURE, "--convolution", "lax"],
        ["convolution", "'lax'", "left out for fedem"],
    ),
    "components of a network": (
        [*RUN, "--components", "3"],
        ["components", "'3'", "left out for fedbuff"],
    ),
    "half a component": (
        [*MIXTURE, "--components", "0.5"],
        ["components", "'0.5'", "whole number"],
    ),
    "more components than examples": (
        [*MIXTURE, "--components", "2000"],
        ["components", "2000", "at most 1430"],
    ),
    "more dimensions than pixels": (
        [*MIXTURE, "--dimensions", "65"],
        ["dimensions", "65", "at most 60"],
    ),
    "nobody takes part": (
        [*MIXTURE, "--set", "participation=0"],
        ["participation", "0.0", "above 0"],
    ),
    "settings of an unknown system": (["list", "fedzip"], ["system", "'fedzip'", "favano"]),
}
if Path("/proc/self").exists():
    words = ["run", "fedavg", "--seeds", "1", "--out", "/proc/out"]
    CASES["a folder that cannot be made"] = (words, ["results folder", "/proc/out", "written"])
IN_A_NEW_PROCESS = ("unknown command", "a process too many")
"""Cases that are called as a user does; others are answered by one process that imported JAX."""
ANSWERING = """
import json, os, sys
import sklearn.datasets, sklearn.model_selection
import fedjax_sim.cli.listing, fedjax_sim.cli.schedules, fedjax_sim.cli.training
from fedjax_sim.cli import main
for line in sys.stdin:
    words, folder, *paths = json.loads(line)
    os.chdir(folder)
    before = os.dup(1), os.dup(2)
    for number, path in enumerate(paths, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number), os.close(file)
    code = main(words)
    sys.stdout.flush(), sys.stderr.flush()
    for number, file in enumerate(before, 1):
        os.dup2(file, number), os.close(file)
    print(code, flush=True)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "FEDJAX_SIM_CACHE": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture(scope="module")
def answering(environment):
    command = [sys.executable, "-c", ANSWERING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def folder(tmp_path):
    """Make a folder with the files that the cases name, an earlier run and an unfinished one."""
    images, labels = np.zeros((12, 4), "float32"), np.arange(12) % 2
    good = {
        "train_images": images,
        "train_labels": labels,
        "test_images": images,
        "test_labels": labels,
    }
    with_nan, negative = images.copy(), labels.copy()
    with_nan[3, 1], negative[5] = np.nan, -1
    np.savez(tmp_path / "shape.npz", **good | {"train_labels": labels[1:]})
    np.savez(tmp_path / "nan.npz", **good | {"train_images": with_nan})
    np.savez(tmp_path / "negative.npz", **good | {"train_labels": negative})
    np.savez(tmp_path / "short.npz", **{name: good[name] for name in list(good)[:3]})
    (tmp_path / "damaged.npz").write_bytes(b"PK nothing")
    (tmp_path / "column.csv").write_text("client,start\n0,1\n")
    (tmp_path / "speeds.csv").write_text("speed\n1\n")
    (tmp_path / "cell.csv").write_text("client,rate\nann,1\nbob,fast\n")
    (tmp_path / "cast.csv").write_text("client\nann\nbob\n")
    (tmp_path / "names.csv").write_text("client,start,finish\nann,0,1\nbob,0,2\neve,1,3\n")
    (tmp_path / "links.csv").write_text("up,down\n1e6,1e6\n1e6,1e6\n")
    (tmp_path / "rates.csv").write_text("rate\n0.5\n0.25\n")
    (tmp_path / "client.csv").write_text("client,start,finish\n0,0,1\n30,0,2\n")
    (tmp_path / "good.csv").write_text("client,start,finish\n" + "0,0,1\n" * 9)
    (tmp_path / "backwards.csv").write_text("client,start,finish\n0,5,1\n")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "results.nc").write_bytes(b"precious")
    (tmp_path / "old" / "summary.json").write_text("{}")
    (tmp_path / "unfinished" / "checkpoint").mkdir(parents=True)
    write_record(tmp_path / "unfinished" / "checkpoint" / "run.json", {"time_budget": 3.0})
    return tmp_path


def listing(folder):
    """Return the content of every file in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def ask(words, folder, answering, said):
    """Run words in the process that imported JAX: exit code, output and errors."""
    paths = [said / kind for kind in ("out", "err")]
    print(json.dumps([words, str(folder), *map(str, paths)]), file=answering.stdin, flush=True)
    return int(answering.stdout.readline()), *(path.read_text() for path in paths)


def assert_one_sentence(code, out, err, named):
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1, err
    assert err.startswith("fedjax-sim: ")
    assert err.endswith(".\n")
    for word in named:
        assert word in err


@pytest.mark.parametrize("name", CASES)
def test_bad_input_gets_one_sentence(name, folder, environment, answering, tmp_path_factory):
    words, named = CASES[name]
    before = listing(folder)
    if name in IN_A_NEW_PROCESS:
        done = subprocess.run(
            [sys.executable, "-m", "fedjax_sim", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = ask(words, folder, answering, tmp_path_factory.mktemp("said"))
    assert_one_sentence(code, out, err, named)
    assert listing(folder) == before


def test_bad_words_get_one_sentence(tmp_path, answering, tmp_path_factory):
    lines = (Path(__file__).parent / "bad_words.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert len(lines) >= 120
    wrong = {}
    for line in lines:
        words, _, named = line.partition(" => ")
        said = tmp_path_factory.mktemp("said")
        answer = ask(shlex.split(words), tmp_path, answering, said)
        try:
            assert_one_sentence(*answer, named.split(" & "))
        except AssertionError:
            wrong[line] = answer
    assert wrong == {}
    assert listing(tmp_path) == {}
