"""An LSTM that predicts the next value of series of different lengths, with a mask."""

import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import fedjax_sim
from fedjax_sim import problems
from fedjax_sim.systems import fedavg

random = np.random.default_rng(0)
lengths = random.integers(10, 30, 400)
owners = random.choice(["pump", "fan", "belt", "press"], 400)
speed = np.array([0.3 + 0.1 * len(owner) for owner in owners])
series = np.sin(speed[:, None] * np.arange(31) + random.uniform(0, 6, (400, 1)))

problem = problems.supervised(
    nn.Sequential([nn.RNN(nn.OptimizedLSTMCell(16)), nn.Dense(1)]),
    lambda outputs, targets: jnp.square(outputs[..., 0] - targets["next"]),
    (series[:, :-1, None], {"next": series[:, 1:], "length": lengths}),
    clients=owners,
    mask=lambda targets: jnp.arange(30)[None] < targets["length"][:, None],
)
hyper = fedavg.paper(num_clients=4, num_selected=2, batch_size=16, lr=0.01, optimizer=optax.adam)
run = fedjax_sim.simulate(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(20), num_evals=4)
print(run.curves.loss.values)
