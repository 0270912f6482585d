"""A run in a user's hands: mapped, differentiated, changed, resumed; and what is refused."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Bound, ConfigError, Layout, Timeline, bind, bind_together
from fedjax_sim.core.schedules import Cosine, Warmup
from fedjax_sim.core.settings import full_name, value_of
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.compression import Identity
from fedjax_sim.server.privacy import FixedClipping
from fedjax_sim.server.rules import Krum
from fedjax_sim.systems import fedavg, fedbuff, fednova
from tests.conftest import Regression

ALONE = Layout(lanes_at_once=False, lane_devices=1, client_devices=1)


@pytest.fixture
def bound(regression: Callable, small: Callable) -> Bound:
    """A short run of FedBuff, whose schedule has stale work."""
    return bind(fedbuff.system, regression(), small(fedbuff.system), budget=fedjax_sim.Ticks(7))


def final_loss(bound: Bound, **settings: Any) -> jax.Array:
    """Run to the end with other settings: the loss, which all problems here measure."""
    other = bound.with_settings(**settings)
    state, _ = other.run(other.init())
    metrics = other.evaluate(state)
    return metrics["loss"] if "loss" in metrics else metrics["objective"]


FIRST_MODELS = """
import jax, jax.numpy as jnp, numpy as np
from flax import struct
import fedjax_sim
from fedjax_sim import bind, bind_together
from fedjax_sim.systems import fedavg

@struct.dataclass
class Drawn:
    target: jax.Array

    @property
    def counts(self):
        return jnp.full(3, 4)

    def init(self, key):
        return jax.random.uniform(key, self.target.shape[1:], minval=-0.3, maxval=0.3)

    def loss(self, params, client, examples, key):
        return jnp.square(params - self.target[client]).mean()

    def evaluate(self, params):
        return {"loss": jnp.square(params - self.target).mean()}

hyper = fedavg.paper(num_clients=3, num_selected=2)
layout = fedjax_sim.Layout(lanes_at_once=False, lane_devices=1, client_devices=1)
two = fedjax_sim.Ticks(2)
for size in (33, 200_000):
    given = fedavg.system, Drawn(jnp.linspace(-1, 1, 3 * size).reshape(3, size))
    options = dict(budget=two, num_evals=1, layout=layout, keep=fedjax_sim.Keep(models=True))
    together = bind_together(given[0], [given[1]], [hyper], seeds=[0, 1], budget=two)
    swept = fedjax_sim.sweep(*given, hyper, seeds=2, **options)
    for seed in range(2):
        run = fedjax_sim.simulate(*given, hyper, seed=seed, **options)
        np.testing.assert_array_equal(swept.models[seed], run.models)
        for bound in (bind(*given, hyper, seed=seed, budget=two), together[seed]):
            state = bound.init()
            np.testing.assert_array_equal(bound.model(state), run.samples[0])
            np.testing.assert_array_equal(bound.model(bound.run(state)[0]), run.models)
"""


@pytest.mark.slow
def test_the_first_model_is_that_of_a_sweep() -> None:
    """Alone and among others, whether programs of the beginning are compiled quickly or well.

    In a process that compiles as usual: these tests compile everything quickly.
    """
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    root = Path(fedjax_sim.__file__).parents[1]
    subprocess.run([sys.executable, "-c", FIRST_MODELS], env=environment, cwd=root, check=True)


@pytest.mark.slow
def test_the_first_state_may_be_made_within_a_trace(bound: Bound) -> None:
    """It is compiled as the caller says, whether the program is an argument or closed over."""
    first = bound.init()
    for made in (
        jax.jit(lambda: bound.init())(),
        jax.jit(lambda bound: bound.init())(bound),
        jax.tree.map(
            lambda leaf: leaf[0],
            jax.vmap(lambda key: bound.replace(key=key).init())(bound.key[None]),
        ),
    ):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), made, first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting", "changes"),
    [
        pytest.param("fedprox", "proximal", {"proximal": 0.3}, marks=pytest.mark.slow),
        ("fedbuff", "exponent", {"rule": "polynomial", "exponent": 0.4}),
        pytest.param("fedem", "gamma", {"compression": Identity()}, marks=pytest.mark.slow),
        *(
            pytest.param(name, "lr", {}, marks=pytest.mark.slow)
            for name in ("fedavg", "favano", "quafl", "hierarchical")
        ),
    ],
)
def test_derivatives_of_a_run_are_those_of_finite_differences(
    name: str,
    setting: str,
    changes: dict[str, Any],
    regression: Callable,
    noisy_mean: Callable,
    small: Callable,
) -> None:
    """In 64 bits, in both modes. The schedule is the same for all values."""
    system = fedjax_sim.SYSTEMS[name]
    with jax.enable_x64(True):
        make = noisy_mean if name == "fedem" else regression
        hyper = small(system, **changes)
        plain, reverse = (
            bind(
                system,
                make(dtype="float64"),
                hyper,
                budget=fedjax_sim.Ticks(6),
                differentiable=each,
            )
            for each in (False, True)
        )
        value = float(value_of(plain.hyper, full_name(system.Hyper, setting)))

        def loss(bound: Bound, value: Any) -> jax.Array:
            return final_loss(bound, **{setting: value})

        step = 1e-5
        above, below = (loss(plain, value + sign * step) for sign in (1, -1))
        expected = (above - below) / (2 * step)
        assert abs(expected) > 1e-6
        forward = jax.jvp(functools.partial(loss, plain), (value,), (1.0,))[1]
        backward = jax.grad(functools.partial(loss, reverse))(value)
        np.testing.assert_allclose(forward, expected, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(backward, forward, rtol=1e-9)


@pytest.mark.slow
def test_the_initial_model_has_a_gradient(regression: Callable, small: Callable) -> None:
    """Of quadratic losses, the derivative along a direction is exact by central differences."""
    with jax.enable_x64(True):
        system = fedavg.system
        bound = bind(
            system,
            regression(dtype="float64"),
            small(system),
            budget=fedjax_sim.Ticks(4),
            differentiable=True,
        )

        def loss(model: Any) -> jax.Array:
            state, _ = bound.run(bound.init(model))
            return bound.evaluate(state)["loss"]

        model = bound.model(bound.init())
        slope = jax.grad(loss)(model)
        direction = jax.tree.map(
            lambda leaf: jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), model
        )
        ends = [
            loss(jax.tree.map(lambda a, b, sign=sign: a + sign * b, model, direction))
            for sign in (1, -1)
        ]
        products = jax.tree.map(lambda a, b: (a * b).sum(), slope, direction)
        np.testing.assert_allclose(
            sum(jax.tree.leaves(products)), (ends[0] - ends[1]) / 2, rtol=1e-8
        )


def test_reverse_mode_is_asked_for(bound: Bound) -> None:
    """Without `differentiable` one sentence names it, in a loop of one's own too."""
    with pytest.raises(ConfigError, match=r"differentiable is False, .*True in fedjax_sim\.bind"):
        jax.grad(lambda lr: final_loss(bound, lr=lr))(0.1)

    def looped(lr: jax.Array) -> jax.Array:
        other = bound.with_settings(lr=lr)
        state, _ = jax.lax.scan(other.step, other.init(), other.events)
        return other.evaluate(state)["loss"]

    with pytest.raises(ConfigError, match=r"True in fedjax_sim\.bind"):
        jax.grad(looped)(0.1)
    assert np.isfinite(jax.jvp(looped, (0.1,), (1.0,))[1])


@pytest.mark.slow
def test_a_backward_pass_keeps_few_states(small: Callable) -> None:
    """Eight times the ticks take about twice the memory, not eight times.

    Blocks of blocks of these ticks are cubes, so that a tick is compiled once. Most of the memory
    is models: 512 of them would take two million bytes.
    """
    system, problem = fedavg.system, Quadratic.of(np.ones((7, 1000), "float32"))
    hyper = small(system, num_selected=1, local_steps=1, sampling="with_replacement")
    bytes_of = []
    for num_ticks in (64, 512):
        bound = bind(
            system, problem, hyper, budget=fedjax_sim.Ticks(num_ticks), differentiable=True
        )
        slope = jax.jit(lambda lr, bound: jax.grad(lambda x: final_loss(bound, lr=x))(lr))
        needs = slope.lower(0.1, bound).compile().memory_analysis()
        bytes_of.append(needs.temp_size_in_bytes)
    assert bytes_of[1] < 2.6 * bytes_of[0]


@pytest.mark.slow
def test_blocks_of_ticks_are_the_scan(regression: Callable, small: Callable) -> None:
    """Models, reports in their order, and derivatives. Neither blocks nor theirs divide 11."""
    system = fedjax_sim.SYSTEMS["favano"]
    bound = bind(
        system, regression(), small(system), budget=fedjax_sim.Ticks(11), differentiable=True
    )

    def in_blocks(model: Any) -> Any:
        return bound.run(bound.init(model))

    def scanned(model: Any) -> Any:
        return jax.lax.scan(bound.step, bound.init(model), bound.events)

    start = bound.model(bound.init())
    (ours, infos), (theirs, expected) = in_blocks(start), scanned(start)
    np.testing.assert_allclose(bound.model(ours), bound.model(theirs), rtol=1e-5)
    assert len({int(each) for each in infos.needed}) > 1
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), infos, expected)
    slopes = (
        jax.grad(lambda model, run=run: bound.evaluate(run(model)[0])["loss"])(start)
        for run in (in_blocks, scanned)
    )
    np.testing.assert_allclose(*slopes, rtol=1e-4)


def test_settings_that_the_schedule_has_read_are_frozen(bound: Bound) -> None:
    """Equal values are allowed, others and traced ones are not."""
    assert "delays.rate_slow" in bound.frozen
    assert "lr" not in bound.frozen
    same = bound.replace(hyper=bound.hyper.replace(rate_slow=float(bound.hyper.delays.rate_slow)))
    assert jax.tree.structure(same) == jax.tree.structure(bound)
    with pytest.raises(ConfigError, match=r"delays\.rate_slow is 0\.9, .* bind again"):
        bound.replace(hyper=bound.hyper.replace(rate_slow=0.9))
    with pytest.raises(ConfigError, match=r"setting name is 'momentum', but must be .*rate_slow"):
        bound.with_settings(momentum=0.9)
    with pytest.raises(ConfigError, match=r"delays\.rate_slow is 'a traced value'"):
        jax.grad(lambda rate: final_loss(bound, rate_slow=rate))(0.5)
    with pytest.raises(ConfigError, match=r"batch_size.* part of the program"):
        bound.replace(hyper=bound.hyper.replace(batch_size=1))
    with pytest.raises(ConfigError, match=r"^hyper is '.*favano\.QuAFL', but must be as they were"):
        bound.replace(hyper=fedjax_sim.SYSTEMS["quafl"].paper())


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "setting", "bound_at", "changes"),
    [
        *(("fedavg", "local_epochs", value, {}) for value in (0.0, 2.0)),
        ("fednova", "local_epochs", 0.0, {}),
        ("fedavg", "privacy", FixedClipping(epsilon=9.0, rounds=9), {"sampling": "reshuffled"}),
    ],
)
def test_settings_from_which_others_follow_are_frozen(
    name: str,
    setting: str,
    bound_at: Any,
    changes: dict[str, Any],
    regression: Callable,
    small: Callable,
) -> None:
    """Also where they are 0, at which the schedule does not read them."""
    system = fedjax_sim.SYSTEMS[name]
    hyper = small(system, **{setting: bound_at}, **changes)
    bound = bind(system, regression(), hyper, budget=fedjax_sim.Ticks(2))
    full = "privacy.epsilon" if setting == "privacy" else setting
    assert full in bound.frozen
    assert not {"lr", "malicious"} & {*bound.frozen}

    def with_value(value: Any) -> Bound:
        given = bound.hyper.privacy.replace(epsilon=value) if setting == "privacy" else value
        return bound.with_settings(**{setting: given})

    with pytest.raises(ConfigError, match=f"{full} is 5.0, .*other settings follow from it.* bin"):
        with_value(5.0)
    with pytest.raises(ConfigError, match=f"{full} is 'a traced value'"):
        jax.grad(lambda value: final_loss(with_value(value)))(5.0)


@pytest.mark.slow
def test_numbers_that_simplify_a_program_may_be_changed(
    bound: Bound, regression: Callable, small: Callable
) -> None:
    """A server momentum of 0 is part of the program, and another value or a tracer is not."""
    hyper = small(fedbuff.system, server_momentum=0.5)
    anew = bind(fedbuff.system, regression(), hyper, budget=fedjax_sim.Ticks(bound.num_ticks))

    def final(bound: Bound) -> Any:
        return bound.model(bound.run(bound.init())[0])

    assert not np.array_equal(final(anew), final(bound))
    np.testing.assert_allclose(
        final(bound.with_settings(server_momentum=0.5)), final(anew), rtol=1e-5
    )
    traced = jax.jit(lambda value: final(bound.with_settings(server_momentum=value)))(0.5)
    np.testing.assert_allclose(traced, final(anew), rtol=1e-5)


@pytest.mark.slow
def test_a_run_is_mapped_over_keys_settings_and_partitions(
    regression: Callable, small: Callable
) -> None:
    """Each map equals its members alone, to rounding."""
    system = fedavg.system
    bound = bind(system, regression(), small(system), budget=fedjax_sim.Ticks(5))

    def loss(bound: Bound) -> jax.Array:
        return bound.evaluate(bound.run(bound.init())[0])["loss"]

    keys = jax.random.split(bound.key, 3)
    found = jax.vmap(lambda key: loss(bound.replace(key=key)))(keys)
    np.testing.assert_allclose(found, [loss(bound.replace(key=key)) for key in keys], rtol=1e-5)
    assert len({float(each) for each in found}) == 3
    rates = jnp.array([0.01, 0.1])
    found = jax.vmap(lambda lr: final_loss(bound, lr=lr))(rates)
    np.testing.assert_allclose(found, [final_loss(bound, lr=lr) for lr in rates], rtol=1e-5)
    problems = [regression(seed=seed) for seed in (0, 1)]
    together = bind_together(system, problems, small(system), budget=fedjax_sim.Ticks(5))
    stacked, axes = Bound.stack(together)
    found = jax.vmap(loss, in_axes=(axes,))(stacked)
    np.testing.assert_allclose(found, [loss(each) for each in together], rtol=1e-5)
    np.testing.assert_array_equal(together[0].events.clients, together[1].events.clients)


@pytest.mark.slow
def test_schedules_that_differ_are_bound_together(regression: Callable, small: Callable) -> None:
    """Several delays and seeds: one program, whose events and times are mapped over."""
    system, problem = fedbuff.system, regression()
    hypers = [small(system, rate_slow=rate) for rate in (0.05, 0.5)] + [small(system)]
    together = bind_together(system, problem, hypers, seeds=[0, 0, 5], budget=fedjax_sim.Ticks(9))
    stacked, axes = Bound.stack(together)
    losses = jax.vmap(
        lambda bound: bound.evaluate(bound.run(bound.init())[0])["loss"], in_axes=(axes,)
    )(stacked)
    for hyper, seed, bound, loss in zip(hypers, (0, 0, 5), together, losses, strict=True):
        alone = fedjax_sim.simulate(
            system, problem, hyper, seed=seed, budget=fedjax_sim.Ticks(9), layout=ALONE
        )
        np.testing.assert_array_equal(bound.time, alone.timelines[0].time)
        np.testing.assert_allclose(loss, alone.curves["loss"][-1], rtol=1e-5)
    assert not np.array_equal(together[0].time, together[1].time)
    assert jax.tree.leaves(stacked.problem)[0] is jax.tree.leaves(problem)[0]


@pytest.mark.slow
def test_budgets_of_time_may_end_after_different_ticks(
    regression: Callable, small: Callable
) -> None:
    """The shorter schedule ends with ticks at which nothing happens."""
    system, problem = fedbuff.system, regression()
    hypers = [small(system, rate_slow=rate) for rate in (0.05, 0.5)]
    together = bind_together(system, [problem], hypers, seeds=[0], budget=fedjax_sim.Time(20.0))
    ends = [np.isfinite(bound.time).sum() for bound in together]
    assert min(ends) < max(ends) == together[0].num_ticks
    for hyper, bound in zip(hypers, together, strict=True):
        is_padding = ~np.isfinite(bound.time)
        weight = bound.with_settings(exponent=0.1).events.weight
        np.testing.assert_array_equal(weight[is_padding], 0)
        assert (weight[~is_padding].sum(axis=1) > 0).all()
        alone = fedjax_sim.simulate(
            system, problem, hyper, budget=fedjax_sim.Time(20.0), layout=ALONE
        )
        assert alone.curves["ticks"][-1] == np.isfinite(bound.time).sum()
        model = bound.model(bound.run(bound.init())[0])
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), model, alone.models)


def test_a_timeline_may_be_given(regression: Callable, small: Callable) -> None:
    """That of a run gives the run again; one's own decides who works when."""
    system, problem, hyper = fedbuff.system, regression(), small(fedbuff.system)
    run = fedjax_sim.simulate(
        system, problem, hyper, budget=fedjax_sim.Ticks(6), num_evals=1, layout=ALONE
    )
    again = bind(system, problem, hyper, budget=run.timelines[0])
    jax.tree.map(np.testing.assert_array_equal, again.model(again.run(again.init())[0]), run.models)
    assert again.frozen == ()
    clients = np.array([[0, 1, -1], [2, 3, 4]])
    own = Timeline(
        time=np.array([1.0, 2.5]),
        clients=clients,
        steps=np.full((2, 3), 2),
        version=np.zeros((2, 3), int),
        weight=np.full((2, 3), 1 / 3),
        holds=np.array([[1, 1, 0], [2, 2, 2]]),
    )
    bound = bind(system, problem, hyper, budget=own)
    np.testing.assert_array_equal(bound.events.clients, clients)
    np.testing.assert_array_equal(bound.event(1).steps, [2, 2, 2])
    _, infos = bound.run(bound.init())
    np.testing.assert_array_equal(infos.needed > 0, [True, True])
    with pytest.raises(ConfigError, match="clients of tick 0 in slot 0"):
        bind(system, problem, hyper, budget=own._replace(clients=clients + 90))


def test_schedules_of_rates_are_as_long_as_given_timelines(small: Callable) -> None:
    """As in a run of so many ticks."""
    problem, hyper = Quadratic.of(np.ones((7, 2))), small(fedavg.system, lr_schedule=Cosine())
    whole = bind(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(5))
    given = whole._timeline(whole._ticks)
    timelines = [Timeline(*(leaf[:num] for leaf in given)) for num in (5, 3)]
    found = bind_together(fedavg.system, problem, hyper, budget=timelines)
    found += [each.with_settings(lr_schedule=Cosine(final=0.5)) for each in found]
    lengths = [float(value_of(each.hyper, "training.lr_schedule").over) for each in found]
    assert lengths == [5, 3, 5, 3]
    warm = bind(
        *(fedavg.system, problem, hyper.replace(lr_schedule=Warmup(over=2.0))),
        budget=fedjax_sim.Ticks(5),
    )
    jax.eval_shape(lambda over: warm.with_settings(lr_schedule=Warmup(over=over)).hyper, 3.0)


def test_weights_that_another_clock_makes_are_not_computed_again(
    regression: Callable, small: Callable
) -> None:
    """FedBuff's own weights follow a new exponent; those of a changed clock have read it."""
    hyper, problem, budget = small(fedbuff.system), regression(), fedjax_sim.Ticks(9)

    def halved(*inputs: Any) -> Timeline:
        found = fedbuff.system.timeline(*inputs)
        return found._replace(weight=found.weight / 2)

    own = bind(fedbuff.system, problem, hyper, budget=budget)
    other = bind(fedbuff.system._replace(timeline=halved), problem, hyper, budget=budget)
    np.testing.assert_allclose(other.events.weight, own.events.weight / 2, rtol=1e-6)
    assert not np.allclose(own.with_settings(exponent=3.0).events.weight, own.events.weight)
    with pytest.raises(ConfigError, match=r"exponent is 3\.0, .* the schedule has read it"):
        other.with_settings(exponent=3.0)


@pytest.mark.slow
def test_given_timelines_may_have_different_lengths(regression: Callable, small: Callable) -> None:
    """Nothing happens at the ticks that shorter ones lack."""
    system, problem, hyper = fedbuff.system, regression(), small(fedbuff.system)
    whole = fedjax_sim.simulate(
        system, problem, hyper, budget=fedjax_sim.Ticks(6), num_evals=1
    ).timelines[0]
    timelines = [Timeline(*(leaf[:num] for leaf in whole)) for num in (2, 6)]
    together = bind_together(system, problem, hyper, budget=timelines)
    for timeline, bound in zip(timelines, together, strict=True):
        num = len(timeline.time)
        np.testing.assert_array_equal(np.isfinite(bound.time), np.arange(6) < num)
        alone = bind(system, problem, hyper, budget=timeline)
        expected, _ = alone.run(alone.init())
        state, infos = bound.run(bound.init())
        np.testing.assert_allclose(bound.model(state), alone.model(expected), rtol=1e-5)
        np.testing.assert_array_equal(infos.needed[num:], 0)


def test_the_state_may_be_changed_saved_and_resumed(bound: Bound, tmp_path: Path) -> None:
    """A run that goes on from saved arrays ends with the same bits; a changed one does not."""
    whole, _ = bound.run(bound.init())
    state, _ = bound.run(bound.init(), bound.event(np.s_[:3]))
    leaves, structure = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *leaves)
    with np.load(tmp_path / "state.npz") as kept:
        state = jax.tree.unflatten(structure, [jnp.asarray(kept[name]) for name in kept.files])
    for t in range(3, bound.num_ticks):
        state, _ = bound.step(state, bound.event(t))
    jax.tree.map(np.testing.assert_array_equal, bound.model(state), bound.model(whole))
    halved = jax.tree.map(
        lambda leaf: leaf / 2 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, bound.init()
    )
    other, _ = bound.run(halved)
    assert not np.array_equal(*(jax.tree.leaves(bound.model(s))[0] for s in (other, whole)))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fedavg", "fedbuff"])
def test_an_event_may_be_changed_before_a_step(
    name: str, regression: Callable, small: Callable
) -> None:
    """Nobody at all leaves the model alone; twice the steps are twice the work.

    FedAvg's slots are all filled with equally many steps, of which nothing is left then.
    """
    system = fedjax_sim.SYSTEMS[name]
    bound = bind(system, regression(), small(system), budget=fedjax_sim.Ticks(2))
    state, event = bound.init(), bound.event(0)
    left, info = bound.step(state, event._replace(clients=-1))
    jax.tree.map(np.testing.assert_array_equal, bound.model(left), bound.model(state))
    assert info.needed == 0
    plain = bound.step(state, event)[1].needed
    assert bound.step(state, event._replace(steps=2 * event.steps))[1].needed == 2 * plain
    first = event._replace(steps=jnp.where(jnp.arange(len(event.steps)) == 0, event.steps, 0))
    assert bound.step(state, first)[1].needed == event.steps[0]


@pytest.mark.slow
def test_reverse_mode_goes_through_changed_steps_whose_most_is_given(
    regression: Callable, small: Callable
) -> None:
    """Loops then have that length. The gradient is that of forward mode."""
    system, changed = fedavg.system, jnp.array([3, 1, 2])
    hyper = small(system, num_selected=3)
    given = system, regression(), hyper
    smooth = bind(*given, budget=fedjax_sim.Ticks(3), differentiable=True)
    plain = bind(*given, budget=fedjax_sim.Ticks(3))

    def loss(lr: Any, bound: Bound, **known: Any) -> Any:
        other, state = bound.with_settings(lr=lr), bound.init()
        for t in range(3):
            event = other.event(t)
            state, _ = other.step(state, event._replace(steps=changed * (t + 1), **known))
        return other.evaluate(state)["loss"]

    slope = jax.grad(functools.partial(loss, bound=smooth, most_steps=9))(0.05)
    _, expected = jax.jvp(functools.partial(loss, bound=plain), (0.05,), (1.0,))
    np.testing.assert_allclose(slope, expected, rtol=1e-4)
    with pytest.raises(ConfigError, match=r"event.steps is 'replaced', .*most_steps"):
        jax.grad(functools.partial(loss, bound=smooth))(0.05)


def test_steps_are_no_more_than_was_said(bound: Bound) -> None:
    """Known ones are refused; traced ones make the next state nan."""
    state, event = bound.init(), bound.event(0)
    with pytest.raises(ConfigError, match=r"event.steps is 5, but must be at most 4"):
        event._replace(steps=5, most_steps=4)
    with pytest.raises(ConfigError, match=r"most_steps is -1"):
        event._replace(steps=5, most_steps=-1)
    with pytest.raises(ConfigError, match=r"most_steps is 4, .*new steps"):
        event._replace(weight=0.1, most_steps=4)

    @jax.jit
    def stepped(steps: Any) -> Any:
        return bound.step(state, event._replace(steps=steps, most_steps=4))[0]

    same, few, many = (jax.tree.leaves(stepped(steps).server)[0] for steps in (4, 2, 5))
    free, _ = bound.step(state, event._replace(steps=4))
    np.testing.assert_allclose(same, jax.tree.leaves(free.server)[0], rtol=1e-5)
    assert np.isfinite(few).all()
    assert np.isnan(many).all()


@pytest.mark.slow
def test_steps_that_a_system_changes_have_a_most_in_reverse_mode(
    regression: Callable, small: Callable
) -> None:
    """The system replaces them within its step; its state is nan too if they are more."""

    def halved(most: int | None) -> Any:
        def algorithm(problem: Any, hyper: Any, plan: Any) -> Any:
            inner = fedavg.system.algorithm(problem, hyper, plan)

            def step(key: Any, state: Any, event: Any) -> Any:
                steps = (event.steps + 1) // 2
                return inner.step(key, state, event._replace(steps=steps, most_steps=most))

            return inner._replace(step=step)

        return fedavg.system._replace(algorithm=algorithm)

    def slope(most: int | None) -> Any:
        system = halved(most)
        given = system, regression(), small(system, local_steps=4)
        bound = bind(*given, budget=fedjax_sim.Ticks(3), differentiable=True)
        return jax.grad(lambda lr: final_loss(bound, lr=lr))(0.05)

    assert np.isfinite(slope(2))
    np.testing.assert_allclose(slope(2), slope(4), rtol=1e-5)
    assert np.isnan(slope(1))
    with pytest.raises(ConfigError, match=r"event.steps is 'replaced', .*most_steps"):
        slope(None)


def test_a_changed_event_names_clients_that_exist(regression: Callable, small: Callable) -> None:
    """Otherwise a sentence says so, or states are nan where clients are traced."""
    scaffold = fedjax_sim.SYSTEMS["scaffold"]
    bound = bind(scaffold, regression(), small(scaffold), budget=fedjax_sim.Ticks(2))
    state, event = bound.init(), bound.event(0)
    for clients, sentence in (
        ([50, 1, 2, 3], "event.clients is 50, but must be from 0 to 6, or -1 for nobody"),
        ([1, 0, 1, -1], "event.clients is 'client 1 in several slots', but must be once in a ti"),
    ):
        changed = event._replace(clients=jnp.array(clients))
        with pytest.raises(ConfigError, match=sentence):
            bound.step(state, changed)
        with pytest.raises(ConfigError, match=sentence):
            bound.run(state, jax.tree.map(lambda leaf: leaf[None], changed))
    with pytest.raises(ConfigError, match=r"event\.steps is -3, but must be at least 0"):
        event._replace(steps=jnp.array([-3, 1, 1, 1]))
    assert event._replace(clients=[-1, 1, 2, 3], steps=[-3, 1, 1, 1]).steps[0] == 0

    @jax.jit
    def loss(clients: Any) -> Any:
        after, _ = bound.step(state, event._replace(clients=clients))
        return bound.evaluate(after)["loss"]

    for clients in ([50, 1, 2, 3], [1, 0, 1, -1]):
        assert np.isnan(loss(jnp.array(clients)))
    allowed = jnp.array([4, 0, 1, -1])
    expected = bound.evaluate(bound.step(state, event._replace(clients=allowed))[0])["loss"]
    np.testing.assert_allclose(loss(allowed), expected, rtol=1e-6)


def test_a_client_may_be_named_twice_where_the_system_says_so(bound: Bound) -> None:
    """FedBuff takes several reports of a client, and none of clients that do not exist."""
    state, event = bound.init(), bound.event(0)
    clients = jnp.zeros_like(event.clients)
    after, _ = bound.step(state, event._replace(clients=clients))
    assert np.isfinite(bound.evaluate(after)["loss"])
    after, _ = jax.jit(lambda clients: bound.step(state, event._replace(clients=clients)))(clients)
    assert np.isfinite(bound.evaluate(after)["loss"])
    with pytest.raises(ConfigError, match=r"event\.clients is 7"):
        bound.step(state, event._replace(clients=clients + 7))


def test_traced_values_are_refused_where_schedules_are_drawn(
    regression: Callable, small: Callable
) -> None:
    """The sentence names `bind`."""
    system, problem = fedavg.system, regression()
    hyper = small(system)

    def by_settings(lr: Any) -> Any:
        return fedjax_sim.simulate(
            system, problem, hyper.replace(lr=lr), budget=fedjax_sim.Ticks(2)
        ).models

    def by_sweep(lr: Any) -> Any:
        return fedjax_sim.sweep(
            system, problem, hyper, settings={"lr": [lr]}, budget=fedjax_sim.Ticks(2)
        ).models

    def by_problem(problem: Any) -> Any:
        return fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(2)).models

    def by_bind(lr: Any) -> Any:
        return bind(system, problem, hyper.replace(lr=lr), budget=fedjax_sim.Ticks(2)).init()

    for call, value in (
        (by_settings, 0.1),
        (by_sweep, 0.1),
        (by_problem, problem),
        (by_bind, 0.1),
    ):
        with pytest.raises(ConfigError, match=r"fedjax_sim\.bind"):
            jax.jit(call)(value)


@pytest.mark.parametrize("call", [fedjax_sim.simulate, fedjax_sim.sweep, bind, bind_together])
def test_each_traced_input_is_named(call: Callable) -> None:
    """Before the problem is looked at, whose numbers of examples are traced there as well."""
    problem = Quadratic.of(np.eye(6, dtype="float32"))
    hyper = fedavg.Hyper(num_clients=6, num_selected=3, batch_size=1)
    is_one = call in (fedjax_sim.simulate, bind)
    for name, value, give in (
        ("hypers" if call is bind_together else "hyper", 0.1, lambda lr: hyper.replace(lr=lr)),
        ("start", 0.1, lambda at: jnp.full(6, at)),
        ("seed" if is_one else "seeds", 1, lambda seed: seed),
        ("budget", 2, fedjax_sim.Ticks),
        ("budget", 2.0, fedjax_sim.Time),
    ):

        def traced(value: Any, name: str = name, give: Callable = give) -> Any:
            named = {"budget": fedjax_sim.Ticks(2), name: give(value)}
            given = (named.pop(key, hyper) for key in ("hyper", "hypers") if key in named)
            return call(fedavg.system, problem, next(given, hyper), **named)

        with pytest.raises(ConfigError, match=rf"{name} is 'a traced value', .*fedjax_sim\.bind"):
            jax.jit(traced)(value)


def test_a_program_may_be_bound_within_a_trace() -> None:
    """Where nothing that it is bound to is traced."""
    problem = Quadratic.of(np.eye(6, dtype="float32"))
    hyper = fedavg.Hyper(num_clients=6, num_selected=3, batch_size=1)

    def last(start: Any) -> Any:
        bound = bind(fedavg.system, problem, hyper, budget=fedjax_sim.Ticks(2))
        return bound.model(bound.run(bound.init(start))[0])

    np.testing.assert_allclose(jax.jit(last)(jnp.ones(6)), last(jnp.ones(6)), rtol=1e-6)


@pytest.mark.parametrize(("name", "value"), [("lanes_at_once", True), ("client_devices", 2)])
def test_a_layout_of_several_lanes_gets_a_sentence(
    name: str, value: int, regression: Callable, small: Callable
) -> None:
    """Before anything is drawn."""
    given = fedavg.system, regression(), small(fedavg.system)
    with pytest.raises(ConfigError, match=f"layout.{name}"):
        bind(*given, budget=fedjax_sim.Ticks(2), layout=Layout(**{name: value}))


def test_what_methods_are_given_is_checked(bound: Bound, regression: Callable) -> None:
    """Models, states, events, keys and settings: a sentence, before or while it is compiled."""
    state, event = bound.init(), bound.event(0)
    model = bound.model(state)
    system = fedjax_sim.SYSTEMS["scaffold"]
    hyper = system.Hyper(num_clients=7, num_selected=3, batch_size=1)
    other = bind(system, regression(), hyper, budget=fedjax_sim.Ticks(2))
    wide = state._replace(server=jnp.zeros(4))
    for call, sentence in (
        (lambda: bound.init(jnp.zeros(4)), r"start at the model is 'float32\[4\]'.* float32\[3\]"),
        (lambda: jax.vmap(bound.init)(jnp.zeros((2, 4))), r"start at the model is 'float32\[4\]'"),
        (lambda: bound.init({"w": model}), "structure of start is"),
        (lambda: bound.init("zeros"), "start is 'zeros', but must be a pytree of arrays"),
        (lambda: bound.step(other.init(), event), "state is 'a RoundState', but .*Versioned"),
        (lambda: other.run(state), "state is 'a Versioned', but .*RoundState"),
        (lambda: other.model(bound.model(state)), "state is 'an array', but .*RoundState"),
        (lambda: other.evaluate(None), "state is 'a NoneType', but must be of the struc"),
        (lambda: bound.evaluate("x"), "state is 'x', but must be a pytree of arrays"),
        (lambda: bound.step(wide, event), r"state\.server is 'float32\[4\]', .* float32\[3\]"),
        (lambda: bound.step(state, 0), r"event is 0, but must be an Event of one tick"),
        (lambda: bound.step(state, bound.events), r"event is 'an Event with clients of 2 dim"),
        (
            lambda: bound.run(state, event),
            r"clients of 1 dimensions', but must be an Event of tick",
        ),
        (lambda: bound.event("first"), "t is 'first', but must be the number of a tick"),
        (lambda: bound.with_settings(lr="a"), "lr is 'a', but must be a number"),
        (lambda: bound.replace(key=3), r"key is 3, but must be a random key, such as jax\.random"),
        (lambda: Bound.stack([bound, 1]), "bounds is .*, but must be a list of programs"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            call()
    whole = jnp.array([1, 2, 3])
    jax.tree.map(np.testing.assert_array_equal, bound.init(whole), bound.init(1.0 * whole))


def test_a_program_may_start_from_a_model(regression: Callable, small: Callable) -> None:
    """From a model or from a run, as `simulate`; another model may still be given to `init`."""
    system, problem, hyper = fedavg.system, regression(), small(fedavg.system)
    options: dict[str, Any] = {"budget": fedjax_sim.Ticks(3)}
    run = fedjax_sim.simulate(system, problem, hyper, **options, num_evals=1, layout=ALONE)
    again = fedjax_sim.simulate(
        system, problem, hyper, **options, num_evals=1, layout=ALONE, start=run
    )
    for start in (run, run.models):
        bound = bind(system, problem, hyper, **options, start=start)
        np.testing.assert_array_equal(bound.model(bound.init()), run.models)
        np.testing.assert_array_equal(bound.model(bound.run(bound.init())[0]), again.models)
        np.testing.assert_array_equal(bound.model(bound.init(2 * run.models)), 2 * run.models)
        slower = bound.with_settings(lr=0.01)
        np.testing.assert_array_equal(slower.model(slower.init()), run.models)
    given = np.array(run.models)
    bound = bind(system, problem, hyper, **options, start=given)
    given[:] = 0  # The caller's array is his own.
    np.testing.assert_array_equal(bound.model(bound.init()), run.models)
    stacked, axes = Bound.stack(
        bind_together(system, problem, hyper, seeds=[0, 1], budget=fedjax_sim.Ticks(3))
    )
    assert stacked.start is None
    assert axes.start is None
    with pytest.raises(ConfigError, match="start at the model"):
        bind(system, problem, hyper, **options, start=run.models[:1])


def test_events_of_some_ticks_are_stacked(bound: Bound) -> None:
    """As slices of lists; the facts stay."""
    for part in (np.s_[:3], np.s_[2:], np.s_[-2:], np.s_[::2]):
        events = bound.event(part)
        assert events.facts == bound.events.facts
        jax.tree.map(
            lambda found, whole, part=part: np.testing.assert_array_equal(found, whole[part]),
            events,
            bound.events,
        )


def test_ticks_that_do_not_exist_are_refused(bound: Bound) -> None:
    """There is no tick -1, unlike in a list."""
    for t in (-1, bound.num_ticks, 1.0, np.arange(2)):
        with pytest.raises(ConfigError, match=r"^t is"):
            bound.event(t)


def test_problems_of_equal_form_are_told_apart(regression: Callable, small: Callable) -> None:
    """JAX takes structures of classes with equal fields for equal; programs must not mix them."""
    problem = regression()

    @struct.dataclass
    class Doubled(Regression):
        def evaluate(self, params: Any) -> Any:
            return {name: 2 * value for name, value in super().evaluate(params).items()}

    other = Doubled(problem.inputs, problem.targets, problem.counts, problem.noise)
    first, second = (
        bind(fedavg.system, each, small(fedavg.system), budget=fedjax_sim.Ticks(2))
        for each in (problem, other)
    )
    np.testing.assert_allclose(
        second.evaluate(second.init())["loss"], 2 * first.evaluate(first.init())["loss"]
    )
    with pytest.raises(ConfigError, match="problem"):
        first.replace(problem=other)
    with pytest.raises(ConfigError, match=r"problem .* shapes; others are bound anew"):
        first.replace(problem=regression(examples=5))


def test_other_settings_are_checked_as_in_a_run() -> None:
    """Each value, values together, and the messages of the schedule; traced ones cannot be."""
    problem = Quadratic.of(np.eye(6, dtype="float32"))
    small = {"num_clients": 6, "batch_size": 1, "local_steps": 1, "buffer_size": 5}
    hyper = fedbuff.Hyper(**small, aggregator=Krum(assumed=1), rule="polynomial", exponent=0.0)
    bound = bind(fedbuff.system, problem, hyper, budget=fedjax_sim.Ticks(9))

    def last(bound: Bound) -> jax.Array:
        return bound.model(bound.run(bound.init())[0])

    assert np.isfinite(last(bound.with_settings(lr=0.2))).all()
    for changes, sentence in (
        ({"lr": -1.0}, "lr is -1.0, but must be a finite number above 0"),
        ({"aggregator": Krum(assumed=2)}, "can do with 5 messages, as few as a tick has; it nee"),
        ({"exponent": 0.5}, "one that weighs messages, because those of tick"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            bound.with_settings(**changes)
    together = bind(
        fednova.system,
        problem,
        fednova.Hyper(num_clients=6, num_selected=3, batch_size=1, lr=0.5, proximal=0.5),
        budget=fedjax_sim.Ticks(2),
    )
    with pytest.raises(ConfigError, match=r"proximal is .*, but must be below 1 / lr"):
        together.with_settings(lr=3.0)
    numbers = jax.vmap(lambda f: last(bound.with_settings(aggregator=Krum(assumed=f))))
    found = numbers(jnp.array([1.0, 2.0]))
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


def test_a_traced_tick_that_does_not_exist_makes_nan(bound: Bound) -> None:
    """Weights and the next state, in a step and in a scan; others keep their bits."""
    state = bound.init()

    @jax.jit
    def stepped(t: Any) -> Any:
        event = bound.event(t)
        after, _ = bound.step(state, event)
        scanned, _ = bound.run(state, jax.tree.map(lambda leaf: leaf[None], event))
        return event.weight, bound.model(after), bound.model(scanned)

    expected, _ = bound.step(state, bound.event(bound.num_ticks - 1))
    np.testing.assert_array_equal(stepped(bound.num_ticks - 1)[1], bound.model(expected))
    for t in (-1, bound.num_ticks, 2**31 - 1):
        for found in stepped(t):
            assert np.isnan(found).all()
        event = jax.jit(bound.event)(t)
        with pytest.raises(ConfigError, match=rf"event\.tick is {t}, but must be from 0 to 6"):
            bound.step(state, event)
    for t in (1.0, True, jnp.arange(2)):
        with pytest.raises(ConfigError, match=r"t is 'a traced .*', but must be the number"):
            jax.jit(bound.event)(t)


def test_traced_steps_below_0_make_nan(bound: Bound) -> None:
    """In slots that are filled; a caller's event and one of a system's step."""
    state = bound.init()

    @jax.jit
    def stepped(steps: Any) -> Any:
        after, _ = bound.step(state, bound.event(0)._replace(steps=steps))
        return bound.model(after)

    assert np.isfinite(stepped(0)).all()
    assert np.isnan(stepped(-3)).all()


OWN = Timeline(
    time=np.array([1.0, 2.5]),
    clients=np.array([[0, 1, -1], [2, 3, 4]]),
    steps=np.full((2, 3), 2),
    version=np.zeros((2, 3), int),
    weight=np.full((2, 3), 1 / 3),
    holds=np.array([[1, 1, 0], [2, 2, 2]]),
)


@pytest.mark.parametrize(
    ("name", "place", "value", "sentence"),
    [
        ("steps", (0, 1), 1.9, "steps of tick 0 in slot 1 of .* is 1.9, but must be a whole num"),
        ("clients", (1, 0), 0.7, "clients of tick 1 in slot 0 of .* is 0.7, .* a whole number"),
        ("version", (1, 0), np.nan, "version of tick 1 in slot 0 of .* is nan, .* a whole number"),
        ("steps", (1, 2), 2.0**40, "steps of tick 1 in slot 2 of .* whole number of 32 bits"),
        ("weight", (1, 1), -5.0, "weight of tick 1 in slot 1 of .* is -5.0, .* and at least 0"),
        ("weight", (1, 1), np.nan, "weight of tick 1 in slot 1 of .* is nan, .* finite"),
        ("time", 0, np.nan, "time of tick 0 of the timeline is nan, but must be a number"),
        ("time", 0, -1.0, "time of tick 0 of the timeline is -1.0, but must be at least 0"),
    ],
)
def test_a_timeline_of_ones_own_is_checked(
    name: str, place: Any, value: float, sentence: str, regression: Callable, small: Callable
) -> None:
    """As those that systems draw: field, place, value and what is allowed."""
    leaf = np.array(getattr(OWN, name), float)
    leaf[place] = value
    with pytest.raises(ConfigError, match=sentence):
        bind(
            fedbuff.system, regression(), small(fedbuff.system), budget=OWN._replace(**{name: leaf})
        )


def test_whole_numbers_of_a_timeline_may_be_floats(regression: Callable, small: Callable) -> None:
    """As in a table that was read; empty slots may hold anything."""
    system, problem, hyper = fedbuff.system, regression(), small(fedbuff.system)
    real = OWN._replace(clients=OWN.clients * 1.0, steps=OWN.steps * 1.0)
    real.steps[0, 2] = np.nan
    found, expected = (bind(system, problem, hyper, budget=each) for each in (real, OWN))
    jax.tree.map(np.testing.assert_array_equal, found.events, expected.events)


def test_ticks_that_never_happen_are_nobodys(regression: Callable, small: Callable) -> None:
    """Whatever their slots hold."""
    own = OWN._replace(time=np.array([1.0, np.inf]), clients=np.add(OWN.clients, [[0], [90]]))
    bound = bind(fedbuff.system, regression(), small(fedbuff.system), budget=own)
    assert (bound.event(1).clients == -1).all()
    _, infos = bound.run(bound.init())
    np.testing.assert_array_equal(infos.needed > 0, [True, False])


def test_states_and_events_of_other_programs_are_refused(
    bound: Bound, regression: Callable, small: Callable
) -> None:
    """Of another dtype, of another system, and of another problem's size."""
    state = bound.init()
    rounds = bind(
        fedavg.system, regression(), fedavg.Hyper(num_selected=4), budget=fedjax_sim.Ticks(7)
    )
    larger = bind(
        fedbuff.system, regression(9), small(fedbuff.system).replace(num_clients=9), budget=OWN
    )
    longer = bind(fedbuff.system, regression(), small(fedbuff.system), budget=fedjax_sim.Ticks(9))
    whole = state._replace(server=state.server.astype(int))
    for call, sentence in (
        (
            lambda: bound.step(whole, bound.event(0)),
            r"state\.server is 'int32\[3\]', .*float32",
        ),
        (lambda: bound.run(whole), r"state\.server is 'int32\[3\]', .*float32"),
        (
            lambda: rounds.step(rounds.init(), bound.event(0)),
            r"event is 'an Event of fedbuff with 7 clients, 4 slots .*', .* of fedavg with 7 cl",
        ),
        (lambda: rounds.run(rounds.init(), bound.events), "event is 'an Event of fedbuff with 7"),
        (lambda: bound.step(state, larger.event(0)), "with 9 clients, 3 slots .* with 7 clients"),
        (lambda: bound.run(state, longer.events), r"event\.tick is 7, but must be from 0 to 6"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            call()


@pytest.mark.slow
def test_derivatives_by_what_the_schedule_has_read_are_refused(bound: Bound) -> None:
    """Of a whole program too, which is a pytree; slopes of 0 and other settings pass."""

    def final(name: str, value: Any, bound: Bound) -> jax.Array:
        leaves, structure = jax.tree.flatten_with_path(bound)
        named = [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
        found = [value if each.endswith("." + name) else leaf for each, leaf in named]
        other = jax.tree.unflatten(structure, found)
        return other.model(other.run(other.init())[0]).sum()

    def slope(name: str, given: Any) -> Any:
        value = value_of(bound.hyper, full_name(type(bound.hyper), name))
        slopes = (jnp.float32(given),)
        return jax.jvp(lambda value: final(name, value, bound), (value,), slopes)[1]

    for derive in (slope, jax.jit(slope, static_argnums=0)):
        with pytest.raises(ConfigError, match=r"rate_slow is .a traced value., .* has read it"):
            derive("rate_slow", 1.0)
        assert derive("lr", 1.0) != 0
    assert slope("rate_slow", 0.0) == 0
