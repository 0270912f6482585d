"""A step that returns something else than the next state and counts is refused in one sentence."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fedjax_sim
from fedjax_sim import SYSTEMS
from fedjax_sim.core.settings import ConfigError, Finite, fields, setting, struct
from fedjax_sim.core.types import Event, LatentProblem, Plan, Work
from fedjax_sim.engine.contract import check_step
from fedjax_sim.server.compression import Identity, RandK, TopK
from fedjax_sim.server.privacy import parse_privacy
from fedjax_sim.server.rules import Median

PRIVATE = {
    "privacy": parse_privacy("fixed:noise=1"),
    "selection": "poisson",
    "sampling": "without_replacement",
}

WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no counts": (lambda state, info: state, "result of step is 'RoundState', but must be"),
    "three": (lambda state, info: (state, info, 1), "result of step is 'tuple', but must be"),
    "counts in a dict": (
        lambda state, info: (state, {"steps": 1}),
        "info that step returns is 'dict'",
    ),
    "no state": (lambda state, info: (None, info), "state that step returns is 'a NoneType'"),
    "other shape": (
        lambda state, info: (jax.tree.map(lambda leaf: leaf[None], state), info),
        r"state\.\S+ that step returns is .*, but must be .*, as init returns it",
    ),
    "other dtype": (
        lambda state, info: (jax.tree.map(lambda leaf: leaf.astype("bfloat16"), state), info),
        r"state\.\S+ that step returns is .bfloat16\S*, but must be \S+, as init returns it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_result_is_refused(
    case: str, regression: Callable[..., Any], small: Callable[..., Any]
) -> None:
    """The sentence names what was returned and what is allowed."""
    change, sentence = WRONG[case]
    fedavg = SYSTEMS["fedavg"]

    def algorithm(*inputs: Any) -> Any:
        right = fedavg.algorithm(*inputs)
        return right._replace(step=lambda *given: change(*right.step(*given)))

    with pytest.raises(ConfigError, match=sentence):
        fedjax_sim.simulate(
            fedavg._replace(algorithm=algorithm),
            regression(7),
            small(fedavg),
            budget=fedjax_sim.Ticks(3),
        )


def test_numbers_without_a_definite_type_become_what_the_step_returns() -> None:
    """A state that begins with a number of Python may go on in any type, as in a scan."""
    event = Event(*(jnp.zeros(1, "int32") for _ in Event._fields))
    check_step({"sum": 0}, event, ({"sum": jnp.float32(1.5)}, Work(jnp.int32(1), jnp.int32(1))))


def test_an_algorithm_that_is_none_is_refused(
    regression: Callable[..., Any], small: Callable[..., Any]
) -> None:
    system = SYSTEMS["fedavg"]._replace(algorithm=lambda problem, hyper, plan: None)
    with pytest.raises(ConfigError, match="result of algorithm is 'NoneType', but must be a fedj"):
        fedjax_sim.simulate(system, regression(), small(system), budget=fedjax_sim.Ticks(2))


@pytest.fixture
def problem_of(regression: Callable[..., Any], noisy_mean: Callable[..., Any]) -> Any:
    """Return a function from a system to a small problem that it learns."""
    return lambda system: (noisy_mean if system.fit.learns is LatentProblem else regression)(
        **({"is_split": True} if system.name in ("fedper", "fedbn") else {})
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("system", "refused"),
    [
        (
            "fedavg",
            {
                "privacy": PRIVATE,
                "messages.compression": {"compression": TopK(kept=1)},
                "messages.downlink": {"downlink": TopK(kept=1)},
            },
        ),
        ("quafl", {"compression": {"compression": RandK(kept=1)}}),
        (
            "langevin",
            {
                "messages.compression": {"compression": RandK(kept=1)},
                "preconditioning.preconditioner": {"preconditioner": "rmsprop"},
                "dynamics.friction": {"friction": 0.5},
            },
        ),
        (
            "hierarchical",
            {
                "messages.edge_compression": {"edge_compression": TopK(kept=1)},
                "edge_aggregator": {"edge_aggregator": Median()},
            },
        ),
        ("async_hierarchical", {"messages.downlink": {"downlink": TopK(kept=1)}}),
        (
            "fedem",
            {"memories.compression": {"compression": RandK(kept=1), "memory_start": "zero"}},
        ),
        ("vr_fedem", {"memories.memory_start": {"compression": Identity()}}),
    ],
)
def test_no_bits_and_no_privacy_are_counted_of_what_an_algorithm_does_not_do(
    system: str,
    refused: dict[str, dict[str, Any]],
    problem_of: Callable[..., Any],
    small: Callable[..., Any],
) -> None:
    """An algorithm in place of a system's must say that it obeys what its messages rely on."""
    whole = SYSTEMS[system]
    replaced = whole._replace(
        algorithm=lambda *inputs: whole.algorithm(*inputs)._replace(supports=())
    )
    run = partial(fedjax_sim.simulate, problem=problem_of(whole), budget=fedjax_sim.Ticks(1))
    for name, settings in refused.items():
        with pytest.raises(ConfigError, match=f"^{name} is .* does not name it in `supports`"):
            run(replaced, hyper=small(whole, **settings))
    is_em = whole.fit.learns is LatentProblem
    idle = {"memory_start": "zero", "compression": Identity()} if is_em else {}
    run(replaced, hyper=small(whole, **idle))


def test_who_relies_on_settings_obeys_them(
    problem_of: Callable[..., Any], small: Callable[..., Any]
) -> None:
    """Every system whose messages are counted by a setting of messages says so."""
    for system in SYSTEMS.values():
        counted = {
            name
            for name, field in fields(system.Hyper).items()
            if "compression" in name.rpartition(".")[2] or name.endswith("downlink")
        }
        relied = dict(system.messages.relies_on)
        assert counted <= relied.keys(), system.name
        found = system.algorithm(problem_of(system), small(system), Plan())
        assert relied.keys() & fields(system.Hyper).keys() <= {*found.supports}, system.name


def test_settings_say_how_many_clients_there_are(regression: Callable[..., Any]) -> None:
    @struct
    class Hyper:
        lr: Finite = setting(0.1, "Learning rate.")

    system = SYSTEMS["fedavg"]._replace(name="mine", Hyper=Hyper)
    with pytest.raises(ConfigError, match="settings of mine is 'lr', but must be those of"):
        fedjax_sim.simulate(system, regression(), Hyper(), budget=fedjax_sim.Ticks(2))
