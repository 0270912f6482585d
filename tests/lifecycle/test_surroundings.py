"""Commands run where streams are closed or narrow, and where there is no home folder."""

import errno
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import fedjax_sim
from fedjax_sim import datasets, launch
from fedjax_sim.cli.commands import main
from fedjax_sim.core.lifecycle import BAD_INPUT, STORAGE, exit_code_of
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.results import reports
from fedjax_sim.systems import fedavg

ROOT = Path(fedjax_sim.__file__).parents[1]
PACKAGE = [sys.executable, "-m", "fedjax_sim"]
QUICK = ["fedavg", "--time-budget", "20", "--evals", "1", "--model", "logistic"]
NOBODY = 54321
"""Number of a user whom no list of users has."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a process that imports this copy of the package."""
    return os.environ | {"PYTHONPATH": str(ROOT), "FEDJAX_SIM_CACHE": str(tmp_path / "cache")}


def test_a_run_needs_no_streams(tmp_path: Path, environment: dict[str, str]) -> None:
    """With all three closed, the next files that are opened would get their numbers."""
    command = 'exec "$@" <&- >&- 2>&-'
    words = ["sh", "-c", command, "sh", *PACKAGE, "run", *QUICK, "--seeds", "1", "--out", "out"]
    assert subprocess.run(words, cwd=tmp_path, env=environment).returncode == 0
    assert set(reports.load(tmp_path / "out").curves) == {"fedavg"}
    assert not (tmp_path / "out" / ".lock").exists()


@pytest.mark.parametrize("closed", [">&-", "1</dev/null", ">/dev/full"])
def test_an_output_that_takes_nothing_is_no_fault(
    closed: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Closed on purpose, it is like the null device; if it fails, a sentence says so."""
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", *PACKAGE, "--version"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    if closed == ">&-":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == STORAGE
        assert done.stderr.startswith("fedjax-sim: writing to the output or a file failed (")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_output_cannot_encode_is_escaped(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a formula, or a folder whose name is not UTF-8."""
    output = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", output)
    assert exit_code_of("test", lambda: print("θ, \udcff")) == 0
    assert output.errors == "strict"
    written = output.buffer.getvalue().decode(encoding)
    assert written == ("θ" if encoding == "utf-8" else "\\u03b8") + ", \\udcff\n"


def test_lists_and_logs_do_not_depend_on_the_language(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Sources have Greek letters, and so may names of settings and metrics."""
    script = (
        "from fedjax_sim.results import trackers; log = trackers.CSV('log.csv');"
        "lane = {'system': 'x', 'seed': 0};"
        "log.log(lane, 1, {'evaluation': 0, 'virtual_time': 0, chr(8214): 1});"
        "log.close(); from fedjax_sim.cli.commands import main; raise SystemExit(main(['list']))"
    )
    narrow = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment | narrow, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert b"langevin" in done.stdout
    assert ",‖,1\n" in (tmp_path / "log.csv").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="only root may become a user without an entry",
)
def test_a_container_without_a_home_runs(tmp_path: Path) -> None:
    """No HOME, no entry for the user, no git, no cache: one sentence, and the results."""
    tmp_path.chmod(0o777)
    for folder in list(tmp_path.parents)[:2]:
        folder.chmod(0o755)
    user = f"--reuid={NOBODY} --regid={NOBODY} --clear-groups".split()
    # The interpreter may be in root's own folder.
    user += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    bare = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/nowhere"}
    bare["XLA_FLAGS"] = os.environ["XLA_FLAGS"]  # which compile quickly
    done = subprocess.run(
        [str(shutil.which("setpriv")), *user, *PACKAGE, "timeline", *QUICK[:3], "--out", "out"],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("fedjax-sim: ")]
    assert told == [
        "fedjax-sim: compiled programs are not kept (this process has no home folder): set "
        "FEDJAX_SIM_CACHE to a folder that can be written."
    ]
    assert (tmp_path / "out" / "results.nc").is_file()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the home folder away: no variable names it, and no list of users has this one."""
    import pwd

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "FEDJAX_SIM_CACHE"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_home_a_cache_must_be_named(homeless: None, tmp_path: Path) -> None:
    for given in (None, "~/cache"):
        with pytest.raises(ConfigError, match=r"cache_dir is .* this process has no home folder"):
            datasets.load("mnist", data_dir=tmp_path, cache_dir=given)
    with pytest.raises(ConfigError, match="data_dir"):
        datasets.load("mnist", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    for name in ("~/a.npz", "npz:~/a.npz"):
        with pytest.raises(ConfigError, match=r"~/a\.npz"):
            datasets.load(name)


@pytest.mark.parametrize("reason", ["no home folder", "Not a directory"])
def test_programs_that_cannot_be_kept_are_reported(
    reason: str,
    homeless: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if reason == "Not a directory":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "file" / "cache"))
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        for _ in range(2):  # As every sweep does.
            fedjax_sim.engine.machine.compiling.keep_by_default()
        assert not jax.config.jax_enable_compilation_cache
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and reason in said


@pytest.mark.parametrize("launcher", ["ray", "slurm"])
def test_a_launcher_that_is_not_there_leaves_nothing(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for package in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    assert main(["run", *QUICK, "--launcher", launcher, "--parts", "2"]) == BAD_INPUT
    said = capsys.readouterr().err
    assert f'pip install "fedjax-sim[{launcher}]"' in said and said.count("\n") == 1
    made = {"ray": launch.Ray, "slurm": launch.Slurm}[launcher]()
    with pytest.raises(ConfigError, match="pip install"):
        launch.sweep(
            fedavg.system,
            len,
            checkpoints=fedjax_sim.Checkpoints(tmp_path / "out"),
            launcher=made,
            budget=fedjax_sim.Ticks(1),
        )
    assert not any(tmp_path.iterdir())


def test_a_stream_that_fails_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentences are lost without an error stream, and not added to the output."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "gone")

    def work() -> None:
        raise ConfigError("lr", 0, "above 0")

    for stream in (None, Gone()):
        monkeypatch.setattr(sys, "stderr", stream)
        assert exit_code_of("test", work) == BAD_INPUT
    assert capsys.readouterr().out == ""
