"""Strict JAX settings for all tests, a shared compilation cache, and small problems.

Dimension letters: `N` clients, `M` examples of a client, `P` parameters, `T` ticks.
"""

import dataclasses
import gc
import getpass
import os
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import settings
from threadpoolctl import threadpool_limits

from fedjax_sim.core.settings import idle_of, known_values, names_of
from fedjax_sim.core.streams import stream
from fedjax_sim.core.types import LatentProblem
from fedjax_sim.engine.machine.compiling import COMPILE_EVENT
from fedjax_sim.partition import Partition
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.results import plots, reports
from fedjax_sim.server.compression import BlockQuantization

# Collecting makes many objects that stay; see `pytest_collection_finish`.
gc.disable()
# The imports above have not started the backend, so these settings still take effect. Compiling is
# most of the tests' cost, so programs are optimised less than usual, and are not cut into pieces
# that threads compile. An unknown flag would abort the process, so the other two are only given to
# versions that are known to have them.
FLAGS = "--xla_backend_optimization_level=0"
if jax.__version_info__[:2] == (0, 10):
    FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", FLAGS)
# Eight CPU devices, so that meshes can be tested on any machine.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# Broadcasting (n,) against (n, 1) raises an error.
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiled programs are kept on disk between runs and shared by the workers of pytest-xdist. Small
# ones are kept too, because many tests need them.
CACHE = (
    os.environ.get("JAX_COMPILATION_CACHE_DIR")
    or Path(tempfile.gettempdir()) / f"fedjax_sim_tests_of_{getpass.getuser()}"
)
for name, value in (
    ("jax_compilation_cache_dir", str(CACHE)),
    ("jax_persistent_cache_min_compile_time_secs", 0),
    ("jax_persistent_cache_min_entry_size_bytes", -1),
    # Operations do not say which lines of Python they come from, a tenth of the time to compile.
    ("jax_traceback_in_locations_limit", 0),
):
    jax.config.update(name, value)
    # Processes that tests start do the same.
    os.environ[name.upper()] = str(value)
# Threads of NumPy's linear algebra wait for each other if workers of pytest-xdist take all cores.
threadpool_limits(1, user_api="blas")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Coarse pictures of results folders take less time, and so do pictures that are not laid out.
reports.DPI = 60
plots.SHEET["figure.constrained_layout.use"] = False

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    """Turn warnings into errors, except for warnings that other packages cause."""
    for line in (
        "error",
        "ignore:.*:DeprecationWarning:"
        "(tensorflow_datasets|etils|google|h5netcdf|haiku|matplotlib|xarray).*",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        # Tiny problems often end at chance.
        "ignore::fedjax_sim.results.runs.LaneWarning",
        # Another worker is still writing this entry. JAX compiles the program then.
        "ignore:Error reading persistent compilation cache entry",
        # On Python 3.14, Hypothesis counts references to its own generator in the old way.
        "ignore:It looks like .register_random.:hypothesis.errors.HypothesisWarning",
    ):
        config.addinivalue_line("filterwarnings", line)
    config.addinivalue_line(
        "markers", "slow: minutes of compilation, skipped unless FEDJAX_SIM_SLOW_TESTS is set"
    )
    config.addinivalue_line(
        "markers",
        "of_each_kind(number): a contract for one system of each kind, see systems/kinds.py",
    )
    config.addinivalue_line(
        "markers", "few(number): so many of the test's cases run by default, the others are slow"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked as slow, unless FEDJAX_SIM_SLOW_TESTS is set."""
    _leave_a_few(items)
    if not os.environ.get("FEDJAX_SIM_SLOW_TESTS"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(
                    pytest.mark.skip(reason="slow; set FEDJAX_SIM_SLOW_TESTS to run it")
                )


def _leave_a_few(items: list[pytest.Item]) -> None:
    """Mark most cases of tests marked `few` as slow; the first and the last one stay."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases.setdefault((str(item.path), item.originalname), []).append(item)
    for of_test in cases.values():
        [number] = of_test[0].get_closest_marker("few").args
        last = len(of_test) - 1
        kept = {round(i * last / max(1, number - 1)) for i in range(number)}
        for place, item in enumerate(of_test):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


def slow_but(quick: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Return values as parameters of a test, of which all but the quick ones are slow."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]


def pytest_collection_finish() -> None:
    """Let Python look for garbage less often, and not among what was imported.

    Tracing makes so many objects that it would spend an eighth of all time on that.
    """
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    gc.enable()


@struct.dataclass
class Regression:
    """Least squares with everything that depends on a key or on a client's number of examples.

    Clients have different numbers of examples, local steps use mini-batches and noisy gradients,
    and the initial model is random. `evaluate` returns the loss and every coordinate of the model,
    so that whole trajectories can be compared.

    Attributes:
      inputs: `f[N, M, P]`.
      targets: `f[N, M]`.
      counts: `i32[N]`, number of examples of each client.
      noise: `f[]`, standard deviation of the noise in each coordinate of a gradient.
    """

    inputs: jax.Array
    targets: jax.Array
    counts: jax.Array
    noise: jax.Array

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


@struct.dataclass
class SplitRegression(Regression):
    """The same with a model of two parts, of which one may be personal, and personal metrics."""

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        whole = super().init(key)
        return {"body": whole[:-1], "head": whole[-1:]}

    def loss(
        self, params: Any, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        return super().loss(_whole(params), client, examples, key)

    def evaluate(self, params: Any) -> Mapping[str, jax.Array]:
        return super().evaluate(_whole(params))


@struct.dataclass
class WholeRegression(Regression):
    """The same with losses of all of a client's examples, which have no noise."""

    def client_loss(self, params: jax.Array, client: jax.Array, key: jax.Array) -> jax.Array:
        is_there = jnp.arange(self.targets.shape[1]) < self.counts[client]
        residual = jnp.where(is_there, self.inputs[client] @ params - self.targets[client], 0)
        return jnp.sum(jnp.square(residual)) / 2 / self.counts[client]


def _whole(params: dict[str, jax.Array]) -> jax.Array:
    return jnp.concatenate([params["body"], params["head"]])


def coordinates(params: jax.Array) -> dict[str, jax.Array]:
    """Return each coordinate of a vector as a metric: w0, w1, ..."""
    return {f"w{i}": params[i] for i in range(params.shape[0])}


MEMORY_MAPS = Path("/proc/self/maps")
MOST_MAPS = 20_000
"""Memory maps from which on compiled programs are dropped; Linux allows 65,530 by default."""


@pytest.fixture(scope="module", autouse=True)
def few_programs() -> Iterator[None]:
    """Drop compiled programs after a test module if there are many.

    Each takes memory maps, and a process may have only some tens of thousands of these.
    """
    yield
    if not MEMORY_MAPS.exists() or MEMORY_MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="module")
def no_programs() -> None:
    """Drop the programs that other test modules compiled."""
    jax.clear_caches()


@pytest.fixture(scope="module")
def in_64_bits() -> Iterator[None]:
    """Compute in 64 bits in a test module that asks for it."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def regression() -> Callable[..., Regression]:
    """Return a function that makes regression problems, float32 by default."""

    def make(
        num_clients: int = 7,
        *,
        examples: int = 6,
        dim: int = 3,
        noise: float = 0.1,
        dtype: str = "float32",
        seed: int = 0,
        is_split: bool = False,
        is_whole: bool = False,
    ) -> Regression:
        random = np.random.default_rng(seed)
        inputs = random.normal(size=(num_clients, examples, dim)).astype(dtype)
        targets = (inputs @ random.normal(size=dim) + random.normal(size=(num_clients, 1))).astype(
            dtype
        )
        counts = random.integers(2, examples + 1, num_clients)
        # Padding beyond a client's count must never be used.
        inputs[np.arange(examples)[None, :] >= counts[:, None]] = 1e6
        kind = SplitRegression if is_split else WholeRegression if is_whole else Regression
        return kind(
            jnp.asarray(inputs),
            jnp.asarray(targets),
            jnp.asarray(counts, "int32"),
            jnp.asarray(noise, dtype),
        )

    return make


@struct.dataclass
class WatchedMean(latent.NoisyMean):
    """A noisy mean that reports every coordinate of its statistics as a metric."""

    def metrics(self, statistics: jax.Array, params: jax.Array) -> Mapping[str, jax.Array]:
        return coordinates(statistics)


@pytest.fixture(scope="session")
def noisy_mean() -> Callable[..., latent.Estimation]:
    """Return a function that makes EM problems, float32 by default.

    Clients have 2, 4 or 6 examples, each with a noise level drawn for it.
    """

    def make(
        num_clients: int = 7,
        *,
        dim: int = 3,
        dtype: str = "float32",
        seed: int = 0,
        start: float | None = 1.0,
    ) -> latent.Estimation:
        random, first = np.random.default_rng(seed), np.random.default_rng(0)
        random.integers(1, 4, num_clients)
        # Problems of all seeds have equally many examples, so that they share programs.
        counts = np.roll(2 * first.integers(1, 4, num_clients), seed)
        y = random.normal(size=(num_clients, 6, dim)) + 2 * random.normal(
            size=(num_clients, 1, dim)
        )
        kappa = random.uniform(0.2, 0.9, (num_clients, 6))
        # Padding beyond a client's count must never be used.
        is_there = np.arange(6)[None, :] < counts[:, None]
        y[~is_there] = 1e6
        data = Seen(y.reshape(-1, dim).astype(dtype), kappa.ravel().astype(dtype))
        partition = Partition(np.flatnonzero(is_there), counts)
        given = None if start is None else np.full(dim, start)
        return latent.make_estimation(WatchedMean(ridge=0.25), data, partition, start=given)

    return make


@pytest.fixture(scope="session")
def small() -> Callable[..., Any]:
    """Return a function that makes a system's settings for small tests, changed by keywords.

    There are seven clients, four slots and at most five local steps. FedAsync, AsyncFedED and
    Generalized AsyncSGD have one slot, FA-LD and the systems of EM have slots for all clients.
    FedEM, DIANA and their variants compress messages, and clients take part at random. `lr` sets
    the step size of FA-LD.
    """
    buffered = {"buffer_size": 4, "local_steps": 5}
    differences = {"participation": 0.6, "compression": BlockQuantization()}
    compressed = differences | {"gamma": 0.1}
    # Three groups of two clients and one of one; an iteration takes 1.1 units of time on average.
    grouped = {"num_groups": 4, "sync_time": 5.0, "mean": 0.2}
    sizes = {
        "fedbuff": {"concurrency": 5, **buffered},
        "fedstaleweight": buffered,
        "fedasync": {"local_steps": 5},
        "mimelite": {"num_selected": 4, "local_steps": 5, "gradient": "minibatch"},
        "qfedavg": {"num_selected": 4, "local_steps": 5, "client_losses": "minibatch"},
        "ifca": {"num_selected": 4, "local_steps": 5, "client_losses": "minibatch"},
        "pfedme": {"num_selected": 4, "local_steps": 5, "personal_steps": 2, "personal_lr": 0.1},
        "ca2fl": {"concurrency": 5, **buffered},
        "asyncfeded": {"local_steps": 5},
        "fedpa": {"num_selected": 4, "local_steps": 5, "burn_in": 1, "num_samples": 2},
        "asyncfeded_adaptive": {"local_steps": 5, "most_steps": 9},
        "fedper": {"num_selected": 4, "local_steps": 5, "personal": "head"},
        "fedbn": {"num_selected": 4, "local_steps": 5, "personal": "head"},
        "fedat": {"num_selected": 3, "num_tiers": 1, "local_steps": 5},
        "pisces": {"concurrency": 4, "most_reports": 4, "local_steps": 5},
        "tifl": {"num_selected": 4, "local_steps": 5, "num_tiers": 1, "policy": "static"},
        "hierarchical": grouped,
        "async_hierarchical": grouped | {"num_reports": 4, "client_steps": 2},
        "gen_async": {"local_steps": 5, "num_tasks": 5},
        "langevin": {"num_selected": 4, "local_steps": 5, "temperature": 1e-3, "rho": 0.5},
        "em": {},
        "fedem": compressed,
        "vr_fedem": compressed | {"inner_steps": 2.0},
        "async_fedem": {"buffer_size": 4, "compression": BlockQuantization(), "gamma": 0.1},
        "diana": differences,
        "vr_diana": differences | {"refresh": 0.4},
    }

    def make(system: Any, **changes: Any) -> Any:
        rate = {} if system.fit.learns is LatentProblem else {"lr": 0.05}
        chosen = (
            {"num_clients": 7, "batch_size": 2}
            | rate
            | sizes.get(system.name, {"num_selected": 4, "local_steps": 5})
            | changes
        )
        if system.name == "langevin":
            # FA-LD follows the gradient of a sum over the about 30 examples of `regression`; the
            # other systems follow the gradient of a mean.
            chosen = {"step_size": chosen.pop("lr") / 30} | chosen
        # Sizes without effect under the changes are left out.
        known, idle = names_of(system.Hyper), idle_of(system.paper(**chosen))
        kept = {name for name in chosen if name in changes or known[name] not in idle}
        return system.paper(**{name: chosen[name] for name in kept})

    return make


@pytest.fixture(scope="session")
def draw() -> Callable[..., Any]:
    """Return a function that draws schedules in 64 bits.

    The result holds NumPy arrays with leaves `[seeds, T, ...]`.
    """

    def schedules(
        timeline: Callable, hyper: Any, *, num_ticks: int, seeds: int | list[int] = 1
    ) -> Any:
        with jax.enable_x64(True):
            numbers = np.arange(seeds) if isinstance(seeds, int) else np.asarray(seeds)
            known = tuple(known_values(hyper))
            hyper = jax.tree.map(lambda leaf: np.asarray(leaf, float), hyper)
            drawn = _drawn(timeline, num_ticks, known, numbers.astype("int32"), hyper)
            return jax.tree.map(np.asarray, drawn)

    return schedules


def _draw_all(
    timeline: Callable, num_ticks: int, known: tuple, seeds: jax.Array, hyper: Any
) -> Any:
    hyper = dataclasses.replace(hyper, **dict(known))

    def lane(seed: jax.Array) -> Any:
        return timeline(stream(jax.random.key(seed), "timeline"), hyper, num_ticks)

    return jax.vmap(lane)(seeds)


_drawn = jax.jit(_draw_all, static_argnums=(0, 1, 2))


@pytest.fixture
def compiled(no_programs: None) -> Iterator[list[str]]:
    """Return a growing list: names of programs compiled, or fetched from the cache, in a test."""
    yield from _listen()


@pytest.fixture(scope="module")
def compiled_in_module(no_programs: None) -> Iterator[list[str]]:
    """Return the same list, for a test module from its first use of this fixture on."""
    yield from _listen()


def _listen() -> Iterator[list[str]]:
    names: list[str] = []

    def take_note(event: str, duration_secs: float, **facts: Any) -> None:
        if event == COMPILE_EVENT:
            names.append(str(facts.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(take_note)
    yield names
    jax.monitoring.unregister_event_duration_listener(take_note)
