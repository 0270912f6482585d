"""Fixtures of the contract tests: every system in turn, with a small problem that suits it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Event, Plan, System
from fedjax_sim.clients.local_settings import LocalTraining
from fedjax_sim.core.settings import idle_of, names_of
from fedjax_sim.core.types import LatentProblem
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.server.compression import Identity
from tests.systems.hand_made import CLIENTS, GROUPED, STEPS, Bound, events_of
from tests.systems.kinds import systems_of

EXAMPLES = 30
"""About how many examples the clients of `regression` have together.

FedAvg's learning rate is FA-LD's step size times the number of examples.
"""


COMPRESSED = ("diana", "vr_diana")
"""Systems whose clients send compressed gradients in rounds of coins."""
LIKE_ANOTHER = {
    "fedprox": "fedavg",
    "fednova": "fedavg",
    "fedavgm": "fedavg",
    "mimelite": "scaffold",
    "fedat": "pisces",
    "safa": "pisces",
    "fedstaleweight": "fedbuff",
    "gen_async": "fedasync",
    "asyncfeded": "fedasync",
    "asyncfeded_adaptive": "pisces",
    "ca2fl": "fedbuff",
    "qfedavg": "fedavg",
    "perfedavg": "fedavg",
    "pfedme": "fedavg",
    "em": "fedem",
    "vr_diana": "diana",
}
"""Systems that run one other layout, over two devices, and nothing in pieces or without jit.

To the engine they are other systems, which run all of it, with other arithmetic in a step.
"""


def skip_if_like_another(system: System) -> None:
    """Skip what runs of another system show for systems that are like it."""
    if system.name in LIKE_ANOTHER:
        pytest.skip(f"{LIKE_ANOTHER[system.name]} are enough")


class Kind(NamedTuple):
    """What differs between systems of gradients and systems of expected statistics.

    Attributes:
      make: Makes a small problem.
      swept: Name of a numeric setting to sweep.
      changed: Other values of other numeric settings.
      metrics: A metric of the server's model, and one of what clients hold.
      without_start: Settings with which a client's data have no effect before its first step.
      quiet: Settings with which clients draw nothing but mini-batches.
      client_variance: Whether `client_variance` can be measured.
      scale: Factor on the swept values, to make them suit this system.
      evaluations: Gradients evaluated for each local step, and for each report.
    """

    make: Callable[..., Any]
    swept: str
    changed: dict[str, Any]
    metrics: tuple[str, str]
    without_start: dict[str, Any]
    quiet: dict[str, Any]
    client_variance: bool
    scale: float = 1.0
    evaluations: tuple[float, int] = (1, 0)

    def sweep(self, values: list[float]) -> dict[str, list[float]]:
        """Return the argument `settings` of a sweep over these values."""
        return {self.swept: [self.scale * value for value in values]}

    def poisoned(self, problem: Any, clients: Any) -> Any:
        """Replace the data of some clients by NaN."""
        return self.with_data(problem, clients, lambda data: jnp.full_like(data, jnp.nan))

    def with_data(self, problem: Any, clients: Any, change: Callable[[Any], Any]) -> Any:
        """Change the data of some clients by a function of arrays."""
        clients = jnp.asarray(clients)
        if isinstance(problem, LatentProblem):
            owner, is_there = problem.held.owners()
            rows = problem.held.index[jnp.isin(owner, clients) & is_there]
            y = problem.data.y
            return problem.replace(data=Seen(y.at[rows].set(change(y[rows])), problem.data.kappa))
        inputs, targets = problem.inputs, problem.targets
        return problem.replace(
            inputs=inputs.at[clients].set(change(inputs[clients])),
            targets=targets.at[clients].set(change(targets[clients])),
        )


LIKE_OORT = ("powerofchoice", "tifl", "fedcs", "adacomm")
"""Systems that are FedAvg on a live clock of rounds, as Oort is; their clocks have tests of their
own."""
LIKE_FEDAVGM = ("fedopt", "fedadagrad", "fedadam", "fedyogi")
"""Systems of FedAvgM's code with other optimizers on the server, which are not linear."""
LIKE_FEDPER = ("fedbn",)
"""Systems of FedPer's code with other personal leaves."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark costly contracts as slow for all systems but one of each kind."""
    for item in items:
        mark = item.get_closest_marker("of_each_kind")
        if mark is not None and item.callspec.params["system"] not in systems_of(
            *mark.args, **mark.kwargs
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(
    scope="module",
    params=[
        name for name in fedjax_sim.SYSTEMS if name not in LIKE_FEDAVGM + LIKE_OORT + LIKE_FEDPER
    ],
)
def system(request: pytest.FixtureRequest) -> System:
    """Every system in turn."""
    return fedjax_sim.SYSTEMS[request.param]


@pytest.fixture(scope="module")
def kind(system: System, regression: Callable, noisy_mean: Callable) -> Kind:
    """What to learn with the system, and which settings to change."""
    if system.fit.learns is not LatentProblem:
        return _kind_of_gradients(system, regression)
    if system.name == "em":
        # EM has no numeric settings except its clock's.
        return Kind(noisy_mean, "round_length", {}, ("objective", "mean_field"), {}, {}, False)
    changed = {"participation": 0.3, "alpha": 0.1, "round_length": 2.0}
    if system.name == "vr_fedem":
        changed["inner_steps"] = 3.0
    start = {"memory_start": "zero"}
    metrics = ("objective", "memory_error")
    quiet = {**start, "compression": Identity()}
    return Kind(noisy_mean, "gamma", changed, metrics, start, quiet, False)


def _kind_of_gradients(system: System, regression: Callable) -> Kind:
    changed = {"rate_slow": 0.1, "slow_fraction": 0.6, "server_interact": 2.0}
    if system.name in GROUPED:
        # Its clock has delays of groups instead of clients.
        changed = {"shift": 0.6, "mean": 0.1, "exchange_shift": 1.0}
        changed["sync_time"] = 3.0
    if system.name in COMPRESSED:
        changed = {"participation": 0.3, "alpha": 0.1, "round_length": 2.0}
    known = names_of(system.Hyper)
    changed = {name: value for name, value in changed.items() if name in known}
    # A server that takes every report when it arrives takes no time.
    idle = idle_of(system.paper(**changed))
    changed = {name: value for name, value in changed.items() if known[name] not in idle}
    metrics = ("loss", "client_variance")
    if system.name == "langevin":
        quiet = {"temperature": 0.0}
        return Kind(regression, "step_size", changed, metrics, {}, quiet, True, 1 / EXAMPLES)
    make = partial(regression, is_split=True) if system.name in ("fedper", "fedbn") else regression
    make = partial(regression, is_whole=True) if system.name == "vr_diana" else make
    # Oort and Pisces look at a loss of each client that trains.
    others = {"ditto": (2, 0), "mimelite": (1, 1), "oort": (1, 1), "pisces": (1, 1)}
    # pFedMe takes two inner steps here, and IFCA compares two models.
    others |= {"apfl": (2, 0), "perfedavg": (2, 0), "pfedme": (2, 0)}
    others |= {"qfedavg": (1, 1), "ifca": (1, 2)}
    # The sum of h_k, by which q-FedAvg divides, depends on all clients together.
    quiet: dict[str, Any] = {"fairness": 0.0} if system.name == "qfedavg" else {}
    quiet |= {"compression": Identity()} if system.name in COMPRESSED else {}
    evaluations, is_planned = others.get(system.name, (1, 0)), system.live is None
    metrics = metrics if is_planned else ("loss", "loss")
    return Kind(make, "lr", changed, metrics, {}, quiet, is_planned, evaluations=evaluations)


SHUFFLING = ("fedavg", "fedasync")
"""Systems that shuffle epochs, and each update's examples, with code that all systems share."""


@pytest.fixture(scope="module")
def chosen(system: System, small: Callable) -> Callable[..., Any]:
    """Return a function that makes the system's settings, changed by keywords.

    Only one system for each way of shuffling shuffles, which takes much of a program.
    """
    is_other = issubclass(system.Hyper, LocalTraining) and system.name not in SHUFFLING
    return partial(small, system, **({"sampling": "with_replacement"} if is_other else {}))


@pytest.fixture
def bind(system: System, chosen: Callable) -> Callable[..., Bound]:
    """Return a function that binds the system to a problem, in the problem's precision."""

    def make(
        problem: Any, *, plan: Plan | None = None, events: Event | None = None, **changes: Any
    ) -> Bound:
        plan = Plan(rows=3, slots_at_once=4) if plan is None else plan
        changes = ({"num_groups": 7} if system.name in GROUPED else {}) | changes
        dtype = jax.tree.leaves(jax.eval_shape(problem.init, jax.random.key(0)))[0].dtype
        hyper = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), chosen(**changes))
        events = events_of(system, CLIENTS, STEPS) if events is None else events
        return Bound(system, problem, hyper, plan, events)

    return make
