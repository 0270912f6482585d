"""FLSim: its synchronous trainer in one process, without evaluation and without reports.

FLSim 0.1.0 has configurations as defaults of configurations, which Python 3.11 refuses unless they
can be hashed. Its dataclasses are given a hash, which nothing uses; nothing else is changed.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch  # before the dataclasses below are changed
from protocol import Data, Job, Model, Shuffles, serve
from torch.nn.functional import cross_entropy
from torch_networks import from_torch, inputs, network, targets

_dataclass: Any = dataclasses.dataclass


def _hashable(cls: Any = None, /, **options: Any) -> Any:
    """Make a dataclass, with a hash if it is one of FLSim's."""

    def wrap(cls: Any) -> Any:
        if cls.__module__.startswith("flsim"):
            options.setdefault("unsafe_hash", True)
        return _dataclass(**options)(cls)

    return wrap if cls is None else wrap(cls)


dataclasses.dataclass = _hashable

import flsim.configs  # noqa: E402, F401  (registers the configurations)
from flsim.clients.base_client import ClientConfig  # noqa: E402
from flsim.data.data_provider import IFLDataProvider, IFLUserData  # noqa: E402
from flsim.interfaces.model import IFLModel  # noqa: E402
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig  # noqa: E402
from flsim.trainers.sync_trainer import SyncTrainer, SyncTrainerConfig  # noqa: E402
from flsim.utils.simple_batch_metrics import FLBatchMetrics  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402


class User(IFLUserData):
    """A client, whose examples are shuffled each time that they are asked for."""

    def __init__(self, batches: Callable[[], Iterator[Any]], steps: int, examples: int) -> None:
        """Keep the function that draws the batches of a round."""
        self._batches, self._steps, self._examples = batches, steps, examples

    def num_train_examples(self) -> int:
        """Count the examples of a round."""
        return self._examples

    def num_eval_examples(self) -> int:
        """Count no examples."""
        return 0

    def num_train_batches(self) -> int:
        """Count the local steps."""
        return self._steps

    def num_eval_batches(self) -> int:
        """Count no batches."""
        return 0

    def train_data(self) -> Iterator[Any]:
        """Draw the batches of a round."""
        return self._batches()

    def eval_data(self) -> Iterator[Any]:
        """Return no batches."""
        return iter(())


class Users(IFLDataProvider):
    """All clients."""

    def __init__(self, users: list[User]) -> None:
        """Keep the clients."""
        self._users = users

    def train_user_ids(self) -> list[int]:
        """List the numbers of the clients."""
        return list(range(len(self._users)))

    def num_train_users(self) -> int:
        """Count the clients."""
        return len(self._users)

    def get_train_user(self, user_index: int) -> User:
        """Return one client."""
        return self._users[user_index]

    def train_users(self) -> list[User]:
        """Return all clients."""
        return self._users

    def eval_users(self) -> list[User]:
        """Return no clients."""
        return []

    def test_users(self) -> list[User]:
        """Return no clients."""
        return []


class Classifier(IFLModel):
    """A network with the functions that FLSim calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Wrap a network."""
        self.module = module

    def fl_forward(self, batch: Any) -> FLBatchMetrics:
        """Compute the mean cross-entropy of a batch."""
        scores = self.module(batch["features"])
        return FLBatchMetrics(
            loss=cross_entropy(scores, batch["labels"]),
            num_examples=len(batch["labels"]),
            predictions=scores.detach(),
            targets=batch["labels"],
            model_inputs=[],
        )

    def fl_create_training_batch(self, **kwargs: Any) -> Any:
        """Return a batch as it is."""
        return kwargs

    def fl_get_module(self) -> torch.nn.Module:
        """Return the network."""
        return self.module

    def fl_cuda(self) -> None:
        """Stay on the CPU."""

    def get_eval_metrics(self, batch: Any) -> FLBatchMetrics:
        """Measure a batch."""
        with torch.no_grad():
            return self.fl_forward(batch)

    def get_num_examples(self, batch: Any) -> int:
        """Count the examples of a batch."""
        return len(batch["labels"])


def prepare(job: Job, data: Data) -> Callable[[int], Model]:
    """Return a function that runs a number of rounds."""
    logging.disable(logging.WARNING)
    images, labels = inputs(data.images), targets(data.labels)
    rounds_of_all = len(data.index) // job.cohort

    def run(rounds: int) -> Model:
        draw = Shuffles(data, job)
        torch.manual_seed(job.seed)

        def batches(client: int) -> Iterator[Any]:
            for rows in torch.from_numpy(draw.examples(client)).split(job.batch):
                yield {"features": images[rows], "labels": labels[rows]}

        users = [
            User(partial(batches, client), job.steps, job.steps * job.batch)
            for client in range(len(data.index))
        ]
        model = Classifier(network(job, data.initial))
        config = SyncTrainerConfig(
            epochs=rounds / rounds_of_all,
            eval_epoch_frequency=rounds / rounds_of_all,  # at most `epochs`, though it is off
            do_eval=False,
            report_train_metrics=False,
            always_keep_trained_model=True,
            users_per_round=job.cohort,
            client=ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=job.lr)),
        )
        trainer = SyncTrainer(model=model, cuda_enabled=False, **OmegaConf.structured(config))
        final, _ = trainer.train(
            data_provider=Users(users),
            metrics_reporter=None,
            num_total_users=len(users),
            distributed_world_size=1,
        )
        return from_torch(list(final.fl_get_module().parameters()))

    return run


if __name__ == "__main__":
    serve(
        prepare,
        "flsim",
        "torch",
        "numpy",
        note="its dataclasses are given a hash, without which Python 3.11 refuses them",
    )
