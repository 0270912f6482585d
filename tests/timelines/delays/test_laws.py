"""Delay laws: distributions, clients' speeds, refused settings, and schedules under the laws."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.core.settings import check, parse
from fedjax_sim.timelines import (
    LAWS,
    STEP_COUNT_LAWS,
    Arrivals,
    Clients,
    ClientTable,
    CohortRounds,
    Contacts,
    Speeds,
    draw_client_speeds,
    draw_runtimes,
    presets,
    read_client_table,
    schedule_cohort_rounds,
    schedule_contacts,
)
from fedjax_sim.timelines.delays.laws import update_time

SPREAD_LAWS = tuple(name for name, law in LAWS.items() if law.spreads)
CONTACTS = presets.preset(Contacts, presets.FAVANO)
ROUNDS = presets.preset(CohortRounds, presets.FAVANO)
ARRIVALS = presets.preset(Arrivals, presets.FAVANO)
CLIENTS = presets.preset(Clients, presets.FAVANO)

RATE, SPREAD = 0.4, 0.2
"""Distributions of running times.

Times have four moments under each law, so that variances have standard errors.
"""
TIMES: dict[str, Any] = {
    "runtime_uniform": stats.uniform((1 - SPREAD) / RATE, 2 * SPREAD / RATE),
    "runtime_exp": stats.expon(scale=1 / RATE),
    "runtime_shifted_exp": stats.expon((1 - SPREAD) / RATE, SPREAD / RATE),
    "runtime_lognormal": stats.lognorm(SPREAD, scale=np.exp(-(SPREAD**2) / 2) / RATE),
    "runtime_pareto": stats.pareto(1 / SPREAD, scale=(1 - SPREAD) / RATE),
    "runtime_normal": stats.norm(1 / RATE, SPREAD / RATE),
    "runtime_geom": stats.geom(RATE),
    "count_geom": stats.geom(RATE),
}
NUM = 20_000


@partial(jax.jit, static_argnames=("num", "law"))
def _drawn(speeds: Speeds, *, num: int, law: str) -> jax.Array:
    return draw_runtimes(jax.random.key(7), speeds, num, law)


def times(law: str, *, rate: Any = RATE, spread: Any = SPREAD, num: int = NUM) -> np.ndarray:
    """Draw running times of one client, or of several: `f64[..., num]`."""
    with jax.enable_x64(True):
        speeds = Speeds(
            *(
                jnp.asarray(np.broadcast_to(np.asarray(x, float), np.shape(rate)))
                for x in (rate, spread)
            )
        )
        drawn = np.asarray(_drawn(speeds, num=num, law=law))
    assert drawn.dtype == np.float64
    return drawn


def assert_moments(sample: np.ndarray, mean: float, variance: float) -> None:
    """Check mean and variance within 4 standard errors, which come from the sample's moments."""
    centred = sample - sample.mean()
    errors = (
        sample.std() / np.sqrt(sample.size),
        np.sqrt(((centred**4).mean() - sample.var() ** 2) / sample.size),
    )
    assert errors[0] < 0.02 * mean
    assert errors[1] < 0.1 * variance
    assert abs(sample.mean() - mean) < 4 * errors[0]
    assert abs(sample.var() - variance) < 4 * errors[1]


@pytest.mark.parametrize("law", TIMES)
def test_distributions(law: str) -> None:
    """Check the mean 1 / rate, the variance and the distribution, by counts if times are whole."""
    law_of_time, drawn = TIMES[law], times(law)
    assert law_of_time.mean() == pytest.approx(1 / RATE, rel=1e-12)
    assert_moments(drawn, 1 / RATE, law_of_time.var())
    if "geom" in law:
        np.testing.assert_array_equal(drawn, np.round(drawn))
        counts = np.bincount(np.minimum(drawn, 15).astype(int), minlength=16)
        expected = np.append(law_of_time.pmf(np.arange(15)), law_of_time.sf(14))
        assert counts[0] == 0
        assert stats.chisquare(counts[1:], NUM * expected[1:]).pvalue > 1e-3
    else:
        assert stats.kstest(drawn, law_of_time.cdf).pvalue > 1e-3


def test_all_laws_are_tested() -> None:
    assert set(TIMES) | {"runtime_constant"} == set(LAWS)


def test_normal_times_are_cut_at_0() -> None:
    """With a spread of 1 a sixth of the times are 0 and the rest are normal.

    The mean is then above 1 / rate.
    """
    drawn = times("runtime_normal", spread=1.0)
    assert drawn.min() == 0
    assert stats.binomtest(int((drawn == 0).sum()), NUM, stats.norm.cdf(-1)).pvalue > 1e-3
    assert (
        stats.kstest(drawn[drawn > 0], stats.truncnorm(-1, np.inf, 1 / RATE, 1 / RATE).cdf).pvalue
        > 1e-3
    )
    mean = stats.norm.cdf(1) + stats.norm.pdf(1)
    assert mean == pytest.approx(1.083, abs=1e-3)
    assert_moments(
        drawn, mean / RATE, (2 * stats.norm.cdf(1) + stats.norm.pdf(1) - mean**2) / RATE**2
    )


@pytest.mark.parametrize("law", ["runtime_constant", *SPREAD_LAWS])
def test_times_without_spread_are_constant(law: str) -> None:
    np.testing.assert_allclose(times(law, spread=0.0), 1 / RATE, rtol=1e-15)


def test_widest_spreads() -> None:
    """A uniform time from 0 to two means, and an exponential time without a constant part."""
    assert (
        stats.kstest(times("runtime_uniform", spread=1.0), stats.uniform(0, 2 / RATE).cdf).pvalue
        > 1e-3
    )
    np.testing.assert_array_equal(times("runtime_shifted_exp", spread=1.0), times("runtime_exp"))


def test_a_certain_step_takes_a_unit() -> None:
    np.testing.assert_array_equal(times("runtime_geom", rate=1.0, spread=0.0), 1)


@pytest.mark.parametrize("law", [*LAWS])
def test_clients_have_their_own_speeds(law: str) -> None:
    """Each client has its rate and spread, and the draws of two clients are uncorrelated."""
    rate, spread = np.array([0.8, 0.1]), np.array([0.05, 0.3])
    drawn = times(law, rate=rate, spread=spread, num=NUM // 4)
    assert drawn.shape == (2, NUM // 4)
    means = drawn.mean(axis=1) * rate
    np.testing.assert_allclose(means, 1, atol=5 / np.sqrt(NUM // 4))
    if law in SPREAD_LAWS:
        assert 4 < (drawn.std(axis=1) * rate)[1] / (drawn.std(axis=1) * rate)[0] < 12
    if law != "runtime_constant":
        assert abs(np.corrcoef(drawn)[0, 1]) < 5 / np.sqrt(NUM // 4)


@jax.jit
def _update_times(client: jax.Array, update: jax.Array, clients: Clients) -> jax.Array:
    key = jax.random.key(3)
    return update_time(key, client, update, draw_client_speeds(key, clients), clients)


def update_times(client: Any, update: Any, clients: Clients) -> np.ndarray:
    with jax.enable_x64(True):
        clients = jax.tree.map(lambda leaf: np.asarray(leaf, float), clients)
        return np.asarray(
            _update_times(jnp.asarray(client, "int32"), jnp.asarray(update, "int32"), clients)
        )


EXPONENTIAL = CLIENTS(
    num_clients=3,
    local_steps=5,
    slow_fraction=1 / 3,
    slow_clients="last",
    runtime_law="runtime_exp",
)


@pytest.mark.parametrize(("time_of", "shape"), [("step", 5), ("update", 1)])
def test_what_an_update_takes(time_of: str, shape: int) -> None:
    """An update takes the sum of K times, or one time whatever K is.

    With exponential times the update's time has a gamma law of that shape.
    """
    client, update = np.indices((3, 3000))
    drawn = update_times(client, update, EXPONENTIAL.replace(time_of=time_of))
    for row, rate in zip(drawn, (1 / 2, 1 / 2, 1 / 16), strict=True):
        assert stats.kstest(row, stats.gamma(shape, scale=1 / rate).cdf).pvalue > 1e-3
        assert_moments(row, shape / rate, shape / rate**2)
    assert np.abs(np.corrcoef(drawn)[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(3000)
    assert abs(np.corrcoef(drawn[0, :-1], drawn[0, 1:])[0, 1]) < 5 / np.sqrt(3000)
    # No two updates share a draw.
    assert np.unique(drawn * np.array([[1 / 2], [1 / 2], [1 / 16]])).size == drawn.size
    # An update takes the same time in whatever order and with whatever other updates it is drawn.
    order = np.random.default_rng(0).permutation(client.size)
    mixed = (x.ravel()[order].reshape(x.shape) for x in (client, update))
    again = update_times(*mixed, EXPONENTIAL.replace(time_of=time_of))
    np.testing.assert_array_equal(again.ravel(), drawn.ravel()[order])


@pytest.mark.parametrize(("time_of", "times_taken"), [("step", 5), ("update", 1)])
def test_constant_updates(time_of: str, times_taken: int) -> None:
    hyper = EXPONENTIAL.replace(runtime_law="runtime_constant", time_of=time_of)
    assert hyper.times_per_update == times_taken
    np.testing.assert_array_equal(
        update_times([0, 1, 2], [0, 7, 3], hyper), np.array([2.0, 2.0, 16.0]) * times_taken
    )


def speeds(clients: Clients, seed: int = 0) -> Speeds:
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, draw_client_speeds(jax.random.key(seed), clients))


def test_rates_are_log_normal_around_those_of_their_kind() -> None:
    """The means are kept, and so is the mean time of a step over clients, which is larger."""
    many = Clients(num_clients=8000, slow_fraction=0.5, slow_clients="last", rate_slow=1 / 4)
    rate = speeds(many).rate
    for drawn, mean in ((rate[:4000], 1.0), (rate[4000:], 1 / 4)):
        assert stats.kstest(np.log(drawn), stats.norm(np.log(mean) - 1 / 8, 0.5).cdf).pvalue > 1e-3
    assert rate.mean() == pytest.approx(many.delays.mean_rate, rel=0.03)
    assert (1 / rate).mean() == pytest.approx(many.delays.mean_time, rel=0.03)
    np.testing.assert_array_equal(speeds(many.replace(rate_spread=0.0)).rate[::4000], [1, 1 / 4])


def test_the_last_clients_are_slow() -> None:
    """A third of eight is three, rounded up; slow clients have the slow rate and spread."""
    hyper = CLIENTS(
        num_clients=8,
        slow_clients="last",
        spread_fast=0.25,
        spread_slow=0.75,
        runtime_law="runtime_uniform",
    )
    rate, spread = speeds(hyper)
    np.testing.assert_array_equal(rate, [1 / 2] * 5 + [1 / 16] * 3)
    np.testing.assert_array_equal(spread, [0.25] * 5 + [0.75] * 3)
    assert rate.dtype == np.float64
    np.testing.assert_array_equal(speeds(hyper, seed=1).rate, rate)
    drawn = [speeds(hyper.replace(slow_clients="random"), seed) for seed in range(6)]
    assert all(sorted(each.rate) == sorted(rate) for each in drawn)
    assert all(((each.rate < 1 / 4) == (each.spread > 0.5)).all() for each in drawn)
    assert len({tuple(each.rate) for each in drawn}) > 1


TABLE = ClientTable([0.5, 2.0, 0.125], [0.0, 0.5, 0.25])


def test_speeds_from_a_table() -> None:
    hyper = CLIENTS(num_clients=3, client_table=TABLE, runtime_law="runtime_uniform")
    check(hyper)
    np.testing.assert_array_equal(speeds(hyper).rate, [0.5, 2.0, 0.125])
    np.testing.assert_array_equal(speeds(hyper).spread, [0.0, 0.5, 0.25])
    assert hyper.delays.mean_rate == pytest.approx(2.625 / 3)
    assert hyper.delays.largest_rate == 2.0
    np.testing.assert_array_equal(ClientTable([1, 2], 0.5).spread, [0.5, 0.5])
    np.testing.assert_array_equal(ClientTable([1, 2]).spread, [0, 0])
    assert CLIENTS().delays.mean_rate == pytest.approx((2 / 2 + 1 / 16) / 3)
    assert CLIENTS(rate_slow=0.75).delays.largest_rate == 0.75


def test_tables_in_files(tmp_path: Path) -> None:
    """Columns are found by name in any order, and other columns are ignored.

    On the command line the setting is the file's name. Without a column `spread` the spread is
    0.
    """
    path = tmp_path / "clients.csv"
    path.write_text("spread,note,rate\n0.5,a,2\n,b,0.25\n")
    table = parse(Arrivals, "client_table", str(path))
    np.testing.assert_array_equal(table.rate, [2, 0.25])
    np.testing.assert_array_equal(table.spread, [0.5, 0])
    path.write_text("rate\n0.5\n1e-3\n")
    table = read_client_table(path)
    np.testing.assert_array_equal(table.rate, [0.5, 1e-3])
    np.testing.assert_array_equal(table.spread, [0, 0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rate\n",
        "spread\n1\n",
        "rate\none\n",
        "rate,spread\n1,wide\n",
        "spread,rate\n1\n",
        "rate\n-1\n",
        "rate\nnan\n",
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, text: str) -> None:
    path = tmp_path / "clients.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"client_table.* is .*, but must be "):
        read_client_table(path)
    with pytest.raises(ConfigError, match="the name of a readable CSV file"):
        read_client_table(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("rate", "spread", "words"),
    [
        ([], 0, "one row per client"),
        (1.0, 0, "one value per client in every column"),
        ([[1.0]], 0, "one value per client in every column"),
        ([1.0, 0.0], 0, "rate in row 2 is 0.0, but must be a finite number above 0"),
        ([1.0, -1.0], 0, "rate in row 2 is -1.0, but must be a finite number above 0"),
        ([1.0, np.inf], 0, "rate in row 2 is inf, but must be a finite number above 0"),
        ([1.0, 2.0], [0.1], "one number, or one per client, from 0"),
        ([1.0, 2.0], [0.1, -0.1], "spread in row 2 is -0.1, but must be a finite number of at"),
        ([1.0, 2.0], np.nan, "spread in row 1 is nan, but must be a finite number of at least 0"),
    ],
)
def test_tables_that_cannot_be(rate: Any, spread: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ClientTable(rate, spread)


THREE: dict[str, Any] = {"num_clients": 3, "client_table": TABLE, "runtime_law": "runtime_uniform"}
WIDE: dict[str, Any] = {"spread_fast": 1.5}
REFUSED: list[tuple[Clients, str]] = [
    (
        CLIENTS(**THREE | {"num_clients": 4}),
        "delays.client_table is 'of 3 rows', but must be of num_clients = 4 rows",
    ),
    *(
        (
            CLIENTS(**THREE, **{name: value}),
            f"delays.{name} is {value!r}, but must be left at {default} with a table of clients, "
            "where it has no effect",
        )
        for name, value, default in (
            ("slow_fraction", 0.5, 0.0),
            ("slow_clients", "last", "random"),
            ("rate_fast", 0.25, 1.0),
            ("rate_slow", 0.25, 1 / 8),
            ("rate_spread", 0.25, 0.5),
            ("spread_fast", 0.5, 0.0),
            ("spread_slow", 0.5, 0.0),
        )
    ),
    (
        CLIENTS(**THREE | {"client_table": "clients.csv"}),
        "delays.client_table is 'clients.csv', but must be a ClientTable",
    ),
    (
        CLIENTS(**THREE | {"runtime_law": "runtime_geom"}),
        "delays.client_table rate is 2.0, but must be at most 1, a probability, under runtime_geom",
    ),
    (
        CLIENTS(**THREE | {"runtime_law": "runtime_exp"}),
        "delays.client_table spread is 0.5, but must be 0 under runtime_exp, which has no spread",
    ),
    (
        CLIENTS(
            num_clients=2,
            client_table=ClientTable([1, 1], [0.5, 1.25]),
            runtime_law="runtime_uniform",
        ),
        "delays.client_table spread is 1.25, but must be at most 1 under runtime_uniform",
    ),
    *(
        (
            CLIENTS(runtime_law=law, slow_fraction=0.5, **{name: 0.1}),
            f"delays.{name} is 0.1, but must be left at 0.0 with delays.runtime_law = {law}, ",
        )
        for law in (*STEP_COUNT_LAWS, "runtime_constant")
        for name in ("spread_fast", "spread_slow")
    ),
    (
        CLIENTS(runtime_law="runtime_uniform", **WIDE),
        "delays.spread_fast is 1.5, but must be at most 1 under runtime_uniform",
    ),
    (
        CLIENTS(runtime_law="runtime_shifted_exp", spread_slow=1.01),
        "delays.spread_slow is 1.01, but must be at most 1 under runtime_shifted_exp",
    ),
    (
        CLIENTS(runtime_law="runtime_pareto", spread_slow=1.0),
        "delays.spread_slow is 1.0, but must be below 1 under runtime_pareto",
    ),
    (
        CLIENTS(runtime_law="runtime_pareto", **WIDE),
        "delays.spread_fast is 1.5, but must be below 1 under runtime_pareto",
    ),
    (
        CLIENTS(rate_fast=1.25),
        "delays.rate_fast is 1.25, but must be at most 1, a probability, under runtime_geom",
    ),
    (
        CLIENTS(rate_slow=1.25, runtime_law="count_geom"),
        "delays.rate_slow is 1.25, but must be at most 1, a probability, under count_geom",
    ),
    (
        Clients(runtime_law="runtime_geom"),
        "delays.rate_spread is 0.5, but must be 0 under runtime_geom, whose rates are",
    ),
    (
        CONTACTS(time_of="update"),
        "delays.time_of is 'update', but must be \"step\", as contacts interrupt clients between",
    ),
    *(
        (
            fedjax_sim.SYSTEMS["favano"].paper(runtime_law=law, reweight=reweight),
            f"reweight is {reweight!r}, but must be one of none, estimated_stochastic, estimated "
            f"under {law}",
        )
        for law in ("runtime_constant", *SPREAD_LAWS)
        for reweight in ("stochastic", "deterministic")
    ),
]


@pytest.mark.parametrize(("clients", "words"), REFUSED)
def test_settings_that_are_refused(clients: Clients, words: str) -> None:
    """The error is one sentence that names the setting, its value and what is allowed."""
    with pytest.raises(ConfigError) as error:
        check(clients)
    assert str(error.value).startswith(words)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    "clients",
    [
        CLIENTS(runtime_law="runtime_uniform", spread_fast=1.0),
        CLIENTS(runtime_law="runtime_shifted_exp", spread_slow=1.0),
        CLIENTS(runtime_law="runtime_pareto", spread_slow=0.99),
        CLIENTS(runtime_law="runtime_lognormal", spread_slow=2.0),
        CLIENTS(runtime_law="runtime_normal", spread_fast=2.0),
        CLIENTS(runtime_law="runtime_constant", rate_fast=2.0),
        ARRIVALS(time_of="update"),
        ROUNDS(time_of="update"),
        fedjax_sim.SYSTEMS["favano"].paper(runtime_law="runtime_lognormal", reweight="estimated"),
    ],
)
def test_settings_that_are_not(clients: Clients) -> None:
    check(clients)


@pytest.mark.parametrize(("time_of", "taken"), [("step", 5), ("update", 1)])
@pytest.mark.parametrize("round_time", ["sum", "one_draw", "mean"])
def test_rounds_of_constant_times(
    draw: Callable, time_of: str, taken: int, round_time: str
) -> None:
    """A round takes as long as the slowest of the cohort, in all readings, plus the exchange of 3.

    A step (or update) takes 2 or 16 units.
    """
    hyper = ROUNDS(
        num_clients=9,
        num_selected=4,
        local_steps=5,
        slow_fraction=2 / 9,
        slow_clients="last",
        runtime_law="runtime_constant",
    )
    schedule = draw(
        schedule_cohort_rounds, hyper.replace(time_of=time_of, round_time=round_time), num_ticks=40
    )
    slow = (schedule.clients[0] >= 7).any(axis=1)
    assert 5 < slow.sum() < 35
    np.testing.assert_array_equal(schedule.time[0], np.cumsum(np.where(slow, 16, 2) * taken + 3))
    assert (schedule.steps == 5).all()


def test_rounds_of_uniform_times(draw: Callable) -> None:
    """The largest of four uniform times has a beta law."""
    hyper = ROUNDS(
        num_clients=4,
        num_selected=4,
        local_steps=5,
        slow_fraction=0.0,
        time_of="update",
        runtime_law="runtime_uniform",
    )
    schedule = draw(schedule_cohort_rounds, hyper.replace(spread_fast=0.5), num_ticks=1000, seeds=2)
    lengths = np.diff(schedule.time, axis=1, prepend=0.0).ravel() - 3
    assert stats.kstest(lengths, stats.beta(4, 1, 1, 2).cdf).pvalue > 1e-3


def test_rounds_of_a_table(draw: Callable) -> None:
    hyper = ROUNDS(
        num_clients=3,
        num_selected=1,
        local_steps=4,
        client_table=ClientTable(TABLE.rate),
        runtime_law="runtime_constant",
    )
    schedule = draw(schedule_cohort_rounds, hyper, num_ticks=40)
    np.testing.assert_array_equal(
        np.diff(schedule.time[0], prepend=0), 3 + 4 / TABLE.rate[schedule.clients[0, :, 0]]
    )
    assert len(set(schedule.clients.ravel())) == 3


def test_contacts_of_constant_times(draw: Callable) -> None:
    """Steps of 2 and of 16 units that fit between two contacts count, at most K of them.

    A step that ends at the contact counts.
    """
    hyper = CONTACTS(
        num_clients=9, num_selected=3, local_steps=6, server_wait=4.0, server_interact=2.0
    )
    hyper = hyper.replace(slow_fraction=2 / 9, slow_clients="last", runtime_law="runtime_constant")
    schedule, _ = draw(schedule_contacts, hyper, num_ticks=60)
    last = np.zeros(9)
    for t, clients in enumerate(schedule.clients[0]):
        now = 6.0 * (t + 1)
        expected = np.minimum((now - last[clients]) // np.where(clients >= 7, 16, 2), 6)
        np.testing.assert_array_equal(schedule.steps[0, t], expected)
        last[clients] = now
    assert {0, 1, 3, 6} <= set(schedule.steps.ravel().tolist())


def test_contacts_of_times_with_a_constant_part(draw: Callable) -> None:
    """With contacts every 7 units, k steps are done if their times fit.

    These are k constant parts of 1 and k exponential parts of mean 1.
    """
    hyper = CONTACTS(
        num_clients=50,
        num_selected=50,
        local_steps=20,
        slow_fraction=0.0,
        runtime_law="runtime_shifted_exp",
        spread_fast=0.5,
    )
    steps = draw(schedule_contacts, hyper, num_ticks=60, seeds=2)[0].steps
    assert steps.max() <= 7
    reached = stats.gamma(np.arange(1, 8)).cdf(7 - np.arange(1, 8))
    expected = -np.diff(np.concatenate([[1], reached, [0]]))
    # Counts of 6 and 7 steps are too rare for separate cells.
    counts = np.bincount(steps.ravel(), minlength=8)
    assert (
        stats.chisquare(
            np.append(counts[:6], counts[6:].sum()),
            steps.size * np.append(expected[:6], expected[6:].sum()),
        ).pvalue
        > 1e-3
    )


def test_rates_and_spreads_must_have_one_shape() -> None:
    with pytest.raises(ConfigError, match="shape of the spreads is"):
        draw_runtimes(jax.random.key(0), Speeds(jnp.ones(3), jnp.zeros(())), 2, "runtime_uniform")
