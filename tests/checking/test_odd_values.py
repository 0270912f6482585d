"""Odd values that a generated search of public calls has found: each gets one sentence."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedjax_sim
from fedjax_sim import compression, diagnostics, problems, timelines
from fedjax_sim.core.lifecycle import InputError
from fedjax_sim.core.settings import check
from fedjax_sim.server.attacks import Attack
from fedjax_sim.server.privacy.kinds import Privacy
from fedjax_sim.server.rules import Rule
from fedjax_sim.systems import fedavg

RUN = fedjax_sim.simulate(
    fedavg.system,
    problems.Quadratic.of(np.eye(4, 2)),
    fedavg.Hyper(num_clients=4, num_selected=2, batch_size=1),
    budget=fedjax_sim.Ticks(2),
)
TABLE = pd.DataFrame({"a": [1.0], "b": [2.0]})


class Undecorated(compression.RandK):
    """A compressor without the decorator of settings."""


def hyper(**settings: Any) -> Callable[[], None]:
    return lambda: check(fedavg.Hyper(**settings))


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "interface of compressors": (hyper(compression=compression.Compressor()), "compression is"),
    "interface of rules": (hyper(aggregator=Rule()), "aggregator is"),
    "interface of attacks": (hyper(attack=Attack(), malicious=0.5), "attack is"),
    "interface of privacy": (hyper(privacy=Privacy()), "privacy is"),
    "a class without the decorator": (hyper(compression=Undecorated()), "class of settings is"),
    "text for a number": (hyper(compression=compression.RandK(kept="x")), "kept is 'x'"),  # type: ignore[arg-type]
    "complex setting": (hyper(lr=1j), "lr is 1j"),
    "complex rates": (lambda: timelines.ClientTable(rate=np.array([1j, 2])), "rate is"),
    "a device for a folder": (lambda: RUN.save("/dev/null"), "folder is '/dev/null'"),
    "no folder": (lambda: RUN.save(""), "folder is ''"),
    "no target": (lambda: problems.from_dataframe(TABLE, target=[]), "target is"),
    "client below 0": (lambda: timelines.Trace([-1], [0.0], [1.0]), "trace is"),
    "label beyond the classes": (
        lambda: diagnostics.reliability(labels=np.full(6, 2), probabilities=np.full((6, 2), 0.5)),  # type: ignore[arg-type]
        "labels is",
    ),
    "no run": (lambda: diagnostics.to_arviz(3), "run is 3"),  # type: ignore[arg-type]
    "a client too many": (lambda: diagnostics.influence(RUN.timelines[0], 1), "num_clients is 1"),
    "beyond 64 bits": (
        lambda: diagnostics.influence(RUN.timelines[0], 10**30),
        "num_clients is 1000000",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_gets_one_sentence(name: str) -> None:
    call, words = CALLS[name]
    with pytest.raises(InputError, match=rf"{re.escape(words)}[^\n]*, but must be [^\n]+\.$"):
        call()
