"""pfl-research: its simulated backend and its federated averaging, in one process.

pfl takes a user's examples in the order in which they lie, so each user is shuffled when it is
drawn, as its benchmarks do for data sets that are partitioned once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from protocol import Data, Job, Model, Shuffles, serve
from torch import nn
from torch.nn.functional import cross_entropy
from torch_networks import from_torch, inputs, network, targets


class Classifier(nn.Module):
    """A network with the two functions that pfl calls."""

    def __init__(self, module: nn.Module) -> None:
        """Wrap a network."""
        super().__init__()
        self.module = module

    def loss(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """Compute the mean cross-entropy of a batch."""
        return cross_entropy(self.module(images), labels)

    def metrics(
        self, images: torch.Tensor, labels: torch.Tensor, eval: bool = True
    ) -> dict[str, Any]:
        """Measure nothing: pfl evaluates in its first round whether wanted or not."""
        return {}


def prepare(job: Job, data: Data) -> Callable[[int], Model]:
    """Return a function that runs a number of rounds."""
    images, labels = inputs(data.images), targets(data.labels)

    def run(rounds: int) -> Model:
        draw = Shuffles(data, job)
        np.random.seed(job.seed)

        def user(client: int) -> PyTorchTensorDataset:
            chosen = torch.from_numpy(draw.examples(client))
            return PyTorchTensorDataset([images[chosen], labels[chosen]], user_id=str(client))

        clients = list(range(len(data.index)))
        dataset = FederatedDataset(user, get_user_sampler("random", clients))
        classifier = Classifier(network(job, data.initial))
        model = PyTorchModel(
            classifier,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
        )
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=job.cohort,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=dataset, val_data=dataset),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            send_metrics_to_platform=False,
        )
        return from_torch(list(classifier.parameters()))

    return run


if __name__ == "__main__":
    serve(prepare, "pfl", "torch", "numpy")
