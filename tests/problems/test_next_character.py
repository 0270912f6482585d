"""Next-character prediction on plays: losses by hand, learning, and the command line."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.cli.commands import main
from fedjax_sim.cli.data import own_sequences
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.datasets import text as texts
from fedjax_sim.systems import fedavg
from tests.datasets.plays import PLAY


class Bigrams:
    """A model whose parameters are the logits of the next character, for each character."""

    def __init__(self, num: int):
        self.num = num

    def init(self, key: jax.Array, x: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.num, self.num))

    def apply(self, params: jax.Array, x: jax.Array) -> jax.Array:
        return params[x]


def test_chance_is_what_the_best_constant_guess_attains(play: datasets.Text) -> None:
    """A character without a code counts as wrong for every guess."""
    problem = problems.make_next_characters(Bigrams(play.num_classes), play, [speakers_of(play)])[0]
    constant = [
        float(problem.evaluate(jnp.zeros((play.num_classes,) * 2).at[:, c].set(1))["accuracy"])
        for c in range(play.num_classes)
    ]
    targets = int((play.test_sequences[:, 1:] != texts.PADDING).sum())
    assert 0 < problem.chance()["accuracy"] - max(constant) < 1 / targets


@pytest.fixture(scope="module")
def play() -> datasets.Text:
    return datasets.from_text(PLAY, sequence_length=4, held_out=0.45, min_characters=8, name="play")


def speakers_of(data: datasets.Text) -> partition.Partition:
    return partition.natural(
        data.train_speakers, client_ids=data.train_clients, num_clients=len(data.speakers), seed=0
    )


def test_loss_and_metrics_by_hand(play: datasets.Text) -> None:
    """Both are means over characters, without padding.

    A target without a code adds its loss, but no prediction of it counts as correct.
    """
    problem = problems.make_next_characters(Bigrams(play.num_classes), play, [speakers_of(play)])[0]
    params = problem.init(jax.random.key(3))
    log_probability = np.asarray(jax.nn.log_softmax(params))

    def by_hand(rows: np.ndarray) -> tuple[float, float]:
        pairs = [(a, b) for row in rows for a, b in itertools.pairwise(row) if b != texts.PADDING]
        right = [np.argmax(log_probability[a]) == b != texts.UNKNOWN for a, b in pairs]
        return -float(np.mean([log_probability[pair] for pair in pairs])), float(np.mean(right))

    for client in range(2):
        sequences = play.train_sequences[play.train_speakers == client]
        assert problem.counts[client] == len(sequences)
        picked = np.array([len(sequences) - 1, 0, 0])  # the padded sequence, and another one twice
        loss = problem.loss(params, jnp.asarray(client), jnp.asarray(picked), jax.random.key(0))
        assert float(loss) == pytest.approx(by_hand(sequences[picked])[0], rel=1e-5)
    found = problem.evaluate(params)
    loss, accuracy = by_hand(play.test_sequences)
    assert float(found["loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(found["accuracy"]) == pytest.approx(accuracy, rel=1e-5)
    # The test text has a "!", which has no code; to predict "no code" does not count as correct.
    assert np.sum(play.test_sequences[:, 1:] == texts.UNKNOWN) == 1
    predicts_unknown = jnp.zeros((play.num_classes,) * 2).at[:, texts.UNKNOWN].set(50.0)
    assert float(problem.evaluate(predicts_unknown)["accuracy"]) == 0


def test_evaluation_in_batches_is_the_same(play: datasets.Text) -> None:
    problem = problems.make_next_characters(Bigrams(play.num_classes), play, [speakers_of(play)])[0]
    params = problem.init(jax.random.key(3))
    whole = problem.evaluate(params)
    assert len(play.test_sequences) == 6
    for name, value in problem.replace(test_block=4).evaluate(params).items():
        assert float(value) == pytest.approx(float(whole[name]), rel=1e-6)


@pytest.mark.slow
def test_a_network_learns_two_speakers_in_the_engine(play: datasets.Text) -> None:
    """The speakers have different numbers of sequences, and each repeats one word."""
    text = "\n\n".join(
        f"{name}:\n{words * times}" for name, words, times in (("A", "abc ", 20), ("B", "dca, ", 9))
    )
    data = datasets.from_text(text, sequence_length=6, min_characters=8, name="two")
    problem = problems.make_next_characters(
        models.CharacterRNN(data.num_classes, 4, (12,), "gru"), data, [speakers_of(data)]
    )[0]
    assert problem.counts[0] != problem.counts[1]
    hyper = fedavg.paper(
        num_clients=2, num_selected=2, local_steps=5, batch_size=4, lr=0.02, optimizer=optax.adam
    )
    curves = fedjax_sim.simulate(
        fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(40), num_evals=2
    ).curves
    assert float(curves.loss[-1]) < 0.6 * float(curves.loss[0])
    assert float(curves.accuracy[-1]) > 0.6


def test_speakers_are_measured_on_their_test_sequences(play: datasets.Text) -> None:
    """As `fedjax-sim run --per-client` does; both losses by hand."""
    natural = speakers_of(play)
    own = own_sequences(play, natural)
    (problem,) = problems.make_next_characters(
        Bigrams(play.num_classes), play, [natural], per_client=True, test_partition=[own]
    )
    params = problem.init(jax.random.key(0))
    losses = problem.evaluate(params)["client_loss[client]"]
    logs = np.asarray(jax.nn.log_softmax(params))
    for client in range(len(play.speakers)):
        sequences = play.test_sequences[play.test_speakers == client].astype(int)
        there = sequences[:, 1:] != texts.PADDING
        by_hand = -logs[sequences[:, :-1][there], sequences[:, 1:][there]].mean()
        np.testing.assert_allclose(losses[client], by_hand, rtol=1e-5)


def test_sequences_of_speakers_without_training_sequences_are_nobodys(
    play: datasets.Text,
) -> None:
    """-1 is not the last speaker."""
    speakers = play.test_speakers.copy()
    speakers[::2] = -1
    own = own_sequences(play._replace(test_speakers=speakers), speakers_of(play))
    for client, rows in enumerate(own.rows()):
        np.testing.assert_array_equal(rows, np.flatnonzero(speakers == client))


@pytest.mark.parametrize(("num", "clients"), [(2, 2), (0, 2), (1, 1)])
def test_speakers_tests_fit_the_partitions(play: datasets.Text, num: int, clients: int) -> None:
    """One partition of the tests for all, or one for each, of the same speakers."""
    natural = speakers_of(play)
    tests = [partition.parts.pack_rows(own_sequences(play, natural).rows()[:clients])] * num
    words = (
        f"partitions in test_partition is {num}, but must be 1, or as many as of the training"
        if clients == len(natural.counts)
        else "clients of test_partition is 1, but must be 2, as in the partition of the training"
    )
    with pytest.raises(ConfigError, match=words):
        problems.make_next_characters(
            Bigrams(play.num_classes), play, [natural], test_partition=tests
        )


def test_models_that_are_not_of_sequences_are_refused(play: datasets.Text) -> None:
    for model, words in (
        (
            models.MLP((3,), 8),
            r"shape of the outputs is \(2, 8\), but must be \(2, 4, K\)",
        ),
        (models.LeNet(8), r"model is 'LeNet', but must be a network that takes inputs int32\[2, 4"),
        (models.CharacterRNN(9), "model is 'CharacterRNN', but must be one with 8 logits for each"),
    ):
        with pytest.raises(ConfigError, match=words):
            problems.make_next_characters(model, play, [speakers_of(play)])
    bad = partition.Partition(np.array([100]), np.array([1]))
    with pytest.raises(ConfigError, match=r"partition\.index is 100"):
        problems.make_next_characters(Bigrams(play.num_classes), play, [bad])


def test_the_command_line_takes_a_text(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Wrong arguments are refused; a run with a text is tested above, from Python."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.txt").write_text("\n\n".join(f"S{i}:\n" + "word " * 80 for i in range(4)))
    arguments = [
        "run",
        "fedavg",
        "--dataset",
        "play.txt",
        "--set",
        "num_clients=4",
        "--set",
        "num_selected=2",
    ]
    for words, message in (
        (
            ["--model", "mlp32"],
            "shape of the outputs is (2, 7), but must be (2, 80, K), K logits",
        ),
        (["--augmentation", "flip"], "augmentation is 'flip', but must be none with a text"),
        (["--set", "local_steps=0"], "local_steps"),
        (
            ["--per-client", "--partition", "iid"],
            "per_client is True, but must be left out with a text, unless --partition natural",
        ),
        (["--dataset", "missing.txt"], "second --dataset"),
    ):
        assert main([*arguments, *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", "fedavg", "--partition", "natural"]) == 2
    assert (
        "partition is 'natural', but must be another one, as digits comes without clients"
        in capsys.readouterr().err
    )
