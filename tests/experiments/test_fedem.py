"""The experiments on FedEM: small, with verdicts; and the counts behind Fig. 2."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.fedem import (
    ablations,
    clocks,
    counts,
    extensions,
    fig1,
    fig2,
    fig2_shape,
    fig3,
    headlines,
    reduction,
    theory,
)
from experiments.fedem.claims import CLAIMS
from experiments.harness import Arguments, Outcome
from experiments.harness.statistics import HOLDS, UNDECIDED
from fedjax_sim.problems import latent
from tests.conftest import slow_but
from tests.experiments.running import FILES, judged, run

SMOKE = Arguments(smoke=True)
EXPERIMENTS: dict[Callable[[Arguments], Outcome], dict[int, str]] = {
    theory.run: dict.fromkeys([*range(1, 9), 10, 12, 14], HOLDS),
    ablations.run: dict.fromkeys([9, 11, 13, 16, 17, 22, 23, 24], HOLDS) | {15: UNDECIDED},
    fig1.run: {18: UNDECIDED},
    fig3.run: {19: UNDECIDED},
    fig2_shape.run: {25: UNDECIDED},
    clocks.run: {30: UNDECIDED},
    reduction.run: {31: UNDECIDED},
    extensions.run: dict.fromkeys([32, 33, 34], UNDECIDED),
    fig2.run: {20: UNDECIDED},
}
"""The claims that each judges in its smoke size, with the outcome."""


def test_every_claim_is_judged_somewhere() -> None:
    found = {*headlines.JUDGES, *(number for claims in EXPERIMENTS.values() for number in claims)}
    assert found == {number for number, claim in CLAIMS.items() if not claim.cost}


RUNS = slow_but([fig3.run], list(EXPERIMENTS)[:-1])


@pytest.mark.parametrize("study", RUNS, ids=lambda study: study.__module__.rpartition(".")[2])
def test_smoke_run(study: Callable[[Arguments], Outcome]) -> None:
    outcome = study(SMOKE)
    assert {each.id: each.verdict for each in outcome.verdicts} == {
        f"fedem-{number}": verdict for number, verdict in EXPERIMENTS[study].items()
    }
    assert all(each.why and each.claim and each.paper for each in outcome.verdicts)
    json.dumps(outcome.config)
    assert outcome.figures or study in (reduction.run, extensions.run)
    without = (theory.run, ablations.run, reduction.run, extensions.run)
    assert bool(outcome.curves) == (study not in without)
    for own in outcome.curves.values():
        assert np.isfinite(own.mean_field.values[..., 0]).all()


def test_one_client_without_compression_is_spider_em() -> None:
    """The part of the slow smoke run that repeats how the package draws mini-batches."""
    assert theory.JUDGES[14](theory.measure_spider(loops=2, inner=4)).verdict == HOLDS


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path) -> None:
    """FedMissEM as a whole: the folder, the verdict, the text."""
    done = run("fedem/fig2", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert judged(tmp_path / "out") == {"fedem-20": None}
    assert "fedem-20" in done.stdout
    found = json.loads((tmp_path / "out" / "config.json").read_text())["found"]
    assert found["ours"]["F"] < found["ours"]["F at first"]
    assert found["ours"]["trend"] > 0.95
    assert abs(found["ours"]["F"] - found["EM, to its end"]["F"]) < 0.01 * abs(
        found["EM, to its end"]["F"]
    )
    written = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"fig2_trend.png", "fig2_objective.png"}
    assert written == FILES | pictures


def test_counts_are_of_rank_two_and_start_from_the_servers_matrices() -> None:
    visits = counts.synthetic(counts.COUNTS.full)
    assert visits.truth is not None and np.linalg.matrix_rank(visits.truth) == 2
    noise = visits.value - visits.truth[visits.site, visits.time]
    assert abs(noise.std() - 0.5) < 5 * 0.5 / np.sqrt(2 * len(noise))
    visits = counts.Visits(
        np.array([0, 0, 1]),
        np.array([0, 0, 1]),
        np.array([1, 1, 2]),
        np.array([4.0, 6.0, 3.0]),
        (2, 3),
        np.zeros((2, 3)),
        num_servers=2,
    )
    np.testing.assert_allclose(fig2.filled_up(visits), [0, 2.5, 0, 0, 0, 1.5])


@pytest.mark.slow
def test_epochs_of_cells_and_blocks_within_a_site() -> None:
    """An epoch counts sixteen cells at the start, then what a round sends, over the visits.

    The paper's mini-batch is 10 x 10 in groups of four times.
    """
    assert [batch.share for batch in fig2.batches((200, 60)).values()] == pytest.approx(
        [100 / 12000, 0.4935, 0.4935], rel=1e-3
    )
    for batch in fig2.batches((200, 60)).values():
        assert (batch.compression.block, batch.compression.row) == (4, batch.columns)
    random = np.random.default_rng(0)
    site, time = np.nonzero(np.ones((4, 4)))
    visits = counts.Visits(
        np.arange(16) % 2,
        site,
        time,
        random.normal(size=16),
        (4, 4),
        np.zeros((4, 4)),
        num_servers=2,
    )
    batch = latent.CellSampling(shape=(4, 4), rows=2, columns=3)
    own = fig2.fit(
        fig2.problem_of(visits),
        visits,
        rounds=5,
        gamma=0.1,
        alpha=0.1,
        batch=batch,
        kept={},
    )
    np.testing.assert_allclose(
        own.curves.epochs.values[0], 2 * (16 + 6 * own.curves.ticks.values[0]) / 16
    )


def test_smoothing_keeps_lines_and_removes_noise() -> None:
    line = 3 + 0.5 * np.arange(40)
    np.testing.assert_allclose(fig2.smoothed(line), line, atol=1e-9)
    noise = np.random.default_rng(0).normal(size=40)
    assert np.std(fig2.smoothed(line + noise) - line) < 0.5


def test_additive_means() -> None:
    """They are exact on an additive table, whichever cells are missing."""
    random = np.random.default_rng(0)
    table = random.normal(size=(6, 1)) + random.normal(size=(1, 8))
    site, time = np.nonzero(random.random(table.shape) < 0.7)
    visits = counts.Visits(0 * site, site, time, table[site, time], table.shape, table)
    np.testing.assert_allclose(fig2.additive(visits), table, atol=1e-6)
