"""A rule, an attack and a compressor from outside the package, in the tables of their names."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks
from fedjax_sim.cli.commands import main
from fedjax_sim.core import settings
from fedjax_sim.core.settings import Above0
from fedjax_sim.problems import Quadratic
from fedjax_sim.server import attacks, compression, rules

CENTRES = np.array([[4.0, -2.0], [8.0, 6.0]], "float32")


@settings.struct
class Shortened(rules.Rule):
    """A share of the mean."""

    name: str = settings.fixed("shortened")
    weighs = True
    share: Above0 = settings.setting(0.5, "Share of the mean.")

    def centre(self, key: Any, messages: Any, weight: Any, is_present: Any) -> Any:
        return jax.tree.map(lambda leaf: self.share * jnp.tensordot(weight, leaf, 1), messages)


@settings.struct
class Silence(attacks.Attack):
    """Send zeros."""

    name: str = settings.fixed("silence")

    def forge(self, key: Any, messages: Any, cohort: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, messages)


@settings.struct
class Signless(compression.Compressor):
    """Send magnitudes."""

    name: str = settings.fixed("signless")
    has_omega = False

    def apply(self, key: jax.Array, vector: jax.Array) -> jax.Array:
        return jnp.abs(vector)

    def bits(self, dim: int, *, word: int = 32) -> int:
        return (word - 1) * dim


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them into the tables."""
    monkeypatch.setitem(rules.RULES, "shortened", Shortened)
    monkeypatch.setitem(attacks.ATTACKS, "silence", Silence)
    monkeypatch.setitem(compression.COMPRESSORS, "signless", Signless)


@pytest.mark.few(1)
@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "fedasync", "scaffold", "hierarchical"])
def test_stages_of_ones_own_do_what_they_say(name: str) -> None:
    """The first client's centre has a negative number; the second, whose has none, is silent.

    Magnitudes move the server to positive numbers only, and a smaller share of them less far.
    """
    system = fedjax_sim.SYSTEMS[name]
    sizes = {"num_clients": 2, "batch_size": 1, "lr": 0.5}
    other: dict[str, Any] = {
        "fedavg": {"num_selected": 2, "local_steps": 1},
        "scaffold": {"num_selected": 2, "local_steps": 1},
        "fedbuff": {"buffer_size": 2, "local_steps": 1},
        "fedasync": {"local_steps": 1, "proximal": 0.0},
        "hierarchical": {"num_groups": 1, "sync_time": 0.0},
    }[name]

    def moved(rule: str) -> np.ndarray:
        texts = {"aggregator": rule, "adversary.attack": "silence", "compression": "signless"}
        parsed = {key: settings.parse(system.Hyper, key, text) for key, text in texts.items()}
        hyper = system.Hyper(**sizes, **other, **parsed, attackers=(1,))
        problem = Quadratic.of(CENTRES)
        return np.asarray(fedjax_sim.simulate(system, problem, hyper, budget=Ticks(4)).models)

    whole, half = moved("shortened:share=1"), moved("shortened:share=0.5")
    assert (whole > 0).all() and (half > 0).all() and (half < whole).all()


@pytest.mark.slow
@pytest.mark.usefixtures("named")
def test_they_are_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "run",
        "fedavg",
        "--time-budget",
        "1",
        "--evals",
        "1",
        "--out",
        str(tmp_path),
        "--overwrite",
    ]
    chosen = ["aggregator=shortened:share=0.25", "attack=silence", "malicious=0.5"]
    for each in [*chosen, "compression=signless", "local_steps=1"]:
        words += ["--set", each]
    assert main(words) == 0
    said = json.loads(next(tmp_path.rglob("config.json")).read_text())
    assert "shortened:share=0.25" in json.dumps(said) and "signless" in json.dumps(said)
    assert main([*words[:2], "--set", "aggregator=shortnd"]) == 2
    assert "shortened" in capsys.readouterr().err
