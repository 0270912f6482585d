"""pfl-research's federated averaging on data that it makes when it draws a user.

    python beyond_pfl.py JOB    a JSON object, see `benchmarks.beyond`

A user's mini-batches are read from the job's files, mapped into memory, as lazy data of pfl are.
"""

import json
import resource
import sys
import time
from pathlib import Path
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
from run_pfl import Classifier
from torch import nn


def main() -> None:
    """Run, and print what it took."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    if job["limit"]:
        most = int(job["limit"] * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    torch.set_num_threads(job["cores"])
    names = ("inputs", "targets")
    inputs, targets = (np.load(Path(job["folder"], f"{n}.npy"), mmap_mode="r") for n in names)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    each, random = len(targets) // job["clients"], np.random.default_rng(0)
    wanted = job["steps"] * job["batch"]

    def user(client: int) -> PyTorchTensorDataset:
        epochs = [random.permutation(each) for _ in range(-(-wanted // each))]
        rows = client * each + np.concatenate(epochs)[:wanted]
        x = torch.from_numpy(inputs[rows].astype(np.float32) / np.float32(255))
        y = torch.from_numpy(targets[rows].astype(np.int64))
        return PyTorchTensorDataset([x, y], user_id=str(client))

    def run(rounds: int) -> None:
        np.random.seed(0)
        dataset = FederatedDataset(user, get_user_sampler("random", list(range(job["clients"]))))
        layers = nn.Linear(job["features"], job["hidden"]), nn.Linear(job["hidden"], job["classes"])
        classifier = Classifier(nn.Sequential(layers[0], nn.ReLU(), layers[1]))
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=job["cohort"],
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=dataset, val_data=dataset),
            model=PyTorchModel(
                classifier,
                local_optimizer_create=torch.optim.SGD,
                central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
            ),
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=job["lr"], local_batch_size=job["batch"]
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            send_metrics_to_platform=False,
        )

    run(1)
    began = time.perf_counter()
    run(job["rounds"])
    seconds = time.perf_counter() - began
    found = {"rounds_per_second": job["rounds"] / seconds, "peak_before_gb": before / 1e6}
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps(found))


if __name__ == "__main__":
    main()
