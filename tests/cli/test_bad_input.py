"""Bad input on the command line gets one sentence and exit code 2, and no file is changed.

The sentence names the field, the value and what is allowed. The words are in `bad_words.txt`.
"""

import itertools
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
LINES = (Path(__file__).parent / "bad_words.txt").read_text().splitlines()
SECTIONS = [
    [*lines]
    for is_words, lines in itertools.groupby(LINES, lambda line: bool(line) and line[0] != "#")
    if is_words
]
"""Lines of words and, after "=>", what the sentence about them says, separated by "&"."""
IN_A_NEW_PROCESS = [
    "train => command & 'train' & list, run, tune, compare, plot, merge, timeline",
    "run fedbuff --seeds 1 --out out --distributed --coordinator localhost:9 --num-processes 2 "
    "--process-id 2 => --distributed & process_id < num_processes",
]
"""Words that are called as a user does; others are answered by one process that imported JAX."""
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
def ask(environment, tmp_path_factory):
    """Return a function that asks a process that imported JAX: exit code, output and errors."""
    command = [sys.executable, "-c", ANSWERING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:

        def run(words, folder):
            said = tmp_path_factory.mktemp("said")
            paths = [said / kind for kind in ("out", "err")]
            print(
                json.dumps([words, str(folder), *map(str, paths)]), file=process.stdin, flush=True
            )
            return int(process.stdout.readline()), *(path.read_text() for path in paths)

        yield run
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


def is_one_sentence(code, out, err, named):
    is_sentence = err.startswith("fedjax-sim: ") and err.endswith(".\n") and err.count("\n") == 1
    return (code, out) == (2, "") and is_sentence and all(word in err for word in named)


def test_there_are_enough_words():
    assert sum(map(len, SECTIONS)) >= 230


@pytest.mark.parametrize("lines", SECTIONS, ids=lambda lines: lines[0].partition(" => ")[0])
def test_bad_words_get_one_sentence(lines, folder, ask):
    before, wrong = listing(folder), {}
    for line in lines:
        words, _, named = line.partition(" => ")
        if words == "run fedavg --seeds 1 --out /proc/out" and not Path("/proc/self").exists():
            continue
        answer = ask(shlex.split(words), folder)
        if not is_one_sentence(*answer, named.split(" & ")) or listing(folder) != before:
            wrong[line] = answer
    assert wrong == {}


@pytest.mark.parametrize("line", IN_A_NEW_PROCESS)
def test_bad_words_in_a_new_process_get_one_sentence(line, tmp_path, environment):
    words, _, named = line.partition(" => ")
    command = [sys.executable, "-m", "fedjax_sim", *shlex.split(words)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert is_one_sentence(done.returncode, done.stdout, done.stderr, named.split(" & ")), done
    assert listing(tmp_path) == {}
