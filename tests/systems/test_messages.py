"""Every system whose clients report models takes compressed messages, and moves by them alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Plan
from fedjax_sim.compression import Compressor, parse_compressor
from fedjax_sim.privacy import parse_privacy
from fedjax_sim.settings import check, fields, fixed, struct
from fedjax_sim.types import full_precision_bits
from tests.systems.hand_made import CLIENTS, GROUPED, STEPS, emptied, events_of

WITHOUT = {"quafl", "langevin", "em", "fedem", "vr_fedem"}
"""QuAFL, FedEM and VR-FedEM have schemes of their own; FA-LD and EM send models as they are."""
SYSTEMS = {name: each for name, each in fedjax_sim.SYSTEMS.items() if name not in WITHOUT}
OPTIONS = ("compression", "error_feedback", "downlink")
SAME_CODE = ("fedopt", "fedadagrad", "fedadam", "fedyogi")
"""Systems of FedAvgM's code."""
PLAN = Plan(rows=3, slots_at_once=4)
MADE = {"scaffold": {"control": "minibatch"}, "mimelite": {"gradient": "minibatch"}}
GROUPS = {"num_groups": 7, "aggregation": "average", "client_steps": 2}
MADE |= {"hierarchical": GROUPS, "async_hierarchical": GROUPS | {"num_reports": 1}}
"""Settings of some systems, which need no more of the problem than its gradients."""


@struct
class Silence(Compressor):
    """Send nothing."""

    name: str = fixed("silence")

    def apply(self, key: jax.Array, vector: jax.Array) -> jax.Array:
        """Return zeros."""
        return jnp.zeros_like(vector)

    def pace(self, dim: int) -> float:
        """Return 1: there is nothing to scale down."""
        return 1.0


def problem_for(name: str, regression: Callable) -> Any:
    return regression(is_split=True) if name == "fedper" else regression()


def test_all_systems_that_average_models_have_all_options() -> None:
    """Each of them: a compressor up, a compressor down, and error feedback."""
    table = {
        name: [each in fields(system.Hyper) for each in OPTIONS] for name, system in SYSTEMS.items()
    }
    assert len(table) == 21
    assert {name for name, row in table.items() if not all(row)} == set()
    private = {name for name, system in SYSTEMS.items() if "privacy" in fields(system.Hyper)}
    assert private >= {"fedavg", "fedprox", "fedopt", "fedadam", "ditto"}
    assert not private & {"fedbuff", "fedasync", "fedstaleweight", "favano", "scaffold", "fednova"}


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
    assert up == 32 + plain // 32
    assert plain % full_precision_bits(model) == 0 or name == "fedper"


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
        is_near = jnp.abs(params).max() <= self.reach
        return jnp.where(is_near, params.sum(), jnp.nan * params.sum())


@pytest.fixture(scope="module")
def silenced(small: Callable) -> Callable[..., dict[str, tuple[jax.Array, jax.Array]]]:
    """Return a function that runs ticks of systems with some messages that say nothing.

    It returns the server's model and the gradients evaluated, by system.
    """

    def make(names: Any, ticks: int, **changes: Any) -> Any:
        problem = Slope(jnp.full(7, 4), jnp.float32(5 * 0.05 * 1.5))

        @jax.jit
        def run(problem: Slope) -> dict[str, tuple[jax.Array, jax.Array]]:
            found = {}
            for name in names:
                system = SYSTEMS[name]
                hyper = small(system, **(MADE.get(name, {}) | changes))
                algorithm = system.algorithm(problem, hyper, PLAN)
                events = events_of(system, CLIENTS * 2, STEPS * 2)
                state, needed = algorithm.init(jax.random.key(0)), jnp.int32(0)
                for tick in range(ticks):
                    event = jax.tree.map(lambda leaf, tick=tick: leaf[tick], events)
                    state, work = algorithm.step(jax.random.key(1), state, event)
                    needed += work.needed
                found[name] = state.server, needed
            return found

        return jax.tree.map(np.asarray, run(problem))

    return make


def test_what_is_not_sent_does_not_move_the_server(silenced: Callable) -> None:
    """Clients train, but their messages are empty: the first tick leaves the server's model.

    A system that used its clients' models instead of their messages would move. Local servers may
    hear nothing of their clients, or say nothing to the global one.
    """
    names = [name for name in SYSTEMS if name not in (*SAME_CODE, "fedper")]
    found = silenced(names, 1, compression=Silence())
    edges = silenced(GROUPED, 1, edge_compression=Silence())
    for name, (server, needed) in [*found.items(), *edges.items()]:
        assert needed > 0
        np.testing.assert_allclose(server, 0, atol=1e-7, err_msg=name)


def test_clients_start_from_what_they_have_heard(silenced: Callable) -> None:
    """The server's messages are empty: clients begin at the first model, at every tick.

    The server goes on in steps as long as those of the clients, farther than these reach. A system
    whose clients began at the server's model would see gradients that are NaN, as FedAvg does if
    the messages are heard.
    """
    names = [name for name in SYSTEMS if name not in (*SAME_CODE, "fedper")]
    for name, (server, _) in silenced(names, 6, downlink=Silence()).items():
        assert np.isfinite(server).all(), name
        assert np.abs(server).min() > 0.05, name
    assert np.isnan(silenced(["fedavg"], 6)["fedavg"][0]).all()


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
