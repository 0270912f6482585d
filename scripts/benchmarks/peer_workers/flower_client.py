"""Flower's client app, in a module that Ray's processes can import."""

import functools
import json
import os
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from protocol import Data, Job, Shuffles, read_data
from torch.nn.functional import cross_entropy
from torch_networks import inputs, network, targets


@functools.cache
def _client_parts(text: str) -> tuple[Job, Data, torch.Tensor, torch.Tensor, Any, Shuffles]:
    """Read the data once in each of Ray's processes, and build its network."""
    job = Job(**json.loads(text))._replace(cores=1)
    data = read_data(job.arrays)
    draw = Shuffles(data, job._replace(seed=os.getpid()))
    return job, data, inputs(data.images), targets(data.labels), network(job, data.initial), draw


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Run a client's local steps."""
    parts = _client_parts(str(message.content["config"]["job"]))
    job, _, images, labels, module, draw = parts
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=job.lr)
    client = int(context.node_config["partition-id"])
    chosen = torch.from_numpy(draw.examples(client))
    for rows in chosen.split(job.batch):
        optimizer.zero_grad()
        cross_entropy(module(images[rows]), labels[rows]).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": len(chosen)}),
        }
    )
    return Message(content=content, reply_to=message)
