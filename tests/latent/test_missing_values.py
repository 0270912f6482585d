"""FedMissEM: FedEM on matrices with missing cells of which clients send some."""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim
from fedjax_sim import Layout, latent
from fedjax_sim.compression import ProductBatch
from fedjax_sim.latent.missing_values import Matrix
from fedjax_sim.partition import Partition

FEDEM = fedjax_sim.SYSTEMS["fedem"]


def test_fedmissem_goes_to_the_fixed_point_of_em() -> None:
    """Servers of different sites, a quarter of the cells a round, quantized: to the root of the field, with and without the division."""
    random = np.random.default_rng(2)
    shape, servers = (8, 6), 3
    values = random.normal(size=(8, 2)) @ random.normal(size=(2, 6)) + 0.3 * random.normal(size=(servers, *shape))
    seen = (random.random((servers, *shape)) < 0.6) & ((np.arange(8) + np.arange(servers)[:, None]) % 3 < 2)[..., None]
    whole = Partition(np.arange(servers)[:, None], np.ones(servers, int))
    with jax.enable_x64(True):
        problem = latent.estimation(latent.MissingValues(shape, 2, ridge=0.5), Matrix(values, seen.astype(float)), whole)
        step = jax.jit(lambda s: problem.client_statistics(problem.natural(problem.maximise(s))).mean(axis=0))
        fixed = problem.init(jax.random.key(0))
        for _ in range(3000):
            fixed = step(fixed)
        assert float(jnp.linalg.norm(problem.mean_field(fixed))) < 1e-9
        best = float(problem.objective(problem.maximise(fixed)))
        for divided in (True, False):
            cells = ProductBatch(row=6, rows=4, columns=3, block=3, divided=divided)
            hyper = FEDEM.Hyper(num_clients=servers, sampling="full", batch_size=1, gamma=0.2, alpha=0.12, compression=cells)
            run = fedjax_sim.simulate(FEDEM, problem, hyper, num_ticks=2500, num_evals=5, layout=Layout(servers, False, 1))
            assert float(run.curves.objective[0]) > best + 1
            np.testing.assert_allclose(run.curves.objective[-1], best, rtol=1e-3)
            assert float(run.curves.mean_field[-1]) < 1e-3 * float(run.curves.mean_field[0])
            np.testing.assert_array_equal(np.diff(run.curves.uplink_bits[1:]), 500 * servers * cells.bits(48, word=64))
