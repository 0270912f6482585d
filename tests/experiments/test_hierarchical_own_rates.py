"""Figures with each run at its own learning rate: which runs are compared, and on what."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

from experiments.harness import Arguments, Sample, interval
from experiments.hierarchical import fig4_5, own_rates, setup
from experiments.hierarchical.own_rates import ONLY, PANELS, STUDY
from experiments.hierarchical.tuning import Measured
from fedjax_sim import datasets, studies
from fedjax_sim.core import settings

TIMES = np.linspace(0, 1000, 101)
BEST = {"S = 5", "S = 12", "M = 4", "a: 10 + 20", "b: 20 + 10"}
BEST |= {"c_g = 10, S = 5", "c_g = 30, S = 5"}
"""Runs that the paper has ahead at T."""
EARLY = "S = 0"
"""The run of Fig. 8 that leads until 300 in the paper."""


def measured(accuracy: Callable[[str], np.ndarray], seeds: int, label: str) -> Measured:
    """Make a run whose accuracy is the same with every seed but for a tenth of a point."""
    dims = ("seed", "eval")
    values = accuracy(label) + 0.001 * np.linspace(-1, 1, seeds)[:, None]
    rounds = 83 if label == "S = 5" else 100
    curves = xr.Dataset(
        {"accuracy": (dims, values), "failed": ("seed", np.zeros(seeds, bool))},
        {
            "seed": range(seeds),
            "time": (dims, np.broadcast_to(TIMES, values.shape)),
            "ticks": (dims, np.broadcast_to(rounds * TIMES / 1000, values.shape)),
        },
    )
    scores = xr.DataArray([[0.1], [0.9], [0.2]], {"lr": [0.2, 0.5, 1.0], "seed": [0]})
    return Measured(studies.choose(scores), curves)


def papers(label: str) -> np.ndarray:
    """Return accuracies in the paper's order."""
    if label == "c_g = 30, S = 20":
        return 0.8 + 0.02 * np.sign(TIMES - 750)
    if label.startswith("S = 10, c_g"):
        return np.full(TIMES.shape, 0.9 - 0.002 * float(label.rpartition(" ")[2]))
    early = 0.1 * (TIMES < 300) * (label == EARLY)
    return 0.8 + early + 0.05 * (label in BEST)


def verdicts(accuracy: Callable[[str], np.ndarray], kind: str = "mnist") -> dict[str, str]:
    """Judge made-up curves on data of a kind, with the network that is usual for it."""
    found = {}
    dataset = {"federated": "federated_emnist"}.get(kind, kind)
    size = setup.choose(Arguments(dataset=dataset), STUDY)
    for name in ONLY[kind]:
        panel = PANELS[name]
        runs = {
            label: measured(accuracy, STUDY.full.seeds * panel.times_seeds, label)
            for label in panel.runs
        }
        found[name] = own_rates.inputs_of(Arguments(), size, name, runs)
    judged = own_rates.judge({"panels": found})
    assert {each.seeds for each in judged if each.id != "hierarchical-20"} == {10}
    assert {each.seeds for each in judged if each.id == "hierarchical-20"} <= {40}
    assert all("lr 0.5 (" in each.why for each in judged)
    return {each.id.rpartition("-")[2]: each.verdict for each in judged}


def test_the_papers_order_holds_and_its_opposite_fails() -> None:
    """Claims 18 and 22 are on other data in the paper, and hold in part at most."""

    def equal(label: str) -> np.ndarray:
        """Fig. 6 is met if both curves are equal."""
        return papers("S = 12" if label == "S = 0" else label)

    assert verdicts(papers) == {
        "14": "holds",
        "18": "holds in part",
        "19": "holds",
        "20": "holds",
        "22": "holds in part",
    }
    assert verdicts(equal)["14"] == "holds"
    turned = verdicts(lambda label: 1.5 - papers(label))
    other = "not on the substitute"
    assert turned == {"14": "fails", "18": other, "19": "fails", "20": "fails", "22": other}


def test_the_papers_own_data_can_hold_and_fail() -> None:
    own = {"15": "holds", "34": "holds", "16": "holds", "35": "holds", "36": "holds", "22": "holds"}
    assert verdicts(papers, "cifar10") == own
    # Nobody passes S = 0 for sure where S = 24 is its equal from 300 on.
    assert verdicts(papers, "federated") == {"18": "holds in part"}
    turned = verdicts(lambda label: 1.5 - papers(label), "cifar10")
    assert turned == {**dict.fromkeys(own, "fails"), "35": "holds"}
    behind = verdicts(lambda label: papers(label) + 0.1 * (label == "c_g = 10, S = 0"), "cifar10")
    assert behind["35"] == "fails"
    assert verdicts(lambda label: 1.5 - papers(label), "federated") == {"18": "fails"}
    small = verdicts(lambda label: papers(label) * 0 + 0.8 + 0.004 * (label in BEST), "cifar10")
    assert {small[number] for number in ("15", "34")} == {"fails"}  # Less than half a point.


def test_rates_are_chosen_without_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning sees a part of the training images; the second stage all, and the test set.

    Both stages have standardised inputs, other seeds, and the settings of the figure.
    """
    calls: dict[str, Any] = {}

    def tune(contestant: Any, tasks: Any, **how: Any) -> studies.Tuned:
        calls.setdefault("tune", []).append((contestant, tasks, how))
        return studies.choose(xr.DataArray([[0.1], [0.9]], {"lr": [0.2, 0.5], "seed": [1000]}))

    def play(arguments: Any, size: Any, name: str, tasks: Any, changes: Any) -> xr.Dataset:
        calls.setdefault("play", []).append((size, tasks, changes))
        return measured(papers, size.seeds, "M = 4").curves.expand_dims("lr")

    monkeypatch.setattr(studies, "tune", tune)
    monkeypatch.setattr(setup, "play", play)
    data, size = datasets.load("digits"), STUDY.smoke
    own_rates.measure(Arguments(), size, data, "fig9")
    assert len(calls["tune"]) == len(calls["play"]) == 3
    for (contestant, held, how), (again, tasks, changes) in zip(
        calls["tune"], calls["play"], strict=True
    ):
        assert [*how["seeds"]] == [1000] and contestant.grid == {"lr": size.rates}
        given = {"num_clients": 64, **changes}
        assert contestant.hyper == contestant.system.paper(**given)
        assert again.lrs == (0.5,) and again.seeds == len(tasks) == size.seeds
        trained, tested = (int(task[0].counts.sum()) for task in (held, tasks))
        assert trained < tested == len(data.train_labels)
        scales = [float(task[0].prepare.keywords["std"]) for task in (held, tasks)]
        assert scales == pytest.approx([0.3081, 0.3081])


def of(hyper: Any, name: str) -> Any:
    """Return a setting by the last part of its name."""
    return settings.value_of(hyper, settings.names_of(type(hyper))[name])


def test_isolated_groups_have_rates_and_accuracies_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An isolated group has its own clients and delays, and is measured by its own model."""
    data, calls = datasets.load("digits"), []
    share = {"accuracy": 0.9, "accuracy_group_0": 0.4}
    rates = {"accuracy": 0.2, "accuracy_group_0": 0.5}

    def tune(
        contestant: Any, tasks: Any, *, criterion: studies.Criterion, **how: Any
    ) -> studies.Tuned:
        metric = criterion.metric
        calls.append((metric, contestant.hyper, tasks))
        return studies.choose(
            xr.DataArray([[0.5]], {"lr": [rates[metric]], "seed": [1000]}, ("lr", "seed"))
        )

    def play(arguments: Any, size: Any, name: str, tasks: Any, changes: Any) -> xr.Dataset:
        made = measured(papers, size.seeds, "M = 4").curves
        made = made.assign({each: 0 * made.accuracy + value for each, value in share.items()})
        made = made.assign(loss_group_0=made.accuracy, collapsed_at=0 * made.failed)
        return made.expand_dims("lr")

    monkeypatch.setattr(studies, "tune", tune)
    monkeypatch.setattr(setup, "play", play)
    size = fig4_5.STUDY.smoke
    runs = fig4_5.measure(Arguments(), size, data, "fig4")
    (_, both, all_tasks), *alone = calls
    counts = np.asarray(all_tasks[0].counts)
    assert (
        counts.shape == (20,)
        and of(both, "group_sizes") == (5, 15)
        and of(both, "sync_time") == 5.0
    )
    for group, (metric, hyper, tasks) in enumerate(alone):
        assert metric == "accuracy_group_0"
        own = counts[:5] if group == 0 else counts[5:]
        np.testing.assert_array_equal(tasks[0].counts, own)
        assert hyper.num_clients == len(own) and of(hyper, "num_groups") == 1
        assert of(hyper, "shift") == (of(both, "shift")[group],)
        assert of(hyper, "mean") == (of(both, "mean")[group],)
    found = fig4_5.gains(size, "fig4", runs)
    assert found["rates"] == [0.2, 0.5, 0.5] and found["sizes"] == [5, 15]
    assert [each.mean for each in found["gains"]] == pytest.approx([50.0, 50.0])
    assert found["together"].mean == pytest.approx(90.0)
    assert [each.mean for each in found["alone"]] == pytest.approx([40.0, 40.0])


def test_a_collapsed_isolated_group_decides_nothing() -> None:
    panel = {
        "sizes": [10, 10],
        "gains": [interval([80.0 + i / 10 for i in range(10)])] * 2,
        "together": Sample.of([90.0] * 10),
        "alone": [Sample.of([10.0] * 10), Sample.of([40.0] * 10)],
        "rates": [0.5] * 3,
    }
    how = {"smoke": False, "seeds": 10, "words": "", "reduced": ""}
    verdicts = fig4_5.judge({**how, "panels": dict.fromkeys(fig4_5.PANELS, panel)})
    assert [each.verdict for each in verdicts] == ["undecided"] * 2
    assert "open: the small group gains" in verdicts[0].scope
    for figure, number in (("fig4", 12), ("fig5", 13)):  # Each figure decides a claim.
        panels = dict.fromkeys(fig4_5.ONLY[figure], panel)
        (alone,) = fig4_5.judge({**how, "panels": panels})
        assert alone == verdicts[number - 12]
    assert fig4_5.judge({**how, "panels": {"fig5a": panel}}) == []
