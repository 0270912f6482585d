"""Augmentation: uniform crops of bordered images, half mirrored, in local steps only."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import ConfigError, datasets, partition, problems
from fedjax_sim.core.streams import stream
from fedjax_sim.models import LogisticRegression
from fedjax_sim.problems.classification import AUGMENTATIONS, Augmentation

IMAGES = jax.random.randint(jax.random.key(0), (4000, 5, 6, 2), 1, 256).astype("uint8")


@pytest.mark.parametrize(("border", "mode"), [("black", "constant"), ("reflect", "reflect")])
def test_crops_are_uniform_over_shifts(border: Any, mode: Any) -> None:
    """Each of the 25 shifts is equally likely; dtype and shape stay.

    Counts over 4000 images are within 4.5 standard errors (p about 2e-4 over all shifts).
    """
    crop = Augmentation(pad=2, flip=False, border=border)
    made = np.asarray(jax.jit(crop)(jax.random.key(1), IMAGES))
    assert made.dtype == np.uint8
    padded = np.pad(np.asarray(IMAGES), ((0, 0), (2, 2), (2, 2), (0, 0)), mode=mode)
    every = np.stack([padded[:, i : i + 5, j : j + 6] for i in range(5) for j in range(5)])
    equal = (every == made).all(axis=(2, 3, 4))
    assert (equal.sum(axis=0) == 1).all()
    counts = equal.sum(axis=1).reshape(5, 5)
    np.testing.assert_allclose(counts, 160, atol=4.5 * (160 * 24 / 25) ** 0.5)


def test_half_of_the_images_are_mirrored() -> None:
    """Each image is as it was or mirrored; the share is within four standard errors of 1/2."""
    made = np.asarray(AUGMENTATIONS["flip"](jax.random.key(1), IMAGES.astype("float32")))
    assert made.dtype == np.float32
    images = np.asarray(IMAGES, np.float32)
    mirrored = (made == images[:, :, ::-1]).all((1, 2, 3))
    assert (mirrored | (made == images).all((1, 2, 3))).all()
    assert abs(mirrored.mean() - 0.5) < 4 * 0.5 / 4000**0.5


@pytest.mark.parametrize("shape", [(2, 3, 1), (5,)])
def test_crops_that_may_lose_whole_images_are_refused(shape: tuple[int, ...]) -> None:
    """A vector is an image of one pixel, which a crop would nearly always make 0."""
    images, labels = np.ones((6, *shape), np.float32), np.arange(6) % 2
    data = datasets.from_arrays(images, labels, images, labels)
    clients = partition.make("iid", labels, num_clients=2, seed=0)
    side = shape[0] if len(shape) > 1 else 1
    with pytest.raises(ConfigError, match=f"augmentation is .* a pad below {side}, the small"):
        problems.make_classification(
            LogisticRegression(2), data, clients, augmentation=Augmentation(pad=side)
        )


@pytest.mark.slow
def test_the_same_key_gives_the_same_images() -> None:
    augment = Augmentation()
    first, again, other = (augment(jax.random.key(seed), IMAGES) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.slow
def test_local_steps_see_changed_images_and_evaluation_does_not() -> None:
    """Images are changed before they are normalised, so black is the byte 0.

    The expected loss normalises channel by channel, by hand.
    """
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (30, 4, 4, 3)).astype(np.uint8)
    data = datasets.from_arrays(images, np.arange(30) % 3, images[:7], np.arange(7) % 3)
    shares = partition.make("iid", data.train_labels, num_clients=2, seed=0)
    model = LogisticRegression(3)
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    plain, changed = (
        problems.make_classification(model, data, shares, mean=mean, std=std, augmentation=how)
        for how in (None, Augmentation(pad=1))
    )
    params = plain.init(jax.random.key(3))
    client, examples, key = jnp.int32(1), jnp.array([2, 0, 5]), jax.random.key(9)
    rows = plain.held.at(client, examples)

    def loss(images: jax.Array) -> jax.Array:
        logits = model.apply(
            params,
            jnp.asarray((np.asarray(images) / 255 - np.array(mean)) / np.array(std), "float32"),
        )
        picked = jax.nn.log_softmax(logits)[jnp.arange(3), plain.data[1][rows]]
        return -picked.mean()

    np.testing.assert_allclose(
        plain.loss(params, client, examples, key), loss(images[rows]), rtol=1e-5
    )
    seen = Augmentation(pad=1)(stream(key, "augmentation"), jnp.asarray(images)[rows])
    np.testing.assert_allclose(changed.loss(params, client, examples, key), loss(seen), rtol=1e-5)
    assert not np.allclose(
        changed.loss(params, client, examples, key),
        changed.loss(params, client, examples, jax.random.key(8)),
    )
    for name, value in plain.evaluate(params).items():
        np.testing.assert_array_equal(value, changed.evaluate(params)[name])
    for name in ("mean", "std"):
        with pytest.raises(
            ConfigError,
            match=rf"{name} is \(0.5, 0.5\), but must be one number, or 3: one per channel",
        ):
            problems.make_classification(model, data, shares, **{name: (0.5, 0.5)})
