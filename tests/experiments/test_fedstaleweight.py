"""The experiments on FedStaleWeight: small, through the command line, with verdicts."""

from pathlib import Path
from typing import Any

import pytest

from experiments.fedstaleweight import influence
from experiments.harness import Sizes
from tests.conftest import slow_but
from tests.experiments.running import FILES, claims, judged, run

JUDGED = {
    "fedstaleweight/influence": [*range(1, 8), *range(12, 18), 19, 20],
    "fedstaleweight/fig2": [],
    "fedstaleweight/disturbed": [],
}
NOT_JUDGED = {
    "fedstaleweight/influence": [18],
    "fedstaleweight/fig2": [8, 9, 11, 19],
    "fedstaleweight/disturbed": [26],
}
"""Two seeds leave claim 18 undecided: their intervals are wide."""
PANELS = {"fig2_fashion_mnist.png", "fig2_cifar10.png"}
PICTURES = {
    "fedstaleweight/influence": {"influence.png", "buffers.png", "speeds.png", "throttling.png"},
    "fedstaleweight/fig2": PANELS,
    "fedstaleweight/disturbed": {"disturbed.png"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["fedstaleweight/fig2"], JUDGED))
def test_smoke_run(name: str, tmp_path: Path) -> None:
    done = run(name, "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    expected: dict[str, bool | None] = {f"fedstaleweight-{n}": True for n in JUDGED[name]}
    expected |= {f"fedstaleweight-{number}": None for number in NOT_JUDGED[name]}
    if name == "fedstaleweight/influence":
        expected |= {"fedstaleweight-21": False, "fedstaleweight-22": None}
    assert judged(out) == expected
    assert all(f"| {id} " in done.stdout for id in claims(out))
    assert {path.name for path in out.iterdir()} == FILES | PICTURES[name]


@pytest.mark.slow
def test_verdicts_on_influence_fail_where_all_are_equally_fast() -> None:
    """The claims on the paper's two speeds do not hold on schedules of one speed."""
    sizes = influence.STUDY.smoke
    settings = influence.HYPER.replace(rate_fast=influence.HYPER.delays.rate_slow)
    alone = influence.arrivals(sizes.seeds, 5 * sizes.ticks, [settings])
    measured, _ = influence.measure_influence(sizes, alone)
    found = {number: influence.JUDGES[number](each) for number, each in measured.items()}
    assert {number for number, each in found.items() if each.verdict == "fails"} == {1, 3, 4, 20}


def test_influence_is_the_share_in_every_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    report, lanes = influence.fairness_report, iter(range(8))

    def altered(*given: Any) -> Any:
        found = report(*given)
        return found._replace(influence=found.influence[::-1]) if next(lanes) == 1 else found

    monkeypatch.setattr(influence, "fairness_report", altered)
    found, _ = influence.measure_influence(Sizes(seeds=2), influence.arrivals(2, 400))
    assert not found[3]["influence is the share"]
