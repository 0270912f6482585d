"""The Python blocks of the README and of the guide for contributors run as they are written."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def run_blocks(page: Path) -> dict:
    """Run the Python blocks of a page one after the other, and return their variables."""
    scope: dict = {"__name__": page.stem}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, page.name, "exec"), scope)
    return scope


def test_the_first_sweep_prints_the_shown_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers may differ by a few images on another machine, which rounds in other ways."""
    scope = run_blocks(README)
    shown = re.search(r"```python\n.*?```text\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert shown
    printed, shown_words = capsys.readouterr().out.split(), shown[1].split()
    assert [word for word in printed if word.isidentifier()] == ["rate_spread", "lr"]
    assert len(printed) == len(shown_words)
    for word, expected in zip(printed, shown_words, strict=True):
        assert word == expected or abs(float(word) - float(expected)) < 0.02
    assert str(scope["problem"][0]) == "Classification(30 clients, 1380 examples, MLP)"
    curves = scope["run"].curves
    assert curves.accuracy.dims == ("lr", "rate_spread", "seed", "eval")
    assert (
        float(curves.accuracy.isel(eval=-1).mean())
        > float(curves.accuracy.isel(eval=0).mean()) + 0.2
    )


@pytest.mark.slow
def test_momentum_matters_and_without_it_the_system_is_fedavg() -> None:
    scope = run_blocks(ROOT / ".github" / "CONTRIBUTING.md")
    swept = scope["run"].curves
    assert swept.sizes == {"momentum": 3, "seed": 5, "eval": swept.sizes["eval"]}
    assert np.isfinite(swept.loss.values).all()
    from fedjax_sim import Ticks, sweep
    from fedjax_sim.systems import fedavg

    hyper = fedavg.Hyper(num_clients=30, num_selected=6, local_steps=10, batch_size=16, lr=0.1)
    plain = sweep(fedavg.system, scope["problem"], hyper, seeds=5, budget=Ticks(30)).curves
    np.testing.assert_allclose(swept.loss.sel(momentum=0.0).values, plain.loss.values, rtol=1e-4)
    assert not np.allclose(swept.loss.sel(momentum=0.9).values, plain.loss.values, rtol=1e-2)


@pytest.mark.parametrize("script", ["demo", "test"])
def test_commands_named_are_there(script: str) -> None:
    path = ROOT / "scripts" / script
    assert f"./scripts/{script}" in README.read_text()
    assert path.stat().st_mode & 0o100
