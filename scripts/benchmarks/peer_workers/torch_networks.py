"""The networks in torch, for every peer that builds on it."""

from collections.abc import Sequence

import numpy as np
import torch
from protocol import Job, Model, scaled
from torch import nn


def network(job: Job, initial: Model) -> nn.Sequential:
    """Build a job's network with the initial weights.

    Args:
      job: The job.
      initial: The initial model in the shared form.
    """
    torch.set_num_threads(job.cores)
    layers: list[nn.Module] = []
    for kernel in initial[: 2 * len(job.convolutions) : 2]:
        layers += [nn.Conv2d(kernel.shape[2], kernel.shape[3], 3), nn.ReLU()]
    layers += [nn.MaxPool2d(2)] if job.convolutions else []
    layers.append(nn.Flatten())
    dense = initial[2 * len(job.convolutions) :: 2]
    for kernel in dense[:-1]:
        layers += [nn.Linear(*kernel.shape), nn.ReLU()]
    layers.append(nn.Linear(*dense[-1].shape))
    module = nn.Sequential(*layers)
    with torch.no_grad():
        for place, value in zip(module.parameters(), to_torch(initial), strict=True):
            place.copy_(value)
    return module


def _flattening(model: Model) -> tuple[int, int] | None:
    """Find the first dense layer after convolutions: its place, and the channels it sees."""
    last = [i for i, leaf in enumerate(model) if leaf.ndim == 4]
    return (last[-1] + 2, model[last[-1]].shape[3]) if last else None


def to_torch(model: Model) -> list[torch.Tensor]:
    """Bring a model from the shared form into torch's order of axes."""
    leaves, first = [np.asarray(leaf) for leaf in model], _flattening(model)
    if first:
        place, channels = first
        kernel = leaves[place]
        leaves[place] = (
            kernel.reshape(-1, channels, kernel.shape[1]).swapaxes(0, 1).reshape(kernel.shape)
        )
    moved = [
        leaf.transpose(3, 2, 0, 1) if leaf.ndim == 4 else leaf.T if leaf.ndim == 2 else leaf
        for leaf in leaves
    ]
    return [torch.from_numpy(np.ascontiguousarray(leaf)) for leaf in moved]


def from_torch(parameters: Sequence[torch.Tensor]) -> Model:
    """Bring a model from torch's order of axes into the shared form."""
    leaves = [leaf.detach().numpy().copy() for leaf in parameters]
    moved = [
        leaf.transpose(2, 3, 1, 0) if leaf.ndim == 4 else leaf.T if leaf.ndim == 2 else leaf
        for leaf in leaves
    ]
    first = _flattening(moved)
    if first:
        place, channels = first
        kernel = moved[place]
        moved[place] = (
            kernel.reshape(channels, -1, kernel.shape[1]).swapaxes(0, 1).reshape(kernel.shape)
        )
    return [np.ascontiguousarray(leaf) for leaf in moved]


def inputs(images: np.ndarray) -> torch.Tensor:
    """Scale images and bring them into torch's order of axes, `f32[n, C, H, W]`."""
    return torch.from_numpy(np.ascontiguousarray(scaled(images).transpose(0, 3, 1, 2)))


def targets(labels: np.ndarray) -> torch.Tensor:
    """Bring labels into torch's type for classes, `i64[n]`."""
    return torch.from_numpy(labels.astype(np.int64))
