"""A problem that is not supervised: principal components of images that clients keep."""

import flax
import jax
import jax.numpy as jnp

import fedjax_sim
from fedjax_sim import datasets
from fedjax_sim.systems import fedavg


@flax.struct.dataclass
class Components:
    counts: jax.Array
    images: jax.Array  # (client, example, pixel), with mean 0

    def init(self, key):
        return 0.1 * jax.random.normal(key, (self.images.shape[-1], 10))

    def loss(self, params, client, examples, key):
        some = self.images[client, examples]
        return jnp.sum((some - some @ params @ params.T) ** 2, axis=-1).mean()

    def evaluate(self, params):
        basis, _ = jnp.linalg.qr(params)
        return {"explained": jnp.sum((self.images @ basis) ** 2) / jnp.sum(self.images**2)}


images = datasets.load("digits").train_images.reshape(-1, 64)[:1400] / 255
images = jnp.asarray(images - images.mean(axis=0)).reshape(20, 70, 64)
problem = Components(jnp.full(20, 70), images)
hyper = fedavg.paper(num_clients=20, num_selected=5, batch_size=10, lr=0.02)
run = fedjax_sim.simulate(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(60), num_evals=4)
print(run.curves.explained.to_series())
