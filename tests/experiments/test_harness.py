"""The harness that all experiments share: command line, registry, sizes, claims, statistics."""

import importlib
import inspect
import io
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import experiments
from experiments.harness import (
    Arguments,
    Claims,
    Criterion,
    Outcome,
    Sizes,
    Study,
    estimate,
    images,
    interval,
    ledger,
    main,
    registry,
    run_experiment,
)
from experiments.harness.claims import KINDS
from experiments.harness.command import parser
from experiments.harness.statistics import LEAST_LEAD
from fedjax_sim.core.lifecycle import Stopped
from fedjax_sim.core.settings import ConfigError
from tests.experiments.running import claims, run, run_process

WITHOUT_CLAIMS = ("baselines", "reproductions")
PAPERS = [paper for paper in registry.PAPERS if paper not in WITHOUT_CLAIMS]


def test_every_module_with_a_run_is_listed() -> None:
    root = Path(experiments.__path__[0])
    found = {
        f"{path.parent.name}/{path.stem}"
        for path in root.glob("*/*.py")
        if re.search(r"\ndef run\(arguments: (harness\.)?Arguments\)", path.read_text())
    }
    assert set(registry.names()) == found


@pytest.mark.parametrize("name", registry.names())
def test_every_experiment_is_ready_to_run(name: str) -> None:
    """It is imported, its command line is read, and its small size is made; nothing is run."""
    given = parser().parse_args(["run", name, "--smoke", "--seeds", "2", "--out", "out"])
    assert (given.name, given.smoke, given.seeds, given.out) == (name, True, "2", "out")
    run = registry.find(name)
    assert [*inspect.signature(run).parameters] == ["arguments"]
    module = sys.modules[run.__module__]
    assert (module.__doc__ or "").split("\n")[0].endswith((".", ")", ":"))
    for study in studies(module):
        small = study.choose(Arguments(smoke=True))
        assert study.choose(Arguments()) == study.full and small == study.smoke
        assert small.extras.keys() <= study.full.extras.keys()
        assert small.dataset in ("", "digits", "a made-up play")
        if small.seeds:
            assert study.choose(Arguments(smoke=True, seeds=3)).seeds == 3
        if "network" in small.extras:
            assert callable(small.network(10).apply)
        json.dumps(small.config(), default=str)


def studies(module: ModuleType) -> list[Study]:
    """Find the studies of an experiment among the names of its module."""
    found = [each for name in vars(module) if isinstance(each := getattr(module, name), Study)]
    for each in vars(module).values():
        if isinstance(each, dict):
            found += [study for study in each.values() if isinstance(study, Study)]
        if isinstance(getattr(each, "study", None), Study):
            found.append(each.study)
    return found


def test_list_names_every_experiment_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == registry.names()
    assert all(len(line.split()) > 4 for line in lines)


@pytest.mark.slow
def test_the_command_line_in_a_process(tmp_path: Path) -> None:
    """Called outside of the repository."""
    done = run_process("list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == registry.names()
    assert not any(tmp_path.iterdir())


def test_a_run_writes_its_folder(tmp_path: Path) -> None:
    done = run("fald/privacy", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(claims(tmp_path / "out")) == {"fald-16"}
    assert "| fald-16 " in done.stdout
    assert done.stdout.endswith("written to out\n")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_a_misspelt_experiment_is_named(tmp_path: Path) -> None:
    done = run("fald/bound", cwd=tmp_path)
    assert done.returncode == 2 and "fald/bounds" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not any(tmp_path.iterdir())


def test_panels_are_refused_by_experiments_that_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["run", "favano/lattice", "--smoke", "--only", "fig7", "--out", str(out)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "only is 'fig7', but must be left out with favano/lattice" in said
    assert said.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["favano/lattice", "--seeds", "5-9"], "seeds is '5-9', but must be a number of seeds"),
        (["favano/lattice", "--cells", "IID"], "cells is ['IID'], but must be left out"),
        (["fald/privacy", "--seeds", "9-5"], "seeds is '9-5', but must be at least 1"),
        (["fald/privacy", "--seeds", "0"], "seeds is '0', but must be at least 1"),
        (["fald/privacy", "--seeds", "five"], "seeds is 'five', but must be a number, or two"),
        (["favano/table2", "--smoke", "--cells", "SGD"], "cells is 'SGD', but must be a part of"),
        (["favano/fig3b", "--rate", "0.1"], "rate is 0.1, but must be left out with favano/fig3b"),
        (["favano/fig3a", "--rate", "0"], "rate is 0.0, but must be a number above 0"),
    ],
)
def test_seeds_cells_and_rates_that_do_not_fit_are_refused(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_single_cells_run_with_further_seeds(tmp_path: Path) -> None:
    """Their entry has the single runs, as in a run of all seeds, and no verdict."""
    cell, found = "FedAvg | IID", {}
    for seeds in ("2-3", "4"):
        words = ("--smoke", "--seeds", seeds, "--cells", cell, "--out", seeds)
        done = run("favano/table2", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        entry = ledger.read_entry(tmp_path / seeds)
        assert entry["claims"] == [] and [*entry["inputs"]["cells"]] == ["FedAvg"]
        assert entry["adds_from"] == (2 if seeds == "2-3" else 0)
        assert entry["command"].endswith(f"--smoke --seeds {seeds} --cells '{cell}'")
        found[seeds] = entry["inputs"]["cells"]["FedAvg"]["IID"]["values"]
    assert len(found["2-3"]) == 2 and found["4"][2:] == found["2-3"]


def test_a_finished_run_is_replaced_and_an_unknown_size_refused(tmp_path: Path) -> None:
    for _ in range(2):
        assert run("fald/privacy", "--out", "out", cwd=tmp_path).returncode == 0
    done = run("fald/bounds", "--reduced", "--out", "none", cwd=tmp_path)
    assert done.returncode == 2 and "reduced is True" in done.stderr


def test_an_unfinished_run_is_not_replaced(tmp_path: Path) -> None:
    """Although an older run in its folder had finished."""
    arguments, outcome = Arguments(out=str(tmp_path)), Outcome({}, {}, [], {}, "")

    def stop(given: Arguments) -> Outcome:
        assert given.checkpoints is not None
        (given.checkpoints / "state").touch()
        raise Stopped(15, saved=True)

    run_experiment("x/y", lambda given: outcome, arguments)
    with pytest.raises(Stopped):
        run_experiment("x/y", stop, arguments)
    with pytest.raises(ConfigError, match="unless an unfinished run in it is resumed"):
        run_experiment("x/y", lambda given: outcome, arguments)
    run_experiment("x/y", lambda given: outcome, arguments._replace(resume=True))
    assert not (tmp_path / "checkpoint").exists()


def test_sizes_are_chosen_by_the_command_line() -> None:
    full = Sizes(5, dataset="mnist", rounds=100)
    study = Study(full, smoke=Sizes(1, dataset="digits", rounds=3), reduced=full.replace(rounds=9))
    assert study.choose(Arguments()) == full
    assert study.choose(Arguments(smoke=True)).rounds == 3
    assert study.choose(Arguments(reduced=True, seeds=2)) == Sizes(2, dataset="mnist", rounds=9)
    assert study.choose(Arguments(seeds=1), least_seeds=3).seeds == 3
    assert study.choose(Arguments(dataset="own.npz")).dataset == "own.npz"
    assert full.config() == {"seeds": 5, "dataset": "mnist", "rounds": 100}
    with pytest.raises(ConfigError, match="reduced is True"):
        Study(full, full).choose(Arguments(reduced=True))
    with pytest.raises(AttributeError, match="'ticks', but rounds"):
        full.replace(ticks=3)
    # A study that repeats nothing and has no data set ignores both arguments.
    assert Study(Sizes(steps=3), Sizes()).choose(Arguments(seeds=7, dataset="x")) == Sizes(steps=3)


def test_a_criterion_says_its_numbers() -> None:
    mark = Criterion("Within {far:g} standard errors of {mean:g}.", far=4.0, mean=0.5)
    assert str(mark) == "Within 4 standard errors of 0.5." and mark.far == 4.0
    with pytest.raises(ValueError, match="does not mention near"):
        Criterion("Within {far:g}.", far=4.0, near=3.0)
    with pytest.raises(KeyError):
        Criterion("Within {far:g}.")
    with pytest.raises(AttributeError, match="no number 'near', but far, mean"):
        _ = mark.near


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_states_text_place_and_criterion(paper: str) -> None:
    found: Claims = importlib.import_module(f"experiments.{paper}.claims").CLAIMS
    for number, claim in found.items():
        assert claim.id == f"{paper}-{number}"
        assert claim.text.rstrip('"').endswith(".") and claim.place
        assert str(claim.criterion).endswith(".")
        lead = claim.criterion.marks.get("lead", LEAST_LEAD)
        assert lead == LEAST_LEAD or paper not in ("fedstaleweight", "hierarchical")
    verdict = found.verdict(3, {"x": 1}, True, "because")
    assert verdict.criterion == str(found[3].criterion) and verdict.id == f"{paper}-3"
    assert verdict.verdict == "holds" and verdict.kind in KINDS


def test_interval_of_paired_differences() -> None:
    """Two pairs: one degree of freedom, whose 95 % point is 12.7."""
    mean, half = interval(np.array([1.0, 3.0]))
    assert mean == 2
    assert half == pytest.approx(12.7062 * np.sqrt(2) / np.sqrt(2))


def test_means_with_standard_errors() -> None:
    found = estimate(np.array([[1.0, 0.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(found, [[2, 2], [1, 2]])
    assert found.deviation([0.0, 0.0]) == 2


def test_packed_jpeg_images_are_read_as_they_are(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = [np.full((8, 8, 3), 40 * k, np.uint8) for k in range(4)]
    packed = []
    for each in pixels:
        image.fromarray(each).save(buffer := io.BytesIO(), "JPEG")
        packed.append(np.frombuffer(buffer.getvalue(), np.uint8))
    parts = {
        f"{part}_{name}": value
        for part in ("train", "test")
        for name, value in (
            ("jpeg", np.concatenate(packed)),
            ("offsets", np.cumsum([0, *map(len, packed)])),
            ("labels", np.arange(4)),
        )
    }
    np.savez(tmp_path / "own_jpeg.npz", **parts)
    data = images.load(str(tmp_path / "own_jpeg.npz"))
    assert data.name == "own_jpeg" and data.train_images.shape == (4, 8, 8, 3)
    assert data.test_images[:, 0, 0, 0].tolist() == pytest.approx([0, 40, 80, 120], abs=2)


def test_runs_are_compared_with_the_record_by_machine() -> None:
    """Every digit on one machine; a verdict and a tolerance on another, or on an unknown one."""
    claim = {"id": "fald-1", "verdict": "holds", "measured": {"a": [1.0, None], "b": "words"}}
    other = {**claim, "measured": {"a": [1.02, None], "b": "words"}}
    far = {**claim, "measured": {"a": [1.2, None], "b": "words"}}

    def told(ours: dict, theirs: dict, *machines: str) -> list[str]:
        entries = [
            {"machine": machine, "claims": [each]}
            for machine, each in zip(machines, (ours, theirs), strict=True)
        ]
        return ledger.differences(*entries)

    unknown = (ledger.UNKNOWN, ledger.UNKNOWN)
    for machines, same in ((("x", "x"), True), (("x", "y"), False), (unknown, False)):
        assert told(claim, claim, *machines) == []
        assert bool(told(claim, other, *machines)) is same
        assert told(claim, far, *machines) == ["fald-1: same verdict, other numbers"]
    fails = {**claim, "verdict": "fails"}
    assert told(fails, claim, "x", "y") == ["fald-1: fails, in the record holds"]
    assert told({**claim, "id": "fald-2"}, claim, "x", "x") == ["fald-2: not in the record"]
