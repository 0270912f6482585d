"""Parts of a sweep: which lanes they get, and that together they are the whole, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_sim
from fedjax_sim import Layout
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.engine.shares import Unit, divide
from fedjax_sim.results.curves import (
    Curves,
    Grid,
    Returned,
    join_lanes,
    label_curves,
    label_lanes,
)
from fedjax_sim.results.runs import join_runs, write_arrays

FAVANO, FEDBUFF = (fedjax_sim.SYSTEMS[name] for name in ("favano", "fedbuff"))
PINNED = Layout(slots_at_once=4, lanes_at_once=False, client_devices=1)


def units_with(sizes: list[tuple[int, int]]) -> list[Unit[tuple[int, int]]]:
    """Make units of given numbers of lanes and work of each."""
    return [
        Unit(tuple((number, lane) for lane in range(lanes)), work)
        for number, (lanes, work) in enumerate(sizes)
    ]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 50)), min_size=1, max_size=12), st.data()
)
def test_every_lane_is_in_one_part(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """In order and in equal work, up to one lane; no part is empty."""
    units = units_with(sizes)
    lanes = [lane for unit in units for lane in unit.lanes]
    n = data.draw(st.integers(1, len(lanes)))
    parts = divide(units, n)
    assert [lane for part in parts for lane in part] == lanes
    assert len(parts) == n and all(parts)
    assert divide(units, n) == parts
    work = [sum(sizes[number][1] for number, _ in part) for part in parts]
    share = sum(len(unit.lanes) * unit.work for unit in units) / n
    assert max(work) <= share + max(work for _, work in sizes)


def test_lanes_of_one_schedule_stay_together() -> None:
    """Three programs of six schedules with four lanes each, as 3 systems x 4 settings x 6 seeds."""
    parts = divide(units_with([(4, 10)] * 18), 4)
    assert [len(part) for part in parts] == [18] * 4
    touched = [{number for number, _ in part} for part in parts]
    assert sum(len(numbers) for numbers in touched) <= 18 + 4 - 1
    programs = [{number // 6 for number in numbers} for numbers in touched]
    assert sum(map(len, programs)) <= 3 + 4 - 1


def test_a_part_ends_where_most_of_a_lane_is_beyond_its_share() -> None:
    """Shares of ten and a lane that is larger than a share, before which the others get lanes."""
    parts = divide(units_with([(1, each) for each in (3, 9, 1, 4, 4, 6, 3)]), 3)
    assert [[number for number, _ in part] for part in parts] == [[0, 1], [2, 3, 4], [5, 6]]
    for work in ((90, 1, 1), (1, 1, 90)):
        assert [len(part) for part in divide(units_with([(1, x) for x in work]), 3)] == [1] * 3


def test_a_study_of_one_unit_is_divided_by_lanes() -> None:
    units = units_with([(7, 5)])
    assert max(len(part) for part in divide(units, 3)) == 3
    assert [len(part) for part in divide(units, 7)] == [1] * 7
    for number in (0, 8):
        with pytest.raises(ConfigError, match="from 1 to 7, the number of lanes"):
            divide(units, number)


@pytest.mark.slow
def test_a_part_that_knows_more_has_the_bits_of_the_whole(
    regression: Callable, small: Callable
) -> None:
    """Without a proximal term, known to a part alone, FedNova's program is simpler."""
    fednova = fedjax_sim.SYSTEMS["fednova"]

    def run(**chosen: Any) -> fedjax_sim.Run:
        return fedjax_sim.sweep(
            fednova,
            regression(),
            small(fednova, local_epochs=2.0),
            settings={"proximal": [0.0, 0.1]},
            **(OPTIONS | {"seeds": 1}),
            **chosen,
        )

    whole, parts = run(), [run(lanes=fedjax_sim.Part(i, 2)) for i in range(2)]
    assert [set(part.curves.proximal.values) for part in parts] == [{0.0}, {0.1}]
    assert_equal_runs(join_runs(parts), whole)
    assert np.abs(whole.models[1] - whole.models[0]).max() > 1e-4


@pytest.mark.parametrize("values", [[None, 0.5], ["auto", 2]])
def test_labels_of_several_types_are_those_of_the_whole(values: list[Any], tmp_path: Path) -> None:
    """A part with numbers alone would have other labels; no file takes labels of two types."""

    def returned(places: list[int]) -> Returned:
        zeros, finite = np.zeros((len(places), 2)), np.ones((len(places), 2), bool)
        curves = Curves({"finite": finite, "loss": zeros + places[0]}, {}, None)
        return Returned(places, curves, {"ticks": zeros, "time": zeros}, [], {})

    grid, whole = Grid({"alpha": values}, [0]), [returned([0]), returned([1])]
    parts = [label_lanes([each], grid, "x", each.places) for each in whole]
    joined = join_lanes(parts)
    assert joined.identical(label_curves(whole, grid, "x"))
    write_arrays(tmp_path / "results.nc", {"x": joined})


OPTIONS: dict[str, Any] = {
    "seeds": [5, 2, 9],
    "budget": fedjax_sim.Time(200.0),
    "num_evals": 4,
    "layout": PINNED,
    "keep": fedjax_sim.Keep(models=True),
}


def assert_equal_runs(ours: fedjax_sim.Run, theirs: fedjax_sim.Run) -> None:
    """Assert that two runs are equal, except for the seconds that they took."""
    spent = {name: 0 for name in ours.curves.attrs if name != "system"}
    assert ours.curves.assign_attrs(spent).identical(theirs.curves.assign_attrs(spent))
    assert [*ours.curves.variables] == [*theirs.curves.variables]
    chex.assert_trees_all_equal((ours.models, ours.samples), (theirs.models, theirs.samples))
    chex.assert_trees_all_equal(ours.timelines, theirs.timelines)
    chex.assert_trees_all_equal(ours.hypers, theirs.hypers)
    assert jax.tree.structure(ours.hypers) == jax.tree.structure(theirs.hypers)


@pytest.mark.slow
def test_parts_together_have_the_bits_of_the_whole(regression: Callable, small: Callable) -> None:
    """Two programs, two lengths of schedules, a problem for each seed.

    The lanes of a schedule that ends early are evaluated when they would be in the whole sweep, and
    settings that vary in the whole sweep alone are still arguments of the program.
    """
    base = regression()
    problems = {seed: base.replace(targets=base.targets + seed / 10) for seed in (5, 2)}
    problems[9] = problems[5]
    settings: dict[str, list[Any]] = {
        "send_old_model": [False, True],
        "server_interact": [1.0, 6.0],
        "lr": [0.05, 0.1],
    }

    def run(**chosen: Any) -> fedjax_sim.Run:
        return fedjax_sim.sweep(
            FEDBUFF,
            lambda seed: problems[seed],
            small(FEDBUFF, restart="after_interaction"),
            settings=settings,
            **OPTIONS,
            **chosen,
        )

    whole = run()
    assert len(np.unique(whole.curves.ticks[..., -1])) > 2
    assert np.isfinite(whole.models).all() and len(np.unique(whole.models[:, 0])) == 24
    # Every second lane: families and schedules are torn apart.
    parts = [run(lanes=np.arange(24)[1::2]), run(lanes=[*range(24)][::2])]
    assert_equal_runs(join_runs(parts), whole)
    flat = whole.curves.stack(at=("send_old_model", "server_interact", "lr", "seed"))
    for part in parts:
        assert set(part.curves.loss.dims) == {"lane", "eval"}
        for k, lane in enumerate(part.curves.lane.values):
            for name in ("send_old_model", "server_interact", "lr", "seed"):
                assert part.curves[name][k].item() == flat[name][lane].item()
    for some, words in ((parts[:1], "without lanes"), ([*parts, parts[0]], "lanes twice")):
        with pytest.raises(ConfigError, match=f"what the parts have of fedbuff .*{words}"):
            join_runs(some)
    # A variable that one part lacks is NaN in its lanes.
    odd = [each.curves.assign(odd=2 * each.curves.loss) for each in parts[1:]]
    joined = join_lanes([parts[0].curves, *odd]).odd.values.reshape(24, -1)
    lanes = parts[0].curves.lane.values
    assert np.isnan(joined[lanes]).all()
    rest_of = np.delete(whole.curves.loss.values.reshape(24, -1), lanes, axis=0)
    np.testing.assert_array_equal(np.delete(joined, lanes, axis=0), 2 * rest_of)
    for chosen, words in (
        ({"lanes": fedjax_sim.Part(0, 25)}, "number of parts is 25, but must be from 1 to 24"),
        ({"lanes": [24]}, "some of the numbers from 0 to 23"),
        ({"lanes": []}, "some of the numbers from 0 to 23"),
        (
            {"lanes": np.array([1, 24])},
            r"lanes is array.* 24\]\), but must be some of the",
        ),
        ({"lanes": [[1]]}, "a list, each a whole number"),
        ({"lanes": 3}, "lanes is 3, but must be a Part, .* a list, each a whole number"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(**chosen)
    with pytest.raises(ConfigError, match=r"part is '3/3', .* whole numbers i from 0 to n - 1"):
        fedjax_sim.Part(3, 3)
