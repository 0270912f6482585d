"""Rates and proximal strengths that change by round, version, local step, client or work."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError, Ticks
from fedjax_sim.clients.local_settings import ClientTraining
from fedjax_sim.core.schedules import (
    CLOCKS,
    SCHEDULES,
    Capped,
    Constant,
    Cosine,
    Exponential,
    Function,
    InverseSqrt,
    InverseTime,
    Schedule,
    Step,
    Table,
    Warmup,
    parse_schedule,
)
from fedjax_sim.core.settings import check, fixed, parse, setting, struct
from fedjax_sim.problems import Quadratic
from fedjax_sim.systems import (
    fedasync,
    fedavg,
    fedbuff,
    fednova,
    fedprox,
    fedstaleweight,
    hierarchical,
    oort,
    scaffold,
)
from fedjax_sim.theory import fedstaleweight as theory

CENTERS = np.random.default_rng(4).normal(size=(6, 3))
TICKS = 8
SIZES = {"num_clients": 6, "batch_size": 1}
ROUNDS = SIZES | {"num_selected": 3, "local_steps": 4}

FORMULAS = [
    (Constant(), lambda t: 1.0),
    (Cosine(over=8.0, final=0.1), lambda t: 0.1 + 0.9 * (1 + np.cos(np.pi * min(t / 8, 1))) / 2),
    (Exponential(decay=0.8), lambda t: 0.8**t),
    (Step(decay=0.3, every=4.0), lambda t: 0.3 ** (t // 4)),
    (InverseTime(decay=0.5), lambda t: 1 / (1 + 0.5 * t)),
    (InverseSqrt(decay=0.5), lambda t: 1 / np.sqrt(1 + 0.5 * t)),
    (Capped(threshold=2.5), lambda t: 1.0 if t <= 2.5 else 2.5 / t),
    (Table(factors=(1.0, 0.3, 0.2)), lambda t: (1.0, 0.3, 0.2)[min(int(t), 2)]),
    (
        Warmup(over=3.0, then=Exponential(decay=0.5)),
        lambda t: (t + 1) / 4 if t < 3 else 0.5 ** (t - 3),
    ),
    (Function(function=optax.linear_schedule(1.0, 0.2, 5)), lambda t: 1 - 0.8 * min(t / 5, 1)),
]


@pytest.mark.parametrize(("schedule", "formula"), FORMULAS, ids=lambda x: getattr(x, "name", ""))
def test_each_kind_follows_its_formula(schedule: Schedule, formula: Callable) -> None:
    with jax.enable_x64(True):
        for t in range(12):
            found = schedule.of(0.7, jnp.int32(t))
            np.testing.assert_allclose(found, 0.7 * formula(t), rtol=1e-14)


def test_every_named_kind_has_a_formula_here_and_a_text() -> None:
    assert {each.name for each, _ in FORMULAS} == {*SCHEDULES, "function"}
    for each, _ in FORMULAS[:-1]:
        assert parse_schedule(str(each)) == each
    text = "warmup:over=5:then=cosine:final=0.01:by=version"
    expected = Warmup(over=5.0, then=Cosine(final=0.01, by="version"))
    assert parse(fedavg.Hyper, "lr_schedule", text) == expected
    assert expected.clock == "version"


def learn(system: Any, hyper: Any, settings: Any = None, **how: Any) -> Any:
    """Run in 64 bits, and keep the models of all ticks."""
    with jax.enable_x64(True):
        problem = Quadratic.of(CENTERS)
        how = {"budget": Ticks(TICKS), "num_evals": TICKS, "seeds": [3]} | how
        keep = fedjax_sim.Keep(models=True)
        return fedjax_sim.sweep(system, problem, hyper, settings=settings, keep=keep, **how)


def models_by_hand(
    timeline: Any,
    rate: Callable[..., float],
    *,
    pull: Callable[[int], float] = lambda t: 0.0,
    server: Callable[[int], float] = lambda t: 1.0,
    mixes: bool = False,
) -> np.ndarray:
    """Learn the quadratics by a schedule: `[T + 1, P]`.

    The rate is asked for by tick, version, local step, client and steps of the slot. Progress is
    added with the weights of the schedule, times `server`; or models are mixed in with these.
    """
    models = [np.zeros(CENTERS.shape[1])]
    for tick in range(TICKS):
        moved = np.zeros_like(models[0])
        slots = zip(*(np.asarray(x)[tick] for x in timeline[1:5]), strict=True)
        for client, steps, version, weight in slots:
            start = model = models[version]
            for q in range(steps):
                slope = model - CENTERS[client] + pull(tick) * (model - start)
                model = model - rate(tick, version, q, client, steps) * slope
            moved = moved + weight * (model - (models[-1] if mixes else start))
        models.append(models[-1] + server(tick) * moved)
    return np.array(models)


def assert_equal(found: np.ndarray, expected: np.ndarray) -> None:
    """Compare models of all ticks to 1e-10."""
    assert np.ptp(expected, axis=0).min() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_a_sweep_over_the_numbers_is_one_program_and_equals_an_own_loop(
    compiled: list[str],
) -> None:
    """With cosines over the run, swept together with the learning rate."""
    swept = {"lr_schedule": [Cosine(final=x) for x in (0.0, 0.1, 0.5)], "lr": [0.125, 0.5]}
    run = learn(fedavg.system, fedavg.Hyper(**ROUNDS), swept)
    assert compiled.count("jit(_advance)") == 1
    for lane, own in enumerate(run.hypers):
        lr, final = float(own.lr), float(own.training.lr_schedule.final)
        assert own.training.lr_schedule.over == TICKS

        def rate(t: int, *_: int, lr: float = lr, final: float = final) -> float:
            return lr * (final + (1 - final) * (1 + np.cos(np.pi * t / TICKS)) / 2)

        assert_equal(run.samples[lane], models_by_hand(run.timelines[lane], rate))


@pytest.mark.slow
@pytest.mark.parametrize("system", [fedbuff, fedavg], ids=lambda s: s.__name__)
def test_a_schedule_over_a_planned_run_takes_each_lanes_ticks(system: Any) -> None:
    """In a budget of time lanes have different numbers of ticks; live clocks refuse."""
    own = {"num_selected": 3} if system is fedavg else {}
    schedule = Warmup(over=2.0, then=Cosine(final=0.1))
    hyper = system.Hyper(**SIZES, **own, lr=0.5, lr_schedule=schedule)
    how: Any = {"budget": fedjax_sim.Time(200.0), "seeds": [0, 1, 2], "num_evals": 4}
    run = learn(system.system, hyper, **how)
    ticks = [len(timeline.time) for timeline in run.timelines]
    assert len({*ticks}) > 1
    assert [each.training.lr_schedule.then.over for each in run.hypers] == [t - 2 for t in ticks]
    for lane, (seed, num) in enumerate(zip(how["seeds"], ticks, strict=True)):
        whole = hyper.replace(lr_schedule=Warmup(over=2.0, then=Cosine(over=num - 2.0, final=0.1)))
        alone = learn(system.system, whole, **how | {"seeds": [seed]})
        np.testing.assert_allclose(run.models[lane], alone.models[0], rtol=1e-13)
    with pytest.raises(ConfigError, match=r"over is 0\.0, but must be .* known before the run"):
        learn(oort.system, oort.Hyper(**ROUNDS, lr_schedule=Cosine()), **how)


HALVING = Step(decay=0.5, every=2.0)


@pytest.mark.few(2)
@pytest.mark.parametrize("clock", CLOCKS)
def test_fedbuff_by_every_clock(clock: str) -> None:
    """Stale work follows the version that it started from, and clients are of two speeds."""
    hyper = fedbuff.Hyper(
        **SIZES,
        buffer_size=2,
        concurrency=5,
        local_steps=3,
        lr=0.25,
        lr_schedule=HALVING.replace(by=clock),
        server_lr=0.5,
        server_lr_schedule=InverseTime(decay=0.25),
    )
    (timeline,) = (run := learn(fedbuff.system, hyper)).timelines
    place = {"round": 0, "version": 1, "step": 2, "client": 3, "work": 4, "staleness": 5}[clock]
    assert (np.asarray(timeline.version) < np.arange(TICKS)[:, None]).any()
    expected = models_by_hand(
        timeline,
        lambda *times: 0.25 * 0.5 ** ((*times, times[0] - times[1])[place] // 2),
        server=lambda t: 0.5 / (1 + 0.25 * t),
    )
    assert_equal(run.samples[0], expected)


def test_delay_adaptive_rate_is_the_smaller_of_eta_and_c_over_tau() -> None:
    """Asynchronous SGD with eta = 0.5 and c = 0.6: one gradient, and a server that acts on each."""
    sgd = SIZES | {"buffer_size": 1, "local_steps": 1, "concurrency": 6, "rule": "mean"}
    schedule = Capped(threshold=0.6 / 0.5, by="staleness")
    run = learn(fedbuff.system, fedbuff.Hyper(**sgd, lr=0.5, lr_schedule=schedule))
    timeline = run.timelines[0]
    tau = np.arange(TICKS) - timeline.version[:, 0]
    assert tau.min() < 1.2 < tau.max()
    models = [np.zeros(3)]
    for tick in range(TICKS):
        old = models[timeline.version[tick, 0]]
        rate = min(0.5, 0.6 / tau[tick]) if tau[tick] else 0.5
        models.append(models[-1] - rate * (old - CENTERS[timeline.clients[tick, 0]]))
    assert_equal(run.samples[0], np.array(models))


def test_fedstaleweight_with_the_rates_of_theorem_1() -> None:
    """Each local step has its rate; their sums are alpha(Q) and beta(Q)."""
    factors = (1.0, 0.5, 0.2)
    hyper = fedstaleweight.Hyper(
        **SIZES,
        buffer_size=2,
        local_steps=3,
        lr=0.25,
        lr_schedule=Table(factors=factors, by="step"),
        server_lr=0.5,
    )
    (timeline,) = (run := learn(fedstaleweight.system, hyper)).timelines
    assert np.ptp(timeline.weight) > 0.1
    expected = models_by_hand(
        timeline, lambda *times: 0.25 * factors[times[2]], server=lambda t: 0.5
    )
    assert_equal(run.samples[0], expected)
    found = theory.local_rates(hyper, smoothness=2.0)
    np.testing.assert_allclose(found.rates, 0.25 * np.array(factors), rtol=1e-6)
    assert found.alpha == pytest.approx(0.25 * 1.7, rel=1e-6)
    assert found.beta == pytest.approx(0.25**2 * 1.29, rel=1e-6)
    assert found.largest == 1 / (2 * 0.5 * 3)
    with pytest.raises(ConfigError, match="step, because the theorem has the same rates"):
        theory.local_rates(hyper.replace(lr_schedule=HALVING), smoothness=2.0)


def test_fedasync_mixes_less_by_round() -> None:
    hyper = fedasync.Hyper(
        **SIZES, local_steps=3, mixing=0.5, mixing_schedule=InverseTime(), proximal=0.25, lr=0.25
    )
    run = learn(fedasync.system, hyper)
    how: Any = {"pull": lambda t: 0.25, "server": lambda t: 0.5 / (1 + t), "mixes": True}
    assert_equal(run.samples[0], models_by_hand(run.timelines[0], lambda *_: 0.25, **how))


@pytest.mark.slow
def test_proximal_strength_by_round_and_momentum_that_is_kept() -> None:
    """Weight decay and both moments of AdamW are those of optax, with the rate of the round."""
    hyper = fedprox.Hyper(**ROUNDS, lr=0.25, proximal=0.5, proximal_schedule=HALVING)
    run = learn(fedprox.system, hyper)
    pull: Any = lambda t: 0.5 * 0.5 ** (t // 2)  # noqa: E731
    assert_equal(run.samples[0], models_by_hand(run.timelines[0], lambda *_: 0.25, pull=pull))
    training = ClientTraining(
        optimizer=partial(optax.adamw, weight_decay=0.25), optimizer_state="kept"
    )
    one = {"num_clients": 6, "num_selected": 6, "local_steps": 2, "batch_size": 1, "lr": 0.25}
    for clock in ("round", "step"):
        schedule = InverseTime(by=clock)  # type: ignore[arg-type]
        hyper = fedavg.Hyper(**one, training=training, lr_schedule=schedule)
        run = learn(fedavg.system, hyper)
        with jax.enable_x64(True):
            server = jnp.zeros(3)
            states = [optax.adamw(1.0, weight_decay=0.25).init(server) for _ in range(6)]
            for tick in range(TICKS):
                ends = []
                for client in range(6):
                    model = server
                    for q in range(2):
                        rate = 0.25 / (1 + (tick if clock == "round" else q))
                        made = optax.adamw(rate, weight_decay=0.25)
                        slope = model - CENTERS[client]
                        step, states[client] = made.update(slope, states[client], model)
                        model = model + step
                    ends.append(model)
                server = jnp.mean(jnp.stack(ends), axis=0)
            np.testing.assert_allclose(run.samples[0][-1], server, rtol=0, atol=1e-10)


@pytest.mark.few(1)
@pytest.mark.parametrize("client_steps", [1, 2])
def test_groups_have_rates_of_their_own(client_steps: int) -> None:
    """Remark 3 of Ali and Arafa: eta_i in proportion to 1 / t_i, and a table of the groups."""
    rates = (1.0, 0.5, 0.25)
    inverse = Function(function=lambda t: 1 / jnp.maximum(t, 1), by="work")
    for schedule in (inverse, Table(factors=rates, by="client")):
        hyper = hierarchical.Hyper(
            **SIZES, num_groups=3, sync_time=4.0, client_steps=client_steps, lr=0.25
        )
        run = learn(hierarchical.system, hyper.replace(lr_schedule=schedule))
        timeline, models = run.timelines[0], [np.zeros(3)]
        assert len({*np.ravel(timeline.steps)}) > 1
        for tick in range(TICKS):
            moved = np.zeros(3)
            slots = zip(*(np.asarray(x)[tick] for x in timeline[1:5]), strict=True)
            for group, iterations, _, weight in slots:
                rate = 0.25 * (rates[group] if schedule.by == "client" else 1 / iterations)
                model = models[-1]
                for _ in range(iterations):
                    ends = [model] * 2
                    for _ in range(client_steps):
                        pairs = zip(ends, CENTERS[2 * group : 2 * group + 2], strict=True)
                        ends = [y - rate * (y - c) for y, c in pairs]
                    model = np.mean(ends, axis=0)
                moved = moved + weight * (model - models[-1])
            models.append(models[-1] + moved)
        assert_equal(run.samples[0], np.array(models))


def test_fedstaleweight_has_a_rate_for_each_local_step() -> None:
    """The rate eta_l^(q) of Ma et al."""
    system = fedjax_sim.SYSTEMS["fedstaleweight"]
    rates = (1.0, 0.5, 0.125)
    hyper = system.Hyper(
        **SIZES, buffer_size=2, local_steps=3, lr=0.5, lr_schedule=Table(factors=rates, by="step")
    )
    run = learn(system, hyper)
    expected = models_by_hand(run.timelines[0], lambda t, v, q, *_: 0.5 * rates[q])
    assert_equal(run.samples[0], expected)


def test_fedavg_with_a_proximal_term_is_fedprox_bit_for_bit() -> None:
    with_term = learn(fedavg.system, fedavg.Hyper(**ROUNDS, proximal=0.01))
    as_preset = learn(fedprox.system, fedprox.Hyper(**ROUNDS))
    np.testing.assert_array_equal(with_term.samples, as_preset.samples)
    without = learn(fedavg.system, fedavg.Hyper(**ROUNDS))
    assert (with_term.samples[0, -1] != without.samples[0, -1]).any()


def test_scaffold_divides_by_the_rates_that_it_used() -> None:
    """With a rate that falls by step, control variates are means of gradients with these weights.

    Clients with the same minimum have the drift 0, whatever the rates are.
    """
    rates = (1.0, 0.5, 0.125, 0.125)
    schedule = Table(factors=rates, by="step")
    hyper = scaffold.Hyper(**ROUNDS | {"num_selected": 6}, lr=0.5, lr_schedule=schedule)
    run = learn(scaffold.system, hyper)
    x, c, own = np.zeros(3), np.zeros(3), np.zeros_like(CENTERS)
    for tick in range(TICKS):
        y = np.repeat(x[None], 6, axis=0)
        for rate in rates:
            y = y - 0.5 * rate * (y - CENTERS + c - own)
        after = own - c + (x - y) / (0.5 * sum(rates))
        x, c, own = y.mean(axis=0), c + (after - own).mean(axis=0), after
        np.testing.assert_allclose(run.samples[0][tick + 1], x, rtol=0, atol=1e-10)


def test_scaffold_learns_no_control_at_a_rate_of_0() -> None:
    """There is no mean gradient of steps that do not move."""
    stops = Table(factors=(1.0, 1.0, 0.0))
    hyper = scaffold.Hyper(**ROUNDS | {"num_selected": 6}, lr=0.1, lr_schedule=stops)
    models = learn(scaffold.system, hyper).samples[0]
    assert (models[2] != models[1]).any()
    np.testing.assert_array_equal(models[3:], np.broadcast_to(models[2], models[3:].shape))


def test_steps_down_come_at_whole_multiples() -> None:
    """A compiled program divides by 41 by a product with 1 / 41, which is just below 1 for 41."""
    steps, times = Step(decay=0.5, every=41.0), np.arange(200)
    found = jax.jit(lambda each: each.of(jnp.float32(1.0), jnp.asarray(times)))(steps)
    np.testing.assert_array_equal(found, 0.5 ** (times // 41))


@struct
class Halved(Schedule):
    """Half after every so many rounds, from outside the package."""

    name: str = fixed("halved")
    every: float = setting(2.0, "Rounds.")

    def factor(self, t: Any) -> Any:
        return 0.5 ** (t // self.every)


def test_an_own_kind_works_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "halved", Halved)
    own = parse(fedavg.Hyper, "lr_schedule", "halved:every=2")
    hyper = fedavg.Hyper(**ROUNDS)
    found = learn(fedavg.system, hyper.replace(lr_schedule=own))
    expected = learn(fedavg.system, hyper.replace(lr_schedule=HALVING))
    np.testing.assert_array_equal(found.samples, expected.samples)


def with_cosine(rate: Any) -> optax.GradientTransformation:
    return optax.sgd(optax.cosine_decay_schedule(rate, 10))


def with_warmup(rate: Any) -> optax.GradientTransformation:
    return optax.sgd(optax.warmup_cosine_decay_schedule(0.0, rate, 2, 10))


REFUSED = [
    ({"optimizer": with_cosine}, "optimizer is 'with_cosine', but must be .* lr_schedule has"),
    ({"optimizer": with_warmup}, "optimizer is 'with_warmup', but must be .* lr_schedule has"),
    ({"lr_schedule": Cosine(by="step")}, "lr_schedule.over is 0.0, but must be above 0, except"),
    ({"lr_schedule": Warmup(over=9.0, then=Cosine())}, "lr_schedule.then.over is 0.0, but must be"),
    ({"lr_schedule": "cosine"}, "training.lr_schedule is .cosine., but must be a schedule of"),
    ({"proximal_schedule": HALVING}, "proximal_schedule is .* but must be left at constant with"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_cannot_be_followed_is_refused(changes: Any, words: str, compiled: list[str]) -> None:
    with pytest.raises(ConfigError, match=words):
        learn(fedavg.system, fedavg.Hyper(**ROUNDS | changes))
    assert "jit(_advance)" not in compiled


def test_clocks_that_a_setting_has_not_are_refused() -> None:
    hyper = fedbuff.Hyper(**SIZES, buffer_size=2, server_lr_schedule=HALVING.replace(by="step"))
    with pytest.raises(ConfigError, match=r"server_lr_schedule\.by is 'step', but must be one of"):
        learn(fedbuff.system, hyper)
    by_step = fednova.Hyper(**ROUNDS, lr_schedule=HALVING.replace(by="step"))
    with pytest.raises(ConfigError, match=r"training.lr_schedule.by is .step., but must be one of"):
        learn(fednova.system, by_step)


def test_a_kept_state_counts_on_in_a_schedule_of_the_optimizer() -> None:
    check(fedavg.Hyper(optimizer=with_cosine, optimizer_state="kept"))
    with pytest.raises(ConfigError, match="must be one that does not ask for the value of the ra"):
        check(fedavg.Hyper(optimizer=with_warmup, optimizer_state="kept"))


def test_rates_of_qfedavg_are_those_of_rounds() -> None:
    hyper = fedjax_sim.SYSTEMS["qfedavg"].Hyper(lr_schedule=Step(by="step"))
    with pytest.raises(ConfigError, match=r"lr_schedule\.by is 'step', but must be round, because"):
        check(hyper)
