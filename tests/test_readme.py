"""The README's Python blocks run as they are written, one after the other."""

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"


def test_blocks_run_and_momentum_matters() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    scope: dict = {"__name__": "readme"}
    exec(compile(blocks[0], "README.md, first block", "exec"), scope)
    curves = scope["run"].curves
    assert curves.accuracy.dims == ("lr", "rate_slow", "seed", "eval")
    assert (
        float(curves.accuracy.isel(eval=-1).mean())
        > float(curves.accuracy.isel(eval=0).mean()) + 0.2
    )
    exec(compile(blocks[1], "README.md, second block", "exec"), scope)
    swept = scope["run"].curves
    assert swept.sizes == {"momentum": 3, "seed": 5, "eval": swept.sizes["eval"]}
    assert np.isfinite(swept.loss.values).all()
    # Without momentum it is FedAvg.
    from fedjax_sim import sweep
    from fedjax_sim.systems import fedavg

    hyper = fedavg.Hyper(num_clients=30, num_selected=6, local_steps=10, batch_size=16, lr=0.1)
    plain = sweep(fedavg.system, scope["problem"], hyper, seeds=5, num_ticks=30).curves
    np.testing.assert_allclose(swept.loss.sel(momentum=0.0).values, plain.loss.values, rtol=1e-4)
    assert not np.allclose(swept.loss.sel(momentum=0.9).values, plain.loss.values, rtol=1e-2)


@pytest.mark.parametrize("script", ["demo", "test"])
def test_commands_named_are_there(script: str) -> None:
    path = README.parent / "scripts" / script
    assert f"./scripts/{script}" in README.read_text()
    assert path.stat().st_mode & 0o100
