"""Launchers: every job runs until it is done, is put in the queue again, or is named as failed.

The jobs are small Python commands, so that nothing is compiled. All launchers are the real ones;
submitit and Ray run on this machine.
"""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from fedjax_sim.core.lifecycle import STOPPED
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.launch import Local, PartError, Ray, Slurm
from fedjax_sim.launch.jobs import Job, Launcher, Started, _places, finish_jobs
from tests.launch import slurm_here
from tests.launch.conftest import WITHOUT

ROOT = Path(__file__).parents[2]

LAUNCHERS = [
    pytest.param(Local(), id="local"),
    pytest.param(Slurm(cluster="local"), id="submitit", marks=pytest.mark.launched_by("submitit")),
    pytest.param(Ray(num_cpus=0.5), id="ray", marks=pytest.mark.launched_by("ray")),
]
COUNTS = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
(folder / f"run-{len(list(folder.iterdir()))}").write_text(" ".join(sys.argv[2:]))
"""
"""Writes a file at every run, with the words after the folder's."""
SAVES_TWICE = COUNTS + "sys.exit(75 if len(list(folder.iterdir())) < 3 else 0)"
FAILS = COUNTS + "print('one line'); print('disk is full'); print(); sys.exit(3)"
WAITS = """
import signal, time
def end(number, frame): print("saved"); sys.exit(75)
signal.signal(signal.SIGTERM, end)
if len(list(folder.iterdir())) == 1: time.sleep(60)
"""
"""Waits to be asked to end; when it is run again, it ends well."""


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str, str], Job]:
    """Return a function that makes a job of a name and a program."""

    def make(name: str, program: str) -> Job:
        folder = tmp_path / "parts" / name
        command = (sys.executable, "-u", "-c", program, str(folder))
        return Job(f"part {name}", command, folder, tmp_path)

    return make


def runs(job: Job) -> list[str]:
    """Return the words of every run of a job."""
    return [path.read_text() for path in sorted(job.folder.iterdir())]


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jobs_are_resumed_until_done_and_failures_are_named(
    launcher: Launcher,
    job: Callable[[str, str], Job],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second of three jobs fails; the first says twice that it has saved."""
    jobs = [job("a", SAVES_TWICE), job("b", FAILS), job("c", COUNTS)]
    with pytest.raises(PartError) as caught:
        finish_jobs(launcher, jobs, tmp_path)
    assert [runs(each) for each in jobs] == [["", "--resume", "--resume"], [""], [""]]
    sentence = str(caught.value)
    assert caught.value.code == 3
    assert sentence.startswith("part b failed with exit code 3 (disk is full); ")
    assert sentence.endswith(f"{jobs[1].folder} --resume")
    shown = capsys.readouterr().err
    for words in ("part a is done", "part b failed (exit code 3)", "(3 of 3 have ended)"):
        assert words in shown


def test_no_more_processes_at_a_time_than_places(
    job: Callable[[str, str], Job], tmp_path: Path
) -> None:
    """Each of four jobs looks how many others run."""
    program = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
running = folder.parent / f"{folder.name}.running"
running.touch()
time.sleep(0.2)
(folder / "seen").write_text(str(len(list(folder.parent.glob("*.running")))))
running.unlink()
"""
    jobs = [job(name, program) for name in "abcd"]
    finish_jobs(Local(processes=2), jobs, tmp_path, show=False)
    seen = [int((each.folder / "seen").read_text()) for each in jobs]
    assert max(seen) == 2


def test_the_machine_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """By GPUs if there are any, otherwise by cores; every core is in one share."""
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert _places(None, len(cores)) == [([core], {}) for core in cores]
    assert _places(None, 1) == [(cores, {})]
    assert _places(len(cores) + 1, 99)[0] == (cores, {})
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5a")
    shown = [variables["CUDA_VISIBLE_DEVICES"] for _, variables in _places(None, 8)]
    assert shown == ["3", "GPU-5a"] and Local().count() == 2
    assert len(_places(3, 8)) == 3
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert Local().count() == len(cores) and _places(None, 1) == [(cores, {})]


def test_a_job_runs_on_its_share_of_the_machine(
    job: Callable[[str, str], Job], tmp_path: Path
) -> None:
    program = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cores").write_text(repr(sorted(os.sched_getaffinity(0))))
"""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    jobs = [job(name, program) for name in "ab"]
    finish_jobs(Local(processes=2), jobs, tmp_path, show=False)
    shares = [set(eval((each.folder / "cores").read_text())) for each in jobs]
    assert shares[0] | shares[1] == before and not shares[0] & shares[1]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    "launcher", [launcher for launcher in LAUNCHERS if launcher.id != "submitit"]
)
def test_who_ends_the_launcher_ends_the_parts_which_save(
    launcher: Launcher, job: Callable[[str, str], Job], tmp_path: Path
) -> None:
    """SIGTERM to this process; the part prints that it has saved before the launcher ends."""
    waiting = job("a", COUNTS + WAITS)

    def end() -> None:
        while not waiting.folder.exists() or not runs(waiting):
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(PartError, match="SIGTERM received; the parts have saved") as caught:
        finish_jobs(launcher, [waiting], tmp_path, show=False)
    assert caught.value.code == STOPPED
    assert waiting.log.read_text() == "saved\n" and runs(waiting) == [""]
    finish_jobs(launcher, [waiting], tmp_path, show=False)
    assert runs(waiting) == ["", "--resume"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
def test_a_killed_launcher_takes_its_parts_along(tmp_path: Path) -> None:
    """A part that is at work is gone soon after SIGKILL to the process that started it."""
    part = """
import os, pathlib, sys, time
from fedjax_sim.core.lifecycle import exit_code_of
def work():
    text = f"{os.getpid()} {'FEDJAX_SIM_PARENT' in os.environ}"
    pathlib.Path(sys.argv[1], "pid").write_text(text)
    time.sleep(60)
exit_code_of("part", work)
"""
    starts = f"""
import sys
from pathlib import Path
from fedjax_sim.launch.jobs import Job, Runner
folder = Path({str(tmp_path)!r})
command = (sys.executable, "-c", {part!r}, str(folder))
Runner(0)(Job("part a", command, folder / "a", folder))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    launcher = subprocess.Popen([sys.executable, "-c", starts], env=environment)
    told, until = tmp_path / "pid", time.monotonic() + 60
    while not (told.exists() and told.read_text()):
        assert launcher.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    pid, is_inherited = told.read_text().split()
    assert is_inherited == "False"
    assert Path(f"/proc/{pid}").exists()
    launcher.kill()
    launcher.wait()
    while is_at_work(int(pid)):
        assert time.monotonic() < until
        time.sleep(0.02)


def is_at_work(pid: int) -> bool:
    """Tell whether a process runs; one that ended may wait for somebody to ask how."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.slow
@pytest.mark.launched_by("submitit")
def test_a_job_that_is_preempted_saves_and_goes_back_into_the_queue(
    job: Callable[[str, str], Job], tmp_path: Path
) -> None:
    """Signal what submitit runs, the parent of the part's command, as Slurm does."""
    tell = "\n(folder.parent / 'parent').write_text(str(__import__('os').getppid()))\n"
    waiting, parent = job("a", COUNTS + tell + WAITS), tmp_path / "parts" / "parent"

    def preempt() -> None:
        while not (waiting.folder.exists() and parent.exists() and parent.read_text()):
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(int(parent.read_text()), signal.SIGUSR2)

    threading.Thread(target=preempt, daemon=True).start()
    finish_jobs(Slurm(cluster="local"), [waiting], tmp_path, show=False)
    assert runs(waiting) == ["", "--resume"] and waiting.log.read_text() == "saved\n"


@pytest.mark.slow
@pytest.mark.launched_by("submitit")
def test_a_job_that_is_cancelled_does_not_go_back_into_the_queue(
    job: Callable[[str, str], Job], tmp_path: Path
) -> None:
    """Signal all processes of the job, as `scancel` does, and then kill the one that is left."""
    tell = "\n(folder.parent / 'pids').write_text(f'{os.getpid()} {os.getppid()}')\n"
    waiting, told = job("a", "import os" + COUNTS + tell + WAITS), tmp_path / "parts" / "pids"

    def cancel() -> None:
        while not (told.exists() and len(told.read_text().split()) == 2):
            time.sleep(0.05)
        time.sleep(0.3)
        run, parent = map(int, told.read_text().split())
        os.kill(parent, signal.SIGTERM)
        os.kill(run, signal.SIGTERM)
        time.sleep(2)
        os.kill(parent, signal.SIGKILL)

    threading.Thread(target=cancel, daemon=True).start()
    with pytest.raises(PartError, match="part a failed with exit code 1"):
        finish_jobs(Slurm(cluster="local"), [waiting], tmp_path, show=False)
    assert runs(waiting) == [""] and waiting.log.read_text().startswith("saved\n")


@pytest.mark.launched_by("submitit")
def test_slurm_gets_an_array_job(
    job: Callable[[str, str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With five commands in Slurm's place, which run the file that submitit writes.

    One of three tasks says that it has saved, and is put in the queue again by `scontrol requeue`;
    one fails.
    """
    slurm_here.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    launcher = Slurm(
        timeout_min=240,
        signal_delay_s=300,
        gpus=2,
        cpus=8,
        mem_gb=1.5,
        partition="long",
        at_once=2,
        options={"qos": "low", "setup": ["module load cuda"]},
    )
    saves = COUNTS + "sys.exit(75 if len(list(folder.iterdir())) < 2 else 0)"
    jobs = [job("a", saves), job("b", FAILS), job("c", COUNTS)]
    (tmp_path / "bin" / "module").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "module").chmod(0o755)
    with pytest.raises(PartError, match=r"part b failed with exit code 3 \(disk is full\)"):
        finish_jobs(launcher, jobs, tmp_path, show=False)
    assert [runs(each) for each in jobs] == [["", "--resume"], [""], [""]]
    lines = (tmp_path / "bin" / "submitted.sh").read_text().splitlines()
    for line in (
        "#SBATCH --array=0-2%2",
        "#SBATCH --time=240",
        "#SBATCH --signal=USR2@300",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=1536MB",
        "#SBATCH --partition=long",
        "#SBATCH --qos=low",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "module load cuda",
    ):
        assert line in lines, line


@pytest.mark.launched_by("submitit")
def test_a_job_that_slurm_refuses_is_one_sentence(
    job: Callable[[str, str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_here.install(tmp_path / "bin")
    refuses = "#!/bin/sh\necho 'first' >&2\necho 'sbatch: error: invalid partition' >&2\nexit 1\n"
    (tmp_path / "bin" / "sbatch").write_text(refuses)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(PartError, match=r"not .* by Slurm \(sbatch: error: invalid") as caught:
        finish_jobs(Slurm(), [job("a", COUNTS)], tmp_path, show=False)
    assert caught.value.code == 2 and "first" not in str(caught.value)


def test_without_slurm_or_submitit_a_sentence_says_so(
    job: Callable[[str, str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    for launcher, words in ((Slurm(), "slurm"), (Ray(address="nowhere:1"), "ray|nowhere")):
        if WITHOUT["ray"] or isinstance(launcher, Slurm):
            with pytest.raises((PartError, ConfigError), match=words) as caught:
                finish_jobs(launcher, [job("a", COUNTS)], tmp_path, show=False)
            assert getattr(caught.value, "code", 2) == 2
    assert not (tmp_path / "parts").exists()


def test_a_terminal_shows_one_line_for_each_part(
    job: Callable[[str, str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(Launcher):
        def start(self, jobs: Sequence[Job], folder: Path) -> Started:
            ended, late = Future[int](), Future[int]()
            ended.set_result(0)
            threading.Timer(1.0, late.set_result, [0]).start()
            return [ended, late], list

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    jobs = [job("0/2", COUNTS), job("1/2", COUNTS)]
    jobs[1].progress.parent.mkdir(parents=True)
    jobs[1].progress.write_text("favano: 3 of 25 evaluations")
    finish_jobs(Two(), jobs, tmp_path)
    shown = terminal.getvalue()
    assert "part 0/2 is done after" in shown
    assert "favano: 3 of 25 evaluations" in shown and "waits or runs" in shown


@pytest.mark.slow
@pytest.mark.launched_by("submitit")
def test_a_time_limit_saves_and_puts_the_job_in_the_queue_again(
    job: Callable[[str, str], Job], tmp_path: Path
) -> None:
    """The limit is one minute; 40 s before it the job is signalled."""
    waiting = job("a", COUNTS + WAITS)
    launcher = Slurm(cluster="local", timeout_min=1, signal_delay_s=40)
    finish_jobs(launcher, [waiting], tmp_path, show=False)
    assert runs(waiting) == ["", "--resume"] and waiting.log.read_text() == "saved\n"
