"""Problems from any network, loss and data: means by hand, clients, starts, and what is refused.

Dimension letters: `N` clients, `n` examples.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, datasets, partition, problems
from fedjax_sim.core.targets import tracing_for
from fedjax_sim.partition import Partition
from fedjax_sim.problems import supervision
from fedjax_sim.systems import fedavg

KEY = jax.random.key(0)
NAMES = ["Oslo", "Rome", "Oslo", "Bonn", "Rome", "Oslo", "Bonn", "Oslo", "Rome", "Oslo"]
INPUTS = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
TARGETS = INPUTS @ np.array([1.0, -2.0, 0.5], "float32")


class Linear:
    """A matrix and a bias, whose inputs may be a dict."""

    def __init__(self, num: int = 1):
        self.num = num

    def init(self, key: jax.Array, x: Any) -> dict[str, jax.Array]:
        x = x["x"] if isinstance(x, dict) else x
        return {"a": jax.random.normal(key, (x.shape[-1], self.num)), "b": jnp.ones(self.num)}

    def apply(self, params: dict[str, jax.Array], x: Any) -> jax.Array:
        x = x["x"] if isinstance(x, dict) else x
        return x @ params["a"] + params["b"].reshape((1,) * (x.ndim - 1) + (-1,))


MODEL, ONE_HOT = Linear(), Linear(3)


def make(**options: Any) -> Any:
    """Build the regression of this module with some options."""
    given = {"clients": NAMES} | options
    loss = given.pop("loss", problems.squared_error)
    data = given.pop("data", (INPUTS, TARGETS))
    return problems.supervised(given.pop("model", MODEL), loss, data, **given)


def test_losses_and_metrics_are_means_by_hand() -> None:
    """Clients stand in the order of their sorted names; a share of each is held out."""
    problem = make(metrics={"mae": problems.absolute_error}, test=0.4, per_client=True)
    assert problem.client_ids == ("Bonn", "Oslo", "Rome")
    np.testing.assert_array_equal(problem.counts, [1, 3, 2])
    np.testing.assert_array_equal(problem.test_held.counts, [1, 2, 1])
    params = jax.tree.map(np.asarray, problem.init(KEY))
    error = np.asarray(INPUTS @ params["a"] + params["b"])[:, 0] - TARGETS
    owned = []
    loss_of, client_loss = jax.jit(problem.loss), jax.jit(problem.client_loss)
    for i, name in enumerate(problem.client_ids):
        train, test = (
            np.asarray(held.at(i, np.arange(held.counts[i])))
            for held in (problem.held, problem.test_held)
        )
        assert {*train, *test} == {row for row, other in enumerate(NAMES) if other == name}
        assert not set(train) & set(test)
        owned.append(test)
        loss = loss_of(params, jnp.int32(i), jnp.array([0, 0]), KEY)
        np.testing.assert_allclose(loss, error[train[0]] ** 2, rtol=1e-5)
        whole = client_loss(params, jnp.int32(i), KEY)
        np.testing.assert_allclose(whole, np.mean(error[train] ** 2), rtol=1e-5)
    found = jax.jit(problem.evaluate)(params)
    tested = np.concatenate(owned)
    np.testing.assert_allclose(found["loss"], np.mean(error[tested] ** 2), rtol=1e-5)
    np.testing.assert_allclose(found["mae"], np.mean(np.abs(error[tested])), rtol=1e-5)
    of_clients = [np.mean(np.abs(error[rows])) for rows in owned]
    np.testing.assert_allclose(found["client_mae[client]"], of_clients, rtol=1e-5)


def test_masks_and_pytrees_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means are over the entries that count, over all examples together.

    Clients' examples are evaluated in blocks, and on accelerators clients are too.
    """
    series = np.random.default_rng(1).normal(size=(10, 4, 3)).astype("float32")
    lengths = np.array([1, 4, 2, 3, 1, 4, 2, 2, 3, 4])
    values = np.random.default_rng(2).normal(size=(10, 4)).astype("float32")
    problem = make(
        data=({"x": series}, {"y": values, "length": lengths}),
        loss=lambda outputs, targets: jnp.abs(outputs[..., 0] - targets["y"]),
        mask=lambda targets: jnp.arange(4)[None] < targets["length"][:, None],
        test=({"x": series[:7]}, {"y": values[:7], "length": lengths[:7]}),
        test_clients=[*NAMES[:7]],
        test_block=3,
        per_client=True,
    )
    params = jax.tree.map(np.asarray, problem.init(KEY))
    error = np.abs(np.asarray(series @ params["a"] + params["b"])[..., 0] - values)
    counted = [error[i, : lengths[i]] for i in range(10)]
    found = jax.jit(problem.evaluate)(params)
    np.testing.assert_allclose(found["loss"], np.concatenate(counted[:7]).mean(), rtol=1e-5)
    oslo = [row for row, name in enumerate(NAMES) if name == "Oslo"]
    expected = np.concatenate([counted[row] for row in oslo if row < 7]).mean()
    np.testing.assert_allclose(found["client_loss[client]"][1], expected, rtol=1e-5)
    expected = np.concatenate([counted[row] for row in oslo]).mean()
    np.testing.assert_allclose(problem.client_loss(params, jnp.int32(1), KEY), expected, rtol=1e-5)
    monkeypatch.setattr(supervision, "OWN_AT_ONCE", 2)
    with tracing_for("gpu"):
        blocks = problem.evaluate_clients(lambda client: params)
    np.testing.assert_allclose(blocks["loss"], found["client_loss[client]"], rtol=1e-5)


def test_several_labels_and_a_metric_along_classes() -> None:
    labels = (np.arange(30).reshape(10, 3) % 4 < 2).astype("int32")
    hits = problems.Metric(
        lambda outputs, targets: (outputs > 0) == (targets == 1),
        dims=("label",),
        labels=(("u", "v", "w"),),
    )
    problem = make(
        model=ONE_HOT,
        data=(INPUTS, labels),
        loss=problems.binary_cross_entropy,
        metrics={"hits": hits},
        test=(INPUTS, labels),
    )
    params = jax.tree.map(np.asarray, problem.init(KEY))
    logits = np.asarray(INPUTS @ params["a"] + params["b"])
    found = jax.jit(problem.evaluate)(params)
    expected = ((logits > 0) == (labels == 1)).mean(axis=0)
    np.testing.assert_allclose(found["hits[label]"], expected, rtol=1e-6)
    losses = np.log1p(np.exp(logits)) - labels * logits
    np.testing.assert_allclose(found["loss"], losses.mean(), rtol=1e-5)
    assert problem.metric_labels["label"] == ("u", "v", "w")


def test_classification_is_a_case_of_it() -> None:
    """The same digits, scaled by hand, have the same losses."""
    digits = datasets.load("digits")
    split = partition.iid(digits.train_labels, num_clients=3, seed=0)
    wide = fedjax_sim.models.LogisticRegression(10)
    special = problems.make_classification(wide, digits, split)
    general = problems.supervised(
        wide,
        problems.cross_entropy,
        (digits.train_images / np.float32(255), digits.train_labels),
        split,
        metrics={"accuracy": problems.is_right},
        test=(digits.test_images / np.float32(255), digits.test_labels),
    )
    params, rows = special.init(KEY), jnp.arange(20)

    @jax.jit
    def measured(problem: Any) -> Any:
        return problem.evaluate(params), problem.loss(params, jnp.int32(1), rows, KEY)

    for one, other in zip(measured(special), measured(general), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, other)


def test_one_problem_per_partition() -> None:
    """They share the data, and have one form although clients hold other numbers of examples."""
    splits = [
        Partition(np.arange(10), np.array([6, 4])),
        Partition(np.arange(10), np.array([5, 5])),
    ]
    made = problems.supervised(MODEL, problems.squared_error, (INPUTS, TARGETS), splits, test=0.4)
    assert made[0].data[0] is made[1].data[0] is made[0].test_data[0]
    shapes = [jax.tree.map(jnp.shape, each) for each in made]
    assert jax.tree.leaves(shapes[0]) == jax.tree.leaves(shapes[1])
    for each, num in zip(made, (2 + 1, 2 + 2), strict=True):
        assert each.num_tests == num
        params = jax.tree.map(np.asarray, each.init(KEY))
        rows = np.asarray(each.test_rows[:num])
        error = np.asarray(INPUTS @ params["a"] + params["b"])[:, 0] - TARGETS
        expected = np.mean(error[rows] ** 2)
        np.testing.assert_allclose(jax.jit(each.evaluate)(params)["loss"], expected, rtol=1e-5)


@pytest.fixture(scope="module")
def trained() -> Any:
    """Return a run whose matrix is frozen, and its problem."""
    start = {"a": np.arange(3.0).reshape(3, 1), "b": np.array([7.0])}
    problem = make(start=start, frozen="^a$")
    hyper = fedavg.paper(num_clients=3, num_selected=2, local_steps=2, batch_size=2, lr=0.1)
    return problem, fedjax_sim.simulate(
        fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(3), num_evals=1
    )


def test_frozen_leaves_are_neither_trained_nor_sent(trained: Any) -> None:
    """Only the bias is a model; its 32 bits are all that is sent. It starts where it should."""
    problem, run = trained
    assert run.models["a"] is None
    assert problem.init(KEY) == {"a": None, "b": jnp.array([7.0])}
    whole = problem.parameters(run.models)
    np.testing.assert_array_equal(whole["a"], np.arange(3.0).reshape(3, 1))
    assert int(run.curves.uplink_bits[-1]) == 3 * 2 * 32
    assert run.models["b"] != 7
    by_hand = np.mean((INPUTS @ np.arange(3.0) + 7 - TARGETS)[np.asarray(problem.test_rows)] ** 2)
    np.testing.assert_allclose(run.curves.loss[0], by_hand, rtol=1e-5)


def test_a_start_may_be_a_part() -> None:
    """What it lacks is drawn, as without it."""
    problem = make(start={"b": np.array([7.0])})
    params = jax.tree.map(np.asarray, problem.init(KEY))
    np.testing.assert_array_equal(params["a"], make().init(KEY)["a"])
    np.testing.assert_array_equal(params["b"], [7.0])


def test_ids_may_be_anything_that_can_be_sorted() -> None:
    ids = [("b", 1), ("a", 7), ("a", 2), ("b", 1), ("a", 7)]
    split, names = problems.partition_by_ids(ids)
    assert names == (("a", 2), ("a", 7), ("b", 1))
    np.testing.assert_array_equal(split.counts, [1, 2, 2])
    np.testing.assert_array_equal(split.rows()[1], [1, 4])
    for unsorted in ([1, "1"], [frozenset({1}), frozenset({2})], [(1, 2), (1, "a")]):
        with pytest.raises(ConfigError, match=r"clients' ids is .*, but must be of one kind that"):
            problems.partition_by_ids(unsorted)


@pytest.mark.parametrize("ids", [[3, 3, 0, 0], [1, 0, 1, 2], ["b", "a", "b", "c"]])
def test_all_problems_number_clients_by_their_sorted_ids(ids: list) -> None:
    """Results of every client carry its id, whichever function made the problem."""
    x = INPUTS[:4]
    supervised = make(data=(x, TARGETS[:4]), clients=ids, test=(x, TARGETS[:4]), test_clients=ids)
    posterior = problems.from_logdensity(
        lambda mean, example: -((example[1] - mean[0]) ** 2),
        lambda mean: 0.0 * mean.sum(),
        (x, TARGETS[:4]),
        ids,
        start=jnp.zeros(1),
        per_client=True,
    )
    for problem in (supervised, posterior, dataclasses.replace(posterior, start=jnp.ones(1))):
        assert list(problem.client_ids) == sorted(set(ids))
        for i, name in enumerate(problem.client_ids):
            rows = np.asarray(problem.held.at(i, np.arange(problem.counts[i])))
            assert [ids[row] for row in rows] == [name] * ids.count(name)
    hyper = fedavg.Hyper(num_selected=1, local_steps=1, batch_size=1, lr=0.1)
    run = fedjax_sim.simulate(fedavg.system, posterior, hyper, budget=fedjax_sim.Ticks(1))
    assert run.curves.client.values.tolist() == sorted(set(ids))


def test_dataframes() -> None:
    table = pd.DataFrame(
        {"x": [1.0, 2, 3], "n": [4, 5, 6], "y": [0.5, 1.5, 2.5], "who": list("aba")}
    )
    data = problems.from_dataframe(table, target="y", client="who")
    np.testing.assert_array_equal(data.inputs, np.array([[1, 4], [2, 5], [3, 6]], "float32"))
    assert data.targets.dtype == np.float32
    assert data.clients == ["a", "b", "a"]
    both = problems.from_dataframe(table, target=["n"], features=["x"])
    assert both.targets.tolist() == [[4], [5], [6]]
    assert both.targets.dtype == np.int32
    of_index = problems.from_dataframe(table, target=table.columns[1:2], features=table.columns[:1])
    np.testing.assert_array_equal(of_index.inputs, both.inputs)
    table["id"] = [0, -(2**31), 2**31]
    with pytest.raises(ConfigError, match="largest number in column id is 2147483648, but must"):
        problems.from_dataframe(table, target=["n", "id"], features=["x"])
    del table["id"]
    for options, words in (
        ({"target": "z"}, "column is 'z', but must be one of x, n, y, who"),
        ({"target": "y"}, "type of column who is 'str', but must be a kind of number"),
        ({"target": "y", "features": []}, "type of column who"),
    ):
        with pytest.raises(ConfigError, match=words):
            problems.from_dataframe(table, **options)
    with pytest.raises(ConfigError, match="column is 'x', but must be in the table once"):
        problems.from_dataframe(pd.concat([table[["x"]], table], axis=1), target="n", client="who")
    table.loc[1, "x"] = np.nan
    with pytest.raises(ConfigError, match="row 1 of column x is nan, but must be a finite number"):
        problems.from_dataframe(table, target="y", client="who")


def test_missing_names_of_clients_are_refused() -> None:
    """Those of a nullable column are neither equal to themselves nor different."""
    table = pd.DataFrame({"x": [1.0, 2], "y": [0.5, 1.5], "who": ["a", pd.NA]}, dtype=object)
    table = table.astype({"x": float, "y": float, "who": "string"})
    data = problems.from_dataframe(table, target="y", client="who")
    for missing in (data.clients, ["a", float("nan")], ["a", np.float64("nan")], ["a", pd.NaT]):
        with pytest.raises(ConfigError, match=r"client of example 1 is .*, but must be given"):
            problems.partition_by_ids(missing)
    assert problems.partition_by_ids(np.array(["a", "b"]))[1] == ("a", "b")


def test_clients_whose_models_diverged_have_an_infinite_loss() -> None:
    """Nan would say that there is nothing to measure."""
    problem = make()
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, problem.init(KEY))
    assert np.isinf(problem.evaluate_clients(lambda client: params)["loss"]).all()


def test_the_client_without_test_examples_is_named() -> None:
    """It may have some in the partition of another seed."""
    even = partition.Partition(np.arange(10), np.array([5, 5]))
    uneven = partition.Partition(np.arange(10), np.array([9, 1]))
    with pytest.raises(ConfigError, match="number of test examples of client 1 is 0, but must be"):
        make(clients=None, split=[even, uneven], per_client=True)


CLASSES = (INPUTS, np.arange(10) % 3)
LATE = np.arange(10) % 5
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"loss": lambda o, t: (o - t[None]) ** 2},
        r"shape of the loss is \(2, 2\), but must be \(2,\) for",
    ),
    ({"loss": lambda o, t: jnp.mean(o)}, r"shape of the loss is \(\), but must be \(2,\)"),
    (
        {"metrics": {"mae": lambda o, t: jnp.abs(o - t[None])}},
        r"shape of the metric mae is \(2, 2\)",
    ),
    ({"metrics": {"mae": lambda o, t: t.nothing}}, "metric mae is '<lambda>', but must be a func"),
    ({"metrics": {"loss": problems.absolute_error}}, "name of a metric is 'loss'"),
    ({"metrics": {"top/5": problems.absolute_error}}, "name of a metric is 'top/5'"),
    ({"metrics": {"": problems.absolute_error}}, "name of a metric is ''"),
    (
        {"metrics": {"m": problems.Metric(problems.absolute_error, dims=("class",))}},
        r"shape of the metric m is \(2,\), but must be \(2, class\)",
    ),
    (
        {"loss": problems.cross_entropy, "model": ONE_HOT},
        "dtype of the targets is 'float32', but m",
    ),
    (
        {"loss": problems.cross_entropy, "model": ONE_HOT, "data": (INPUTS, np.arange(10) % 7)},
        "largest class in data is 6, but must be at most 2, as the network has 3 outputs",
    ),
    (
        {"loss": problems.cross_entropy, "model": ONE_HOT, "data": (INPUTS, np.arange(10) % 3 - 1)},
        "smallest class in data is -1, but must be at least 0",
    ),
    (
        {"loss": problems.cross_entropy, "model": ONE_HOT, "data": CLASSES, "test": (INPUTS, LATE)},
        "largest class in test is 4, but",
    ),
    (
        {"metrics": [problems.is_right]},
        "metrics is .*is_right.*, but must be a mapping from text to a function",
    ),
    ({"clients": None, "split": [np.arange(5)]}, "split is \\[array\\(.*, but must be a Partition"),
    (
        {"loss": problems.cross_entropy, "data": (INPUTS, TARGETS[:9])},
        "examples in the arrays of d",
    ),
    (
        {"data": (INPUTS, TARGETS, TARGETS)},
        "data is 'tuple', but must be a pair of inputs and targ",
    ),
    ({"data": (INPUTS * np.nan, TARGETS)}, "data/0 is 'an array with nan or inf', but must be fin"),
    (
        {"data": (np.array(["a"] * 10), TARGETS)},
        r"an array of data is '<U1\[10\]', but must be numb",
    ),
    (
        {"data": (list(INPUTS[0]), TARGETS)},
        r"an array of data is 'float32\[\]', but must be numbers",
    ),
    (
        {"data": (INPUTS, np.arange(10) + 2**32)},
        "largest number in data/1 is 4294967305, but must be at most 2147483647",
    ),
    (
        {
            "data": {"x": INPUTS, "y": -(np.arange(10) + 2**32)},
            "prepare": lambda d: (d["x"], d["y"]),
        },
        "smallest number in data/y is -4294967305, but must be at least -2147483648",
    ),
    ({"clients": None}, "split is None, but must be a partition, or else left out"),
    ({"clients": NAMES[:4]}, "length of clients is 4, but must be 10, the number of examples"),
    ({"clients": [*NAMES[:9], None]}, "client of example 9 is None, but must be given"),
    ({"clients": [*NAMES[:9], []]}, r"client of example 9 is \[\], but must be given"),
    ({"test": 1.5}, "test is 1.5, but must be data, or a share above 0 and below 1"),
    (
        {"test": (INPUTS[:, :2], TARGETS)},
        r"examples of test is '\(float32\[2, 2\], float32\[2\]\)'",
    ),
    ({"clients": [*NAMES[:9], "Pisa"], "per_client": True}, "examples of client 'Pisa' is 0, but"),
    ({"test": (INPUTS, TARGETS), "per_client": True}, "per_client is True, but must be False, unl"),
    (
        {"test": (INPUTS, TARGETS), "test_clients": ["Pisa"] * 10},
        "client in test_clients is 'Pisa'",
    ),
    ({"model": Linear}, "model is 'Linear', but must be an object with init and apply"),
    (
        {"model": fedjax_sim.models.LeNet(2)},
        "model is 'LeNet', but must be a network that takes in",
    ),
    ({"mask": lambda t: t}, "mask of two examples is 'float32"),
    (
        {"mask": lambda t: t > 1e9},
        "mask of example 0 of data is False, but must be true of at leas",
    ),
    ({"start": {"c": np.ones(1)}}, "leaf of start is 'c', but must be one of a, b"),
    ({"start": {"b": np.ones(2)}}, r"shape of b in start is \(2,\), but must be \(1,\)"),
    ({"frozen": "a"}, "frozen leaf is 'a', but must be in start"),
    ({"frozen": "z", "start": {"b": np.ones(1)}}, "frozen is 'z', but must be true of some, but n"),
    ({"frozen": "(", "start": {"b": np.ones(1)}}, r"frozen is '\(', but must be a regular express"),
    ({"prior_precision": -1.0}, "prior_precision is -1.0"),
    ({"test_block": 0}, "test_block is 0"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words[:30] for _, words in REFUSED])
def test_what_does_not_fit_is_refused_in_one_sentence(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        make(**options)
    assert "\n" not in str(refusal.value)


def test_float_labels_of_images_are_refused() -> None:
    images, labels = np.zeros((4, 2, 2, 1), np.uint8), np.array([0.0, 1.5, 1, 0])
    data = datasets.Dataset(images, labels, images, labels, 2, "floats")
    split = Partition(np.arange(4), np.array([2, 2]))
    with pytest.raises(ConfigError, match="dtype of train_labels is 'float64', but must be an int"):
        problems.make_classification(fedjax_sim.models.MLP((), 2), data, split)


def test_a_network_without_an_output_for_each_class_is_refused() -> None:
    """The examples of further classes would have no loss."""
    images, labels = np.zeros((4, 2, 2, 1), np.uint8), np.array([0, 1, 2, 0])
    data = datasets.Dataset(images, labels, images, labels, 3, "three")
    split = Partition(np.arange(4), np.array([2, 2]))
    with pytest.raises(ConfigError, match="largest class in train_labels is 2, but must be at mo"):
        problems.make_classification(fedjax_sim.models.MLP((), 2), data, split)


def test_classes_from_1_are_refused_with_a_loss_of_the_users_own() -> None:
    """A last class that is no output would have the loss 0 of a one-hot code without a 1."""
    inputs, labels = np.zeros((6, 2), "float32"), np.array([1, 2, 3, 1, 2, 3])

    def doubled(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return 2 * problems.cross_entropy(logits, labels)

    how: dict[str, Any] = {"clients": [*"aaabbb"], "metrics": {"accuracy": problems.is_right}}
    with pytest.raises(ConfigError, match="largest class in data is 3, but must be at most 2"):
        problems.supervised(fedjax_sim.models.MLP((), 3), doubled, (inputs, labels), **how)


def test_unknown_options_are_named() -> None:
    with pytest.raises(TypeError, match="metric"):
        make(metric={})  # A misspelt `metrics`.


def test_names_of_optimizers_are_for_the_command_line() -> None:
    hyper = fedavg.paper(num_clients=3, optimizer="adam")
    with pytest.raises(
        ConfigError, match=r"training\.optimizer is 'adam', but must be a function such as opt"
    ):
        fedjax_sim.simulate(fedavg.system, make(), hyper, budget=fedjax_sim.Ticks(2))
    fedjax_sim.core.settings.check(fedavg.paper(optimizer=optax.adam))


@pytest.fixture
def refuse(compiled: list[str]) -> Callable[..., None]:
    """Return a function that checks that a sweep is refused before training is compiled."""

    def check(tasks: Any, words: str) -> None:
        hyper = fedavg.paper(num_clients=3, num_selected=2, local_steps=2, batch_size=2, lr=0.1)
        with pytest.raises(ConfigError, match=words):
            fedjax_sim.sweep(fedavg.system, tasks, hyper, seeds=2, budget=fedjax_sim.Ticks(2))
        assert not [name for name in compiled if "advance" in name or "begin" in name]

    return check


@pytest.mark.slow
def test_problems_of_other_shapes_in_one_call_are_refused(refuse: Callable) -> None:
    wide = make(data=(np.ones((10, 4), "float32"), TARGETS))
    refuse(
        [make(), wide], r"shapes of a problem's model is .*\(4, 1\).*, but must be those of anot"
    )
    labelled = [
        make(metrics={"m": problems.Metric(lambda o, t, k=k: jnp.ones((len(t), k)), dims=("d",))})
        for k in (2, 3)
    ]
    refuse(labelled, r"shapes of a problem's metrics is .*\(3,\)")
