"""NVFlare's CIFAR-10: network, split, images, rates, rounds of each algorithm, and what counts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from flax import linen as nn

import fedjax_sim
from experiments.harness import Arguments
from experiments.reproductions import niid_bench, nvflare, scaffold
from fedjax_sim import problems
from fedjax_sim.core.schedules import Constant
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.partition import label_histogram
from fedjax_sim.partition.parts import gather_by_owner

ROUNDS = 3


def test_the_network_has_the_sources_parameters_and_dropouts() -> None:
    """(3 9 + 1) 32 + (32 9 + 1) 64 + ... + (4096 + 1) 512 + 513 512 + 513 10 parameters."""
    dropped = []

    def listen(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if isinstance(module, nn.Dropout):
            assert not module.deterministic
            dropped.append((module.rate, tuple(module.broadcast_dims), args[0].shape))
        return call(*args, **kwargs)

    def both(images: jax.Array) -> Any:
        params = nvflare.ModerateCNN().init(jax.random.key(0), images)
        with nn.intercept_methods(listen):
            rngs = {"dropout": jax.random.key(1)}
            return params, nvflare.ModerateCNN().apply(params, images, train=True, rngs=rngs)

    params, logits = jax.eval_shape(both, jnp.zeros((2, 32, 32, 3)))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 3_491_530
    assert logits.shape == (2, 10)
    channels = (0.05, (-3, -2), (2, 8, 8, 128))
    assert dropped == [channels, (0.1, (), (2, 4096)), (0.1, (), (2, 512))]


@pytest.mark.parametrize(
    ("alpha", "bars"),
    [
        (1.0, (7400, 4050, 6650, 6440, 6880, 6600, 5600, 6370)),
        (0.1, (9240, 5030, 7230, 2010, 2870, 7890, 7490, 8250)),
    ],
)
def test_the_split_is_that_of_the_sources_figure(alpha: float, bars: tuple[int, ...]) -> None:
    """Bars are read off figs/label_distributions.png. The order of labels does not matter."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    split = nvflare.split_of(labels, alpha)
    np.testing.assert_array_equal(np.sort(split.index), np.arange(50_000))
    np.testing.assert_allclose(split.counts, bars, atol=25)
    if alpha == 0.1:
        held = label_histogram(split, labels, 10)
        most = {0: (6, 4800), 1: (8, 5000), 2: (3, 3730), 5: (7, 3600), 6: (5, 4320), 7: (9, 4970)}
        for client, (label, number) in most.items():
            assert held[client].argmax() == label and abs(held[client, label] - number) < 50


def test_images_are_cropped_from_reflections_and_mirrored() -> None:
    image = np.arange(32 * 32, dtype="int32").reshape(32, 32)
    images = jnp.broadcast_to(jnp.asarray(image)[None, :, :, None], (1000, 32, 32, 1))
    labels = jnp.arange(1000)
    changed, kept = nvflare.augmented(jax.random.key(0), (images, labels))
    np.testing.assert_array_equal(kept, labels)
    padded, seen = np.pad(image, 4, mode="reflect"), []
    for each in np.asarray(changed)[..., 0]:
        is_mirrored = each[16, 17] < each[16, 16]
        straight = each[:, ::-1] if is_mirrored else each
        down, right = np.divmod(straight[16, 16], 32) - np.array(12)
        np.testing.assert_array_equal(straight, padded[down:, right:][:32, :32])
        seen.append((down, right, is_mirrored))
    numbers = [np.bincount(np.array(each, int)) for each in zip(*seen, strict=True)]
    for number, choices in zip(numbers, (9, 9, 2), strict=True):
        error = np.sqrt(1000 * (1 - 1 / choices) / choices)
        assert len(number) == choices and (abs(number - 1000 / choices) < 5 * error).all()


def test_grey_images_get_three_channels() -> None:
    images = jnp.full((2, 4, 4, 1), 123, "uint8")
    scaled, _ = nvflare.normalised((images, jnp.zeros(2)))
    expected = [(123 - 125.3) / 63.0, 0.0, (123 - 113.9) / 66.7]
    np.testing.assert_allclose(scaled[1, 3, 3], expected, atol=1e-6)


def rate_of(epoch: int, epochs: int) -> float:
    """Follow CosineAnnealingLR with eta_min a hundredth of 0.05, in its closed form."""
    return float(5e-4 + (0.05 - 5e-4) * (1 + np.cos(np.pi * epoch / epochs)) / 2)


def test_rates_fall_from_epoch_to_epoch_and_momentum_lasts() -> None:
    """Ten steps a round: epochs of 3, 2, 3 and 2 of them. Gradients are 1."""
    made = nvflare.by_epoch(jnp.float32(0.05) * 10, epochs=4, rounds=50)
    params = jnp.zeros(1)

    def take(state: optax.OptState, _: None) -> tuple[optax.OptState, jax.Array]:
        update, state = made.update(jnp.ones(1), state, params)
        return state, update[0]

    moves = jax.lax.scan(take, made.init(params), None, length=500)[1]
    steps = np.arange(500)
    rates = [rate_of(4 * (step // 10) + (step % 10 * 4) // 10, 200) for step in range(500)]
    expected = -np.array(rates) * (1 - 0.9 ** (steps + 1)) / (1 - 0.9)
    np.testing.assert_allclose(moves, expected, rtol=2e-5)


def expected_model(name: str, centres: np.ndarray, counts: np.ndarray, mu: float) -> np.ndarray:
    """Follow the source's client and server line by line, with gradients y - centre."""
    x, c, speed = np.zeros(2), np.zeros(2), np.zeros(2)
    momentum, own = np.zeros((8, 2)), np.zeros((8, 2))
    for t in range(ROUNDS):
        progress, gain = np.zeros(2), np.zeros(2)
        for i, weight in enumerate(counts / counts.sum()):
            y, steps = x.copy(), counts[i] // 16
            momentum[i] *= name != "fresh"
            for q in range(steps):
                rate = 0.05 if name == "fresh" else rate_of(4 * t + 4 * q // steps, 4 * ROUNDS)
                momentum[i] = 0.9 * momentum[i] + (y - centres[i]) + mu * (y - x)
                y -= rate * momentum[i]
                if name in ("SCAFFOLD", "fresh"):
                    y -= rate * (c - own[i])
            after = own[i] - c + (x - y) / (steps * rate)
            progress, gain = progress + weight * (y - x), gain + weight * (after - own[i])
            own[i] = after
        if name == "FedOpt":
            speed = 0.6 * speed + progress
            progress = speed * (0.9 + 0.1 * (1 + np.cos(np.pi * t / ROUNDS)) / 2)
        x, c = x + progress, c + gain
    return x


class Place:
    """A model that is a point: its outputs are the ways to it from the examples."""

    def init(self, key: jax.Array, x: jax.Array, /) -> jax.Array:
        return jnp.zeros(x.shape[1:])

    def apply(self, params: jax.Array, x: jax.Array, /) -> jax.Array:
        return params[None] - x


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["FedProx", "FedOpt", "SCAFFOLD", "fresh"])
def test_rounds_are_the_sources(name: str) -> None:
    """All examples of a client are the same point, so its gradients are known.

    "fresh" is the SCAFFOLD of `niid_bench`, with one rate and momentum that begins anew.

    Clients make one to eight steps a round, and weigh as much as they have examples. FedAvg is
    FedProx without mu.
    """
    centres = np.random.default_rng(0).normal(size=(8, 2))
    counts = 16 * np.arange(1, 9)
    owner = np.repeat(np.arange(8), counts)
    points = centres[owner].astype("float32")
    problem = problems.supervised(
        Place(),
        lambda ways, _: (ways**2).sum(-1) / 2,
        (points, np.zeros(len(points))),
        gather_by_owner(np.arange(len(points)), owner, 8),
        test=(points, np.zeros(len(points))),
    )
    known = "SCAFFOLD" if name == "fresh" else name
    hyper, mu = nvflare.hyper_of(known, epochs=4, rounds=ROUNDS), 0.0
    if name == "fresh":
        assert niid_bench.SYSTEMS["SCAFFOLD"][1] == {"optimizer": scaffold.constant}
        local = {
            "optimizer": scaffold.constant,
            "optimizer_state": "fresh",
            "lr_schedule": Constant(),
        }
        hyper = hyper.replace(**local)
    if name == "FedProx":
        assert hyper.proximal == 1e-5
        mu = 0.3
        hyper = hyper.replace(proximal=mu)  # type: ignore[attr-defined]
    system = nvflare.SYSTEMS[known][0]
    if known == "SCAFFOLD":
        few = hyper.replace(num_selected=4)
        with pytest.raises(ConfigError, match="num_selected is 4, but must be all 8 clients"):
            fedjax_sim.simulate(system, problem, few, budget=fedjax_sim.Ticks(1))
    found = fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(ROUNDS)).models
    expected = expected_model(name, centres, counts, mu)
    np.testing.assert_allclose(np.asarray(found).ravel(), expected, rtol=1e-4, atol=1e-6)


def test_the_best_model_that_clients_received_counts_and_other_data_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last evaluation is of a model that no client receives."""
    rng, labels = np.random.default_rng(0), np.arange(800) % 10
    images = rng.integers(0, 256, (800, 8, 8, 3)).astype("uint8")
    np.savez(
        tmp_path / "own.npz",
        train_images=images,
        train_labels=labels,
        test_images=images[:20],
        test_labels=labels[:20],
    )

    def swept(*_: Any, **options: Any) -> SimpleNamespace:
        accuracy = np.full((3, 51), 0.5)
        accuracy[:, 30], accuracy[:, 49], accuracy[:, 50] = 0.85, 0.75, 0.95
        assert options["num_evals"] == 50 and options["seeds"] == 3
        return SimpleNamespace(curves=xr.Dataset({"accuracy": (("seed", "eval"), accuracy)}))

    monkeypatch.setattr(fedjax_sim, "sweep", swept)
    arguments = Arguments(dataset=str(tmp_path / "own.npz"), only="FedAvg 0.1,SCAFFOLD 0.1")
    outcome = nvflare.run(arguments)
    assert outcome.config["ours"]["FedAvg 0.1"].mean == pytest.approx(85)
    assert outcome.config["last"]["SCAFFOLD 0.1"].mean == pytest.approx(75)
    assert "own.npz in place of cifar10" in outcome.text and outcome.panel
    assert outcome.text.count("| not run") == 2 and "| fails" not in outcome.text
