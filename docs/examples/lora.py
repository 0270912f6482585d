"""LoRA: a small transformer learns Python's sources, then only low-rank changes for each module."""

import argparse
import inspect
import json
import pprint
import textwrap

import optax

import fedjax_sim
from fedjax_sim import datasets, models, partition, problems
from fedjax_sim.systems import fedavg

sources = [inspect.getsource(module)[:6000] for module in (argparse, json, pprint, textwrap)]
words = [" ".join(source.replace(":", ";").split()) for source in sources]
text = datasets.from_text("\n\n".join(f"M{i}:\n{w}" for i, w in enumerate(words)), name="sources")
split = partition.natural(text.train_speakers, client_ids=text.train_clients, num_clients=4, seed=0)
sizes = {"num_clients": 4, "num_selected": 2, "local_steps": 8, "batch_size": 8}
hyper = fedavg.paper(**sizes, lr=0.01, optimizer=optax.adam)
start = None
for rank in (0, 4):
    model = models.CharacterTransformer(text.num_classes, width=32, blocks=1, rank=rank)
    frozen = (lambda path: "lora" not in path) if rank else None
    (problem,) = problems.make_next_characters(model, text, [split], start=start, frozen=frozen)
    run = fedjax_sim.simulate(
        fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(8), num_evals=2
    )
    start = run.models
    print(rank, run.curves.loss.values, f"{int(run.curves.uplink_bits[-1]):,} bits")
