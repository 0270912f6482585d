"""Fair comparisons: what is held out, what is chosen, and when an accuracy is reached."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedjax_sim import SYSTEMS, Layout, Ticks, Time, datasets, models, partition, problems, sweep
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.watching import Progress
from fedjax_sim.studies import (
    Contestant,
    Criterion,
    Halving,
    choose,
    hold_out,
    hold_out_of_clients,
    tune,
    tune_and_run,
)
from fedjax_sim.studies.pictures import sensitivity_figure
from fedjax_sim.studies.tuning import _ending_early, next_value


def test_held_out_examples_are_no_longer_trained_on() -> None:
    """A share of each class is held out, nothing is lost, and the test set is not touched."""
    data = datasets.load("digits")
    clients = np.arange(len(data.train_labels), dtype=np.int32) % 7
    held = hold_out(data._replace(train_clients=clients), 0.25, seed=3)
    kept, out = ({image.tobytes() for image in images} for images in (held[0], held[2]))
    assert len(held.train_labels) + len(held.test_labels) == len(data.train_labels)
    assert kept | out == {image.tobytes() for image in data.train_images}
    assert not kept & out
    before, after = (
        np.bincount(labels, minlength=10) for labels in (data.train_labels, held.test_labels)
    )
    np.testing.assert_array_equal(after, np.round(0.25 * before))
    assert held.train_clients is not None and len(held.train_clients) == len(held.train_labels)
    again, other = hold_out(data, 0.25, seed=3), hold_out(data, 0.25, seed=4)
    np.testing.assert_array_equal(again.test_images, held.test_images)
    assert not np.array_equal(other.test_labels, held.test_labels)
    for share in (0.0, 1.0):
        with pytest.raises(ConfigError, match="share is"):
            hold_out(data, share)


def test_the_best_rate_on_validation_data_is_chosen() -> None:
    """A rate that learns nothing and one that diverges lose; a choice at the edge is named."""
    data = hold_out(datasets.load("digits"), 0.2)
    share = partition.iid(data.train_labels, num_clients=5, seed=0)
    problem = problems.make_classification(models.LogisticRegression(10), data, share)
    settings = {"num_clients": 5, "num_selected": 5, "local_steps": 10, "batch_size": 16}
    hyper = SYSTEMS["fedavg"].paper(**settings)
    contestant = Contestant(SYSTEMS["fedavg"], hyper, {"lr": (1e38, 0.5, 1e-6)})
    options = {"budget": Ticks(6), "num_evals": 3}
    tuned = tune(contestant, [problem] * 2, seeds=[0, 1], **options)
    assert tuned.choice == {"lr": 0.5} and tuned.at_edge == []
    assert dict(tuned.scores.sizes) == {"lr": 3, "seed": 2}
    assert tuned.scores.lr.values.tolist() == [1e-6, 0.5, 1e38]
    assert (tuned.scores.sel(lr=0.5) > 0.7).all()
    assert (tuned.scores.sel(lr=1e-6) < 0.3).all() and (tuned.scores.sel(lr=1e38) < 0.2).all()
    # The best of two rates is at the edge. One widening adds a rate that is too large.
    known = tuned.scores.sel(lr=[1e-6, 0.5])
    narrow = contestant._replace(grid={"lr": (1e-6, 0.5)})
    assert tune(narrow, [problem], seeds=[0], widenings=0, known=known).at_edge == ["lr"]
    names = []

    def kept(name: str) -> dict:
        names.append(name)
        return {}

    how = {"seeds": [0, 1], "known": known, "kept": kept, **options}
    wider = tune(narrow, [problem] * 2, **how)
    assert names == ["tuning, lr 250000"]
    assert wider.scores.lr.values.tolist() == [1e-6, 0.5, 2.5e5]
    assert wider.choice == {"lr": 0.5} and wider.at_edge == []
    xr.testing.assert_equal(wider.scores.sel(lr=[1e-6, 0.5]), known)


def test_grids_that_cannot_be_widened_are_refused() -> None:
    narrow = Contestant(SYSTEMS["fedavg"], SYSTEMS["fedavg"].Hyper(), {"lr": [0.0, 0.5]})
    with pytest.raises(ConfigError, match="grid of lr"):
        tune(narrow, [], seeds=[])


def test_no_grid_is_widened_beyond_what_a_setting_allows() -> None:
    """FedAsync's mixing is at most 1, so that 0.9 stays at the edge; nothing more is run."""
    grid = {"mixing": [0.3, 0.9]}
    contestant = Contestant(SYSTEMS["fedasync"], SYSTEMS["fedasync"].paper(num_clients=5), grid)
    known = xr.DataArray([[0.5], [0.8]], {**grid, "seed": [0]}, ("mixing", "seed"))
    tuned = tune(contestant, [], seeds=[0], known=known)
    assert tuned.choice == {"mixing": 0.9} and tuned.at_edge == ["mixing"]
    assert tuned.scores.mixing.values.tolist() == grid["mixing"]


def test_choices_and_where_grids_continue() -> None:
    """Means over seeds decide, the smallest of equal values wins, and edges are named."""
    scores = xr.DataArray(
        [[[0.9, 0.1], [0.6, 0.6]], [[0.6, 0.6], [0.2, 0.3]]],
        {"lr": [0.1, 0.2], "server_lr": [0.3, 1.0], "seed": [0, 1]},
        ("lr", "server_lr", "seed"),
    )
    found = choose(scores)
    assert found.choice == {"lr": 0.1, "server_lr": 1.0} and found.at_edge == ["lr", "server_lr"]
    alone = choose(scores.sel(server_lr=[1.0]))
    assert alone.choice == {"lr": 0.1, "server_lr": 1.0} and alone.at_edge == ["lr"]
    assert next_value([0.1, 0.5, 1.0], above=True) == 2.0
    assert next_value([0.1, 0.5, 1.0], above=False) == 0.02
    figure = sensitivity_figure({"one": found, "other": alone}, "title")
    panels = figure.axes
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in panels]
    first = "one (learning rate, server learning rate at the edge)"
    assert titles == [first, "other (learning rate at the edge)"]
    # Two lines of means with two seeds each, and a ring at the choice.
    assert [len(axes.lines) for axes in panels] == [7, 4]
    for axes in panels:
        assert axes.lines[-1].get_xydata().tolist() == [[0.1, 0.6]]


def test_titles_of_panels_do_not_touch() -> None:
    """Those that say that the choice is at the edge are wider than a panel."""
    scores = xr.DataArray([[0.5], [0.8]], {"lr": [0.1, 1.0], "seed": [0]}, ("lr", "seed"))
    names = [f"Fig. {number}, cooperating, S = 5" for number in range(9)]
    figure = sensitivity_figure(dict.fromkeys(names, choose(scores)), "title")
    FigureCanvasAgg(figure).draw()
    titles: list[Any] = [vars(axes)["_left_title"] for axes in figure.axes[:9]]
    boxes = [title.get_window_extent() for title in titles]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert max(box.x1 for box in boxes) < figure.bbox.x1


def small_task(seeds: list[int]) -> tuple[Any, list[Any]]:
    """Make settings and problems on which a run takes a moment."""
    data = hold_out(datasets.load("digits"), 0.2)
    share = partition.iid(data.train_labels, num_clients=5, seed=0)
    problem = problems.make_classification(models.LogisticRegression(10), data, share)
    hyper = SYSTEMS["fedavg"].Hyper(num_clients=5, num_selected=5, local_steps=10, batch_size=16)
    return hyper, [problem] * len(seeds)


def test_halving_plans_when_points_end() -> None:
    """Of nine points three go on, of these two, and the winner alone after most of the run."""
    assert Halving().rungs(9, 25) == {2: 3, 6: 2, 18: 1}
    assert Halving(2).rungs(4, 25) == {2: 2, 6: 1}
    assert Halving(least=0.3).rungs(9, 10) == {3: 3, 9: 2}
    assert Halving().rungs(1, 25) == {} and Halving().rungs(2, 4) == {1: 1}


def test_losing_points_end_early_and_the_winner_is_that_of_the_grid() -> None:
    """A third of the work, and what ran to its end has the bits that it has alone."""
    hyper, tasks = small_task([0, 1])
    rates = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.003, 0.3)
    contestant = Contestant(SYSTEMS["fedavg"], hyper, {"lr": rates})
    layout = Layout(lanes_at_once=False)
    how = {"seeds": [0, 1], "widenings": 0, "budget": Ticks(18), "num_evals": 18, "layout": layout}
    whole = tune(contestant, tasks, **how)
    early = tune(contestant, tasks, halving=Halving(), **how)
    assert early.choice == whole.choice == {"lr": 0.3}
    ran = np.isfinite(early.scores).all("seed")
    assert ran.values.tolist() == [rate == 0.3 for rate in rates]
    np.testing.assert_array_equal(early.scores.sel(lr=0.3), whole.scores.sel(lr=0.3))
    assert early.lanes == whole.lanes == 18 and 0.2 < early.time / whole.time < 0.4
    refilled = {**how, "layout": Layout(lanes_at_once=True, lane_batches=3, lane_devices=1)}
    batched = tune(contestant, tasks, halving=Halving(), **refilled)
    assert (batched.choice, batched.time) == (early.choice, early.time)
    np.testing.assert_allclose(batched.scores, early.scores, atol=1e-6)
    with pytest.raises(ConfigError, match="against is 'bits'"):
        bits = Criterion(by="area", against="bits")
        tune(contestant, tasks, halving=Halving(), criterion=bits, **how)
    static = contestant._replace(grid={"batch_size": (4, 8, 16, 32)})
    with pytest.raises(ConfigError, match="of numbers with halving"):
        tune(static, tasks, halving=Halving(2), **how)


@pytest.mark.parametrize(("points", "batches"), [(9, 3), (10, 2), (2, 2), (1, 1)])
def test_halving_leaves_one_batch_of_the_best_points_on_an_accelerator(
    points: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU lanes go on in turn. A layout of the user's own stays."""
    _, tasks = small_task([0])
    grid = {"lr": tuple(range(1, points + 1))}
    given = Halving(), Criterion(), SYSTEMS["fedavg"], tasks, grid, [0, 1]
    assert _ending_early(*given, {})["layout"] == Layout(lanes_at_once=False)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    chosen = Layout(lanes_at_once=True, lane_batches=batches)
    assert _ending_early(*given, {})["layout"] == chosen
    own = Layout(lane_batches=5)
    assert _ending_early(*given, {"layout": own})["layout"] == own


def test_times_of_all_points_end_with_the_shortest_lane() -> None:
    """A point that never reaches the level is no better for having had less time."""
    hyper, tasks = small_task([0])
    narrow = Contestant(SYSTEMS["fedavg"], hyper, {"server_interact": (1.0, 2.0)})
    wide = narrow._replace(grid={"server_interact": (0.5, 1.0, 2.0)})
    how = {"seeds": [0], "budget": Ticks(2), "num_evals": 2}
    how |= {"criterion": Criterion(by="time", level=2.0)}
    widened = tune(narrow, tasks, widenings=1, **how)
    xr.testing.assert_equal(widened.scores, tune(wide, tasks, widenings=0, **how).scores)


def test_a_short_lane_does_not_end_one_that_is_at_the_level() -> None:
    """Of two points, one at the level in time 10 and one not yet in time 5, the first goes on."""
    _, tasks = small_task([0])
    grid, criterion = {"deadline": (5.0, 10.0)}, Criterion(by="time", level=0.5)
    given = Halving(), criterion, SYSTEMS["fedavg"], tasks, grid, [0], {}
    metrics = {"accuracy": np.array([[0.1, 0.2], [0.1, 0.6]]), "finite": np.ones((2, 2))}
    now = Progress(
        system="fedavg",
        lanes=[0, 1],
        settings=[{}, {}],
        seeds=[0, 0],
        evaluation=1,
        num_evals=4,
        ticks=np.array([[0, 1], [0, 1]]),
        time=np.array([[0.0, 5.0], [0.0, 10.0]]),
        metrics=metrics,
        stopped=np.zeros(2, bool),
    )
    ends = _ending_early(*given)["watch"].on_evaluation(now)
    assert ends.tolist() == [True, False]
    worst = Criterion("client_accuracy", "worst_client")
    of_clients = np.array([[[0.1, 0.1], [0.9, 0.2]], [[0.1, 0.1], [0.3, 0.4]]])  # of two clients
    metrics["client_accuracy[client]"] = of_clients
    decide = _ending_early(given[0], worst, *given[2:])["watch"].on_evaluation
    assert decide(now).tolist() == [True, False]
    # Clients without test examples do not count, and of equal points the newest value decides.
    nothing = np.nan
    of_clients[:] = [[[nothing, 0.25], [nothing, 0.125]], [[nothing, 0.125], [nothing, 0.25]]]
    assert decide(now).tolist() == [True, False]
    unknown = _ending_early(given[0], Criterion("acuracy"), *given[2:])["watch"].on_evaluation
    with pytest.raises(ConfigError, match="metric is 'acuracy'"):
        unknown(now)


def test_examples_are_held_out_of_each_client() -> None:
    """A fifth of each client's own, which no client keeps; equally many for all partitions."""
    data = datasets.load("digits")
    parts = [
        partition.dirichlet(data.train_labels, num_clients=6, alpha=1.0, seed=s) for s in (0, 1)
    ]
    found = hold_out_of_clients(data, parts, 0.2, seed=3)
    assert len({len(own.test_labels) for own, _ in found}) == 1
    for whole, (own, left) in zip(parts, found, strict=True):
        tested = {image.tobytes() for image in own.test_images}
        for before, after in zip(whole.rows(), left.rows(), strict=True):
            assert len(after) == len(before) - round(0.2 * len(before))
            kept = set(after.tolist())
            assert len(kept) == len(after) and kept <= set(before.tolist())
            assert not tested & {data.train_images[j].tobytes() for j in kept}
        assert tested <= {image.tobytes() for image in data.train_images}
    with pytest.raises(ConfigError, match="every client keeps"):
        hold_out_of_clients(data, [partition.Partition(np.zeros(1, int), np.ones(1, int))], 0.9)


def test_settings_are_chosen_before_test_problems_are_made() -> None:
    """Tuning seeds are apart from reported ones, and a function of test problems waits."""
    hyper, tasks = small_task([1000])
    contestant = Contestant(SYSTEMS["fedavg"], hyper, {"lr": (1e-6, 0.3)})
    options = {"budget": Ticks(6), "num_evals": 3}
    made: list[int] = []

    def test_problem(seed: int) -> Any:
        made.append(seed)
        return tasks[0]

    def validation(seed: int) -> Any:
        assert not made
        return tasks[0]

    how = {"tuning_seeds": [1000], "widenings": 0, "options": options}
    tuned, run = tune_and_run(contestant, validation, test_problem, seeds=[0, 1], **how)
    assert tuned.choice == {"lr": 0.3} and made == [0, 1]
    assert run.curves.sizes["seed"] == 2 and run.hypers[0].lr == 0.3
    with pytest.raises(ConfigError, match=r"tuning seeds is \[1000\]"):
        tune_and_run(contestant, validation, test_problem, seeds=[1000], **how)


def test_a_grid_on_which_nothing_learns_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    known = xr.DataArray(np.zeros((2, 2)), {"lr": [0.1, 0.2], "seed": [0, 1]}, ("lr", "seed"))
    contestant = Contestant(SYSTEMS["fedavg"], SYSTEMS["fedavg"].Hyper(), {"lr": (0.2, 0.1)})
    tuned = tune(contestant, [], seeds=[0, 1], widenings=0, known=known)
    assert tuned.choice == {"lr": 0.1} and tuned.lanes == 0
    said = capsys.readouterr().err
    assert "no point of the grid learns" in said and "lr 0.1 is at an edge of its grid" in said


def test_a_group_is_tuned_by_its_own_accuracy() -> None:
    """Until its only round ends the server stays at chance, which says nothing of a group."""
    data = hold_out(datasets.load("digits"), 0.2)
    share = partition.iid(data.train_labels, num_clients=4, seed=0)
    problem = problems.make_classification(models.LogisticRegression(10), data, share)
    system = SYSTEMS["hierarchical"]
    delays = {"shift": 1.0, "mean": 0.1, "exchange_shift": 1.0, "exchange_mean": 0.1}
    clock = {**delays, "sync_time": 80.0, "ticks_per_round": 8}
    hyper = system.paper(num_clients=4, num_groups=1, group_metrics=True, lr=0.5, **clock)
    curves = sweep(system, problem, hyper, budget=Time(40.0), num_evals=4).curves
    stuck = curves.assign(collapsed_at=curves.collapsed_at.copy(data=[1]))
    assert Criterion("accuracy_group_0").scores(stuck).item() > 0.7
    assert Criterion().scores(stuck).item() == 0.0
