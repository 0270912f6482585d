"""Rules of aggregation against plain NumPy in 64 bits, and the papers' bounds of malicious clients.

Dimension letters: `S` slots, `P` parameters; n messages present, of which f are malicious.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.core import targets
from fedjax_sim.core.settings import ConfigError, check
from fedjax_sim.server.compression import ScaledSign
from fedjax_sim.server.rules import (
    RULES,
    Bucketing,
    Bulyan,
    CentredClipping,
    FLTrust,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormBound,
    Rule,
    SignMajority,
    TrimmedMean,
    ordering,
    parse_rule,
    squared_distances,
)
from tests.conftest import slow_but

S, SHAPES = 11, {"kernel": (2, 3), "bias": (4,), "scale": (), "nothing": (0, 2)}
P = 11
KEY = jax.random.key(3)
TEXTS = [
    "mean",
    "median",
    "trimmed_mean:share=0.25",
    "sign_majority",
    "sign_majority:scale=vector",
    "geometric_median:iterations=5:smoothing=0.01",
    "centred_clipping:radius=1.5:iterations=3",
    "norm_bound:bound=2.5",
    "krum:assumed=0",
    "krum:assumed=2",
    "multi_krum:assumed=1",
    "multi_krum:assumed=1:selected=3",
    "bulyan:assumed=0",
    "bulyan:assumed=1",
    "bulyan:assumed=2",
    "bucketing:size=3",
    "bucketing:inner=trimmed_mean:share=0.25",
    "bucketing:inner=mean",
    "fltrust",
    "bucketing:size=2:inner=fltrust:examples=5",
]
"""At least one rule of each kind."""
ROBUST = [
    text for text in TEXTS if text not in ("mean", "bucketing:inner=mean", "bulyan:assumed=0")
]

OWN = np.random.default_rng(16).normal(size=P) + 0.5
OWN /= np.linalg.norm(OWN)
"""The server's own update, with which some rules compare messages: `f64[P]`, of length 1."""

compiled = jax.jit(lambda rule, *inputs: rule.centre(*inputs))


def in_leaves(vectors: np.ndarray, dtype: str = "float64") -> dict[str, jax.Array]:
    """Cut vectors `f[..., P]` into leaves."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])
    parts = np.split(vectors, ends[:-1], axis=-1)
    return {
        name: jnp.asarray(part.reshape((*vectors.shape[:-1], *shape)), dtype)
        for (name, shape), part in zip(SHAPES.items(), parts, strict=True)
    }


def in_vector(leaves: dict[str, Any]) -> np.ndarray:
    """Join leaves `[...]` to a vector `f64[P]`."""
    return np.concatenate([np.asarray(leaves[name], float).ravel() for name in SHAPES])


def centre_of(
    rule: Rule,
    vectors: np.ndarray,
    counts: np.ndarray | None = None,
    slots: np.ndarray | None = None,
    *,
    dtype: str = "float64",
    num_slots: int = S,
) -> np.ndarray:
    """Compute a rule's centre of messages in some slots, of which the others are empty.

    Args:
      rule: The rule.
      vectors: `f[n, P]`.
      counts: `i[n]`, weights up to a factor; equal by default.
      slots: `i[n]`, by default the first.
      dtype: The messages' type.
      num_slots: All slots, S.

    Returns:
      `f64[P]`.
    """
    slots = np.arange(len(vectors)) if slots is None else slots
    counts = np.ones(len(vectors), int) if counts is None else counts
    with jax.enable_x64(dtype == "float64"):
        messages, weight = np.zeros((num_slots, P)), np.zeros(num_slots)
        messages[slots], weight[slots] = vectors, counts / counts.sum()
        is_present = np.isin(np.arange(num_slots), slots)
        weight = jnp.asarray(weight, dtype)
        rule = rule.with_own(in_leaves(OWN, dtype))
        found = compiled(rule, KEY, in_leaves(messages, dtype), weight, jnp.asarray(is_present))
        assert all(leaf.dtype == dtype for leaf in found.values())
        assert {name: leaf.shape for name, leaf in found.items()} == SHAPES
        return in_vector(found)


# ------------------------------------------------------------------- the rules in plain NumPy
# Each takes the rule, messages `f[n, P]` in the order of their slots, and whole numbers `i[n]`
# to which the weights are proportional.


def mean(rule: Rule, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return counts @ x / counts.sum()


def median(rule: Rule, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    copies = np.repeat(x, counts, axis=0)
    return np.median(copies, axis=0)


def trimmed_mean(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    b = int(rule.share * len(x))
    return np.sort(x, axis=0)[b : len(x) - b].mean(axis=0)


def sign_majority(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    if rule.scale == "coordinate":
        magnitude = median(rule, np.abs(x), counts)
    else:
        magnitude = median(rule, np.abs(x).mean(axis=1, keepdims=True), counts)
    return np.sign(counts @ np.sign(x)) * magnitude


def geometric_median(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    v = median(rule, x, counts)
    for _ in range(rule.iterations):
        pull = counts / np.maximum(rule.smoothing, np.linalg.norm(x - v, axis=1))
        v = pull @ x / pull.sum()
    return v


def centred_clipping(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    v = np.zeros(P)
    for _ in range(rule.iterations):
        steps = [d * min(1, rule.radius / max(np.linalg.norm(d), 1e-300)) for d in x - v]
        v = v + counts @ np.array(steps) / counts.sum()
    return v


def norm_bound(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return mean(rule, x * np.minimum(1, rule.bound / np.maximum(norms, 1e-300)), counts)


def ranked(x: np.ndarray, f: int) -> list[int]:
    """Order messages by Krum's scores."""
    squared = np.square(x[:, None] - x).sum(axis=-1)
    others = [[*np.sort(np.delete(row, i)), 0] for i, row in enumerate(squared)]
    k = max(len(x) - f - 2, 1)
    return sorted(range(len(x)), key=lambda i: (sum(others[i][:k]), others[i][k : k + 1], i))


def krum(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return x[ranked(x, rule.assumed)[0]]


def multi_krum(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return x[ranked(x, rule.assumed)[: rule.selected or len(x) - rule.assumed]].mean(axis=0)


def bulyan(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    left, selected, f = list(range(len(x))), [], rule.assumed
    for _ in range(len(x) - 2 * f):
        selected.append(left.pop(ranked(x[left], f)[0]))
    chosen = x[selected]
    found = []
    for values in chosen.T:
        middle = np.median(values)
        nearest = sorted(values, key=lambda value: (abs(value - middle), value))
        found.append(np.mean(nearest[: len(x) - 4 * f]))
    return np.array(found)


def fltrust(rule: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    norms = np.maximum(np.linalg.norm(x, axis=1), 1e-300)
    trust = counts * np.maximum(x @ OWN / norms / np.linalg.norm(OWN), 0)
    scaled = x / norms[:, None] * np.linalg.norm(OWN)
    return trust @ scaled / max(trust.sum(), 1e-300)


def bucketing(rule: Any, x: np.ndarray, counts: np.ndarray, is_in: np.ndarray) -> np.ndarray:
    if not rule.weighs:
        counts = np.ones(len(x), int)
    rows = [row for row in is_in if counts[row].sum()]
    means = np.array([counts[row] @ x[row] / counts[row].sum() for row in rows])
    return reference_of(rule.inner)(
        rule.inner, means, np.array([counts[row].sum() for row in rows])
    )


def reference_of(rule: Rule) -> Callable[..., np.ndarray]:
    """Return the function above of a rule's name."""
    return globals()[rule.name]


def reference(
    rule: Any, x: np.ndarray, counts: np.ndarray | None = None, slots: np.ndarray | None = None
) -> np.ndarray:
    """Compute a rule's centre of messages `f[n, P]` in NumPy."""
    counts = np.ones(len(x), int) if counts is None else counts
    if not isinstance(rule, Bucketing):
        return reference_of(rule)(rule, x, counts)
    slots = np.arange(len(x)) if slots is None else slots
    is_in = rule.buckets(jax.random.split(KEY)[0], jnp.isin(jnp.arange(S), slots))
    return bucketing(rule, x, counts, np.asarray(is_in)[:, slots])


# ----------------------------------------------------------------------------------- agreement


def samples(fewest: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Draw messages `f[n, P]` of all kinds, and their slots in ascending order."""
    random = np.random.default_rng(0)
    for n in range(fewest, S + 1):
        x = random.normal(size=(n, P)) + random.normal(size=P)
        half = np.where(np.arange(n) < n // 2, 1e3, 1)[:, None]
        for kind, vectors in {
            "random": x,
            "ties": random.integers(-2, 3, (n, P)).astype(float),
            "copies": x[random.integers(0, n, n)],
            "zero": 0 * x,
            "equal": np.repeat(x[:1], n, axis=0),
            "half malicious": x * half,
        }.items():
            yield kind, vectors, np.sort(random.permutation(S)[:n])


@pytest.mark.few(2)
@pytest.mark.parametrize("text", TEXTS)
def test_it_is_what_numpy_finds(text: str) -> None:
    rule, random = parse_rule(text), np.random.default_rng(1)
    for kind, x, slots in samples(rule.least_present()):
        counts = [np.ones(len(x), int)]
        if rule.weighs:
            counts += [random.integers(1, 4, len(x)), random.integers(0, 3, len(x))]
            counts[-1][0] += 1
        for each in counts:
            np.testing.assert_allclose(
                centre_of(rule, x, each, slots),
                reference(rule, x, each, slots),
                rtol=1e-12,
                atol=1e-12 * np.abs(x).max(),
                err_msg=f"{kind}, {len(x)} present, counts {each}",
            )


def test_medians_are_the_same_by_sorting() -> None:
    """As accelerators find them, with ties, weights and empty slots."""
    random = np.random.default_rng(18)

    def medians(values: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.vmap(ordering.weighted_median)(values, weights)

    cases = [(x, slots) for _, x, slots in samples(1)]
    values, weights = np.zeros((len(cases), S, P)), np.zeros((len(cases), S))
    for i, (x, slots) in enumerate(cases):
        values[i, slots] = x
        weights[i, slots] = random.integers(1, 4, len(x)) if i % 2 else 1
        weights[i] /= weights[i].sum()
    with jax.enable_x64(True):
        expected = jax.jit(medians)(values, weights)
        with targets.tracing_for("gpu"):
            program = jax.jit(lambda *given: medians(*given))
            found = program(values, weights)
            assert "sort" in program.lower(values, weights).as_text()
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    slow_but(
        ["centred_clipping", "krum:assumed=1"],
        [
            *("median", "geometric_median", "trimmed_mean:share=0.2", "krum:assumed=1"),
            *("centred_clipping", "sign_majority", "norm_bound:bound=1"),
        ],
    ),
)
def test_derivatives_are_those_of_finite_differences(text: str) -> None:
    """Also where a message is missing, and where a median is one of the messages."""
    with jax.enable_x64(True):
        rule, step = parse_rule(text), 1e-6
        for missing, dim in ((0, 3), (1, 3), (0, 1)):
            x = np.random.default_rng(dim).normal(size=(5 + missing, dim))
            here = np.arange(5 + missing) < 5
            weight = jnp.asarray(here / 5)

            def value(x: Any, weight: Any = weight, here: Any = here, dim: int = dim) -> Any:
                found = rule.centre(jax.random.key(0), x, weight, jnp.asarray(here))
                return (found * jnp.arange(1.0, dim + 1)).sum()

            expected = np.zeros(x.shape)
            for place in np.ndindex(*x.shape):
                moved = np.zeros(x.shape)
                moved[place] = step
                expected[place] = float(value(x + moved) - value(x - moved)) / (2 * step)
            found = jax.grad(value)(jnp.asarray(x))
            np.testing.assert_allclose(found, expected, atol=1e-6)
            assert np.abs(expected).max() > 0.1


@pytest.mark.few(5)
@pytest.mark.parametrize("text", TEXTS)
def test_one_huge_message_leaves_no_error_in_32_bits(text: str) -> None:
    rule, random = parse_rule(text), np.random.default_rng(2)
    for place in (0, 4, S - 1):
        x = random.normal(size=(S, P)).astype("float32").astype(float)
        x[place] = 1e30 * np.sign(x[place])
        found = centre_of(rule, x, dtype="float32")
        tolerance = 1e-5 if text in ROBUST else 1e25
        np.testing.assert_allclose(found, reference(rule, x), rtol=1e-4, atol=tolerance)
        if text in ROBUST:
            assert np.abs(found).max() < 10
        # Even if distances are not numbers, or infinite.
        x[place] = 3e38
        assert np.isfinite(centre_of(rule, x, dtype="float32")).all()


@pytest.mark.parametrize("rule", [Krum(assumed=2), MultiKrum(assumed=2), Bulyan(assumed=2)])
def test_infinitely_far_messages_are_not_selected(rule: Rule) -> None:
    honest = np.random.default_rng(13).normal(size=(S - 2, P)).astype("float32").astype(float)
    low, high = honest.min(axis=0), honest.max(axis=0)
    for first, second in itertools.product((1e30, 3e38, -3e38), repeat=2):
        found = centre_of(rule, np.array([[first] * P, *honest, [second] * P]), dtype="float32")
        assert ((found >= low) & (found <= high)).all()


def test_squared_distances() -> None:
    x = np.random.default_rng(14).normal(size=(S, P)) + 1
    x[2] = x[7]
    is_present = np.arange(S) != 4
    with jax.enable_x64(True):
        found = np.asarray(squared_distances(in_leaves(x), jnp.asarray(is_present)))
    expected = np.square(x[:, None] - x).sum(axis=-1)
    expected[~is_present] = expected[:, ~is_present] = np.inf
    np.fill_diagonal(expected, np.inf)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found, found.T)
    # Squares of 3e38, and their difference, are no numbers of 32 bits.
    x[[1, 3]] = 3e38
    far = np.asarray(squared_distances(in_leaves(x, "float32"), jnp.asarray(is_present)))
    assert (far[1] == np.inf).all()
    assert (far[3] == np.inf).all()
    np.testing.assert_allclose(far[5:, 5:], expected[5:, 5:], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_tick_may_have_one_slot() -> None:
    x = np.random.default_rng(15).normal(size=(1, P))
    for text in TEXTS:
        rule = parse_rule(text)
        if rule.least_present() == 1:
            found = centre_of(rule, x, num_slots=1)
            np.testing.assert_allclose(found, reference(rule, x), rtol=1e-12)


@pytest.mark.parametrize("text", ROBUST)
def test_slots_may_be_permuted_and_equal_messages_are_their_own_centre(text: str) -> None:
    rule, random = parse_rule(text), np.random.default_rng(4)
    x, counts = random.normal(size=(S, P)), np.ones(S, int)
    if rule.weighs:
        counts = random.integers(1, 5, S)
    if not isinstance(rule, Bucketing):
        expected = centre_of(rule, x, counts)
        for _ in range(3):
            order = random.permutation(S)
            found = centre_of(rule, x[order], counts[order])
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    message = x[0] / np.linalg.norm(x[0])
    if rule.needs_own():
        message *= np.sign(message @ OWN)
    expected = message
    if getattr(rule, "scale", "") == "vector":
        with jax.enable_x64(True):
            expected = np.asarray(ScaledSign().apply(KEY, jnp.asarray(message)))
    found = centre_of(rule, np.repeat(message[None], S, axis=0), counts)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


ONE_OF_A_KIND = [
    text
    for text in TEXTS
    if text
    not in (
        *("sign_majority", "krum:assumed=0", "multi_krum:assumed=1"),
        *("bulyan:assumed=0", "bulyan:assumed=2", "bucketing:inner=mean"),
        *("norm_bound:bound=2.5", "sign_majority:scale=vector"),
    )
]


@pytest.mark.few(1)
@pytest.mark.parametrize("text", slow_but(ONE_OF_A_KIND, TEXTS))
def test_lanes_blocks_other_machines_and_narrow_types(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, random = parse_rule(text), np.random.default_rng(5)
    rule = rule.with_own(in_leaves(OWN, "float32"))
    x = random.normal(size=(2, S, P))
    weight, is_present = jnp.full(S, 1 / S), jnp.ones(S, bool)
    # Lanes differ in all traced settings. As in a sweep, whole numbers are floats.
    is_share = isinstance(getattr(rule, "inner", rule), TrimmedMean)
    other = jax.tree.map(lambda value: value / 2 if is_share else value + 1, rule)
    lanes = [jax.tree.map(np.float32, each) for each in (rule, other)]
    alone = [
        compiled(lane, KEY, in_leaves(x[i], "float32"), weight, is_present)
        for i, lane in enumerate(lanes)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes)
    together = jax.jit(jax.vmap(lambda rule, x: rule.centre(KEY, x, weight, is_present)))(
        stacked, in_leaves(x, "float32")
    )
    for i, expected in enumerate(alone):
        found = in_vector(jax.tree.map(lambda leaf, i=i: leaf[i], together))
        np.testing.assert_allclose(found, in_vector(expected), rtol=1e-5, atol=1e-5)

    def again(dtype: str) -> np.ndarray:
        messages = in_leaves(x[0], dtype)
        fresh = jax.jit(lambda rule, x: rule.centre(KEY, x, weight, is_present))
        found = fresh(lanes[0], messages)
        assert all(leaf.dtype == dtype for leaf in found.values())
        return in_vector(found)

    # Of bfloat16, results are rounded once.
    rounded = in_leaves(x[0], "bfloat16")
    expected = compiled(
        lanes[0],
        KEY,
        {k: leaf.astype("float32") for k, leaf in rounded.items()},
        weight,
        is_present,
    )
    np.testing.assert_allclose(again("bfloat16"), in_vector(expected), rtol=2**-8, atol=1e-6)
    monkeypatch.setattr(ordering, "BLOCK", 4)
    np.testing.assert_allclose(again("float32"), in_vector(alone[0]), rtol=1e-5, atol=1e-6)
    with targets.tracing_for("gpu"):
        np.testing.assert_allclose(again("float32"), in_vector(alone[0]), rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (Mean(), 1),
        (Median(), 1),
        (TrimmedMean(share=0.4), 1),
        (GeometricMedian(), 1),
        (Krum(assumed=0), 3),
        (Krum(assumed=3), 9),
        (MultiKrum(assumed=2), 7),
        (MultiKrum(assumed=np.int32(1), selected=9), 9),
        (Bulyan(assumed=2), 11),
        (Bucketing(size=2, inner=Krum(assumed=1)), 9),
        (Bucketing(size=4, inner=Mean()), 1),
    ],
)
def test_with_fewer_than_it_needs_the_centre_is_nan(rule: Rule, least: int) -> None:
    assert rule.least_present() == least
    x = np.random.default_rng(6).normal(size=(S, P))
    for n in range(1, S + 1):
        found = centre_of(rule, x[:n])
        assert np.isfinite(found).all() if n >= least else np.isnan(found).all()


def test_the_fewest_of_several_settings_are_those_of_the_largest() -> None:
    assert Krum(assumed=np.array([0, 3, 1])).least_present() == 9
    assert MultiKrum(assumed=jnp.array([0, 3]), selected=np.array([12, 0])).least_present() == 12


def test_a_share_is_not_cut_by_rounding() -> None:
    x = np.repeat(np.arange(100.0)[:, None] ** 3, P, axis=1)
    for share, b in ((0.29, 29), (0.57 / 2, 28), (0.3, 30), (0.499, 49), (0.0, 0)):
        expected = x[b : 100 - b, 0].mean()
        for dtype in ("float32", "float64"):
            found = centre_of(TrimmedMean(share=share), x, dtype=dtype, num_slots=100)
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_signs_of_a_tied_vote_are_0() -> None:
    x = np.array([1, 1, 1, -1, -1, -1, 1, 1, -1, -1.0])[:, None] * np.ones(P)
    for order in itertools.islice(itertools.permutations(range(10)), 0, 2000, 400):
        assert not centre_of(SignMajority(), x[list(order)], dtype="float32").any()
    # With weights, the vote of the heavier counts.
    counts = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 2])
    assert (centre_of(SignMajority(), x, counts, dtype="float32") == -1).all()


def test_buckets_hold_every_message_once() -> None:
    random = np.random.default_rng(7)
    for size, n in itertools.product((1, 2, 3, 20), (1, 4, S)):
        slots = np.sort(random.permutation(S)[:n])
        is_present = np.isin(np.arange(S), slots)
        drawn = [
            np.asarray(Bucketing(size=size).buckets(jax.random.key(i), jnp.asarray(is_present)))
            for i in range(20)
        ]
        for is_in in drawn:
            np.testing.assert_array_equal(is_in.sum(axis=0), is_present)
            full, rest = divmod(n, size)
            expected = [size] * full + [rest] * (rest > 0)
            np.testing.assert_array_equal(is_in.sum(axis=1)[: len(expected)], expected)
        if n == S and 1 < size < n:
            assert len({is_in.tobytes() for is_in in drawn}) > 10


def test_the_mean_of_buckets_is_the_mean() -> None:
    random = np.random.default_rng(8)
    x, counts = random.normal(size=(S, P)), random.integers(0, 4, S)
    rule = Bucketing(size=3, inner=Mean())
    np.testing.assert_allclose(centre_of(rule, x, counts), mean(rule, x, counts), atol=1e-14)
    assert rule.weighs
    assert not Bucketing(inner=Krum()).weighs


@pytest.mark.parametrize("rule", [Krum(), MultiKrum(), Bulyan(), Median(), TrimmedMean()])
def test_memory_is_that_of_a_few_copies(rule: Rule) -> None:
    slots, size = 20, 40_000
    shapes = (
        jax.ShapeDtypeStruct((slots, size), "float32"),
        jax.ShapeDtypeStruct((slots,), "float32"),
    )
    is_present = jax.ShapeDtypeStruct((slots,), bool)
    program = jax.jit(rule.centre).lower(KEY, *shapes, is_present).compile()
    assert program.memory_analysis().temp_size_in_bytes < 4 * slots * size * 4


# ----------------------------------------------------------------------------------- breakdown


def attacked(limit: Callable[[int], int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Draw messages of which every allowed number f is malicious, of several kinds.

    Args:
      limit: From n to the largest f.

    Yields:
      f, honest messages `f[n - f, P]`, and all messages `f[n, P]` in random order.
    """
    random = np.random.default_rng(9)
    for n in range(1, S + 1):
        for f in range(limit(n) + 1):
            honest = random.normal(size=(n - f, P)) + 3
            spread = honest.std(axis=0)
            for forged in (
                np.full((f, P), 1e6),
                1e4 * random.normal(size=(f, P)),
                honest.mean(axis=0) - 1.5 * np.tile(spread, (f, 1)),
                np.where(np.arange(f) % 2, 50, -50)[:, None] * np.ones(P),
            ):
                yield f, honest, random.permutation(np.concatenate([honest, forged]))


def test_median_and_trimmed_mean_stay_in_the_honest_range() -> None:
    for f, honest, x in attacked(lambda n: (n - 1) // 2):
        for rule in (Median(), TrimmedMean(share=f / len(x))):
            found = centre_of(rule, x)
            assert (found >= honest.min(axis=0) - 1e-12).all()
            assert (found <= honest.max(axis=0) + 1e-12).all()
        assert (np.abs(centre_of(SignMajority(), x)) <= np.abs(honest).max(axis=0) + 1e-12).all()


def test_less_than_half_of_the_weight_does_not_move_the_median_out_of_the_honest_range() -> None:
    honest = np.random.default_rng(10).normal(size=(3, P))
    x = np.concatenate([honest, np.full((6, P), 1e9)])
    counts = np.array([3, 2, 2] + [1] * 6)
    found = centre_of(Median(), x, counts)
    assert (found <= honest.max(axis=0)).all()
    assert (centre_of(Median(), x) == 1e9).all()


def test_the_geometric_median_stays_within_its_bound() -> None:
    rule = GeometricMedian(iterations=200, smoothing=1e-9)
    for f, honest, x in attacked(lambda n: (n - 1) // 2):
        share, centre = f / len(x), honest.mean(axis=0)
        farthest = np.linalg.norm(honest - centre, axis=1).max()
        bound = 2 * (1 - share) / (1 - 2 * share) * farthest
        assert np.linalg.norm(centre_of(rule, x) - centre) <= bound * (1 + 1e-6) + 1e-6


def test_krum_stays_near_an_honest_message() -> None:
    for f, honest, x in attacked(lambda n: (n - 3) // 2):
        n = len(x)
        diameter = np.linalg.norm(honest[:, None] - honest, axis=-1).max()
        bound = diameter * np.sqrt((n - f - 2) / (n - 2 * f - 2)) + 1e-9
        found = centre_of(Krum(assumed=f), x)
        assert (found == x).all(axis=1).any()
        assert np.linalg.norm(found - honest, axis=1).min() <= bound
        # Each message of the mean is as near, and honest ones are no further apart than that.
        found = centre_of(MultiKrum(assumed=f), x)
        assert np.linalg.norm(found - honest, axis=1).min() <= bound + diameter


def test_bulyan_stays_within_a_range_beyond_the_honest_one() -> None:
    for f, honest, x in attacked(lambda n: (n - 3) // 4):
        low, high = honest.min(axis=0), honest.max(axis=0)
        found = centre_of(Bulyan(assumed=f), x)
        assert (found >= 2 * low - high - 1e-9).all()
        assert (found <= 2 * high - low + 1e-9).all()


def test_buckets_withstand_as_many_messages_as_their_rule_withstands_buckets() -> None:
    for size in (2, 3):
        for _, honest, x in attacked(lambda n, size=size: (-(-n // size) - 1) // 2):
            found = centre_of(Bucketing(size=size, inner=Median()), x)
            assert (found >= honest.min(axis=0) - 1e-12).all()
            assert (found <= honest.max(axis=0) + 1e-12).all()


@pytest.mark.parametrize(
    ("rule", "malicious"),
    [
        (Mean(), 1),
        (Median(), 6),
        (TrimmedMean(share=0.2), 3),
        (SignMajority(), 6),
        (GeometricMedian(iterations=50), 6),
        (Krum(assumed=2), 8),
        (MultiKrum(assumed=2), 8),
        (Bulyan(assumed=2), 9),
        (Bucketing(inner=Median()), 11),
    ],
)
def test_too_many_malicious_messages_move_it_as_far_as_they_like(
    rule: Rule, malicious: int
) -> None:
    x = np.random.default_rng(11).normal(size=(S, P))
    for far in (1e3, 1e6, 1e9):
        x[:malicious] = far
        assert centre_of(rule, x).min() > far / 20


def test_bounded_rules_move_no_further_than_their_bounds() -> None:
    random = np.random.default_rng(12)
    for malicious in range(S + 1):
        x = random.normal(size=(S, P))
        x[:malicious] = 1e12
        found = centre_of(CentredClipping(radius=0.5, iterations=3), x)
        assert np.linalg.norm(found) <= 1.5 + 1e-9
        assert np.linalg.norm(centre_of(NormBound(bound=0.5), x)) <= 0.5 + 1e-9


def test_messages_are_trusted_as_far_as_they_agree_with_the_servers_own_update() -> None:
    """Any number of malicious ones turn the centre at most to a right angle to that update."""
    random = np.random.default_rng(17)
    for malicious in range(S + 1):
        x = OWN + 0.1 * random.normal(size=(S, P))
        x[:malicious] = 1e9 * random.normal(size=(malicious, P))
        found = centre_of(FLTrust(), x)
        assert np.linalg.norm(found) <= 1 + 1e-12
        assert found @ OWN >= 0
    # Reversed messages change nothing, and with nobody trusted the server stays.
    reversed_ = np.concatenate([x[:5], np.tile(-1e6 * OWN, (6, 1))])
    np.testing.assert_allclose(
        centre_of(FLTrust(), reversed_), fltrust(FLTrust(), x[:5], np.ones(5)), atol=1e-12
    )
    assert not centre_of(FLTrust(), np.tile(-OWN, (S, 1))).any()
    # Where the server itself learns nothing, it has no direction to compare with.
    nothing = FLTrust().with_own(in_leaves(0 * OWN, "float32"))
    weight, is_present = jnp.full(S, 1 / S), jnp.ones(S, bool)
    assert not in_vector(compiled(nothing, KEY, in_leaves(x, "float32"), weight, is_present)).any()


# ---------------------------------------------------------------------------------------- text


FURTHER = ("bucketing:size=5:inner=multi_krum:selected=2", "fltrust:examples=9:owners=3+0")


@pytest.mark.parametrize("text", [*TEXTS, *RULES, *FURTHER])
def test_text_is_read_as_it_is_written(text: str) -> None:
    rule = parse_rule(text)
    assert parse_rule(str(rule)) == rule
    assert type(parse_rule(str(rule))) is type(rule)
    check(rule)


def test_the_rule_of_buckets_is_written_last() -> None:
    rule = Bucketing(size=3, inner=TrimmedMean(share=0.2))
    assert str(rule) == "bucketing:size=3:inner=trimmed_mean:share=0.2"
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "medain",
        "median:share=0.1",
        "krum:assumed=1.5",
        "bulyan:assumed",
        "bucketing:inner=medain",
        "bucketing:inner=krum:size=2",
        "bucketing:inner=bucketing:inner=median",
        "krum:inner=median",
        "fltrust:owners=1+1",
        "fltrust:own=3",
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_rule(text)


@pytest.mark.parametrize(
    "rule",
    [
        Bucketing(inner=Bucketing()),
        Bucketing(inner=TrimmedMean(share=0.7)),
    ],
)
def test_bad_settings_are_refused(rule: Rule) -> None:
    with pytest.raises(ConfigError):
        check(rule)
