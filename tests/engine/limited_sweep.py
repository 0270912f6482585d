"""A sweep of 2,000 clients and 256 lanes with little address space, run as a separate process.

Its words are the bytes of address space that the sweep may add to what the process has, and
optionally `max_lanes`. It prints the bytes that the sweep added at its peak.
"""

import resource
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import struct

import fedjax_sim


@struct.dataclass
class Bowl:
    """Squared distances of a model of many equal numbers to a number for each client.

    Attributes:
      counts: `i32[N]`, ones.
      size: Numbers of a model.
    """

    counts: jax.Array
    size: int = struct.field(pytree_node=False)

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(self.size)

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return jnp.mean(jnp.square(params - client / 1000))

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        return {"first": params[0]}


def main() -> None:
    """Run it once without a limit, to start everything up, and then with one."""
    system = fedjax_sim.SYSTEMS["fedbuff"]
    hyper = system.paper(
        num_clients=2000, restart="after_interaction", batch_size=1, local_steps=3, lr=0.01
    )
    problem = Bowl(jnp.ones(2000, "int32"), 10_000)
    run = partial(fedjax_sim.sweep, system, problem, hyper, num_evals=4)
    layout = fedjax_sim.Layout(10, False, 1)
    run(seeds=2, budget=fedjax_sim.Ticks(8), layout=layout)
    before = read_status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (before + int(sys.argv[1]),) * 2)
    layout = layout._replace(max_lanes=int(sys.argv[2]) if len(sys.argv) > 2 else None)
    found = run(seeds=256, budget=fedjax_sim.Ticks(400), layout=layout)
    assert found.models.shape == (256, 10_000) and not found.curves.failed.any()
    print(read_status("VmPeak") - before)


def read_status(name: str) -> int:
    """Read one of the kernel's numbers of bytes about this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
