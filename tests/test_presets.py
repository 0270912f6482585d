"""Defaults are the field's, one clock for all systems; presets have the values of papers."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedjax_sim import SYSTEMS
from fedjax_sim.__main__ import main
from fedjax_sim.core.settings import check, fields, names_of, value_of
from fedjax_sim.systems import favano, fedavg, fedopt, hierarchical, langevin
from fedjax_sim.timelines import ClientDelays, Contacts, Trace
from fedjax_sim.timelines.delays.laws import as_law
from fedjax_sim.timelines.presets import FAVANO, preset

COINS = ("em", "fedem", "vr_fedem", "diana", "vr_diana")
FIELD = {"lr": 0.1, "batch_size": 32, "num_clients": 100, "local_steps": 10, "num_selected": 10}
FIELD |= dict.fromkeys(("server_interact", "exchange_shift", "exchange_shift_per_group"), 0.0)
FIELD |= dict.fromkeys(("exchange_mean", "exchange_mean_per_group"), 0.0)
OWN = {("em", "batch_size"): 200, ("gen_async", "local_steps"): 1}
"""What is a method's own: how many examples a full pass takes at a time, one gradient per task."""

COMMON = {"lr": 0.5, "batch_size": 128, "num_clients": 100, "local_steps": 20}
COMMON |= {"num_selected": 20, "server_interact": 3.0, "server_wait": 4.0, "runtime_law": "geom"}
COMMON |= {"slow_fraction": 1 / 3, "slow_clients": "random", "rate_fast": 0.5, "rate_slow": 0.0625}
COMMON |= {"rate_spread": 0.0, "spread_fast": 0.0, "spread_slow": 0.0, "time_of": "step"}
COMMON |= {"sampling": "shuffled_epochs", "buffer_size": 10, "ties": "random"}
STALE = {"num_clients": 15, "local_steps": 1, "lr": 0.01, "batch_size": 32, "buffer_size": 5}
STALE |= {"slow_clients": "last", "rate_fast": 1 / 1.5, "rate_slow": 0.1, "runtime_law": "uniform"}
STALE |= {"spread_fast": 1 / 3, "spread_slow": 0.2, "time_of": "update", "ties": "client"}
STALE |= {"sampling": "reshuffled", "server_interact": 0.0}
GROUPED: dict[str, Any] = {"num_clients": 30, "batch_size": 32, "sampling": "with_replacement"}
GROUPED |= {"exchange_shift_per_group": 4.0, "exchange_shift": 2.0, "sync_time": 5.0}
GROUPED |= {"exchange_mean_per_group": 0.4, "exchange_mean": 0.2, "delays_of": "group"}
LOCK_STEP = {"batch_size": 200, "num_selected": 10, "server_interact": 0.0, "step_size": 1e-6}
LOCK_STEP |= {"slow_fraction": 0.0, "rate_fast": 1.0, "round_time": "mean"}
PAPERS: dict[str, dict[str, Any]] = {
    "fedstaleweight": STALE,
    "fedasync": STALE,
    "gen_async": {"local_steps": 1},
    "hierarchical": GROUPED,
    "async_hierarchical": GROUPED,
    "langevin": LOCK_STEP,
    "em": {"batch_size": 200},
    "fedem": {"batch_size": 20},
    "vr_fedem": {"batch_size": 5},
    "async_fedem": {"batch_size": 20},
    "diana": {"lr": 0.1, "batch_size": 1},
    "vr_diana": {"lr": 0.1, "batch_size": 1},
}
"""The values of version 0.1, which were its defaults, where they differ from those of FedAvg."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_defaults_are_the_fields(name: str) -> None:
    hyper = SYSTEMS[name].Hyper()
    check(hyper)
    known = names_of(type(hyper))
    found = {key: value_of(hyper, known[key]) for key in FIELD if key in known}
    assert found == {key: OWN.get((name, key), FIELD[key]) for key in found}
    if name not in COINS:
        assert hyper.delays == ClientDelays()


@pytest.mark.parametrize("name", SYSTEMS)
def test_presets_have_the_former_defaults(name: str) -> None:
    """All other settings have their defaults, which did not change."""
    system = SYSTEMS[name]
    hyper = system.paper()
    check(hyper)
    decided = hyper.decided() if hasattr(hyper, "decided") else {}
    known = {key: full for key, full in names_of(system.Hyper).items() if full not in decided}
    former = {key: value for key, value in (COMMON | PAPERS.get(name, {})).items() if key in known}
    if "runtime_law" in former:
        former["runtime_law"] = as_law(f"runtime_{former['runtime_law']}")
    assert {key: value_of(hyper, known[key]) for key in former} == former
    named = {known[key] for key in former}
    assert all(
        value_of(hyper, full) == field.default
        for full, field in fields(system.Hyper).items()
        if full not in named
    )


def test_keywords_change_a_preset() -> None:
    hyper = favano.paper(num_clients=50, rate_slow=0.25, **{"clock.server_wait": 1.0})
    assert hyper == favano.paper().replace(num_clients=50, rate_slow=0.25, server_wait=1.0)
    assert fedavg.paper(delays=ClientDelays()).delays == ClientDelays()
    assert langevin.paper().delays.mean_rate == 1 and fedopt.paper is SYSTEMS["fedopt"].paper
    assert preset(Contacts, FAVANO)(num_clients=50).period == 7
    assert "2305.16099" in str(favano.paper.__doc__)


def test_what_something_else_decides_is_left_at_its_default() -> None:
    trace = Trace([0, 1], [0, 0], [1, 1])
    followed = fedavg.paper(num_clients=2, num_selected=1, trace=trace, server_interact=0.0)
    check(followed)
    assert followed.delays == ClientDelays(trace=trace)
    assert hierarchical.paper(delays_of="client").delays.rate_slow == 1 / 16


def test_the_command_line_starts_from_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["timeline", "favano", "--seeds", "1", "--set", "num_selected=3"]
    assert main([*words, "--preset", "paper", "--time-budget", "50", "--out", "paper"]) == 0
    assert main([*words, "--time-budget", "20", "--out", "usual"]) == 0
    configs = (json.loads(Path(out, "config.json").read_text()) for out in ("paper", "usual"))
    paper, usual = (config["systems"]["favano"] for config in configs)
    names = ("lr", "num_selected", "clock.server_wait", "delays.rate_spread")
    assert [paper[name] for name in names] == [0.7, 3, 4.0, 0.0]
    assert [usual[name] for name in names] == [0.1, 3, 1.0, 0.5]
    capsys.readouterr()
    assert main([*words, "--preset", "papers"]) == 2
    assert "preset is 'papers', but must be one of paper" in capsys.readouterr().err
