"""Averages of staleness, and weights from them.

They are compared with a server in plain Python and with a trace worked out by hand, and checked
against the paper's bounds and special cases.

Dimension letters: `T` ticks, `S` slots.
"""

import itertools
from collections import deque
from typing import Any

import jax
import numpy as np
import pytest

from fedjax_sim.core.settings import ConfigError
from fedjax_sim.server.staleness import StalenessWeights, mean_staleness, staleness_weights

AVERAGED = ("eq8", "alg1", "code")
OTHERS = ("code_exact", "mean", "exponential", "polynomial", "hinge")
AVERAGES = ("window", "cumulative", "exponential", "none")
RULES = [{"rule": w, "average": a} for w in AVERAGED for a in AVERAGES] + [
    {"rule": w} for w in OTHERS
]
EXACT = {"rtol": 1e-12, "atol": 1e-15}
"""Tolerance for rounding of a few operations on 64-bit floats."""


def weigh(clients: Any, staleness: Any, *, num_clients: int = 3, **settings: Any) -> np.ndarray:
    """Compute weights in 64 bits: `f64[T, S]`."""
    with jax.enable_x64(True):
        arrays = np.asarray(clients, "int32"), np.asarray(staleness, "int32")
        return np.asarray(
            staleness_weights(
                *map(jax.numpy.asarray, arrays),
                StalenessWeights(**settings),
                num_clients=num_clients,
            )
        )


def averages(clients: Any, staleness: Any, **settings: Any) -> np.ndarray:
    """Compute averages of staleness in 64 bits: `f64[T, S]`."""
    with jax.enable_x64(True):
        arrays = np.asarray(clients, "int32"), np.asarray(staleness, "int32")
        return np.asarray(
            mean_staleness(*map(jax.numpy.asarray, arrays), StalenessWeights(**settings))
        )


def schedule(
    seed: int, *, num_ticks: int = 16, num_slots: int = 4, num_clients: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Draw random updates with more slots than clients: clients and staleness, `i32[T, S]` each.

    Some buffers hold updates of one client only, and some have no staleness.
    """
    random = np.random.default_rng(seed)
    clients = random.integers(num_clients, size=(num_ticks, num_slots)) * (
        random.random((num_ticks, 1)) < 0.9
    )
    staleness = random.geometric(0.3, size=clients.shape) - 1
    return clients.astype("int32"), (staleness * (np.arange(num_ticks)[:, None] % 7 > 0)).astype(
        "int32"
    )


class Client:
    """What the server keeps of one client, written from the paper.

    Values are pushed one by one, and the average can be read at any time.
    """

    def __init__(self, rule: str, settings: StalenessWeights):
        self.rule, self.settings = rule, settings
        self.values: Any = deque(maxlen=settings.window) if rule == "window" else []
        self.ema: float | None = None

    def push(self, tau: int) -> None:
        if self.rule == "code_exact" and len(self.values) == 5:
            self.values.pop()
        self.values.append(tau)
        self.ema = (
            tau
            if self.ema is None
            else self.settings.decay * self.ema + (1 - self.settings.decay) * tau
        )

    def read(self) -> float:
        if not self.values:
            return 0.0
        if self.rule == "exponential":
            assert self.ema is not None
            return self.ema
        return sum(self.values) / len(self.values)


def formula(
    settings: StalenessWeights, tau: int, average: float, size: int, num_clients: int
) -> float:
    """Compute a raw weight.

    Args:
      settings: The weighting.
      tau: Staleness of the update.
      average: Average staleness of its client.
      size: Slots of the buffer, b.
      num_clients: Number of clients, n.
    """
    match settings.rule:
        case "eq8":
            return (average * size + 1) / num_clients
        case "alg1":
            return (average + 1) / num_clients
        case "code" | "code_exact":
            return average * size / num_clients
        case "mean":
            return 1.0
        case "exponential":
            return settings.base**tau
        case "polynomial":
            return 1 / (1 + tau) ** settings.exponent
        case _:
            is_late = tau > settings.hinge_start
            return 1 / (settings.hinge_slope * (tau - settings.hinge_start) + 1) if is_late else 1.0


def slow_server(
    clients: np.ndarray, staleness: np.ndarray, settings: StalenessWeights, num_clients: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Compute averages and weights, one update after the other.

    For weightings that use the update's staleness, this is also reported as the average.
    """
    rule = "code_exact" if settings.rule == "code_exact" else settings.average
    is_per_update = (
        settings.rule in ("mean", "exponential", "polynomial", "hinge") or rule == "none"
    )
    known = {client: Client(rule, settings) for client in range(num_clients)}
    all_averages, all_weights = [], []
    for row, taus in zip(clients.tolist(), staleness.tolist(), strict=True):
        for client, tau in zip(row, taus, strict=True):
            known[client].push(tau)
        after = [known[client].read() for client in row]
        read = taus if is_per_update else after
        raw = [
            formula(settings, tau, average, len(row), num_clients)
            for tau, average in zip(taus, read, strict=True)
        ]
        is_normalised = settings.normalised or settings.rule == "code_exact"
        divisor = (sum(raw) or 1.0) if is_normalised else len(row)
        all_averages.append([float(average) for average in read])
        all_weights.append([each / divisor for each in raw])
    return all_averages, all_weights


@pytest.mark.few(3)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(rule.values()))
def test_averages_and_weights_are_those_of_a_loop(rule: dict[str, str]) -> None:
    numbers = {
        "window": 3,
        "decay": 0.7,
        "base": 0.6,
        "exponent": 0.8,
        "hinge_start": 1.5,
        "hinge_slope": 2.0,
    }
    for seed, normalised in itertools.product(range(4), (True, False)):
        settings = StalenessWeights(**rule, **numbers, normalised=normalised)
        clients, staleness = schedule(seed)
        expected_averages, expected_weights = slow_server(clients, staleness, settings, 3)
        fields = {**rule, **numbers, "normalised": normalised}
        np.testing.assert_allclose(
            averages(clients, staleness, **fields), expected_averages, **EXACT
        )
        np.testing.assert_allclose(weigh(clients, staleness, **fields), expected_weights, **EXACT)


# Three clients with delays 1.0, 1.3 and 3.1, and a buffer of two, worked out by hand.
CLIENTS = [[0, 1], [0, 1], [0, 2], [1, 0], [0, 1], [0, 2]]
STALENESS = [[0, 0], [1, 0], [1, 2], [1, 1], [0, 1], [1, 2]]
TRACE_AVERAGES = [[0, 0], [1 / 2, 0], [2 / 3, 2], [1 / 3, 3 / 4], [3 / 5, 1 / 2], [4 / 5, 2]]
TRACE_EQ8 = [
    [0.5, 0.5],
    [0.666667, 0.333333],
    [0.318182, 0.681818],
    [0.4, 0.6],
    [0.523810, 0.476190],
    [0.342105, 0.657895],
]
TRACE_ALG1 = [
    [0.5, 0.5],
    [0.6, 0.4],
    [0.357143, 0.642857],
    [0.432432, 0.567568],
    [0.516129, 0.483871],
    [0.375, 0.625],
]


def test_the_trace_worked_out_by_hand() -> None:
    six_digits = {"rtol": 0, "atol": 6e-7}
    np.testing.assert_allclose(averages(CLIENTS, STALENESS), TRACE_AVERAGES, **EXACT)
    np.testing.assert_allclose(weigh(CLIENTS, STALENESS), TRACE_EQ8, **six_digits)
    np.testing.assert_allclose(weigh(CLIENTS, STALENESS, rule="alg1"), TRACE_ALG1, **six_digits)
    cumulative = {"average": "cumulative"}
    np.testing.assert_allclose(
        averages(CLIENTS, STALENESS, **cumulative), [*TRACE_AVERAGES[:5], [2 / 3, 2]], **EXACT
    )
    weights = weigh(CLIENTS, STALENESS, **cumulative)
    np.testing.assert_allclose(weights, [*TRACE_EQ8[:5], [0.318182, 0.681818]], **six_digits)


def test_duplicates_share_an_average() -> None:
    """Client 0 sends staleness 4 and 0 in one buffer, so both updates have average 2.

    Without averages each update is weighted by its staleness.
    """
    clients, staleness = [[0, 0, 1]], [[4, 0, 1]]
    np.testing.assert_allclose(weigh(clients, staleness), [[7 / 18, 7 / 18, 4 / 18]], **EXACT)
    np.testing.assert_allclose(
        weigh(clients, staleness, average="none"), [[13 / 18, 1 / 18, 4 / 18]], **EXACT
    )


def test_the_codes_window_keeps_the_first_four_and_the_latest() -> None:
    staleness = np.array([3, 1, 4, 1, 5, 9, 2, 6])[:, None]
    known = averages(np.zeros_like(staleness), staleness, rule="code_exact", window=2)
    np.testing.assert_allclose(
        known[:, 0], [3, 2, 8 / 3, 9 / 4, 14 / 5, 18 / 5, 11 / 5, 15 / 5], **EXACT
    )


@pytest.mark.parametrize("weighting", ["code", "code_exact"])
def test_the_code_ignores_a_buffer_without_staleness(weighting: str) -> None:
    weights = weigh([[0, 1], [0, 2]], [[0, 0], [0, 1]], rule=weighting)
    np.testing.assert_array_equal(weights, [[0, 0], [0, 1]])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(rule.values()))
def test_normalised_weights_are_shares(rule: dict[str, str]) -> None:
    """They are not negative and sum to 1.

    The exception is the code's weighting of a buffer whose clients were never stale.
    """
    clients, staleness = schedule(3)
    weights, known = weigh(clients, staleness, **rule), averages(clients, staleness, **rule)
    assert (weights >= 0).all()
    is_void = (known == 0).all(axis=1) & rule["rule"].startswith("code")
    np.testing.assert_allclose(weights.sum(axis=1), np.where(is_void, 0, 1), **EXACT)


@pytest.mark.parametrize("average", AVERAGES)
def test_eq8_obeys_the_bounds_of_the_proof(average: str) -> None:
    """1 / ((b - 1) (b tau + 1) + 1) <= alpha <= (b tau + 1) / (b (tau + 1)).

    Here tau is the largest staleness.
    """
    clients, staleness = schedule(4)
    b, tau = clients.shape[1], staleness.max()
    weights = weigh(clients, staleness, average=average)
    assert weights.max() <= (b * tau + 1) / (b * (tau + 1)) + 1e-12
    assert weights.min() >= 1 / ((b - 1) * (b * tau + 1) + 1) - 1e-12
    extremes = weigh([[0, 1, 2, 3], [4, 5, 6, 7]], [[9, 0, 0, 0], [0, 9, 9, 9]], average=average)
    np.testing.assert_allclose(extremes[:, 0], [37 / 40, 1 / 112], **EXACT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(rule.values()))
def test_equal_staleness_gives_the_mean_and_a_single_slot_weight_1(rule: dict[str, str]) -> None:
    clients, staleness = schedule(5)
    np.testing.assert_allclose(weigh(clients, np.full_like(staleness, 3), **rule), 1 / 4, **EXACT)
    alone = weigh(clients[:, :1], np.maximum(staleness[:, :1], 1), **rule)
    np.testing.assert_allclose(alone, 1, **EXACT)
    if not rule["rule"].startswith("code"):
        np.testing.assert_allclose(weigh(clients, np.zeros_like(staleness), **rule), 1 / 4, **EXACT)


@pytest.mark.parametrize("weighting", ["eq8", "alg1", "code"])
def test_only_raw_weights_depend_on_the_number_of_clients(weighting: str) -> None:
    clients, staleness = schedule(6)
    few, many = (weigh(clients, staleness, rule=weighting, num_clients=n) for n in (3, 300))
    np.testing.assert_allclose(few, many, **EXACT)
    few, many = (
        weigh(clients, staleness, rule=weighting, num_clients=n, normalised=False) for n in (3, 300)
    )
    np.testing.assert_allclose(few, 100 * many, **EXACT)


@pytest.mark.parametrize("average", AVERAGES)
def test_names_of_clients_do_not_matter(average: str) -> None:
    """Very large client numbers work too: no array has the size of the largest number."""
    clients, staleness = schedule(7)
    names = np.array([2**31 - 2, 3, 10**9])
    found = weigh(names[clients], staleness, average=average)
    np.testing.assert_allclose(found, weigh(clients, staleness, average=average), **EXACT)


def test_long_staleness_does_not_overflow() -> None:
    stale = [[3000, 2999]]
    np.testing.assert_allclose(
        weigh([[0, 1]], stale, rule="exponential", base=2.0), [[2 / 3, 1 / 3]], rtol=1e-9
    )
    np.testing.assert_allclose(
        weigh([[0, 1]], stale, rule="exponential", base=0.5), [[1 / 3, 2 / 3]], rtol=1e-9
    )


@pytest.mark.parametrize(
    "rule",
    [{"rule": "eq8", "average": average} for average in AVERAGES] + [{"rule": w} for w in OTHERS],
)
def test_a_batch_of_lanes_equals_lanes_alone(rule: dict[str, str]) -> None:
    """The lanes differ in their schedules and in every traced setting."""
    schedules = [schedule(seed) for seed in range(3)]
    clients, staleness = (np.stack(each) for each in zip(*schedules, strict=True))
    numbers = {
        "decay": np.array([0.1, 0.5, 0.9]),
        "base": np.array([0.5, 2.0, 1.5]),
        "exponent": np.array([0.0, 0.5, 2.0]),
        "hinge_start": np.array([0.0, 1.0, 2.0]),
        "hinge_slope": np.array([1.0, 0.0, 3.0]),
    }
    with jax.enable_x64(True):
        lanes = jax.vmap(lambda c, s, settings: staleness_weights(c, s, settings, num_clients=3))
        together = np.asarray(
            jax.jit(lanes)(clients, staleness, StalenessWeights(**rule, **numbers))
        )
    alone = [
        weigh(*schedules[i], **rule, **{name: float(each[i]) for name, each in numbers.items()})
        for i in range(3)
    ]
    np.testing.assert_allclose(together, alone, **EXACT)
    assert together.dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        *(({"num_clients": value}, "num_clients") for value in (0, -1, 1.5, float("nan"))),
        ({"staleness": [[0, -1]]}, "staleness"),
        ({"staleness": [[0.0, float("nan")]]}, "staleness"),
        ({"staleness": [[0]]}, "staleness"),
        ({"clients": [0, 1], "staleness": [0, 1]}, "clients"),
    ],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any], name: str) -> None:
    """Values that would give wrong weights in silence are refused by name."""
    values = {"clients": [[0, 1]], "staleness": [[0, 3]], "num_clients": 2} | changes
    arrays = (jax.numpy.asarray(values[each]) for each in ("clients", "staleness"))
    with pytest.raises(ConfigError, match=f"^{name} is"):
        staleness_weights(*arrays, StalenessWeights(), num_clients=values["num_clients"])
