"""Flower: its simulation on Ray with one process per core, federated averaging, torch clients.

The simulation is started once, and its server app takes the benchmark's commands, so that starting
Ray is no part of a turn.
"""

import json
import logging
import os
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from flower_client import client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Conversation, read_data, read_job
from torch_networks import from_torch, network


class Strict(FedAvg):
    """Federated averaging that stops if a client fails, and does not go on without it."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Average the replies."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        return super().aggregate_train(server_round, replies)


def main() -> None:
    """Start the simulation, whose server app serves the benchmark."""
    talk = Conversation()
    job = read_job()
    data = read_data(job.arrays)
    num_clients = len(data.index)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        try:
            initial = network(job, data.initial).state_dict()

            def run(rounds: int) -> Any:
                strategy = Strict(
                    fraction_train=job.cohort / num_clients,
                    fraction_evaluate=0.0,
                    min_train_nodes=job.cohort,
                    min_available_nodes=num_clients,
                )
                result = strategy.start(
                    grid=grid,
                    initial_arrays=ArrayRecord(initial),
                    num_rounds=rounds,
                    train_config=ConfigRecord({"job": json.dumps(job._asdict())}),
                )
                return from_torch(list(result.arrays.to_torch_state_dict().values()))

            talk.ready("flwr", "ray", "torch", "numpy", note="Ray with one process per core")
            for rounds, save in talk.commands():
                talk.answer(lambda rounds=rounds: run(rounds), save)  # type: ignore[misc]
        except Exception as error:
            traceback.print_exc()
            talk.say(error=f"{type(error).__name__}: {error}"[:300])

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the processes of Ray
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=num_clients,
        backend_config={
            "init_args": {"num_cpus": job.cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
