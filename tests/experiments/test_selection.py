"""The experiment on choosing clients: small, through the command line, and its verdicts."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

from experiments.harness import Sample
from experiments.selection import rules
from experiments.selection.claims import CLAIMS
from fedjax_sim.settings import check, value_of
from fedjax_sim.timelines.live.devices import draw_clients
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


@pytest.mark.parametrize("outcome", ["holds", "fails", "undecided"])
def test_each_claim_can_hold_and_fail_and_stay_open(outcome: str) -> None:
    found = rules.judge(inputs_of(outcome))
    assert [each.id for each in found] == [f"selection-{number}" for number in CLAIMS]
    assert {each.id: each.verdict for each in found} == {each.id: outcome for each in found}


def test_runs_without_the_target_only_count_where_they_cannot_mislead() -> None:
    """Oort's would have needed more time than they count with, and so would FedAvg's."""

    def verdict(outcome: str, name: str) -> str:
        found = rules.judge(inputs_of(outcome, {name: 1}))[0]
        assert f"not reached by 1 of {name}" in found.why
        return found.verdict

    assert verdict("holds", "FedAvg") == "holds" and verdict("holds", "Oort") == "undecided"
    assert verdict("fails", "FedAvg") == "undecided" and verdict("fails", "Oort") == "fails"


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


def test_all_systems_have_the_same_clients() -> None:
    """The same speeds for the same seed, and as many reports or clients at work."""
    sizes = rules.STUDY.full
    rates = []
    for name, method in rules.methods(sizes).items():
        check(method.hyper)
        assert value_of(method.hyper, "delays.rate_spread") == 1
        assert method.system.live is not None, name
        rates.append(draw_clients(jax.random.key(3), method.hyper).speeds.rate)
        for size, number in (("num_chosen", 10), ("buffer_size", 10), ("concurrency", 20)):
            assert getattr(method.hyper, size, number) == number
    assert all((np.asarray(each) == np.asarray(rates[0])).all() for each in rates)


@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A row for each system, and no evidence."""
    done = run("selection/rules", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert judged(out) == {f"selection-{number}": None for number in CLAIMS}
    assert {each["verdict"] for each in claims(out).values()} == {"not run"}
    assert {path.name for path in out.iterdir()} == FILES | {"curves.png"}
    lines = done.stdout.splitlines()
    assert sum(line.startswith(("| FedAvg ", "| Oort ")) for line in lines) == 2
