"""Epsilon on the curves, in the summary and in the table, and what the command line refuses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.cli.commands import main
from fedjax_sim.cli.tables import final_rows
from fedjax_sim.results import reports
from fedjax_sim.server.accounting import Mechanism
from fedjax_sim.server.privacy import epsilon_after, parse_privacy
from fedjax_sim.systems import fedavg

RESHUFFLED = ("--set", "sampling=reshuffled")


@pytest.mark.slow
def test_epsilon_against_rounds(regression: Callable, small: Callable) -> None:
    """Lanes have the epsilon of the noise that was found; lanes without noise have none."""
    texts = ["adaptive:epsilon=9:rounds=8:count_noise=1", "none"]
    run = fedjax_sim.sweep(
        fedavg.system,
        regression(),
        small(fedavg.system, sampling="reshuffled", selection="poisson"),
        settings={"privacy": [parse_privacy(text) for text in texts]},
        seeds=2,
        budget=fedjax_sim.Ticks(8),
        num_evals=2,
    )
    spent = run.curves.epsilon
    assert spent.dims == ("privacy", "seed", "eval")
    mechanism, found = Mechanism("poisson", 7, 4, "rdp", 1e-6), run.hypers[1].privacy.noise
    np.testing.assert_array_equal(spent[0, 1], epsilon_after([0, 4, 8], mechanism, found))
    assert 8.99 < float(spent[0, 0, -1]) <= 9.0
    assert np.isnan(spent[1]).all()
    assert not run.curves.failed.any()
    bounds = run.curves.clip_norm
    assert np.isnan(bounds[1]).all()
    assert (np.diff(bounds[0], axis=-1) != 0).all()
    summary = reports.summary({"fedavg": run.curves})
    finals = [entry["final"]["epsilon"] for entry in summary["systems"]["fedavg"]["settings"]]
    found = float(spent[0, 0, -1])
    assert finals[0] == {"mean": found, "std": 0.0, "median": found, "min": found}
    assert set(finals[1].values()) == {None}
    curves = run.curves.assign(accuracy=run.curves.loss)
    summary = reports.summary({"fedavg": curves})
    rows = final_rows({"fedavg": curves}, summary)
    assert rows[0].keys() == rows[1].keys()
    # The lanes without privacy have no epsilon, and did not diverge.
    assert rows[0]["final epsilon"].endswith(" +- 0.000") and rows[1]["final epsilon"] == "-"
    failed = curves.failed.copy(data=[[False, False], [True, True]])
    curves = curves.assign(failed=failed, collapsed_at=failed.astype(int) - 1)
    summary = reports.summary({"fedavg": curves})
    assert final_rows({"fedavg": curves}, summary)[1]["final epsilon"] == "diverged"


@pytest.mark.slow
def test_a_run_longer_than_its_target_is_refused(regression: Callable, small: Callable) -> None:
    """Before any training."""
    hyper = small(
        fedavg.system,
        sampling="reshuffled",
        privacy=parse_privacy("fixed:epsilon=9:rounds=8"),
    )
    with pytest.raises(fedjax_sim.ConfigError, match="rounds is 8, but must be at least 9"):
        fedjax_sim.simulate(fedavg.system, regression(), hyper, budget=fedjax_sim.Ticks(9))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["fedavg", "fedasync", "--set", "privacy=fixed:noise=1"],
            "privacy is 'fixed:noise=1', but must be left out with fedasync, which cannot account",
        ),
        (
            ["fedbuff", "--set", "privacy=fixed:noise=1"],
            "privacy is 'fixed:noise=1', but must be none or correlated here",
        ),
        (
            ["fedavg", "quafl", "--set", "local_privacy=gaussian:noise=9"],
            "local_privacy is 'gaussian:noise=9', but must be left out with quafl, which cannot",
        ),
        (
            ["fedavg", "--set", "privacy=fixed:noise=1:accountant=pld"],
            "training.sampling is 'shuffled_epochs', but must be reshuffled",
        ),
        (
            ["fedavg", "--set", "privacy=fixed:noise=1:accountant=pld", *RESHUFFLED],
            "accountant is 'pld', but must be rdp",
        ),
        (["quafl", "--set", "compression=top_k:kept=9"], "must be an unbiased compressor here"),
    ],
)
def test_one_sentence_and_exit_code_2(
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
