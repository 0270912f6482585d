"""The sum of fixed-point numbers modulo a power of two: its code, its errors, and its bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim import Ticks
from fedjax_sim.core.settings import ConfigError, check
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.compression import TopK
from fedjax_sim.server.rules import Mean, SecureSum, parse_rule
from fedjax_sim.systems import fedavg, fedbuff, hierarchical, quafl

NUM, DIM, DRAWS = 5, 40, 400
MESSAGES = np.random.default_rng(0).normal(size=(NUM, DIM)).astype("float32")
WEIGHT = np.array([0.3, 0.3, 0.2, 0.2, 0.0], "float32")
PRESENT = jnp.asarray(WEIGHT > 0)


def summed(rule: SecureSum, messages: np.ndarray = MESSAGES, draws: int = 1) -> np.ndarray:
    """Draw sums of the messages: `f[draws, DIM]`."""
    keys = jax.random.split(jax.random.key(1), draws)
    centre = jax.vmap(rule.centre, (0, None, None, None))
    given = jnp.asarray(messages * (WEIGHT > 0)[:, None])
    return np.asarray(centre(keys, given, jnp.asarray(WEIGHT), PRESENT))


@pytest.mark.slow
def test_sums_are_multiples_of_the_step_and_unbiased() -> None:
    """Four roundings, each off by less than a step, whose mean is right."""
    step, mean = 0.125, WEIGHT @ MESSAGES
    found = summed(SecureSum(width=12, step=step), draws=DRAWS)
    np.testing.assert_array_equal(found / step, np.round(found / step))
    assert np.abs(found - mean[None]).max() < 4 * step
    # Each of the four roundings has a variance of at most step^2 / 4.
    assert np.abs(found.mean(axis=0) - mean).max() < 5 * step / np.sqrt(DRAWS)
    fine = summed(SecureSum(width=30, step=1e-7))
    np.testing.assert_allclose(fine[0], mean, atol=1e-6)


@pytest.mark.parametrize("width", [4, 8, 24, 31])
def test_sums_are_right_modulo_a_power_of_two(width: int) -> None:
    """By whole numbers in Python, the parts and the sums too large for the width among them."""
    random = np.random.default_rng(width)
    half = 2 ** (width - 1)
    steps = random.integers(-min(2 * half, 2**22), min(2 * half, 2**22), size=(NUM, DIM))
    found = summed_whole(steps, width)
    expected = [(int(total) + half) % (2 * half) - half for total in steps.sum(axis=0)]
    np.testing.assert_array_equal(found, expected)
    assert width > 20 or (np.abs(steps.sum(axis=0)) > half).any()


def summed_whole(steps: np.ndarray, width: int) -> np.ndarray:
    """Sum whole numbers with weights 1."""
    ones = jnp.ones(NUM)
    rule = SecureSum(width=width, step=1.0)
    given = jnp.asarray(steps.astype("float32"))
    return np.asarray(rule.centre(jax.random.key(0), given, ones, ones > 0)).astype(int)


@pytest.mark.slow
@pytest.mark.parametrize("system", [fedbuff.system, fedavg.system, quafl.system])
def test_a_system_learns_by_it(system: fedjax_sim.System) -> None:
    """With a fine step it is the mean; its messages have as many bits as numbers are wide."""
    problem = Quadratic.of(MESSAGES, noise=0.0)
    few = {"buffer_size": 3} if system.name == "fedbuff" else {"num_selected": 3}
    hyper = system.Hyper(num_clients=NUM, batch_size=1, local_steps=2, **few)
    options = {"budget": Ticks(4), "num_evals": 2, "settings": {"aggregator": RULES}}
    found = fedjax_sim.sweep(system, problem, hyper, **options)
    plain, fine, coarse = np.asarray(found.models).reshape(3, DIM)
    np.testing.assert_allclose(fine, plain, atol=1e-5)
    assert np.abs(coarse - plain).max() > 1e-2
    bits = found.curves.uplink_bits.isel(eval=-1).values.reshape(3)
    np.testing.assert_array_equal(bits / bits[0] * 32, [32, 30, 6])


RULES = [Mean(), SecureSum(width=30, step=1e-7), SecureSum(width=6, step=0.1)]


@pytest.mark.slow
def test_bits_within_groups_and_between() -> None:
    model = jax.ShapeDtypeStruct((DIM,), "float32")
    hyper = hierarchical.Hyper(aggregator=SecureSum(width=10), edge_aggregator=SecureSum(width=7))
    assert hierarchical.system.messages.bits(model, hyper)[0] == 10 * DIM
    problem = Quadratic.of(np.tile(MESSAGES, (20, 1)))
    run = fedjax_sim.simulate(hierarchical.system, problem, hyper, budget=Ticks(1), num_evals=1)
    assert run.curves.uplink_bits.values[-1] == 7 * DIM * hyper.num_groups


@pytest.mark.parametrize(
    "hyper",
    [
        lambda: fedavg.Hyper(aggregator=SecureSum(), compression=TopK(kept=2)),
        lambda: quafl.Hyper(aggregator=SecureSum(), compression=TopK(kept=2)),
        lambda: hierarchical.Hyper(edge_aggregator=SecureSum(), edge_compression=TopK(kept=2)),
    ],
)
def test_messages_are_coded_once(hyper: object) -> None:
    with pytest.raises(ConfigError, match=r"'top_k:kept=2', but must be identity with "):
        check(hyper())  # type: ignore[operator]


def test_text() -> None:
    assert parse_rule("secure_sum:width=16:step=0.001") == SecureSum(width=16, step=0.001)
