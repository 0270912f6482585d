"""FedProx with stragglers: the clock of its released code, and its data."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.reproductions import fedprox
from fedjax_sim import datasets
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.core.types import EMPTY, Timeline

SIZES = 50 + 10 * np.arange(30.0)


def drawn(num_ticks: int = 40, **settings: Any) -> Timeline:
    hyper = fedprox.Hyper(
        num_clients=30,
        local_epochs=20.0,
        batch_size=10,
        weighting="examples",
        examples=SIZES,
        has_epochs=True,
        **settings,
    )
    with jax.enable_x64(True):
        return fedprox.schedule(jax.random.key(0), hyper, num_ticks)


def test_clients_and_stragglers_are_those_of_the_released_code() -> None:
    clients, place = fedprox.places(30, 10, 6)
    for number in range(6):
        np.random.seed(number)
        chosen = np.random.choice(range(30), 10, replace=False)
        np.testing.assert_array_equal(clients[number], chosen)
        for active in (1, 5):
            np.random.seed(number)
            kept = np.random.choice(chosen, active, replace=False)
            assert set(clients[number][place[number] < active]) == set(kept)


def test_stragglers_do_1_to_19_epochs_or_are_left_out() -> None:
    clients, place = fedprox.places(30, 10, 40)
    is_late, steps = place >= 1, np.ceil(20 * SIZES / 10)[clients]
    counted, dropped = drawn(), drawn(late="dropped")
    for timeline in (counted, dropped):
        np.testing.assert_array_equal(timeline.clients, clients)
        np.testing.assert_allclose(np.asarray(timeline.weight).sum(1), 1.0)
    epochs = np.asarray(counted.steps) * 10 / SIZES[np.asarray(counted.clients)]
    np.testing.assert_array_equal(np.asarray(counted.steps)[~is_late], steps[~is_late])
    late = np.round(epochs[is_late])
    assert set(late) == set(range(1, 20)) and abs(late.mean() - 10) < 1
    share = SIZES[clients] / SIZES[clients].sum(1, keepdims=True)
    np.testing.assert_allclose(counted.weight, share)
    for leaf in (dropped.steps, dropped.weight):
        assert (np.asarray(leaf)[is_late] == 0).all() and (np.asarray(leaf)[~is_late] > 0).all()
    assert (np.asarray(drawn(stragglers=0.0).steps) == steps).all()
    nobody = drawn(late="dropped", stragglers=1.0)  # The model stays as it is.
    assert not np.asarray(nobody.weight).any() and not np.asarray(nobody.steps).any()


@pytest.mark.slow
def test_the_first_rounds_do_not_depend_on_how_many_there_are() -> None:
    few, many = drawn(7), drawn(40)
    assert (np.asarray(few.clients) != EMPTY).all()
    for one, other in zip(few, many, strict=True):
        if one is not None:
            np.testing.assert_array_equal(one, other[:7])


def test_the_authors_files_are_read(tmp_path: Path) -> None:
    made = {"train": [[1.0, 2.0], [3.0]], "test": [[4.0], [5.0]]}
    for part, labels in made.items():
        file = tmp_path / "synthetic_1_1" / "data" / part / f"my{part}.json"
        file.parent.mkdir(parents=True)
        data = {
            f"f_{i}": {"x": [[y] * 60 for y in each], "y": each} for i, each in enumerate(labels)
        }
        file.write_text(json.dumps({"users": ["f_1", "f_0"], "user_data": data}))
    data = fedprox.read(tmp_path, "synthetic_1_1")
    assert data.train_clients is not None and data.train_clients.tolist() == [0, 1, 1]
    assert data.train_labels.tolist() == [3, 1, 2] and data.test_labels.tolist() == [5, 4]
    assert (data.train_images[..., 0].ravel() == [3, 1, 2]).all()
    problem = fedprox.problem_of(data)
    assert jnp.asarray(problem.counts).tolist() == [1, 2]
    with pytest.raises(ConfigError, match="synthetic_iid/data/train"):
        fedprox.read(tmp_path, "synthetic_iid")


@pytest.mark.slow
def test_names_are_those_of_the_data_sets() -> None:
    for name, settings in fedprox.SETS.items():
        assert datasets.make_synthetic(**settings, num_clients=2).name == name
    assert fedprox.NUMBERS.keys() <= fedprox.METHODS.keys()
