"""Every system whose clients report models takes compressed messages, and moves by them alone."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Plan
from fedjax_sim.core.settings import ConfigError, check, fixed, names_of, struct
from fedjax_sim.core.types import full_precision_bits
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.attacks import SignFlip
from fedjax_sim.server.compression import Compressor, parse_compressor
from fedjax_sim.server.privacy import CorrelatedNoise, LocalGaussian, parse_privacy
from fedjax_sim.server.rules import CentredClipping
from tests.conftest import slow_but
from tests.systems.hand_made import CLIENTS, GROUPED, STEPS, emptied, events_of, replay

WITHOUT = {"quafl", "langevin", "em", "fedem", "vr_fedem", "async_fedem", "diana", "vr_diana"}
"""QuAFL, FedEM, DIANA and their variants have other schemes; others send models as they are."""
SYSTEMS = {name: each for name, each in fedjax_sim.SYSTEMS.items() if name not in WITHOUT}
OPTIONS = ("compression", "error_feedback", "downlink")
SAME_CODE = ("fedopt", "fedadagrad", "fedadam", "fedyogi")
"""Systems of FedAvgM's code."""
PLAN = Plan(rows=3, slots_at_once=4)
MADE = {
    "scaffold": {"control": "minibatch"},
    "mimelite": {"gradient": "minibatch", "momentum": 0.0},
    "qfedavg": {"client_losses": "minibatch", "fairness": 0.0},
    "ifca": {"client_losses": "minibatch"},
    # A local step of the length that the others have.
    "pfedme": {"personal_steps": 1, "personal_lr": 0.1, "pull": 10.0},
}
GROUPS = {"num_groups": 7, "aggregation": "average", "client_steps": 1}
MADE |= {"hierarchical": GROUPS, "async_hierarchical": GROUPS | {"num_reports": 1}}
"""Settings of some systems, which need no more of the problem than its gradients."""
CORRECTED = ("scaffold", "feddyn")
"""Systems whose local steps do not follow gradients alone."""


@struct
class Silence(Compressor):
    """Send nothing."""

    name: str = fixed("silence")

    def bits(self, dim: int, *, word: int = 32) -> int:
        """Return 0."""
        return 0

    def apply(self, key: jax.Array, vector: jax.Array) -> jax.Array:
        """Return zeros."""
        return jnp.zeros_like(vector)

    def pace(self, dim: int) -> float:
        """Return 1: there is nothing to scale down."""
        return 1.0


def problem_for(name: str, regression: Callable) -> Any:
    return regression(is_split=True) if name in ("fedper", "fedbn") else regression()


def test_all_systems_that_average_models_have_all_options() -> None:
    """Each of them: a compressor up, a compressor down, and error feedback."""
    table = {
        name: [each in names_of(system.Hyper) for each in OPTIONS]
        for name, system in SYSTEMS.items()
    }
    assert len(table) == 38
    assert {name for name, row in table.items() if not all(row)} == set()
    private = {name for name, system in SYSTEMS.items() if "privacy" in names_of(system.Hyper)}
    assert private >= {"fedavg", "fedprox", "fedopt", "fedadam", "ditto"}
    assert private >= {"fedbuff"}
    assert not private & {"fedasync", "fedstaleweight", "favano", "scaffold", "fednova"}
    local = {name for name, system in SYSTEMS.items() if "local_privacy" in names_of(system.Hyper)}
    assert local == set(SYSTEMS)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_option_at_once(name: str, regression: Callable, small: Callable) -> None:
    """A step keeps structure and types of the state; bits up are those of the compressor."""
    system = SYSTEMS[name]
    sign, top_k = parse_compressor("sign"), parse_compressor("top_k")
    options = {"compression": sign, "error_feedback": True, "downlink": top_k, **MADE.get(name, {})}
    is_grouped = name in GROUPED
    hyper = small(system, **options, **({"edge_compression": sign} if is_grouped else {}))
    check(hyper)
    problem = problem_for(name, regression)
    algorithm = system.algorithm(problem, hyper, PLAN)
    events = events_of(system, CLIENTS, STEPS)
    first = jax.eval_shape(algorithm.init, jax.random.key(0))
    event = jax.tree.map(lambda leaf: leaf[0], events)
    after, _ = jax.eval_shape(algorithm.step, jax.random.key(0), first, event)
    chex.assert_trees_all_equal_shapes_and_dtypes(first, after)
    for kept in (first.memo.estimates, first.memo.members)[: 1 + is_grouped]:
        assert {leaf.shape[0] for leaf in jax.tree.leaves(kept)} == {7}
    model = jax.eval_shape(problem.init, jax.random.key(0))
    plain, _ = system.messages.bits(model, small(system))
    up, _ = system.messages.bits(model, hyper)
    # All messages are vectors of full floats without compression.
    # q-FedAvg's clients also send a loss, and IFCA's the number of one of two models.
    others = {"qfedavg": 32, "ifca": 1}.get(name, 0)
    assert up == 32 + (plain - others) // 32 + others
    is_whole = (plain - others) % full_precision_bits(model) == 0
    assert is_whole or name in ("fedper", "fedbn")


class Slope(NamedTuple):
    """A problem whose gradient is 1 within a distance of the first model, 0, and NaN beyond.

    Local models stay within it if clients start from there.
    """

    counts: jax.Array
    reach: jax.Array

    def init(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(2)

    def loss(
        self, params: jax.Array, client: jax.Array, examples: jax.Array, key: jax.Array
    ) -> jax.Array:
        is_near = jnp.abs(jax.lax.stop_gradient(params)).max() <= self.reach
        return jnp.where(is_near, 1, jnp.nan) * params.sum()


@pytest.fixture(scope="module")
def silenced(small: Callable) -> Callable[..., dict[str, tuple[jax.Array, jax.Array]]]:
    """Return a function that runs ticks of systems with some messages that say nothing.

    It returns the server's model and the gradients evaluated, by system.
    """

    def make(names: Any, ticks: int, **changes: Any) -> Any:
        # Five steps of 0.05; those of SCAFFOLD and FedDyn may be up to twice as long.
        problems = {
            name: Slope(jnp.full(7, 4), jnp.float32(0.51 if name in CORRECTED else 0.255))
            for name in names
        }

        @jax.jit
        def run(problems: dict[str, Slope]) -> dict[str, tuple[jax.Array, jax.Array]]:
            found = {}
            for name, problem in problems.items():
                system = SYSTEMS[name]
                hyper = small(system, **(MADE.get(name, {}) | changes))
                events = events_of(system, CLIENTS * 2, STEPS * 2)
                events = jax.tree.map(lambda leaf: leaf[:ticks], events)
                state, work = replay(system, PLAN, problem, hyper, jax.random.key(1), events)
                found[name] = state.server, work.needed.sum()
            return found

        return jax.tree.map(np.asarray, run(problems))

    return make


def test_what_is_not_sent_does_not_move_the_server(silenced: Callable) -> None:
    """Clients train, but their messages are empty: the first tick leaves the server's model.

    A system that used its clients' models instead of their messages would move. Local servers may
    hear nothing of their clients, or say nothing to the global one.
    """
    names = [name for name in SYSTEMS if name not in (*SAME_CODE, "fedper", "fedbn")]
    found = silenced(names, 1, compression=Silence())
    edges = silenced(GROUPED, 1, edge_compression=Silence())
    for name, (server, needed) in [*found.items(), *edges.items()]:
        assert needed > 0
        np.testing.assert_allclose(server, 0, atol=1e-7, err_msg=name)


@pytest.mark.slow
def test_clients_start_from_what_they_have_heard(silenced: Callable) -> None:
    """The server's messages are empty: clients begin at the first model, at every tick.

    The server's model moves on, and from there clients would reach farther than from the first
    model, where gradients are NaN. So they do in every system if the messages are heard.
    """
    names = [name for name in SYSTEMS if name not in (*SAME_CODE, "fedper", "fedbn")]
    unheard = silenced(names, 24, downlink=Silence())
    assert {name for name, (server, _) in unheard.items() if not np.isfinite(server).all()} == set()
    heard = silenced(names, 24)
    assert {name for name, (server, _) in heard.items() if np.isfinite(server).any()} == set()


@pytest.mark.slow
def test_what_is_not_heard_stays_with_the_server() -> None:
    """Clients begin at the first model at every tick, and their progress adds up."""
    problem = Quadratic.of([[10.0, 1.0], [10.0, 1.0]])
    for name in ("fedavg", "mimelite"):
        system = SYSTEMS[name]
        sizes = {"num_clients": 2, "num_selected": 2, "local_steps": 2, "batch_size": 1}
        settings = {"momentum": 0.0} if name == "mimelite" else {}
        hyper = system.paper(lr=0.1, downlink=Silence(), **sizes, **settings)
        run = partial(fedjax_sim.simulate, system, problem, hyper, num_evals=1)
        models = [run(budget=fedjax_sim.Ticks(ticks)).models for ticks in (1, 3)]
        np.testing.assert_allclose(models[1], 3 * np.asarray(models[0]), rtol=1e-5, err_msg=name)


def test_padding_changes_nothing(regression: Callable, small: Callable) -> None:
    """Ticks without clients add no noise, send nothing, and keep all that is remembered."""
    system = SYSTEMS["fedavg"]
    variants = [
        {"compression": parse_compressor("sign"), "error_feedback": True},
        {"privacy": parse_privacy("adaptive:noise=0.3"), "sampling": "reshuffled"},
    ]
    problem = regression()
    events = emptied(events_of(system, CLIENTS, STEPS), [False, True, True])

    @jax.jit
    def run() -> list[Any]:
        pairs = []
        for changes in variants:
            hyper = small(system, downlink=parse_compressor("sign"), **changes)
            algorithm = system.algorithm(problem, hyper, PLAN)
            state, states = algorithm.init(jax.random.key(0)), []
            for tick in range(2):
                event = jax.tree.map(lambda leaf, tick=tick: leaf[tick], events)
                state, _ = algorithm.step(jax.random.key(1), state, event)
                states.append(state)
            pairs.append(states)
        return pairs

    for one, two in run():
        chex.assert_trees_all_equal(one, two)


STAGES: dict[str, dict[str, Any]] = {
    "aggregator": {"aggregator": CentredClipping()},
    "attack": {"attack": SignFlip(), "malicious": 0.5},
    "compression": {"compression": Silence()},
    "downlink": {"downlink": Silence()},
    "local_privacy": {"local_privacy": LocalGaussian(clip=0.1)},
    "privacy": {"privacy": CorrelatedNoise(clip=0.1)},
    "edge_compression": {"edge_compression": Silence()},
    "edge_aggregator": {"edge_aggregator": CentredClipping()},
}
LEFT_OUT = {("safa", "aggregator"), ("ifca", "aggregator")}
"""Stages that a system says that it is without."""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", slow_but(["fedavg", "fedbuff", "safa", "hierarchical", "scaffold"], SYSTEMS)
)
def test_every_stage_is_in_the_step(name: str, regression: Callable, small: Callable) -> None:
    """Each setting of messages changes the step, or is refused because the system is without it."""
    system, problem = SYSTEMS[name], problem_for(name, regression)
    event = jax.tree.map(lambda leaf: leaf[0], events_of(system, CLIENTS, STEPS))

    def step_of(**changes: Any) -> str:
        hyper = small(system, **(MADE.get(name, {}) | changes))
        algorithm = system.algorithm(problem, hyper, PLAN)
        state = jax.eval_shape(algorithm.init, jax.random.key(0))
        return str(jax.make_jaxpr(algorithm.step)(jax.random.key(0), state, event))

    plain, known = step_of(), names_of(system.Hyper)
    for setting, changes in STAGES.items():
        is_noise_of_members = setting == "local_privacy" and name in GROUPED
        if setting not in known or is_noise_of_members:
            continue
        if (name, setting) in LEFT_OUT:
            with pytest.raises(ConfigError, match="step does not ask its wire for that"):
                step_of(**changes)
        else:
            assert step_of(**changes) != plain, setting
