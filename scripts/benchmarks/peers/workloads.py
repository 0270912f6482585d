"""What the contestants do: sizes, shared arrays, operations, and the loss of a finished model.

Letters: `n` training examples, `N` clients, `M` examples of a client, `B` examples of a mini-batch,
`K` classes, `H`, `W`, `C` height, width and channels of an image.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

CLASSES = 10
EVALUATED = 2000
"""Training examples on which every finished model is measured."""


class Workload(NamedTuple):
    """Federated averaging with SGD, and how long to run it.

    Attributes:
      title: One line for people.
      images: Height, width and channels.
      data: The real data set of these sizes.
      num_clients: Clients, with equal numbers of examples.
      examples: Examples of a client.
      cohort: Clients of a round.
      steps: Local steps of a client.
      batch: Examples of a step.
      lr: Local learning rate.
      hidden: Units of the hidden layers.
      convolutions: Channels of the 3x3 convolutions without padding, which one pooling follows.
      rounds: Rounds after which the losses are compared.
      timed: Rounds of a turn, by kind of contestant: "scan" runs all rounds in one program, "loop"
        loops over clients in Python, "slow" takes longest.
      lanes: Runs of a sweep, split evenly among `rates`.
      rates: Learning rates of a sweep.
      most_turns: Most turns of each contestant, where one takes long.
    """

    title: str
    images: tuple[int, int, int]
    data: str
    num_clients: int
    examples: int
    cohort: int
    steps: int
    batch: int
    lr: float
    hidden: tuple[int, ...]
    convolutions: tuple[int, ...]
    rounds: int
    timed: dict[str, int]
    lanes: int = 1
    rates: tuple[float, ...] = ()
    most_turns: int = 100


_PERCEPTRON = Workload(
    title="perceptron 784-128-10, 20 of 100 clients, 20 steps of batch 32",
    images=(28, 28, 1),
    data="mnist",
    num_clients=100,
    examples=600,
    cohort=20,
    steps=20,
    batch=32,
    lr=0.05,
    hidden=(128,),
    convolutions=(),
    rounds=10,
    timed={"scan": 40, "loop": 10, "slow": 4},
)
_SMALL = _PERCEPTRON._replace(
    title="perceptron 784-8-10, 20 of 100 clients, 20 steps of batch 8",
    hidden=(8,),
    batch=8,
    timed={"scan": 200, "loop": 10, "slow": 4},
)
WORKLOADS = {
    "a": _PERCEPTRON,
    "b": _SMALL,
    "b64": _SMALL._replace(
        title="the same as a sweep of 64 runs: 8 seeds, 8 learning rates",
        timed={"scan": 20, "loop": 0, "slow": 0},
        lanes=64,
        rates=tuple(float(rate) for rate in np.geomspace(0.005, 0.1, 8)),
    ),
    "c": _PERCEPTRON._replace(
        title="logistic regression, 10 of 1,000 clients, one epoch of batches of 10, 100 rounds",
        num_clients=1000,
        examples=60,
        cohort=10,
        steps=6,
        batch=10,
        lr=0.01,
        hidden=(),
        rounds=100,
        timed={"scan": 100, "loop": 50, "slow": 10},
    ),
    "d": Workload(
        title="pfl's CIFAR-10 network, 50 of 200 clients of 50 images, one epoch of batches of 10",
        images=(32, 32, 3),
        data="cifar10",
        num_clients=200,
        examples=50,
        cohort=50,
        steps=5,
        batch=10,
        lr=0.05,
        hidden=(128,),
        convolutions=(32, 64),
        rounds=1,
        timed={"scan": 1, "loop": 1, "slow": 1},
        most_turns=2,
    ),
}
"""The workloads by name. (d) is the network of pfl's CIFAR-10 benchmark without its dropout."""


def shared_arrays(
    workload: Workload, images: np.ndarray | None = None, labels: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Make the arrays that all contestants share.

    Without real data the images are random bytes, and a fixed linear function of an image decides
    its label, so that there is something to learn.

    Args:
      workload: The workload.
      images: `u8[n, H, W, C]`, at least as many as all clients hold; random if None.
      labels: `i[n]`, their classes.

    Returns:
      "images" and "labels" of all clients, and "index", `i32[N, M]`: the examples of each client.
    """
    rng = np.random.default_rng(0)
    num = workload.num_clients * workload.examples
    if images is None or labels is None:
        images = rng.integers(0, 256, (num, *workload.images), dtype=np.uint8)
        teacher = rng.normal(size=(int(np.prod(workload.images)), CLASSES)).astype(np.float32)
        parts = np.array_split(images.reshape(num, -1), 20)
        labels = np.concatenate([((part / 255 - 0.5) @ teacher).argmax(axis=1) for part in parts])
    return {
        "images": images[:num],
        "labels": labels[:num].astype(np.int32),
        "index": rng.permutation(num).reshape(workload.num_clients, -1).astype(np.int32),
    }


def step_operations(workload: Workload) -> float:
    """Count the multiplications and additions of a local step's products.

    A layer's product is computed forward, for the gradient of its weights, and, except in the first
    layer, for the gradient of its inputs. Everything else is left out.

    Args:
      workload: The workload.

    Returns:
      Floating-point operations.
    """
    height, width, channels = workload.images
    layers = []
    for features in workload.convolutions:
        height, width = height - 2, width - 2
        layers.append(height * width * features * 9 * channels)
        channels = features
    if workload.convolutions:
        height, width = height // 2, width // 2
    inputs = height * width * channels
    for features in (*workload.hidden, CLASSES):
        layers.append(inputs * features)
        inputs = features
    return float(2 * workload.batch * (3 * sum(layers) - layers[0]))


def round_operations(workload: Workload) -> float:
    """Count the operations of all local steps of a round; see `step_operations`."""
    return workload.cohort * workload.steps * step_operations(workload)


def mean_loss(model: Sequence[np.ndarray], arrays: dict[str, np.ndarray]) -> float:
    """Measure a model on evenly spaced training examples, in NumPy and 64 bits where it matters.

    Args:
      model: Kernel and bias of each layer in turn, as the workers write them.
      arrays: As `shared_arrays` makes them.

    Returns:
      The mean cross-entropy in nats.
    """
    labels = arrays["labels"]
    rows = np.linspace(0, len(labels) - 1, min(EVALUATED, len(labels))).astype(int)
    total = 0.0
    for part in np.array_split(rows, -(-len(rows) // 50)):
        scores = _logits(model, arrays["images"][part].astype(np.float32) / 255).astype(np.float64)
        top = scores.max(axis=1, keepdims=True)
        logs = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
        total += float((logs - scores[np.arange(len(part)), labels[part]]).sum())
    return total / len(rows)


def _logits(model: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    """Compute logits `f[B, K]` of images `f[B, H, W, C]`."""
    layers = list(zip(model[::2], model[1::2], strict=True))
    convolutions = [layer for layer in layers if layer[0].ndim == 4]
    for kernel, bias in convolutions:
        windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
        x = np.maximum(np.einsum("bhwcij,ijcf->bhwf", windows, kernel, optimize=True) + bias, 0)
    if convolutions:
        batch, height, width, channels = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
    x = x.reshape(len(x), -1)
    for kernel, bias in layers[len(convolutions) : -1]:
        x = np.maximum(x @ kernel + bias, 0)
    kernel, bias = layers[-1]
    return x @ kernel + bias


def job_of(workload: Workload, *, arrays: str, cores: int, mode: str, lanes: int) -> dict[str, Any]:
    """Describe a workload for a worker; see `peer_workers/protocol.py`.

    Args:
      workload: The workload.
      arrays: Path of the shared arrays.
      cores: Cores that the worker may use.
      mode: Which of the peer's ways to run.
      lanes: Runs side by side.
    """
    return {
        "hidden": list(workload.hidden),
        "convolutions": list(workload.convolutions),
        "cohort": workload.cohort,
        "steps": workload.steps,
        "batch": workload.batch,
        "lr": workload.lr,
        "lanes": lanes,
        "rates": list(workload.rates),
        "cores": cores,
        "mode": mode,
        "seed": 0,
        "arrays": arrays,
    }
