"""Contestants of one workload on the device at hand: this engine, JAX by hand, FedJAX and torch.

What a contestant needs is imported where it is made, so that those that are not installed hinder no
others, and so that a process of torch does not take the device for JAX.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers import workloads as peers

PEERS = str(Path(__file__).parent / "peer_workers")
"""Folder of the workers of other simulators, which make some of the contestants."""

RATES = tuple(float(rate) for rate in np.geomspace(0.005, 0.1, 8))
WORKLOADS = peers.WORKLOADS | {
    "a64": peers.WORKLOADS["a"]._replace(lanes=64, rates=RATES),
    "d8": peers.WORKLOADS["d"]._replace(lanes=8, rates=RATES),
}
"""Those of the comparison with other simulators, more runs of (a), and (d) with eight rates."""

SMALL = {"num_clients": 4, "cohort": 2, "examples": 20, "steps": 2}
"""Sizes of a workload that only tries the script."""


def contestant(
    who: str,
    work: str,
    rounds: int,
    precision: str = "float32",
    small: bool = False,
    **options: Any,
) -> tuple[peers.Workload, int, Callable[[], Any]]:
    """Make a contestant of a workload.

    Args:
      who: "engine", "plain" (JAX by hand), "fedjax", "torch" (a loop) or "torch vmap".
      work: One of `WORKLOADS`.
      rounds: Rounds of a call.
      precision: Of matrix products: "float32", "tensorfloat32" or "bfloat16".
      small: Whether to shrink everything.
      **options: For the engine "convolution" and fields of `Layout`; for JAX by hand "convolution"
        and "step" ("cotangent" gives the rate to the loss's cotangent).

    Returns:
      The workload, the rounds, and a function that runs them.
    """
    if PEERS not in sys.path:
        sys.path.insert(0, PEERS)
    from protocol import Data, Job

    workload = WORKLOADS[work]
    if small:
        workload, rounds = workload._replace(**SMALL, lanes=max(1, len(workload.rates))), 2
    arrays = peers.shared_arrays(workload)
    data = Data(arrays["images"], arrays["labels"], arrays["index"], initial_of(workload))
    mode = "vmap lanes" if workload.lanes > 1 else "vmap"
    job = Job(**peers.job_of(workload, arrays="", cores=0, mode=mode, lanes=workload.lanes))
    make = {"engine": _engine, "plain": _plain, "fedjax": _fedjax}.get(who)
    if make is not None:
        return workload, rounds, partial(make(job, data, precision, **options), rounds)
    return workload, rounds, partial(_torch(job, data, precision, loop=who == "torch"), rounds)


def initial_of(work: peers.Workload) -> list[np.ndarray]:
    """Draw an initial model, which need not be the engine's: it does not change the time."""
    rng = np.random.default_rng(1)
    height, width, channels = work.images
    layers = []
    for features in work.convolutions:
        kernel = rng.normal(size=(3, 3, channels, features)) / np.sqrt(9 * channels)
        layers += [kernel.astype(np.float32), np.zeros(features, np.float32)]
        height, width, channels = height - 2, width - 2, features
    if work.convolutions:
        height, width = height // 2, width // 2
    inputs = height * width * channels
    for features in (*work.hidden, peers.CLASSES):
        kernel = rng.normal(size=(inputs, features)) / np.sqrt(inputs)
        layers += [kernel.astype(np.float32), np.zeros(features, np.float32)]
        inputs = features
    return layers


def _engine(job: Any, data: Any, precision: str, **options: Any) -> Callable[[int], Any]:
    import jax

    import fedjax_sim
    from fedjax_sim.datasets import Dataset
    from fedjax_sim.models import CONVOLUTIONS, MLP, LogisticRegression, SmallCNN
    from fedjax_sim.partition import Partition
    from fedjax_sim.problems import make_classification
    from fedjax_sim.systems import fedavg

    convolution = CONVOLUTIONS[options.pop("convolution", "auto")]
    network: Any = MLP(tuple(job.hidden), 10) if job.hidden else LogisticRegression(10)
    if job.convolutions:
        network = SmallCNN(10, convolution=convolution)
    clients, share = data.index.shape
    images, labels = data.images, data.labels
    problem = make_classification(
        network,
        Dataset(images, labels, images[:10], labels[:10], 10, "shared arrays"),
        Partition(data.index.ravel(), np.full(clients, share, np.int32)),
    )
    hyper = fedavg.paper(
        num_clients=clients,
        num_selected=job.cohort,
        local_steps=job.steps,
        batch_size=job.batch,
        lr=job.lr,
    )
    seeds = list(range(job.lanes // max(1, len(job.rates))))
    layout = {"layout": fedjax_sim.Layout(**options)} if options else {}

    def run(rounds: int) -> Any:
        found = fedjax_sim.sweep(
            fedavg.system,
            problem,
            hyper,
            seeds=seeds,
            settings={"lr": job.rates} if job.rates else None,
            budget=fedjax_sim.Ticks(rounds),
            num_evals=1,
            precision=precision,
            **layout,
        )
        return jax.block_until_ready(found.models)

    return run


def _plain(job: Any, data: Any, precision: str, **options: Any) -> Callable[[int], Any]:
    import jax
    import run_plain

    jax.config.update("jax_default_matmul_precision", precision)
    more: dict[str, Any] = {"rate_as_cotangent": options.get("step") == "cotangent"}
    if "convolution" in options:
        from fedjax_sim.models import CONVOLUTIONS

        more["convolve"] = CONVOLUTIONS[options["convolution"]]
    return run_plain.prepare(job, data, **more)


def _fedjax(job: Any, data: Any, precision: str) -> Callable[[int], Any]:
    import jax

    jax.config.update("jax_default_matmul_precision", precision)
    return importlib.import_module("run_fedjax").prepare(job, data)


def _torch(job: Any, data: Any, precision: str, *, loop: bool) -> Callable[[int], Any]:
    """Make a plain loop over clients, or batch the clients of a round by `torch.func.vmap`."""
    import torch
    from protocol import Shuffles
    from torch.nn.functional import cross_entropy
    from torch_networks import inputs, network, targets, to_torch

    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = network(job._replace(cores=8), data.initial).to(device)
    images, labels = inputs(data.images).to(device), targets(data.labels).to(device)
    initial = [leaf.to(device) for leaf in to_torch(data.initial)]
    parameters = list(module.parameters())
    names = [name for name, _ in module.named_parameters()]

    def loss(params: Any, x: Any, y: Any) -> Any:
        called = torch.func.functional_call(module, dict(zip(names, params, strict=True)), (x,))
        return cross_entropy(called, y)

    gradients_of = torch.func.vmap(torch.func.grad(loss))

    def on_device(rows: np.ndarray) -> Any:
        return torch.from_numpy(rows.astype(np.int64)).to(device)

    def one_by_one(server: list[Any], draw: Any) -> list[Any]:
        total = [torch.zeros_like(leaf) for leaf in server]
        for client in draw.cohort():
            with torch.no_grad():
                torch._foreach_copy_(parameters, server)
            for batch in on_device(draw.examples(client)).split(job.batch):
                value = cross_entropy(module(images[batch]), labels[batch])
                gradients = torch.autograd.grad(value, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-job.lr)
            with torch.no_grad():
                torch._foreach_add_(total, parameters, alpha=1 / job.cohort)
        return total

    def together(server: list[Any], draw: Any) -> list[Any]:
        chosen = on_device(np.stack([draw.examples(client) for client in draw.cohort()]))
        models = [leaf.expand(job.cohort, *leaf.shape).contiguous() for leaf in server]
        for step in range(job.steps):
            rows = chosen[:, step * job.batch : (step + 1) * job.batch]
            gradients = gradients_of(tuple(models), images[rows], labels[rows])
            with torch.no_grad():
                torch._foreach_add_(models, list(gradients), alpha=-job.lr)
        return [leaf.mean(0) for leaf in models]

    def run(rounds: int) -> Any:
        draw, server = Shuffles(data, job), [leaf.clone() for leaf in initial]
        for _ in range(rounds):
            server = (one_by_one if loop else together)(server, draw)
        if device == "cuda":
            torch.cuda.synchronize()
        return [leaf.detach().cpu().numpy() for leaf in server]

    return run
