"""The experiment on choosing clients: small, through the command line, its data and verdicts."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.harness import Arguments, Sample
from experiments.hierarchical.fig11 import made_up_play
from experiments.selection import rules, tasks
from experiments.selection.claims import CLAIMS, OF_IMAGES, ON_SPEAKERS
from fedjax_sim.core.settings import check, value_of
from fedjax_sim.timelines.delays.devices import draw_devices
from tests.experiments.running import FILES, claims, judged, run

GOOD = {
    "FedAvg": (100, 50, 80),
    "Oort": (50, 50, 80),
    "Power-of-Choice": (95, 40, 80),
    "TiFL": (80, 50, 80),
    "FedCS": (70, 90, 75),
    "FedBuff": (30, 90, 80),
    "Pisces": (25, 90, 80),
    "FedAT": (90, 90, 80),
}
"""Time and rounds to the target, and final accuracy, with which every claim holds."""
BAD = {
    "FedAvg": (100, 50, 80),
    "Oort": (120, 20, 80),
    "Power-of-Choice": (90, 60, 80),
    "TiFL": (120, 50, 80),
    "FedCS": (130, 90, 85),
    "FedBuff": (150, 90, 80),
    "Pisces": (160, 90, 80),
    "FedAT": (150, 90, 80),
}
"""The same with which every claim fails."""


def inputs_of(outcome: str, missed: dict[str, int] | None = None) -> dict[str, Any]:
    """Make inputs of ten seeds, which all but agree or differ a lot."""
    generator = np.random.default_rng(0)

    def sample(value: float) -> Sample:
        noise = generator.normal(size=10) * (2.0 if outcome == "undecided" else 1e-3)
        return Sample.of(value * np.exp(noise))

    means = BAD if outcome == "fails" else GOOD
    of = {
        key: {name: sample(each[i]) for name, each in means.items()}
        for i, key in enumerate(("times", "rounds", "ends"))
    }
    of["first times"] = of["times"]
    rest = {"dataset": "made up", "reduced": "", "smoke": False, "chance": 10.0, "target": 75.0}
    return {**of, **rest, "missed": dict.fromkeys(means, 0) | (missed or {})}


@pytest.mark.parametrize("first", [{}, {"first claim": 1 + ON_SPEAKERS}])
@pytest.mark.parametrize("outcome", ["holds", "fails", "undecided"])
def test_each_claim_can_hold_and_fail_and_stay_open(outcome: str, first: dict[str, int]) -> None:
    found = rules.judge(inputs_of(outcome) | first)
    numbers = [number + (ON_SPEAKERS if first else 0) for number in OF_IMAGES]
    assert [each.id for each in found] == [f"selection-{number}" for number in numbers]
    assert {each.id: each.verdict for each in found} == {each.id: outcome for each in found}


def test_claims_on_speakers_have_the_marks_of_those_on_images() -> None:
    assert len(CLAIMS) == 2 * ON_SPEAKERS
    for number in OF_IMAGES:
        first, second = CLAIMS[number], CLAIMS[number + ON_SPEAKERS]
        assert str(second.criterion) == str(first.criterion)
        assert second.text.endswith(first.text) and second.origin == "ours"


def test_runs_without_the_target_only_count_where_they_cannot_mislead() -> None:
    """Oort's would have needed more time than they count with, and so would FedAvg's."""

    def verdict(outcome: str, name: str) -> str:
        found = rules.judge(inputs_of(outcome, {name: 1}))[0]
        assert f"not reached by 1 of {name}" in found.why
        return found.verdict

    assert verdict("holds", "FedAvg") == "holds" and verdict("holds", "Oort") == "undecided"
    assert verdict("fails", "FedAvg") == "undecided" and verdict("fails", "Oort") == "fails"

    def ratio(number: int, outcome: str, name: str) -> str:
        return rules.judge(inputs_of(outcome, {name: 1}))[number - 1].verdict

    larger, smaller = ("FedAvg", "Pisces"), ("Oort", "FedBuff")
    assert {ratio(9, "holds", name) for name in larger} == {"holds"}
    assert {ratio(9, "holds", name) for name in smaller} == {"undecided"}
    assert {ratio(9, "fails", name) for name in larger} == {"undecided"}
    assert {ratio(9, "fails", name) for name in smaller} == {"fails"}
    assert ratio(4, "holds", "FedAvg") == "undecided", "its runs are in both ratios"


def test_curves_are_read_at_equal_distances() -> None:
    """The newest model counts, of evaluations within the budget."""
    time = np.array([[0.0, 30.0, 130.0], [0.0, 1.0, 2.0]])
    curves = xr.Dataset(
        {"accuracy": (("seed", "eval"), np.array([[0.1, 0.7, 0.9], [0.1, 0.2, 0.3]]))},
        {
            "time": (("seed", "eval"), time),
            "ticks": (("seed", "eval"), np.array([[0, 1, 2], [0, 5, 9]])),
            "failed": ("seed", [False, True]),
        },
    )
    found = rules.read(curves, 100.0)
    first = found.isel(seed=0)
    assert first.ticks.values[[0, 29, 30, 100]].tolist() == [0, 0, 1, 1]
    assert first.accuracy.values[[0, 29, 100]] == pytest.approx([0.1, 0.1, 0.7])
    assert first.accuracy.values[32] == pytest.approx((0.1 * 2 + 0.7 * 3) / 5)
    assert found.accuracy.values[1].max() == 0, "the run diverged"
    measured = rules.measure(curves, 100.0, 0.6)
    assert measured["missed"] == 1 and measured["times"].values == (34.0, 100.0)
    assert measured["rounds"].values == (1.0, 9.0)
    assert measured["first times"].values == (30.0, 100.0)
    assert measured["ends"].values == (70.0, 0.0)


def test_plays_have_the_clock_of_images() -> None:
    images, plays = rules.STUDY.full, rules.SPEAKERS.full
    for name in ("seeds", "clients", "heard", "at_work", "budget", "tuning_seeds", "server_rates"):
        assert getattr(plays, name) == getattr(images, name), name
    assert plays.systems == images.systems
    steps = {name: method.every * plays.evals for name, method in rules.methods(plays).items()}
    assert steps["Pisces"] == images.evals * rules.methods(images)["Pisces"].every


def test_all_claims_on_speakers_are_judged() -> None:
    inputs = inputs_of("holds") | {"first claim": 1 + ON_SPEAKERS}
    found = {each.id for each in rules.judge(inputs)}
    assert found == {CLAIMS[number].id for number in [*CLAIMS][ON_SPEAKERS:]}


def test_those_who_say_most_are_clients() -> None:
    """Everyone has all they say, with the end of it held out for tuning."""
    whole = made_up_play()
    repeats = 1 + (whole.train_speakers % 5 == 2)
    doubled = whole._replace(
        train_sequences=np.repeat(whole.train_sequences, repeats, axis=0),
        train_speakers=np.repeat(whole.train_speakers, repeats),
    )
    data = tasks.who_say_most(doubled, 10)
    assert data.speakers == tuple(f"SPEAKER {i}" for i in range(2, 50, 5))
    for client, old in enumerate(range(2, 50, 5)):
        for part in ("train", "test"):
            ours, theirs = (
                getattr(each, f"{part}_sequences")[getattr(each, f"{part}_speakers") == number]
                for each, number in ((data, client), (doubled, old))
            )
            np.testing.assert_array_equal(ours, theirs)
    held = tasks.hold_out_ends(data, 0.25)
    for client in range(10):
        said = data.train_sequences[data.train_speakers == client]
        kept = held.train_sequences[held.train_speakers == client]
        late = held.test_sequences[held.test_speakers == client]
        assert 0 < len(kept) == round(0.75 * len(said))
        np.testing.assert_array_equal(np.concatenate([kept, late]), said)
    few = tasks.thinned(data, 7)
    assert 4 <= len(few.test_sequences) == len(few.test_speakers) <= 7


def test_the_network_sees_the_last_characters() -> None:
    """A character changes the predictions after it, as far as the window goes."""
    network = tasks.Window(30, seen=3)
    codes = np.arange(20)[None] % 30
    with jax.numpy_rank_promotion("allow"):
        given = network.init(jax.random.key(0), codes)
        changed = codes.copy()
        changed[0, 8] = 29
        difference = network.apply(given, changed) - network.apply(given, codes)
    moved = np.flatnonzero(np.abs(np.asarray(difference)).max(axis=(0, 2)))
    assert moved.tolist() == [8, 9, 10]


def test_the_made_up_play_is_a_task() -> None:
    arguments = Arguments(smoke=True, dataset="tiny_shakespeare")
    sizes = rules.SPEAKERS.choose(arguments)
    task = tasks.of_speakers(sizes, arguments, [1000])
    assert task.test.num_clients == task.tuning.num_clients == 20
    assert 10 < task.chance < 30
    assert (np.asarray(task.tuning.counts) < np.asarray(task.test.counts)).all()


@pytest.mark.parametrize("sizes", [rules.STUDY.full, rules.SPEAKERS.full], ids=["images", "plays"])
def test_all_systems_have_the_same_clients(sizes: Any) -> None:
    """The same speeds for the same seed, and as many reports or clients at work."""
    rates = []
    for name, method in rules.methods(sizes).items():
        check(method.hyper)
        assert value_of(method.hyper, "delays.rate_spread") == 1
        assert method.system.live is not None, name
        rates.append(draw_devices(jax.random.key(3), method.hyper).speeds.rate)
        for size, number in (("num_chosen", 10), ("buffer_size", 10), ("concurrency", 20)):
            assert getattr(method.hyper, size, number) == number
    assert all((np.asarray(each) == np.asarray(rates[0])).all() for each in rates)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "numbers"),
    [
        ([], [*OF_IMAGES]),
        (["--dataset", "tiny_shakespeare"], [*CLAIMS][ON_SPEAKERS:]),
    ],
    ids=["images", "speakers"],
)
def test_smoke_run(dataset: list[str], numbers: list[int], tmp_path: Path) -> None:
    """A row for each system, and no evidence."""
    done = run("selection/rules", "--smoke", *dataset, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert judged(out) == {f"selection-{number}": None for number in numbers}
    assert {each["verdict"] for each in claims(out).values()} == {"not run"}
    assert {path.name for path in out.iterdir()} == FILES | {"curves.png"}
    lines = done.stdout.splitlines()
    assert sum(line.startswith(("| FedAvg ", "| Oort ")) for line in lines) == 2
