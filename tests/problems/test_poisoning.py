"""Poisoned data: whose examples change and how, and the success of a backdoor."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import datasets, problems
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.models import LogisticRegression
from fedjax_sim.partition import Partition, iid
from fedjax_sim.problems import Backdoor, LabelFlip, poison
from fedjax_sim.systems import fedavg
from tests.conftest import slow_but

NUM = 4
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def digits() -> datasets.Dataset:
    return datasets.load("digits")


@pytest.fixture(scope="module")
def plain(digits: datasets.Dataset) -> problems.Classification:
    clients = iid(digits.train_labels, num_clients=NUM, seed=0)
    return problems.make_classification(LogisticRegression(10), digits, clients, per_class=True)


def rows_of(problem: Any, *clients: int) -> np.ndarray:
    held = problem.held
    return np.concatenate([held.at(c, np.arange(held.counts[c])) for c in clients])


@pytest.mark.parametrize("attack", [LabelFlip(), LabelFlip(source=7, target=1)])
def test_labels_of_malicious_clients_flip(plain: Any, attack: LabelFlip) -> None:
    flipped = poison(plain, [1, 3], attack)
    assert type(flipped) is type(plain)
    before, after = np.asarray(plain.data[1]), np.asarray(flipped.data[1])
    rows = rows_of(plain, 1, 3)
    expected = before.copy()
    expected[rows] = (
        9 - before[rows] if attack.source is None else np.where(before[rows] == 7, 1, before[rows])
    )
    np.testing.assert_array_equal(after, expected)
    assert (before != after).any()
    # Images and tests are the very same arrays.
    assert flipped.data[0] is plain.data[0]
    assert flipped.test_data is plain.test_data
    again = poison(poison(plain, [1], attack), np.array([3]), attack)
    np.testing.assert_array_equal(again.data[1], after)
    assert poison(plain, [], attack).data[1].tolist() == before.tolist()


def test_a_backdoor_is_in_a_share_of_the_examples(plain: Any) -> None:
    """The trigger is a bright square, its label the target, and shares are nested."""
    before = np.asarray(plain.data[0])
    seen = []
    for share in (0.0, 0.2, 0.5, 1.0):
        attack = Backdoor(target=3, share=share, size=2)
        problem = poison(plain, [0, 2], attack, seed=5)
        images, labels = map(np.asarray, problem.data)
        rows = rows_of(plain, 0, 2)
        is_bright = (images[:, -2:, -2:].reshape(len(images), -1) == 255).all(axis=1)
        counts = [int(is_bright[rows_of(plain, c)].sum()) for c in range(NUM)]
        wanted = [round(share * int(plain.counts[c])) for c in (0, 2)]
        assert counts == [wanted[0], 0, wanted[1], 0]
        assert images.dtype == np.uint8
        assert (labels[is_bright] == 3).all()
        np.testing.assert_array_equal(labels[~is_bright], np.asarray(plain.data[1])[~is_bright])
        np.testing.assert_array_equal(images[~is_bright], before[~is_bright])
        inside = images.copy()
        inside[:, -2:, -2:] = before[:, -2:, -2:]
        np.testing.assert_array_equal(inside, before)
        seen.append(set(np.flatnonzero(is_bright)))
        assert seen[-1] <= set(rows)
    assert seen[0] <= seen[1] <= seen[2] <= seen[3]


@pytest.mark.parametrize("is_held_out", slow_but([False], [False, True]))
def test_success(digits: datasets.Dataset, plain: Any, is_held_out: bool) -> None:
    """The share of triggered examples of other classes that are named the target."""
    attack = Backdoor(target=3)
    if is_held_out:
        split = problems.supervised(
            LogisticRegression(10),
            problems.cross_entropy,
            (np.asarray(digits.train_images, "float32"), digits.train_labels),
            split=iid(digits.train_labels, num_clients=NUM, seed=0),
            test=0.3,
            metrics={"accuracy": problems.is_right},
        )
        problem = poison(split, [], attack)
        rows = np.asarray(split.test_rows)[: int(split.num_tests)]
        brightest, scale = 1, 1
    else:
        problem = poison(plain, [], attack)
        rows, brightest, scale = np.arange(len(digits.test_labels)), 255, 255
    inner = split if is_held_out else plain
    params = jax.tree.map(lambda leaf: 0.1 * leaf, problem.init(KEY))
    found = jax.jit(lambda problem: problem.evaluate(params))(problem)
    images = np.array(inner.test_data[0])[rows].astype("float32")
    images[:, -3:, -3:] = brightest
    labels = np.asarray(inner.test_data[1])[rows]
    named = np.argmax(inner.model.apply(params, jnp.asarray(images / scale)), axis=1) == 3
    np.testing.assert_allclose(found["attack_success"], named[labels != 3].mean(), rtol=1e-6)
    expected = inner.evaluate(params)
    assert found.keys() - expected.keys() == {"attack_success"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)


@pytest.mark.slow
def test_a_backdoor_is_learnt(plain: Any) -> None:
    """Malicious clients raise the success, a list of problems shares a program, as seeds do."""
    attack = Backdoor(target=3, size=2)
    made = [poison(plain, clients, attack) for clients in ([], [0, 1])]
    hyper = fedavg.Hyper(num_clients=NUM, num_selected=NUM, local_steps=10, batch_size=32, lr=0.5)
    run = fedjax_sim.sweep(
        fedavg.system, made, hyper, seeds=2, budget=fedjax_sim.Ticks(8), num_evals=1
    )
    success = run.curves["attack_success"].values[:, -1]
    accuracy = run.curves["accuracy"].values[:, -1]
    assert success[0] < 0.1
    assert success[1] > 0.5
    assert (accuracy > 0.8).all()


def test_own_triggers_and_vectors() -> None:
    """Vectors carry the trigger in their last numbers; any function may be the trigger."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 5)).astype("float32"), np.arange(30) % 3
    problem = problems.supervised(
        LogisticRegression(3),
        problems.cross_entropy,
        (x, y),
        clients=np.arange(30) % 2,
        test=(x, y),
    )
    data = poison(problem, [0], Backdoor(share=1.0, size=2, value=-2.0)).data
    expected = x.copy()
    expected[::2, -2:] = -2
    np.testing.assert_array_equal(data[0], expected)
    data = poison(problem, [1], Backdoor(target=2, share=1.0, trigger=jnp.negative)).data
    expected = x.copy()
    expected[1::2] *= -1
    np.testing.assert_array_equal(data[0], expected)
    np.testing.assert_array_equal(data[1], np.where(np.arange(30) % 2, 2, y))


@pytest.mark.parametrize(
    ("clients", "attack", "words"),
    [
        ([4], LabelFlip(), "numbers from 0 to 3"),
        ([-1], LabelFlip(), "clients"),
        ([0.5], LabelFlip(), "clients"),
        ([0], LabelFlip(source=1, target=10), "a class from 0 to 9"),
        ([0], Backdoor(target=10), "a class from 0 to 9"),
        ([0], Backdoor(size=9), "at most the sides"),
        ([0], Backdoor(value=300.0), "from 0 to 255"),
        ([0], Backdoor(trigger=lambda x: x[:, :2]), "as without it"),
    ],
)
def test_what_does_not_fit(plain: Any, clients: list, attack: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        poison(plain, clients, attack)


def test_bad_attacks(digits: datasets.Dataset) -> None:
    for make in (
        lambda: LabelFlip(source=1),
        lambda: LabelFlip(source=1, target=1),
        lambda: Backdoor(share=1.5),
        lambda: Backdoor(target=-1),
    ):
        with pytest.raises(ConfigError):
            make()
    shared = Partition(np.array([0, 1, 1, 2]), np.array([2, 2]))
    problem = problems.make_classification(LogisticRegression(10), digits, shared)
    with pytest.raises(ConfigError, match="nobody's but malicious"):
        poison(problem, [0], LabelFlip())
    poison(problem, [0, 1], LabelFlip())
    numbers = np.zeros((4, 2), "float32")
    regression = problems.supervised(
        LogisticRegression(2),
        problems.squared_error,
        (numbers, numbers),
        clients=np.arange(4) % 2,
        test=(numbers, numbers),
    )
    with pytest.raises(ConfigError, match="inputs and classes"):
        poison(regression, [0], LabelFlip())
