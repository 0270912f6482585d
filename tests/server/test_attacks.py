"""Attacks: what is forged, who forges and when, and what honest clients keep."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_sim
from fedjax_sim import Algorithm, problems
from fedjax_sim.clients import LocalTraining, local_training
from fedjax_sim.core.batching import replicate, weighted_sum
from fedjax_sim.core.settings import ConfigError, check, group, idle_of, parse, struct
from fedjax_sim.core.types import EMPTY, Event, Plan
from fedjax_sim.problems import Quadratic
from fedjax_sim.server.attacks import (
    ATTACKS,
    Adversary,
    ALittleIsEnough,
    Cohort,
    Honest,
    InnerProduct,
    Mimic,
    Senders,
    SignFlip,
    are_malicious,
    attacks_of_one_program,
    parse_attack,
)
from fedjax_sim.server.stages import Forgery
from fedjax_sim.timelines import CohortRounds, cohort_system

KEY = jax.random.key(3)
NUM = 10
CLIENTS = np.array([7, 2, EMPTY, 9, 4, 0, 5, EMPTY, 3, 8], "int32")
FORGERS = {
    "some": (1, 4, 5),
    "one": (3,),
    "most": (0, 1, 3, 4, 5, 6),
    "all": (0, 1, 3, 4, 5, 6, 8, 9),
    "none": (),
}
OPTIMIZED = [
    f"{name}:perturbation={p}" for name in ("min_max", "min_sum") for p in ("std", "unit", "sign")
]
DETERMINED = (
    "none",
    "sign_flip:scale=1.5",
    "scaling",
    "free_rider",
    "alie",
    "alie:z=1.5",
    "inner_product:strength=0.7",
    "mimic",
    *OPTIMIZED,
)
MESSAGES = np.random.default_rng(0).normal(size=(10, 7)) ** 3 + np.arange(7)
MESSAGES[CLIENTS == EMPTY] = np.nan


def cohort_of(forgers: tuple[int, ...], clients: np.ndarray = CLIENTS) -> Cohort:
    is_malicious = np.isin(np.arange(len(clients)), forgers)
    is_present = clients >= 0
    weight = np.where(is_present, 1 / max(1, is_present.sum()), 0)
    return Cohort(*map(jnp.asarray, (clients, is_malicious, is_present, weight)))


def as_model(vectors: np.ndarray) -> dict[str, jax.Array]:
    return {"a": jnp.asarray(vectors[:, :3]), "b": jnp.asarray(vectors[:, 3:].reshape(-1, 2, 2))}


def as_vectors(model: dict[str, jax.Array]) -> np.ndarray:
    return np.concatenate([np.asarray(x).reshape(len(x), -1) for x in (model["a"], model["b"])], 1)


def reference_slots(forgers: tuple[int, ...]) -> np.ndarray:
    present = np.flatnonzero(CLIENTS >= 0)
    honest = np.setdiff1d(present, forgers)
    return honest if len(honest) else present


def by_hand(text: str, forgers: tuple[int, ...]) -> np.ndarray:
    """Forge in NumPy."""
    name, _, value = text.partition("=")
    name = name.partition(":")[0]
    slots = reference_slots(forgers)
    honest = MESSAGES[slots]
    mean, spread = honest.mean(0), honest.std(0)
    if name == "alie":
        n, f = 8, len(forgers)
        supporters = max(n // 2 + 1 - f, 1)
        share = (n - f - supporters) / (n - f) if f < n else 0
        z = float(value or max(stats.norm.ppf(share), 0))
        return mean - z * spread
    if name in ("min_max", "min_sum"):
        p = {"std": -spread, "unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean)}[value]
        low, high = 0.0, 1e6
        for _ in range(200):
            middle = (low + high) / 2
            left, right = distances(name, mean + middle * p, honest)
            low, high = (middle, high) if left <= right else (low, middle)
        return mean + low * p
    return {
        "none": MESSAGES,
        "sign_flip": -1.5 * MESSAGES,
        "scaling": 10 * MESSAGES,
        "free_rider": 0 * mean,
        "inner_product": -0.7 * mean,
        "mimic": MESSAGES[min(slots, key=lambda s: CLIENTS[s])],
    }[name]


def distances(name: str, forged: np.ndarray, honest: np.ndarray) -> tuple[float, float]:
    """Return both sides of the bound that the attack keeps."""
    ours = np.sum((honest - forged) ** 2, axis=-1)
    theirs = np.sum((honest[:, None] - honest[None]) ** 2, axis=-1)
    if name == "min_max":
        return ours.max(), theirs.max()
    return ours.sum(), theirs.sum(1).max()


@pytest.fixture(scope="module")
def forged() -> dict[tuple[str, str], np.ndarray]:
    """What every attack forges, in 64 bits."""

    @jax.jit
    def run(messages: dict[str, jax.Array], cohorts: Cohort) -> dict[str, dict[str, jax.Array]]:
        def of_cohort(cohort: Cohort) -> dict[str, dict[str, jax.Array]]:
            return {t: parse_attack(t).forge(KEY, messages, cohort) for t in DETERMINED}

        return jax.vmap(of_cohort)(cohorts)

    with jax.enable_x64(True):
        cohorts = jax.tree.map(lambda *x: jnp.stack(x), *map(cohort_of, FORGERS.values()))
        found = run(as_model(MESSAGES), cohorts)
        return {
            (text, which): as_vectors(jax.tree.map(lambda leaf, i=i: leaf[i], found[text]))
            for text in DETERMINED
            for i, which in enumerate(FORGERS)
        }


@pytest.mark.parametrize("which", FORGERS)
@pytest.mark.parametrize("text", DETERMINED)
def test_definition(text: str, which: str, forged: dict[tuple[str, str], np.ndarray]) -> None:
    expected = by_hand(text, FORGERS[which])
    found = np.broadcast_to(forged[text, which], MESSAGES.shape)
    there = CLIENTS >= 0
    expected = np.broadcast_to(expected, MESSAGES.shape)
    np.testing.assert_allclose(found[there], expected[there], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("text", OPTIMIZED)
def test_optimized_attacks_go_as_far_as_the_bound_allows(
    text: str, forged: dict[tuple[str, str], np.ndarray]
) -> None:
    for which, forgers in FORGERS.items():
        honest, [sent] = MESSAGES[reference_slots(forgers)], forged[text, which]
        left, right = distances(text.partition(":")[0], sent, honest)
        np.testing.assert_allclose(left, right, rtol=1e-12)
        further = honest.mean(0) + 1.01 * (sent - honest.mean(0))
        left, right = distances(text.partition(":")[0], further, honest)
        assert left > right


@pytest.mark.few(8)
@pytest.mark.parametrize("scale", [2.0**-80, 2.0**-40, 2.0**40, 2.0**80])
@pytest.mark.parametrize("text", ["alie", *OPTIMIZED])
def test_tiny_and_huge_messages(text: str, scale: float) -> None:
    """Messages that are scaled make the forged one scaled, where squares leave 32 bits."""
    attack, cohort = parse_attack(text), cohort_of(FORGERS["some"])
    [usual] = as_vectors(attack.forge(KEY, as_model(MESSAGES), cohort))
    [found] = as_vectors(attack.forge(KEY, as_model(MESSAGES * scale), cohort))
    np.testing.assert_allclose(found / scale, usual, rtol=1e-5, atol=1e-5)


def test_alie_takes_the_papers_z() -> None:
    """24 of 50 workers need two supporters: the quantile at (50 - 24 - 2) / (50 - 24)."""
    clients = np.arange(50, dtype="int32")
    cohort = cohort_of(tuple(range(24)), clients)
    messages = jnp.asarray(np.tile([[-1.0], [1.0]], (25, 1)), "float32")  # mean 0, deviation 1
    found = ALittleIsEnough().forge(KEY, messages, cohort)
    np.testing.assert_allclose(found, [[-stats.norm.ppf(24 / 26)]], rtol=1e-5)


@pytest.mark.parametrize("name", ["gaussian", "free_rider"])
def test_noise(name: str) -> None:
    """Standard deviations within 5 standard errors; every slot and leaf draws its own."""
    messages = {"a": jnp.full((4, 5000), 9.0), "b": jnp.full((4, 5000), 9.0, "bfloat16")}
    cohort = cohort_of((0,), np.arange(4, dtype="int32"))
    sent = parse_attack(f"{name}:deviation=0.3").forge(KEY, messages, cohort)
    assert {leaf.dtype for leaf in sent.values()} == {jnp.dtype("float32"), jnp.dtype("bfloat16")}
    vectors = np.concatenate([np.asarray(leaf, float) for leaf in sent.values()])
    error = 5 / np.sqrt(5000)
    np.testing.assert_allclose(vectors.std(axis=1), 0.3, rtol=error / np.sqrt(2))
    assert np.abs(vectors.mean(axis=1)).max() < 0.3 * error
    assert np.abs(np.corrcoef(vectors) - np.eye(8)).max() < error


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_not_finite(value: str) -> None:
    messages = {"a": jnp.ones((2, 3)), "b": jnp.ones((2, 1), "bfloat16")}
    sent = parse_attack(f"not_finite:value={value}").forge(
        KEY, messages, cohort_of((0,), np.arange(2, dtype="int32"))
    )
    for leaf in jax.tree.leaves(sent):
        np.testing.assert_array_equal(np.asarray(leaf, "float32"), float(value))


@pytest.mark.few(4)
@pytest.mark.parametrize("text", DETERMINED)
def test_types_and_ticks_of_one_or_no_message(text: str) -> None:
    """Messages have their types, and are finite even if nobody or only the attacker is there."""
    attack = parse_attack(text)
    for clients in ([6], [EMPTY], [EMPTY, 1, 1]):
        slots = np.array(clients, "int32")
        for dtype in ("float32", "bfloat16"):
            messages = {"w": jnp.ones((len(slots), 2), dtype), "c": jnp.zeros(len(slots), dtype)}
            sent = attack.forge(KEY, messages, cohort_of((0,), slots))
            for leaf in jax.tree.leaves(sent):
                assert leaf.dtype == dtype
                assert np.isfinite(np.asarray(leaf, "float32")).all()


@pytest.mark.slow
def test_strengths_are_swept_and_differentiated() -> None:
    """A strength is a leaf, under vmap; no derivative is nan where honest messages are equal."""
    messages, cohort = jnp.ones((3, 2)), cohort_of((0,), np.arange(3, dtype="int32"))
    strengths = jnp.array([0.1, 0.5])
    sent = jax.vmap(lambda each: InnerProduct(strength=each).forge(KEY, messages, cohort))(
        strengths
    )
    np.testing.assert_allclose(sent[:, 0], np.outer([-0.1, -0.5], [1, 1]), rtol=1e-6)
    for text in DETERMINED:
        attack = parse_attack(text)
        slope = jax.grad(lambda x, a=attack: jnp.sum(a.forge(KEY, x, cohort)))(messages)
        assert jnp.isfinite(slope).all(), text


# --- who is malicious, and when ---


def event_of(tick: int, clients: np.ndarray, weight: np.ndarray | None = None) -> Event:
    slots = len(clients)
    fields = {name: np.zeros(slots, "int32") for name in ("steps", "version", "offset", "read")}
    if weight is None:
        weight = np.where(clients >= 0, 1 / max(1, (clients >= 0).sum()), 0)
    return Event(
        tick=jnp.int32(tick),
        clients=jnp.asarray(clients),
        weight=jnp.asarray(weight, "float32"),
        write=jnp.int32(0),
        **jax.tree.map(jnp.asarray, fields),
    )


def test_a_share_is_exact_and_holds_the_smaller_shares() -> None:
    shares = jnp.array([0, 0.04, 0.1, 0.25, 0.5, 0.9, 1])
    for num in (7, 30):

        def lane(key: jax.Array, num: int = num) -> jax.Array:
            def of_share(share: jax.Array) -> jax.Array:
                return are_malicious(Adversary(malicious=share), key, num, jnp.arange(num))

            return jax.vmap(of_share)(shares)

        found = np.asarray(jax.vmap(lane)(jax.random.split(KEY, 20)))
        numbers = np.round(np.asarray(shares) * num)
        np.testing.assert_array_equal(found.sum(-1), np.broadcast_to(numbers, (20, 7)))
        assert (found[:, :-1] <= found[:, 1:]).all()
        # Lanes differ, and every client is malicious in some.
        half = found[:, 4]
        assert len({tuple(row) for row in half}) > 10
        assert half.any(0).all()


@pytest.mark.parametrize("jitted", [False, True])
def test_which_clients_and_when(jitted: bool) -> None:
    adversary = Adversary(attack=SignFlip(), attackers=(2, 5, 8), attack_from=3, attack_ticks=2)

    def slots(adversary: Adversary, tick: int) -> jax.Array:
        return Senders(NUM, adversary).attackers(KEY, event_of(tick, CLIENTS, weight=1.0))

    run = jax.jit(slots) if jitted else slots
    theirs = np.isin(CLIENTS, (2, 5, 8))
    found = [np.asarray(run(adversary, tick)) for tick in (0, 2, 3, 4, 5)]
    np.testing.assert_array_equal(found, [0 * theirs, 0 * theirs, theirs, theirs, 0 * theirs])
    for_ever = adversary.replace(attack_ticks=0)
    np.testing.assert_array_equal(run(for_ever, 10**6), theirs)
    everyone = Adversary(attack=SignFlip(), malicious=1.0)
    np.testing.assert_array_equal(run(everyone, 0), CLIENTS >= 0)


def test_heavy() -> None:
    """Only slots of at least the mean weight of those present; equal weights all are."""
    adversary = Adversary(attack=SignFlip(), malicious=1.0, attack_when="heavy")
    clients = jnp.array([0, 1, EMPTY, 2, 3])

    def slots(*weight: float) -> list[bool]:
        event = event_of(0, clients)._replace(weight=jnp.array(weight))
        return Senders(4, adversary).attackers(KEY, event).tolist()

    assert slots(0.1, 0.4, 0, 0.0, 0.3) == [False, True, False, False, True]
    assert slots(0.2, 0.2, 0, 0.2, 0.2) == [True, True, False, True, True]
    for size in (3, 7, 10, 1000):
        event = event_of(0, jnp.arange(size), weight=1 / size)
        assert Senders(size, adversary).attackers(KEY, event).all()


def forgery_of(adversary: Adversary) -> Forgery:
    """Bind an adversary to the clients of the slots."""
    return Forgery(adversary.attack, Senders(NUM, adversary))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("text", ATTACKS)
def test_honest_slots_keep_their_bits(text: str, dtype: str) -> None:
    """Others claim the start plus what the attack forges of the progress."""
    random = np.random.default_rng(1)
    make = lambda: {  # noqa: E731
        "a": jnp.asarray(random.normal(size=(10, 3)), dtype),
        "b": jnp.asarray(100 * random.normal(size=(10, 2, 2)), dtype),
    }
    starts, local = make(), make()
    adversary = Adversary(attack=parse_attack(text), attackers=(2, 4, 0))
    event = event_of(5, CLIENTS)
    run = jax.jit(lambda *models: forgery_of(adversary).client(KEY, event, (), *models)[0])
    claimed = run(starts, local)
    forgers = np.isin(CLIENTS, (2, 4, 0))
    for before, after in zip(*map(jax.tree.leaves, (local, claimed)), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before[~forgers], after[~forgers])
        is_same = np.asarray(before == after)[forgers]
        assert is_same.mean() == 1 if text in ("none", "one_of") else is_same.mean() < 0.1
    if text == "free_rider":
        np.testing.assert_array_equal(claimed["a"][forgers], starts["a"][forgers])
    if text == "sign_flip" and dtype == "float32":
        expected = (2 * starts["b"] - local["b"])[forgers]
        np.testing.assert_allclose(claimed["b"][forgers], expected, rtol=1e-5, atol=1e-4)


def test_draws_differ_between_ticks_and_lanes() -> None:
    adversary = Adversary(attack=parse_attack("gaussian"), malicious=1.0)
    zeros = jnp.zeros((10, 3))
    drawn = [
        forgery_of(adversary).client(key, event_of(tick, CLIENTS), (), zeros, zeros)[0]
        for key, tick in ((KEY, 0), (KEY, 1), (jax.random.key(4), 0))
    ]
    assert not np.any(np.asarray(drawn[0] == drawn[1])[CLIENTS >= 0])
    assert not np.any(np.asarray(drawn[0] == drawn[2])[CLIENTS >= 0])
    assert all((each[CLIENTS < 0] == 0).all() for each in drawn)


def test_nobody_attacks_by_default() -> None:
    """Known before tracing, so the models are returned as they are."""
    local = {"w": jnp.ones((10, 2))}
    for idle in (
        Adversary(),
        Adversary(malicious=0.5),
        Adversary(attack=SignFlip()),
    ):
        claimed, _ = forgery_of(idle).client(KEY, event_of(0, CLIENTS), (), local, local)
        assert claimed is local


class State(NamedTuple):
    server: Any


@struct
class Hyper(CohortRounds, LocalTraining):
    adversary: Adversary = group(Adversary(), "who attacks")


def bind_rounds(problem: Any, hyper: Hyper, plan: Plan) -> Algorithm:
    """Put an adversary between clients and a mean."""
    train = local_training(problem, hyper, plan)

    def step(key: jax.Array, state: State, event: Event) -> tuple[State, Any]:
        local, work = train(key, event, start=state.server)
        starts = replicate(state.server, event.clients.shape[0])
        local, _ = forgery_of(hyper.adversary).client(key, event, (), starts, local)
        return State(weighted_sum(event.weight, local)), work

    return Algorithm(lambda key: State(problem.init(key)), step, lambda state: state.server)


@pytest.mark.slow
def test_in_a_sweep() -> None:
    """Clients move by q (c_i - x), forgers by -q times that, from a tick on."""
    system = cohort_system("attacked", Hyper, bind_rounds, "rounds with an adversary")
    centres = np.random.default_rng(0).normal(size=(6, 2)).astype("float32")
    hyper = Hyper(num_clients=6, num_selected=6, local_steps=2, lr=0.1, batch_size=1)
    run = fedjax_sim.sweep(
        system,
        problems.Quadratic.of(centres, noise=0.0),
        hyper.replace(attack=SignFlip(), attackers=(1, 4)),
        settings={"attack_from": [0, 3, 99]},
        budget=fedjax_sim.Ticks(5),
        num_evals=1,
    )
    for lane, first in enumerate((0, 3, 99)):
        x = np.zeros(2)
        for tick in range(5):
            signs = np.where(np.isin(np.arange(6), (1, 4)) & (tick >= first), -1, 1)
            x = x + np.mean(signs[:, None] * (1 - 0.9**2) * (centres - x), axis=0)
        np.testing.assert_allclose(run.models[lane], x, rtol=1e-5, atol=1e-6)


# --- settings ---


@pytest.mark.parametrize("text", [*ATTACKS, *DETERMINED[1:], "not_finite:value=inf"])
def test_texts(text: str) -> None:
    attack = parse_attack(text)
    assert parse_attack(str(attack)) == attack
    check(Adversary(attack=attack, malicious=0.0 if text == "none" else 0.2))


def test_settings_without_effect() -> None:
    others = {"malicious", "attackers", "attack_from", "attack_ticks", "attack_when"}
    assert set(idle_of(Adversary())) == others
    assert idle_of(Adversary(attack=SignFlip(), malicious=0.1)) == {}
    assert set(idle_of(Adversary(attack=SignFlip(), attackers=(1,)))) == {"malicious"}
    assert parse(Adversary, "attackers", "0+3") == (0, 3)
    assert parse(Adversary, "attack", "none") == Honest()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"malicious": 0.1}, r"left at 0\.0 with attack = none"),
        (
            {"attack": SignFlip(), "malicious": 0.1, "attackers": (1,)},
            r"malicious is 0\.1, but must be left at 0\.0 with attackers = \(1,\)",
        ),
        ({"attackers": (1, 1)}, "different numbers"),
        ({"attackers": (-1,)}, "different numbers"),
        ({"attackers": [1]}, "different numbers"),
        ({"attack": "sign_flip"}, "an attack of"),
    ],
)
def test_bad_settings(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(Adversary(**changes))


@pytest.mark.parametrize(
    "text",
    [
        "sign",
        "sign_flip:scale",
        "mimic:z=1",
    ],
)
def test_bad_texts(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_attack(text)


def test_a_client_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="clients from 0 to 9"):
        are_malicious(Adversary(attack=SignFlip(), attackers=(10,)), KEY, NUM, jnp.arange(NUM))


# ------------------------------------------------------------------------- mimics that remember


def test_mimics_learn_whom_to_follow() -> None:
    """As the authors' public code does, in NumPy: the direction of three ticks, then one client."""
    random, forgers = np.random.default_rng(2), (1, 4)
    slots = reference_slots(forgers)
    of_clients = 3 * random.normal(size=MESSAGES.shape)
    attack, cohort = Mimic(warmup=3), cohort_of(forgers)
    with jax.enable_x64(True):
        memory = attack.first_memory(jax.tree.map(lambda leaf: leaf[0], as_model(MESSAGES)))
        mu, z, target = np.zeros(MESSAGES.shape[1]), None, -1
        for t in range(6):
            x = of_clients + random.normal(size=MESSAGES.shape)
            x[CLIENTS == EMPTY] = np.nan
            key = jax.random.fold_in(KEY, t)
            memory = attack.remember(key, as_model(x), cohort, memory)
            sent = attack.forge(key, as_model(x), cohort._replace(memory=memory))
            if z is None:
                first = jax.tree.map(lambda leaf: leaf[:1], as_model(x))
                keys = jax.random.split(key, 2)
                drawn = [
                    jax.random.normal(each, first[name].shape, "float64")
                    for each, name in zip(keys, ("a", "b"), strict=True)
                ]
                [z] = as_vectors(dict(zip(("a", "b"), drawn, strict=True)))
            if t < 3:
                mu = (t * mu + x[slots].mean(axis=0)) / (t + 1)
                u = ((x[slots] - mu) @ z) @ (x[slots] - mu)
                u = u / np.linalg.norm(u)
                z = (t * z * (t > 0) + u) / (t + 1)
                z = z / np.linalg.norm(z)
                target = slots[np.argmax(x[slots] @ z)]
            np.testing.assert_allclose(as_vectors(sent), x[target][None], rtol=1e-12)
            assert int(memory.target) == CLIENTS[target]
        # Where it does not report, the farthest of the others takes its place.
        left = np.where(np.arange(len(CLIENTS)) == target, -1, CLIENTS)
        others = slots[slots != target]
        farthest = others[np.argmax(x[others] @ z)]
        sent = attack.forge(key, as_model(x), cohort_of(forgers, left)._replace(memory=memory))
        np.testing.assert_allclose(as_vectors(sent), x[farthest][None], rtol=1e-12)


def test_the_direction_becomes_that_of_most_variance() -> None:
    """Messages that vary three times as much in one direction, of 10 honest clients."""
    random = np.random.default_rng(3)
    along_one = np.eye(MESSAGES.shape[1])[2] * 3 + 1
    attack, cohort = Mimic(warmup=40), cohort_of((1, 4))
    memory = attack.first_memory(jax.tree.map(lambda leaf: leaf[0], as_model(MESSAGES)))
    remember = jax.jit(attack.remember)
    for t in range(40):
        x = as_model(random.normal(size=MESSAGES.shape) * along_one)
        memory = remember(jax.random.fold_in(KEY, t), x, cohort, memory)
    [direction] = as_vectors(jax.tree.map(lambda leaf: leaf[None], memory.direction))
    assert np.abs(direction[2]) > 0.95
    np.testing.assert_allclose(np.linalg.norm(direction), 1, rtol=1e-5)


def test_mimics_learn_from_tiny_and_huge_messages() -> None:
    """Fourth powers of which leave 32 bits."""
    attack, cohort, learnt = Mimic(warmup=4), cohort_of((1, 4)), []
    for scale in (1.0, 2.0**-40, 2.0**40):
        random = np.random.default_rng(4)
        memory = attack.first_memory(jax.tree.map(lambda leaf: leaf[0], as_model(MESSAGES)))
        for t in range(4):
            x = as_model(scale * random.normal(size=MESSAGES.shape))
            memory = attack.remember(jax.random.fold_in(KEY, t), x, cohort, memory)
        learnt.append(jax.tree.leaves(memory.direction))
    for scaled in learnt[1:]:
        for ours, usual in zip(scaled, learnt[0], strict=True):
            np.testing.assert_allclose(ours, usual, atol=1e-5)


def test_equal_messages_do_not_end_the_learning() -> None:
    """A single honest message in the first tick is its own mean: the first direction stays."""
    attack, random = Mimic(warmup=9), np.random.default_rng(5)
    alone = cohort_of(tuple(CLIENTS[CLIENTS != EMPTY].tolist()[1:]))
    memory = attack.first_memory(jax.tree.map(lambda leaf: leaf[0], as_model(MESSAGES)))
    memory = attack.remember(KEY, as_model(MESSAGES), alone, memory)
    [first] = as_vectors(jax.tree.map(lambda leaf: leaf[None], memory.direction))
    np.testing.assert_allclose(np.linalg.norm(first), 1, rtol=1e-5)
    x = as_model(random.normal(size=MESSAGES.shape))
    memory = attack.remember(jax.random.fold_in(KEY, 1), x, cohort_of(()), memory)
    [second] = as_vectors(jax.tree.map(lambda leaf: leaf[None], memory.direction))
    np.testing.assert_allclose(np.linalg.norm(second), 1, rtol=1e-5)
    assert np.abs(second - first).max() > 0.01


@pytest.mark.slow
def test_mimics_learn_from_honest_and_finite_messages_only() -> None:
    """Not from attackers that are not at work yet, and nothing from a tick without honest ones."""
    centres = np.array([[9.0, 9.0], [0.0, 0.1], [0.1, 0.0], [1.0, 0.0], [-1.0, 0.0]], "float32")
    system, problem = fedjax_sim.SYSTEMS["fedavg"], Quadratic.of(centres, noise=0.1)
    settings = {"num_clients": 5, "num_selected": 5, "batch_size": 1, "attack_from": 4}
    hyper = system.Hyper(**settings, attackers=(0, 1), attack=Mimic(warmup=3))
    bound = fedjax_sim.bind(system, problem, hyper, budget=fedjax_sim.Ticks(6))
    state = bound.init()
    for t in range(6):
        state, _ = bound.step(state, bound.event(t))
        assert int(state.memo.attackers.target) in (2, 3, 4)
    assert int(state.memo.attackers.ticks) == 6
    # Nobody honest reports, or what is honest is not finite.
    adversary, key = bound.hyper.adversary, bound.key
    memory, event = state.memo.attackers, bound.event(5)
    for clients, value in (([0, 1, -1, -1, -1], 1.0), ([0, 1, 2, 3, 4], np.nan)):
        changed = event.within(facts=event.facts, clients=jnp.array(clients, "int32"))
        models = jnp.full((5, 2), value)
        forgery = Forgery(adversary.attack, Senders(5, adversary))
        _, after = forgery.client(key, changed, memory, models * 0, models)
        jax.tree.map(np.testing.assert_array_equal, after, memory)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedbuff"])
def test_mimics_remember_in_runs(name: str) -> None:
    """Also as one of several attacks, and where a run is resumed from chunks; not in every system.

    Three of five clients are malicious, and follow the same of the two others for ever, so that
    their models go to this one's optimum, 1 or -1.
    """
    centres = np.array([[0.0], [0.0], [0.0], [1.0], [-1.0]], "float32")
    problem = Quadratic.of(centres, noise=0.3)
    system = fedjax_sim.SYSTEMS[name]
    sizes = {"num_selected": 5} if name == "fedavg" else {"buffer_size": 5}
    hyper = system.Hyper(num_clients=5, batch_size=1, attackers=(0, 1, 2), **sizes)
    mimics = [Mimic(warmup=2), Mimic(), SignFlip()]
    options = {"budget": fedjax_sim.Ticks(60), "seeds": 6, "num_evals": 1}
    swept = {"adversary.attack": attacks_of_one_program(mimics)}
    found = fedjax_sim.sweep(system, problem, hyper, settings=swept, **options)
    alone = fedjax_sim.sweep(system, problem, hyper.replace(attack=mimics[0]), **options)
    models = np.asarray(found.models).reshape(3, 6)
    np.testing.assert_allclose(np.ravel(alone.models), models[0], rtol=1e-4, atol=1e-5)
    if name == "fedavg":  # Four messages of five are the same client's.
        assert (np.abs(np.abs(models[0]) - 0.6) < 0.15).all()
        assert len(set(np.sign(models[0]))) == 2
        assert (np.abs(models[1] - 0.6) < 0.15).all()
    for other in ("quafl", "hierarchical"):
        system = fedjax_sim.SYSTEMS[other]
        changed = {"num_selected": 3} if other == "quafl" else {"num_groups": 1}
        hyper = system.Hyper(num_clients=5, batch_size=1, attackers=(0,), **changed)
        with pytest.raises(ConfigError, match="attackers cannot remember earlier messages"):
            fedjax_sim.simulate(
                system, problem, hyper.replace(attack=mimics[0]), budget=options["budget"]
            )
