"""The experiments on hierarchical FL: small, through the command line; and how they judge."""

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import xarray as xr

from experiments.harness import Arguments, Sample, draw
from experiments.hierarchical import clock, fig3, fig4_5, fig11, fig13, headlines, quadratics, setup
from experiments.hierarchical.claims import CLAIMS
from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import Timeline
from fedjax_sim.engine.planning.budgets import ticks_in_budget
from fedjax_sim.models import LogisticRegression
from fedjax_sim.systems import hierarchical
from tests.conftest import slow_but
from tests.experiments.running import FILES, claims, judged, run, summary
from tests.timelines.grouped.test_groups import COEFFICIENTS

JUDGED: dict[str, dict[int, bool | None]] = {
    "clock": {**dict.fromkeys((1, 2, 3, 27), True), 17: False},
    "bounds": dict.fromkeys((4, 5, 6, 7, 8, 32, 33), True) | {30: False, 31: False},
    "quadratics": dict.fromkeys((9, 10, 24, 25, 26, 28), True),
    "fig3": {11: None},
    "fig4_5": {12: None, 13: None},
    "fig11": {21: None},
    "fig13": {23: None},
    "own_rates": dict.fromkeys((14, 18, 19, 20, 22)),
}
QUICK = ("clock",)


def test_every_claim_is_judged_somewhere() -> None:
    found = {number for numbers in JUDGED.values() for number in numbers}
    on_cifar10 = {15, 16, 34, 35, 36}  # A smoke run has grey images.
    assert found | on_cifar10 | {*headlines.JUDGES} == set(CLAIMS)


@pytest.mark.parametrize("name", slow_but(QUICK, JUDGED))
def test_smoke_run(name: str, tmp_path: Path) -> None:
    done = run(f"hierarchical/{name}", "--smoke", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert judged(out) == {f"hierarchical-{n}": holds for n, holds in JUDGED[name].items()}
    for id, claim in claims(out).items():
        assert isinstance(claim["measured"], dict)
        assert f"| {id} " in done.stdout
    written = {path.name for path in out.iterdir()}
    assert written > FILES
    assert any(file.endswith(".png") for file in written)
    assert summary(out)["failed_lanes"] == 0


def curves(accuracy: np.ndarray, time: np.ndarray) -> xr.Dataset:
    """Make the lanes `[lr, seed, eval]` of one sweep."""
    dims = ("lr", "seed", "eval")
    return xr.Dataset(
        {"accuracy": (dims, accuracy)}, {"lr": [0.1, 1.0], "seed": [0, 1], "time": (dims, time)}
    )


def test_accuracy_at_a_time_is_that_of_the_last_model_finished_by_then() -> None:
    time = np.broadcast_to([0.0, 3.0, 7.0], (2, 2, 3)) + np.array([0.0, 1.0])[None, :, None]
    accuracy = np.arange(12.0).reshape(2, 2, 3)
    data = curves(accuracy, time)
    found = setup.at(data, [2.9, 3.0, 7.5])
    assert found.dims == ("lr", "seed", "at")
    np.testing.assert_array_equal(found.sel(lr=0.1, seed=0), [0, 1, 2])
    np.testing.assert_array_equal(found.sel(lr=1.0, seed=1), [9, 9, 10])  # finished at 1, 4 and 8
    np.testing.assert_array_equal(setup.final(data, 7.0), [[2, 4], [8, 10]])
    assert setup.best_lr(setup.final(data, 7.0)) == 1.0


def test_leads_are_paired_by_seed() -> None:
    first, second = (
        xr.DataArray(np.array(values), dims="seed")
        for values in ([0.90, 0.70, 0.80], [0.88, 0.69, 0.77])
    )
    lead = setup.compare(first, second)
    assert lead.mean == pytest.approx(2)
    assert lead.half == pytest.approx(4.3027 / np.sqrt(3), rel=1e-4)
    both = [
        xr.concat([one, other], xr.Variable("lr", [0.1, 1.0]))
        for one, other in ((first, second), (second, first))
    ]
    assert setup.leads(*both) == {"0.1": lead, "1": setup.compare(second, first)}


def test_what_is_unknown_is_not_judged() -> None:
    """A failed lane has no accuracy, and a rate that collapsed decides nothing."""
    data = curves(np.arange(12.0).reshape(2, 2, 3), np.broadcast_to([0.0, 3.0, 7.0], (2, 2, 3)))
    failed = data.assign(failed=(("lr", "seed"), [[False, False], [True, False]]))
    found = setup.final(failed, 7.0)
    np.testing.assert_array_equal(found, [[2, 5], [np.nan, 11]])
    assert found.dims == ("lr", "seed")
    assert setup.best_lr(found) == 0.1
    inputs = {"ends": {"run": {"0.1": Sample.of([80, 81]), "1": Sample.of([80, np.nan])}}}
    judged = {"0.1": {"ahead": True}, "1": {"ahead": False}}
    # A rate at which a seed diverged is nobody's best.
    assert setup.by_rate(inputs, judged, ["run"]) == {"ahead at lr 0.1": True}
    inputs["ends"]["run"]["1"] = Sample.of([80, 81])
    assert setup.by_rate(inputs, judged, ["run"]) == {
        "ahead at lr 0.1": True,
        "ahead at lr 1": False,
    }
    inputs["ends"]["run"]["1"] = Sample.of([11, 12])
    assert setup.by_rate(inputs, judged, ["run"]) == {"ahead at lr 0.1": True}
    inputs["ends"]["run"]["0.1"] = Sample.of([70, 80, np.nan])  # Some seeds diverged.
    inputs["ends"]["run"]["1"] = Sample.of([80, 81, 82])
    assert list(setup.by_rate(inputs, judged, ["run"])) == ["ahead at lr 1"]
    inputs["ends"]["run"]["1"] = Sample.of([11, 12])
    inputs["ends"]["run"]["0.1"] = Sample.of([np.nan, np.nan])
    assert list(setup.by_rate(inputs, judged, ["run"]).values()) == [None]


def test_fluctuation_is_of_falls_alone() -> None:
    """Steady learning is no fluctuation; falls count by their mean per evaluation, over groups."""
    time = np.arange(6.0)[None]
    steady, saw = np.linspace(0, 0.5, 6)[None], np.array([[0.0, 0.3, 0.2, 0.5, 0.4, 0.4]])
    dims = ("seed", "eval")
    data = xr.Dataset(
        {"accuracy_group_0": (dims, steady), "accuracy_group_1": (dims, saw)},
        {"time": (dims, time)},
    )
    np.testing.assert_allclose(fig3.fluctuation(data, 0.0, 1.0), [(0 + 20 / 5) / 2])
    np.testing.assert_allclose(fig3.fluctuation(data, 0.6, 1.0), [(0 + 10 / 2) / 2])


def runs(values: Sequence[float], noise: Sequence[float] = (0.0, 0.001)) -> xr.Dataset:
    """Make the curves of a run, one seed for each number that is added to its accuracies."""
    accuracy = np.array([np.array(values) + each for each in noise])
    times = np.tile(np.arange(float(len(values))), (len(noise), 1))
    return xr.Dataset(
        {"accuracy": (("seed", "eval"), accuracy), "failed": ("seed", np.zeros(len(noise), bool))},
        {"seed": range(len(noise)), "time": (("seed", "eval"), times)},
    )


def test_crossings_are_by_whole_intervals() -> None:
    """Where an interval covers zero neither is ahead, however far apart the means are."""
    times = np.arange(4.0)
    flat, noise = runs([0.5, 0.5, 0.5, 0.5]), (-0.2, 0.2)
    assert setup.crossings([flat, runs([0.4, 0.5, 0.6, 0.7])], times) == [[2.0, True]]
    assert setup.crossings([runs([0.4, 0.5, 0.6, 0.7]), flat], times) == [[2.0, False]]
    assert setup.crossings([flat, runs([0.4, 0.45, 0.4, 0.3])], times) == []
    assert setup.crossings([flat, runs([0.4, 0.5, 0.4, 0.5])], times) is None
    assert setup.crossings([flat, runs([0.4, 0.5, 0.6, 0.7], noise)], times) is None
    names = ["S = 20 passes S = 0 once", "near 750"]
    clear, near = ([Sample.of([60.0, 61.0]), Sample.of([end, end + 1.1])] for end in (62.0, 60.0))
    for places, ends, expected in (
        ([[740.0, True]], clear, [True, True]),
        ([[740.0, True]], near, [None, None]),
        ([[320.0, True]], clear, [True, False]),
        ([[320.0, True]], near, [None, False]),
        ([[740.0, False]], clear, [False, False]),
        ([[640.0, True], [800.0, False]], clear, [False, False]),
        ([], clear, [False, False]),
        (None, near, [None, None]),
    ):
        assert setup.passes_once(places, ends) == dict(zip(names, expected, strict=True))
    assert setup.told_crossings([[2.0, True]]) == "2 (S = 0 ahead before)"
    assert setup.told_crossings([]) == "never" and "cannot" in setup.told_crossings(None)


def test_crossings_at_chance_are_not_counted() -> None:
    times = np.arange(4.0)
    rising, slow = [0.10, 0.19, 0.25, 0.30], [0.15, 0.10, 0.22, 0.35]
    assert setup.crossings([runs(rising), runs(slow)], times) == [[3.0, True]]
    hidden = [0.15, 0.18, 0.19, 0.30], [0.10, 0.12, 0.15, 0.35]
    assert setup.crossings([runs(each) for each in hidden], times) is None
    first, second = ([each + 0.1 for each in values] for values in (rising, slow))
    assert setup.crossings([runs(first), runs(second)], times) == [[1.0, False], [3.0, True]]


def test_crossings_of_a_failed_lane_are_not_known() -> None:
    """A diverged seed has no accuracy, so that a mean over seeds would hide where curves cross."""
    times, first, second = np.array([0.0, 1.0]), runs([0.5, 0.6]), runs([0.3, 0.9])
    assert setup.crossings([first, second], times) == [[1.0, True]]
    broken = second.assign(failed=("seed", [False, True]))
    assert setup.crossings([first, broken], times) is None
    assert setup.crossings([broken, second], times) is None


def test_a_run_that_is_smaller_says_how() -> None:
    """Data set, network and time of a run are compared with those of the figure."""
    full = setup.CIFAR10
    assert setup.smaller(full, full) == setup.smaller(full, full.replace(seeds=2)) == ""
    assert setup.smaller(full, full.replace(time=200.0)) == "T = 200 in place of 1000"
    file = full.replace(dataset="somewhere/cifar10.npz")
    assert setup.smaller(full, file) == "cifar10.npz in place of cifar10"
    mlp = full.replace(network=setup.MNIST.network)
    assert setup.smaller(full, mlp) == "MLP(50) in place of LeNet"
    words = "mnist in place of cifar10, MLP(50) in place of LeNet"
    assert setup.smaller(full, setup.MNIST) == words
    wide = setup.MNIST.replace(network=partial(setup.models.MLP, (100,)), words="few images")
    assert setup.smaller(setup.MNIST, wide) == "few images, MLP(100) in place of MLP(50)"
    study = setup.study(full)
    size = setup.choose(Arguments(reduced=True), study)
    inputs = setup.inputs_of(Arguments(reduced=True), study, size)
    assert inputs["reduced"] == words


@pytest.mark.slow
def test_mirrored_groups_have_the_same_models() -> None:
    """Claim 28, exactly: swapping association and delays changes nothing but the groups' names.

    Other clients in the fast group would be seen.
    """
    assert quadratics.mirror_difference() < 1e-15
    order = np.roll
    with patch.object(np, "roll", lambda clients, shift: order(clients, shift + 5)):
        assert quadratics.mirror_difference() > 0.01


def test_clocks_are_those_of_the_papers_coefficients() -> None:
    """The delays per group equal those by the system's slopes, for groups of unequal size."""
    own = setup.clock([10, 20], setup.FIG7)
    named = dict(zip(COEFFICIENTS, setup.FIG7, strict=True))
    for word in ("shift", "mean"):
        assert own[word] == pytest.approx(
            [named[f"{word}_per_client"] * n + named[word] for n in (10, 20)]
        )
        assert own[f"exchange_{word}"] == pytest.approx(
            named[f"exchange_{word}_per_group"] * 2 + named[f"exchange_{word}"]
        )
        assert own[f"{word}_per_client"] == own[f"exchange_{word}_per_group"] == 0


def test_sizes_by_data_set() -> None:
    of_cifar10, of_mnist = (setup.study(each) for each in (setup.CIFAR10, setup.MNIST))
    full = setup.choose(Arguments(), of_cifar10)
    assert full.dataset == "cifar10" and full.seeds == 10
    other = setup.choose(Arguments(dataset="x/cifar10_jpeg.npz", seeds=3), of_mnist)
    assert (other.dataset, other.seeds, other.lrs) == (
        "x/cifar10_jpeg.npz",
        3,
        setup.CIFAR10.lrs,
    )
    assert other.network is setup.CIFAR10.network
    assert setup.choose(Arguments(reduced=True), of_cifar10).dataset == "mnist"
    for dataset in ("mnist", "cifar10", "elsewhere/own.npz"):  # A figure's own network stays.
        other = setup.choose(Arguments(dataset=dataset), fig13.STUDY)
        assert (other.dataset, other.network) == (dataset, LogisticRegression)
    other = setup.choose(Arguments(dataset="mnist"), of_cifar10)
    assert (other.network, other.lrs) == (setup.MNIST.network, setup.MNIST.lrs)
    with pytest.raises(ConfigError, match="reduced is True"):
        setup.choose(Arguments(reduced=True), setup.study(setup.MNIST, reduced=None))


def test_inputs_are_standardised_by_number_of_colours() -> None:
    data = datasets.load("digits")
    for colours, std in ((1, [0.3081]), (3, [0.2470, 0.2435, 0.2616])):
        images = data._replace(
            **{
                name: np.repeat(getattr(data, name), colours, axis=-1)
                for name in ("train_images", "test_images")
            }
        )
        for is_standardised in (False, True):
            size = setup.DIGITS.replace(standardised=is_standardised)
            (task, _) = setup.split(images, size, "iid", 4)
            expected = std if is_standardised else [1.0]
            assert np.ravel(task.prepare.keywords["std"]).tolist() == pytest.approx(expected)
            assert ("standardised" in setup.words_of(size)) == is_standardised
    two = data._replace(train_images=np.repeat(data.train_images, 2, axis=-1))
    with pytest.raises(ConfigError, match="dataset is 'digits', but must be one of grey or RGB"):
        setup.split(two, setup.DIGITS.replace(standardised=True), "iid", 4)


def test_isolated_groups_are_looked_at_to_the_very_end() -> None:
    """Their last evaluation is at T to the bit with any delays, and nothing was combined before."""
    for time, group in itertools.product((1000.0, 200.0, 123.456), (0, 1)):
        changes = {**fig4_5.alone((5, 15), group, time), "num_clients": (5, 15)[group]}
        schedule = draw(hierarchical.system, [hierarchical.paper(**changes)], 3, 2 * fig4_5.LOOKS)
        for own, weight in zip(schedule.time[0], schedule.weight[0], strict=True):
            last = ticks_in_budget(own, time, overshoot=True)
            assert last == fig4_5.LOOKS
            assert own[last - 1] == time
            assert not weight[:last].any()


def test_every_group_has_a_bound_of_its_own() -> None:
    """Fig. 11's unequal groups have shifts 3.7 and 1.7: at most 4 and 8 iterations in 12 units."""
    setting = clock.SETTINGS["Fig. 11, 30 + 10"]
    schedule = draw(hierarchical.system, [setting.hypers()[1]], 3, 20)
    found = clock.compare(Timeline(*(leaf[0] for leaf in schedule)), setting, 12.0)
    least, most, allowed = zip(*found.by_group, strict=True)
    assert allowed == (4, 8)
    steps = schedule.steps[0]
    np.testing.assert_array_equal([least, most], [steps.min((0, 1)), steps.max((0, 1))])


def test_speakers_are_dealt_evenly_and_whole() -> None:
    data = fig11.made_up_play()
    part = fig11.deal(data, 1)
    speakers = [set(data.train_speakers[row].tolist()) for row in part.rows()]
    assert sum(map(len, speakers)) == len(set().union(*speakers)) == 50
    assert {len(own) for own in speakers} == {1, 2}
    assert part.counts.sum() == len(data.train_sequences)


def test_rounds_for_one_of_the_baseline() -> None:
    """Rounds of 2, 4 and 3, 9 are half as many; the error of a ratio of means is found by hand."""
    baseline, schedule = (
        Timeline(np.array(time), *[None] * 5) for time in ([[2.0, 6.0]], [[3.0, 12.0]])
    )
    ratio, error = clock.relative_rounds(schedule, baseline)
    assert ratio == 0.5
    assert error == pytest.approx(np.std([2 - 1.5, 4 - 4.5], ddof=1) / np.sqrt(2) / 6)
    assert clock.relative_rounds(baseline, baseline) == (1.0, 0.0)
