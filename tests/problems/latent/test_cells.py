"""Mini-batches of cells: which cells are sent, bias, variance, and FedMissEM's fixed point."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Layout
from fedjax_sim.core.settings import check
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.missing_values import Matrix
from fedjax_sim.server.compression import BlockQuantization, RandSparsification

pytestmark = pytest.mark.usefixtures("in_64_bits")

NUM = 20_000
FEDEM = fedjax_sim.SYSTEMS["fedem"]


def test_cells_are_sent_without_bias_and_with_the_exact_omega() -> None:
    """The mean of 20,000 messages is the matrix, and their variance is omega times its square.

    Without `unbiased`, the cells of two rows and three columns are sent as they are.
    """
    sampling = latent.CellSampling(
        shape=(5, 4), rows=2, columns=3, compression=RandSparsification(keep=0.8)
    )
    vector = jnp.asarray(np.random.default_rng(0).normal(size=20))
    keys = jax.random.split(jax.random.key(1), NUM)
    sent = np.asarray(jax.jit(jax.vmap(sampling.apply, (0, None)))(keys, vector))
    error = np.abs(sent.mean(axis=0) - vector) / (sent.std(axis=0) / np.sqrt(NUM))
    assert error.max() < 5
    # rho = 6 / 20, and omega' + 1 = 1 / 0.8. The bound with omega holds with equality, because both
    # compressors keep a cell with a probability that does not depend on the values of cells.
    assert float(sampling.omega(20)) == pytest.approx(1 / (0.3 * 0.8) - 1)
    squares = ((sent - np.asarray(vector)) ** 2).sum(axis=1)
    expected = float(sampling.omega(20) * jnp.sum(vector**2))
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(NUM)
    assert sampling.bits(20) == RandSparsification(keep=0.8).bits(6)
    literal = latent.CellSampling(shape=(5, 4), rows=2, columns=3, unbiased=False)
    cells = np.asarray(jax.jit(literal.apply)(keys[0], vector)).reshape(5, 4)
    kept = cells != 0
    assert (kept.any(axis=1).sum(), kept.any(axis=0).sum(), kept.sum()) == (2, 3, 6)
    np.testing.assert_array_equal(cells[kept], np.asarray(vector).reshape(5, 4)[kept])
    assert literal.omega(20) == 0
    assert str(literal) == "cells:shape=5+4:rows=2:columns=3:unbiased=false"


@pytest.mark.slow
def test_fedmissem_goes_to_the_fixed_point_of_em() -> None:
    """Runs reach the root of the mean field with and without the division by rho.

    Servers see different sites, and each sends a quarter of its cells per round, quantized.
    """
    random = np.random.default_rng(2)
    shape, servers = (8, 6), 3
    values = random.normal(size=(8, 2)) @ random.normal(size=(2, 6)) + 0.3 * random.normal(
        size=(servers, *shape)
    )
    seen = (random.random((servers, *shape)) < 0.6) & (
        (np.arange(8) + np.arange(servers)[:, None]) % 3 < 2
    )[..., None]
    whole = Partition(np.arange(servers), np.ones(servers, int))
    problem = latent.make_estimation(
        latent.MissingValues(shape, 2, ridge=0.5), Matrix(values, seen.astype(float)), whole
    )
    step = jax.jit(
        lambda s: problem.client_statistics(problem.natural(problem.maximise(s))).mean(axis=0)
    )
    fixed = problem.init(jax.random.key(0))
    for _ in range(3000):
        fixed = step(fixed)
    assert float(jnp.linalg.norm(problem.mean_field(fixed))) < 1e-9
    best = float(problem.objective(problem.maximise(fixed)))
    base = FEDEM.paper(num_clients=servers, batches="full", batch_size=1, gamma=0.2)
    for unbiased in (True, False):
        cells = latent.CellSampling(
            shape=shape,
            rows=4,
            columns=3,
            unbiased=unbiased,
            compression=BlockQuantization(block=4, row=3),
        )
        hyper = base.replace(compression=cells, alpha=0.12)
        run = fedjax_sim.simulate(
            FEDEM,
            problem,
            hyper,
            budget=fedjax_sim.Ticks(2500),
            num_evals=5,
            layout=Layout(servers, False, 1),
        )
        assert float(run.curves.objective[0]) > best + 1
        assert float(run.curves.objective[-1]) == pytest.approx(best, rel=1e-3)
        assert float(run.curves.mean_field[-1]) < 1e-3 * float(run.curves.mean_field[0])
        np.testing.assert_array_equal(
            np.diff(run.curves.uplink_bits[1:]), 500 * servers * (4 * 64 + 12 * 2)
        )


def test_more_rows_than_the_matrix_has_are_refused() -> None:
    """Directly, and inside the settings of a system."""
    with pytest.raises(ConfigError, match="rows is 6"):
        check(latent.CellSampling(shape=(5, 4), rows=6))
    with pytest.raises(ConfigError, match="rows is 6"):
        check(FEDEM.paper(compression=latent.CellSampling(shape=(5, 4), rows=6)))


def test_cells_of_another_matrix_are_refused() -> None:
    """Every method and a run refuse vectors of the wrong length; a shape has to be given."""
    sampling = latent.CellSampling(shape=(5, 4), rows=2, columns=3)
    calls: list[Callable[[int], Any]] = [
        lambda dim: sampling.apply(jax.random.key(0), jnp.ones(dim)),
        sampling.omega,
        sampling.bits,
    ]
    for call in calls:
        call(20)
        for dim in (6, 24):
            words = rf"shape is \(5, 4\), but must be rows and columns of a matrix of {dim} cells"
            with pytest.raises(ConfigError, match=words):
                call(dim)
    examples = Matrix(np.ones((2, 4, 3)), np.ones((2, 4, 3)))
    problem = latent.make_estimation(
        latent.MissingValues((4, 3), 1), examples, Partition(np.arange(2), np.ones(2, int))
    )
    with pytest.raises(ConfigError, match="matrix of 12 cells"):
        fedjax_sim.simulate(
            FEDEM,
            problem,
            FEDEM.paper(num_clients=2, batches="full", batch_size=1, compression=sampling),
            budget=fedjax_sim.Ticks(1),
        )
    with pytest.raises(ConfigError, match=r"shape is \(0, 0\)"):
        check(latent.CellSampling())


def test_error_of_cells() -> None:
    """The mean squared error of draws is omega ||x||^2, or that of cells that are not divided."""
    vector = jnp.asarray(np.random.default_rng(0).normal(size=20))
    keys = jax.random.split(jax.random.key(1), NUM)
    rho, square = 0.3, float(jnp.sum(vector**2))
    for unbiased in (True, False):
        sampling = latent.CellSampling(
            shape=(5, 4),
            rows=2,
            columns=3,
            unbiased=unbiased,
            compression=RandSparsification(keep=0.8),
        )
        sent = np.asarray(jax.jit(jax.vmap(sampling.apply, (0, None)))(keys, vector))
        squares = np.sum(np.square(sent - np.asarray(vector)), axis=1)
        factor = sampling.omega(20) if unbiased else 1 - rho + rho * sampling.omega(20)
        assert abs(squares.mean() - factor * square) < 5 * squares.std() / np.sqrt(NUM)
        plain = latent.CellSampling(shape=(5, 4), rows=2, columns=3, unbiased=unbiased)
        assert plain.omega(20) == pytest.approx(1 / rho - 1 if unbiased else 0)


def test_blocks_of_cells_are_of_neighbours_in_a_row() -> None:
    """The cells' compressor gets the cells in the matrix's order.

    With all rows and columns the result is that of the compressor on the matrix itself.
    """
    vector = jnp.asarray(np.random.default_rng(0).normal(size=24))
    inner = BlockQuantization(block=4, row=6)
    whole = latent.CellSampling(shape=(4, 6), rows=4, columns=6, compression=inner)
    key = jax.random.key(3)
    np.testing.assert_array_equal(
        whole.apply(key, vector), inner.apply(jax.random.split(key, 3)[2], vector)
    )
