"""The experiments on FAVANO's theory and clock: small, through the command line, with verdicts."""

from pathlib import Path

import numpy as np
import pytest

from experiments.favano import clock
from fedjax_sim.systems import favano, fedbuff
from tests.experiments.running import FILES, claims, judged, run, summary

JUDGED = {
    "favano/lemmas": [1, 2, 3],
    "favano/theory": [6, 7, 16, 30],
    "favano/clock": [4, 5, 8, 17, 18, 19, 23],
}
OUTCOMES = {19: None, 23: False, 30: False}
"""A claim too near to its mark for a smoke run's schedules, and those that fail."""
PICTURES = {
    "favano/lemmas": {"contraction.png"},
    "favano/theory": {"long_run_mean.png", "theorem_1.png"},
    "favano/clock": {"contacts.png", "staleness.png", "step_time.png"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_smoke_run(name: str, tmp_path: Path) -> None:
    done = run(name, "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    expected = {f"favano-{number}": OUTCOMES.get(number, True) for number in JUDGED[name]}
    assert judged(out) == expected
    for id, claim in claims(out).items():
        assert isinstance(claim["measured"], dict)
        assert f"| {id} " in done.stdout
    assert {path.name for path in out.iterdir()} == FILES | PICTURES[name]
    assert summary(out)["failed_lanes"] == 0


@pytest.mark.slow
def test_verdicts_on_the_clock_fail_on_wrong_schedules() -> None:
    """A step too many after the first, every second contact too old, and updates of anyone."""
    lanes, ticks = clock.STUDY.smoke.seeds, clock.BUDGET // clock.PERIOD
    shares = (clock.SHARES[clock.THIRD], clock.SHARES[clock.MOST])
    drawn = clock.at_shares(favano.system, favano.paper(), lanes, ticks, shares)

    def found(timeline: clock.Timeline) -> list[bool | None]:
        steps, gaps, _ = clock.measure_contacts(timeline)
        return [clock.JUDGES[4](steps).holds, clock.JUDGES[5](gaps).holds]

    assert found(drawn) == [True, True]
    assert found(drawn._replace(steps=drawn.steps + (drawn.steps > 0))) == [False, True]
    assert found(drawn._replace(version=drawn.version - drawn.version % 2)) == [True, False]

    settings = clock.READINGS["blocked"]
    runs = clock.at_shares(fedbuff.system, settings, lanes, clock.FEDBUFF_TICKS)
    anyone = np.random.default_rng(0).integers(0, settings.num_clients, runs.clients.shape)
    readings = dict.fromkeys(clock.READINGS, runs._replace(clients=anyone))
    measured = clock.measure_shares(clock.STUDY.smoke, readings)
    assert clock.judge_shares(measured).verdict == "undecided"
    slower = {name: shares - 0.05 for name, shares in measured["settled"].items()}
    assert clock.judge_shares({**measured, "settled": slower}).verdict == "fails"
