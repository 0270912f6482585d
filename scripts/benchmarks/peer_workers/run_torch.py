"""A plain torch loop over rounds, clients and steps, with as little in it as possible."""

from collections.abc import Callable

import torch
from protocol import Data, Job, Model, Shuffles, serve
from torch.nn.functional import cross_entropy
from torch_networks import from_torch, inputs, network, targets, to_torch


def prepare(job: Job, data: Data) -> Callable[[int], Model]:
    """Return a function that runs a number of rounds."""
    module = network(job, data.initial)
    parameters = list(module.parameters())
    images, labels = inputs(data.images), targets(data.labels)

    def run(rounds: int) -> Model:
        draw = Shuffles(data, job)
        server = to_torch(data.initial)
        for _ in range(rounds):
            total = [torch.zeros_like(leaf) for leaf in server]
            for client in draw.cohort():
                with torch.no_grad():
                    torch._foreach_copy_(parameters, server)
                chosen = torch.from_numpy(draw.examples(client))
                for batch in chosen.split(job.batch):
                    loss = cross_entropy(module(images[batch]), labels[batch])
                    gradients = torch.autograd.grad(loss, parameters)
                    with torch.no_grad():
                        torch._foreach_add_(parameters, gradients, alpha=-job.lr)
                with torch.no_grad():
                    torch._foreach_add_(total, parameters, alpha=1 / job.cohort)
            server = total
        return from_torch(server)

    return run


if __name__ == "__main__":
    serve(prepare, "torch", "numpy")
