"""Settings by which something begins after the end of a run: a warning, and no refusal."""

import warnings
from collections.abc import Callable

import pytest

import fedjax_sim
from fedjax_sim.core.settings import Whole, late_of, setting, struct
from fedjax_sim.results.runs import LaneWarning
from fedjax_sim.server.attacks import Adversary, Mimic, SignFlip
from fedjax_sim.systems import fedavg, oort

FLIPPED = Adversary(attack=SignFlip(), malicious=0.4, attack_from=99)
MIMIC = Adversary(attack=Mimic(warmup=50), malicious=0.4)


@pytest.mark.parametrize(
    ("adversary", "sentence"),
    [
        (
            FLIPPED,
            r"adversary\.attack_from is 99, but the run has 3 ticks: the attack never beg",
        ),
        (MIMIC, r"adversary\.attack\.warmup is 50, .* what follows the warm-up never begins"),
    ],
)
def test_what_never_begins_gets_a_warning(
    adversary: Adversary, sentence: str, regression: Callable, small: Callable
) -> None:
    """In a run and in a program; the line that asked for it is named."""
    hyper, budget = small(fedavg.system).replace(adversary=adversary), fedjax_sim.Ticks(3)
    for call in (fedjax_sim.simulate, fedjax_sim.bind):
        with pytest.warns(LaneWarning, match=sentence) as found:
            call(fedavg.system, regression(), hyper, budget=budget)
        assert [each.filename for each in found] == [__file__]


def test_lanes_are_counted(regression: Callable, small: Callable) -> None:
    """One warning for all lanes of a setting."""
    hyper = small(fedavg.system).replace(adversary=FLIPPED)
    with pytest.warns(LaneWarning, match=r"begins \(in 2 of 3 lanes\)\.") as found:
        fedjax_sim.sweep(
            fedavg.system,
            regression(),
            hyper,
            settings={"attack_from": [2, 3, 4]},
            budget=fedjax_sim.Ticks(3),
        )
    assert len(found) == 1


def test_what_begins_or_was_not_given_gets_none() -> None:
    """The last tick is early enough; defaults, and settings without effect, are nobody's wish."""

    @struct
    class Hyper(fedjax_sim.core.settings.Checked):
        since: Whole = setting(7, "Ticks before it.", begins="it", traced=True)

    assert late_of(Hyper(since=9), 9) == {"since": (9, "it")}
    assert not late_of(Hyper(since=8), 9)
    assert not late_of(Hyper(), 3)
    assert not late_of(oort.Hyper(), 3)
    assert late_of(oort.Hyper(choice=oort.Choice(pacer_window=21)), 3)
    idle = fedavg.Hyper(adversary=FLIPPED.replace(attack=fedjax_sim.server.attacks.Honest()))
    assert not late_of(idle, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not late_of(fedavg.Hyper(), 1)
