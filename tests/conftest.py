"""Strict settings for all tests, a shared compilation cache, and small problems."""

import getpass
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import settings

from fedjax_sim.compression import BlockQuantization
from fedjax_sim.engine.compile_meter import COMPILE_EVENT
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.streams import stream
from fedjax_sim.types import LatentProblem

# Importing does not start the backend, so what follows still decides about it. Compiling is most of what the tests cost: optimise less,
# unless told otherwise.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")
# CPU only, and eight devices of it, so that meshes can be tested anywhere.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# Silent broadcasting of (n,) against (n, 1) is an error.
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiled programs are kept between runs and shared by the workers of pytest-xdist, small ones too: each module compiles them anew.
CACHE = (
    os.environ.get("JAX_COMPILATION_CACHE_DIR")
    or Path(tempfile.gettempdir()) / f"fedjax_sim_tests_of_{getpass.getuser()}"
)
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    """Turn warnings into errors, but for those that other packages owe themselves."""
    for line in (
        "error",
        "ignore:.*:DeprecationWarning:(orbax|tensorflow_datasets|etils|google|h5netcdf|matplotlib|xarray).*",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ):
        config.addinivalue_line("filterwarnings", line)
    config.addinivalue_line(
        "markers", "slow: minutes of compilation, skipped unless FEDJAX_SIM_SLOW_TESTS is set"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless it is asked for."""
    if not os.environ.get("FEDJAX_SIM_SLOW_TESTS"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow; FEDJAX_SIM_SLOW_TESTS asks for it"))


@struct.dataclass
class Regression:
    """Least squares with ragged clients, mini-batches, gradient noise and a random start: everything that a key or a count decides.

    `evaluate` returns the loss and the model itself, coordinate by coordinate, so that whole trajectories can be compared.
    """

    inputs: jax.Array  # f[N, M, P]
    targets: jax.Array  # f[N, M]
    counts: jax.Array  # i32[N]
    noise: jax.Array  # f[]  standard deviation of each coordinate's gradient noise

    def init(self, key: jax.Array) -> jax.Array:
        return jax.random.normal(key, self.inputs.shape[2:], self.inputs.dtype)

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        residual = self.inputs[client, examples] @ params - self.targets[client, examples]
        noise = self.noise * jax.random.normal(key, params.shape, params.dtype)
        return jnp.mean(jnp.square(residual)) / 2 + noise @ params

    def evaluate(self, params: jax.Array) -> Mapping[str, jax.Array]:
        mask = jnp.arange(self.targets.shape[1])[None] < self.counts[:, None]
        residual = jnp.where(mask, self.inputs @ params - self.targets, 0)
        return {
            "loss": jnp.sum(jnp.square(residual)) / 2 / self.counts.sum(),
            **coordinates(params),
        }


def coordinates(params: jax.Array) -> dict[str, jax.Array]:
    return {f"w{i}": params[i] for i in range(params.shape[0])}


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs() -> Iterator[None]:
    """Drop compiled programs after each module: they take memory maps, of which a process may have some tens of thousands."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def regression() -> Callable[..., Regression]:
    """Make a regression problem; float32 unless told otherwise."""

    def make(
        num_clients: int = 7,
        *,
        examples: int = 6,
        dim: int = 3,
        noise: float = 0.1,
        dtype: str = "float32",
        seed: int = 0,
    ) -> Regression:
        random = np.random.default_rng(seed)
        inputs = random.normal(size=(num_clients, examples, dim)).astype(dtype)
        targets = (inputs @ random.normal(size=dim) + random.normal(size=(num_clients, 1))).astype(
            dtype
        )
        counts = random.integers(2, examples + 1, num_clients)
        # What lies beyond a client's count must never be read.
        inputs[np.arange(examples)[None, :] >= counts[:, None]] = 1e6
        return Regression(
            jnp.asarray(inputs),
            jnp.asarray(targets),
            jnp.asarray(counts, "int32"),
            jnp.asarray(noise, dtype),
        )

    return make


@struct.dataclass
class WatchedMean(latent.NoisyMean):
    """A noisy mean whose statistics are metrics, coordinate by coordinate."""

    def metrics(self, statistics: jax.Array, params: jax.Array) -> Mapping[str, jax.Array]:
        return coordinates(statistics)


@pytest.fixture(scope="session")
def noisy_mean() -> Callable[..., latent.Estimation]:
    """Make a problem of EM with ragged clients, of 2, 4 or 6 examples each with its own noise; float32 unless told otherwise."""

    def make(
        num_clients: int = 7,
        *,
        dim: int = 3,
        dtype: str = "float32",
        seed: int = 0,
        start: float | None = 1.0,
    ) -> latent.Estimation:
        random = np.random.default_rng(seed)
        counts = 2 * random.integers(1, 4, num_clients)
        y = random.normal(size=(num_clients, 6, dim)) + 2 * random.normal(
            size=(num_clients, 1, dim)
        )
        kappa = random.uniform(0.2, 0.9, (num_clients, 6))
        # What lies beyond a client's count must never be used.
        y[np.arange(6)[None, :] >= counts[:, None]] = 1e6
        data = Seen(y.reshape(-1, dim).astype(dtype), kappa.ravel().astype(dtype))
        partition = Partition(np.arange(6 * num_clients).reshape(num_clients, 6), counts)
        given = None if start is None else np.full(dim, start)
        return latent.make_estimation(WatchedMean(ridge=0.25), data, partition, start=given)

    return make


@pytest.fixture(scope="session")
def small() -> Callable[..., Any]:
    """Make a system's hyperparameters for seven clients, four slots (FedAsync: its one; FA-LD: all) and at most five steps.

    Changes by keyword; a change of lr is one of FA-LD's step size. Systems of EM have slots for all clients, compression and partial
    participation.
    """
    buffered = {"buffer_size": 4, "local_steps": 5}
    compressed = {"participation": 0.6, "compression": BlockQuantization(), "gamma": 0.1}
    sizes = {
        "fedbuff": buffered,
        "fedstaleweight": buffered,
        "fedasync": {"local_steps": 5},
        # Groups of two clients and one of one, whose iterations take 1.1 units of time on average.
        "hierarchical": {"num_groups": 4, "sync_time": 5.0, "mean": 0.2},
        "langevin": {"num_selected": 4, "local_steps": 5, "temperature": 1e-3, "rho": 0.5},
        "em": {},
        "fedem": compressed,
        "vr_fedem": compressed | {"inner_steps": 2.0},
    }

    def make(system: Any, **changes: Any) -> Any:
        rate = {} if system.fit.learns is LatentProblem else {"lr": 0.05}
        chosen = (
            {"num_clients": 7, "batch_size": 2}
            | rate
            | sizes.get(system.name, {"num_selected": 4, "local_steps": 5})
            | changes
        )
        if (
            system.name == "langevin"
        ):  # whose steps go with sums over the about 30 examples of `regression`, not with means
            chosen = {"step_size": chosen.pop("lr") / 30} | chosen
            chosen.pop("lr_scale", None)
        return system.Hyper(**chosen)

    return make


@pytest.fixture(scope="session")
def draw() -> Callable[..., Any]:
    """Draw a schedule for several seeds at once, in 64 bits: leaves `[seeds, T, ...]`, as NumPy arrays."""

    def schedules(
        timeline: Callable, hyper: Any, *, num_ticks: int, seeds: int | list[int] = 1
    ) -> Any:
        with jax.enable_x64(True):
            numbers = range(seeds) if isinstance(seeds, int) else seeds
            keys = jnp.stack([stream(jax.random.key(seed), "timeline") for seed in numbers])
            hyper = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
            return jax.tree.map(np.asarray, _drawn(timeline, num_ticks, keys, hyper))

    return schedules


def _draw_all(timeline: Callable, num_ticks: int, keys: jax.Array, hyper: Any) -> Any:
    return jax.vmap(lambda key: timeline(key, hyper, num_ticks))(keys)


_drawn = jax.jit(_draw_all, static_argnums=(0, 1))


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the programs compiled (or fetched from the cache) since the test began."""
    yield from _listen()


@pytest.fixture(scope="module")
def compiled_in_module() -> Iterator[list[str]]:
    """Names of the programs compiled (or fetched from the cache) since the module's first use of this."""
    yield from _listen()


def _listen() -> Iterator[list[str]]:
    names: list[str] = []

    def take_note(event: str, duration_secs: float, **facts: Any) -> None:
        if event == COMPILE_EVENT:
            names.append(str(facts.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(take_note)
    yield names
    jax.monitoring.unregister_event_duration_listener(take_note)
