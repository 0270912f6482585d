"""Rules and attacks in whole systems: against event loops by hand, in all layouts, and refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedjax_sim
from fedjax_sim import Layout, Ticks
from fedjax_sim.clients import local_training
from fedjax_sim.core.settings import ConfigError, check, fields
from fedjax_sim.core.streams import stream
from fedjax_sim.problems import Quadratic
from fedjax_sim.server import Robust, edges, stages
from fedjax_sim.server.attacks import (
    ATTACKS,
    Canary,
    FreeRider,
    Honest,
    NotFinite,
    SignFlip,
    are_malicious,
    attacks_of_one_program,
)
from fedjax_sim.server.compression import TopK
from fedjax_sim.server.privacy import CorrelatedNoise, FixedClipping, LocalGaussian
from fedjax_sim.server.rules import (
    RULES,
    Bucketing,
    CentredClipping,
    FLTrust,
    Krum,
    Mean,
    Median,
    NormBound,
    SecureSum,
    TrimmedMean,
    parse_rule,
    rules_of_one_program,
)
from tests.conftest import slow_but

NUM, SLOTS, DIM, STEPS, RATE = 10, 7, 5, 3, 0.1
CENTRES = np.random.default_rng(0).normal(size=(NUM, DIM)).astype("float32")
ALL = [
    {
        "norm_bound": NormBound(bound=50.0),
        "centred_clipping": CentredClipping(radius=50.0),
        "secure_sum": SecureSum(width=31, step=1e-8),
    }.get(name, kind())
    for name, kind in RULES.items()
    if name != "one_of"
]
"""Every rule, with bounds that no message here is longer than."""
WEIGHED = [rule for rule in ALL if rule.weighs]
OTHER_CLOCKS = ("tifl", "fedcs", "safa", "pisces", "fedat", "asyncfeded_adaptive")
"""Live systems that do not hear all clients of a cohort. SAFA has no rules, and the messages of the
others go through the wires of FedAvg, FedBuff and Oort."""
# IFCA refuses rules: the means of its clusters may be of one message.
SYSTEMS = {
    name: system
    for name, system in fedjax_sim.SYSTEMS.items()
    if issubclass(system.Hyper, Robust) and name not in ("fedper", "fedbn", "ifca", *OTHER_CLOCKS)
}
GROUPS = ("hierarchical", "async_hierarchical")
ONE_REPORT = ("fedasync", "gen_async", "asyncfeded")
WITHOUT_OWN = (
    *("qfedavg", "pfedme", "perfedavg", "fedpa", "ca2fl", "asyncfeded"),
    *("scaffold", "mimelite", "feddyn", "fedasync", "favano", "quafl", *GROUPS),
)
"""Systems whose server cannot make an update as its clients do, by which FLTrust trusts them."""
STALE = ("ca2fl", "fedbuff", "fedstaleweight", "favano", "quafl", *ONE_REPORT, *GROUPS)


def every_system_but(quick: str) -> pytest.MarkDecorator:
    """Run a test for every system, of which one runs by default: rounds or arrivals are enough."""
    return pytest.mark.parametrize("name", slow_but([quick], SYSTEMS))


def settings_of(name: str, **more: Any) -> Any:
    """Make settings of a system with 10 clients, 7 of which report together where that is so."""
    known = fields(SYSTEMS[name].Hyper)
    few: dict[str, Any] = {"num_clients": NUM, "batch_size": 1, "lr": RATE}
    for field, value in (
        ("local_steps", STEPS),
        ("num_selected", SLOTS),
        ("num_chosen", SLOTS),
        ("buffer_size", SLOTS),
        ("staleness.rule", "mean"),
        ("reweight", "none"),
    ):
        if field in known:
            few[field] = value
    if name in GROUPS:
        few |= {"num_groups": 2, "client_steps": 2, "num_clients": 14}
    if name in ONE_REPORT or name == "fedstaleweight":
        few.pop("staleness.rule", None)
    if name == "fedpa":
        few |= {"burn_in": 1, "num_samples": 2}
    return SYSTEMS[name].Hyper(**(few | more))


def quadratic(name: str, **changes: Any) -> Quadratic:
    """Make the problem, with as many clients as the system's settings have."""
    centres = np.resize(CENTRES, (settings_of(name).num_clients, DIM))
    return Quadratic.of(**({"centers": centres} | changes))


def rules_for(name: str) -> list[Any]:
    """List the rules that a system's schedule and weights allow here."""
    rules = WEIGHED if name in (*ONE_REPORT, "fedstaleweight") else ALL
    if name in GROUPS:  # Of a group, 7 clients report together.
        rules = [rule for rule in ALL if rule.least_present() <= 7]
    return [rule for rule in rules if name not in WITHOUT_OWN or not rule.needs_own()]


def run(name: str, problem: Quadratic | None = None, **options: Any) -> fedjax_sim.Run:
    """Run 6 ticks of a system."""
    hyper = options.pop("hyper", None) or settings_of(name)
    return fedjax_sim.sweep(
        SYSTEMS[name],
        problem or quadratic(name),
        hyper,
        **({"budget": Ticks(6), "num_evals": 2} | options),
    )


def models_of(found: fedjax_sim.Run) -> np.ndarray:
    """Return the final models: `f[L, P]`."""
    return np.asarray(jax.tree.leaves(found.models)[0]).reshape(-1, DIM)


# --- all systems, all rules ---


@pytest.mark.slow
@every_system_but("fedavg")
def test_rules_are_the_mean_where_messages_are_equal(name: str) -> None:
    """Clients with one optimum and equal steps send equal messages in synchronous rounds."""
    if name in STALE:
        pytest.skip("messages from different models differ")
    same = quadratic(name, centers=np.tile(CENTRES[:1], (NUM, 1)))
    hyper = settings_of(name, num_selected=NUM)
    plain = models_of(run(name, same, hyper=hyper))
    rules = rules_of_one_program(rules_for(name))
    found = models_of(run(name, same, hyper=hyper, settings={"aggregator": rules}))
    np.testing.assert_allclose(found, np.broadcast_to(plain, found.shape), rtol=2e-5, atol=1e-6)
    assert np.abs(plain).min() > 0.01


@every_system_but("fedbuff")
def test_nothing_that_is_not_finite_gets_through(name: str) -> None:
    """Under every rule, the mean included; lanes without attackers learn something else."""
    rules = rules_of_one_program(rules_for(name))
    attacks = attacks_of_one_program([NotFinite(), NotFinite(value="inf"), SignFlip()])
    found = run(
        name,
        settings={"aggregator": rules, "adversary.attack": attacks, "malicious": [0.0, 0.4]},
        layout=Layout(lanes_at_once=False),
    )
    assert np.isfinite(models_of(found)).all()
    by_share = models_of(found).reshape(len(rules), 3, 2, DIM)
    differs = np.abs(by_share[:, :, 0] - by_share[:, :, 1]).max(axis=-1)
    assert (differs.max(axis=0) > 1e-3).all()


@pytest.mark.slow
@every_system_but("fedavg")
def test_without_attackers_nothing_changes(name: str) -> None:
    """An attack of 0 clients, next to one of some, changes nothing; alone it is refused."""
    plain = models_of(run(name))
    idle = settings_of(name, attack=SignFlip())
    with pytest.raises(ConfigError, match=r"^adversary\.attack is SignFlip.*left at none with"):
        run(name, hyper=idle)
    # A share of 0 that is swept with others is not known before compiling.
    swept = run(name, hyper=idle, settings={"malicious": [0.0, 0.4]})
    first = models_of(swept)[0]
    np.testing.assert_allclose(first[None], plain, rtol=1e-5, atol=1e-6)
    assert np.abs(models_of(swept)[1] - first).max() > 1e-3


TOGETHER = {
    "aggregator": [
        Median(),
        Krum(assumed=1),
        Krum(assumed=2),
        Bucketing(inner=TrimmedMean(share=0.3)),
    ],
    "attack": [Honest(), SignFlip(), SignFlip(scale=3.0)],
}
"""Rules that share a program, and attacks."""


@pytest.fixture(scope="module")
def together() -> dict[str, fedjax_sim.Run]:
    """Run the rules that share a program, and the attacks."""
    values = {
        "aggregator": rules_of_one_program(TOGETHER["aggregator"]),
        "attack": attacks_of_one_program(TOGETHER["attack"]),
    }
    return {
        field: run("fedbuff", hyper=attacked(), settings={field: choices})
        for field, choices in values.items()
    }


def attacked() -> Any:
    return settings_of("fedbuff", attack=SignFlip(scale=2.0), malicious=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "place"),
    [
        *(("aggregator", i) for i in (2, 3)),
        ("attack", 2),
        # `test_event_loop` follows the median by hand; the others are of the same kinds.
        *(pytest.param("aggregator", i, marks=pytest.mark.slow) for i in (0, 1)),
        *(pytest.param("attack", i, marks=pytest.mark.slow) for i in (0, 1)),
    ],
)
def test_a_rule_alone_is_the_rule_among_others(
    together: dict[str, fedjax_sim.Run], field: str, place: int
) -> None:
    """Each lane has the numbers of its rule, and labels name the rule or the attack chosen."""
    found, kinds = together[field], TOGETHER[field]
    assert list(found.curves[field].values) == list(map(str, kinds))
    assert found.curves.attrs["programs_compiled"] <= 5
    changed = {field: kinds[place]}
    if str(kinds[place]) == "none":
        changed["malicious"] = 0.0  # It has no effect then, and is refused.
    alone = models_of(run("fedbuff", hyper=attacked().replace(**changed)))
    np.testing.assert_allclose(alone[0], models_of(found)[place], rtol=1e-5, atol=1e-6)
    assert np.abs(np.delete(models_of(found), place, axis=0) - alone).max(axis=1).min() > 1e-3


# --- by hand ---


def trained(start: np.ndarray, client: int, steps: int) -> np.ndarray:
    """Do local steps on a client's quadratic."""
    for _ in range(steps):
        start = start - RATE * (start - CENTRES[client])
    return start


def by_hand(name: str, found: fedjax_sim.Run, rule: Callable, forgers: np.ndarray) -> np.ndarray:
    """Follow a schedule in NumPy, with sign flips.

    Args:
      name: The system.
      found: Its run.
      rule: From progress `f[S, P]` and the server's own `f[P]`, on the data of client 3 and from
        the model of now, to a centre.
      forgers: `bool[N]`.

    Returns:
      The last model.
    """
    timeline = found.timelines[0]
    versions, held = [np.zeros(DIM)], np.zeros((NUM, DIM))
    for tick, clients in enumerate(timeline.clients):
        server, messages = versions[-1], []
        for slot, client in enumerate(clients):
            start = versions[timeline.version[tick, slot]] if name != "quafl" else held[client]
            moved = trained(start, client, timeline.steps[tick, slot]) - start
            sent = start + (-moved if forgers[client] else moved)
            if name == "quafl":
                held[client] = server / (len(clients) + 1) + (start + moved) * (
                    len(clients) / (len(clients) + 1)
                )
            messages.append(sent - (start if name in ("fedavg", "fedbuff") else server))
        share = 1.0 if name in ("fedavg", "fedbuff") else len(clients) / (1 + len(clients))
        own = trained(server, 3, STEPS) - server
        versions.append(server + share * rule(np.array(messages), own))
    return versions[-1]


def trusted(x: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Average progress with the positive part of its cosine to the server's, and its length."""
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    trust = np.maximum(units @ own / np.linalg.norm(own), 0)
    assert 0 < (trust > 0).sum() < len(x)
    return trust @ units / trust.sum() * np.linalg.norm(own)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "favano", "quafl"])
def test_event_loop(name: str) -> None:
    """The server moves by each rule's centre of progress, malicious progress reversed."""
    references: dict[Any, Callable] = {
        Mean(): lambda x, own: np.mean(x, axis=0),
        Median(): lambda x, own: np.median(x, axis=0),
        TrimmedMean(share=0.3): lambda x, own: np.sort(x, axis=0)[2:-2].mean(axis=0),
    }
    if name not in WITHOUT_OWN:
        references[FLTrust(owners=(3,))] = trusted
    hyper = settings_of(name, attack=SignFlip(), malicious=0.3)
    rules = rules_of_one_program(list(references))
    found = run(name, hyper=hyper, seeds=[3], settings={"aggregator": rules})
    key = stream(jax.random.key(3), "learning")
    forgers = np.asarray(are_malicious(hyper.adversary, key, NUM, jnp.arange(NUM)))
    assert forgers.sum() == 3
    for model, reference in zip(models_of(found), references.values(), strict=True):
        expected = by_hand(name, found, reference, forgers)
        np.testing.assert_allclose(model, expected, rtol=1e-4, atol=1e-5)


def test_fednova_gives_the_rule_scaled_messages() -> None:
    """Progress per step times the mean number of steps, as its mean has it."""
    hyper = settings_of("fednova", aggregator=Median(), num_selected=NUM)
    problem = quadratic("fednova")
    found = run("fednova", problem, hyper=hyper, budget=Ticks(1), num_evals=1)
    moved = np.array([trained(np.zeros(DIM), i, STEPS) for i in range(NUM)])
    np.testing.assert_allclose(models_of(found)[0], np.median(moved, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_groups_have_rules_inside_and_between() -> None:
    """With 2 groups of 7 and one iteration: the mean of the groups' medians."""
    hyper = settings_of("hierarchical", aggregator=Median(), attack=SignFlip(), malicious=0.2)
    found = run("hierarchical", hyper=hyper, budget=Ticks(1), num_evals=1, seeds=[1])
    [timeline] = found.timelines
    key = stream(jax.random.key(1), "learning")
    forgers = np.asarray(are_malicious(hyper.adversary, key, 14, jnp.arange(14)))
    centres, ends = np.resize(CENTRES, (14, DIM)), []
    for group in timeline.clients[0]:
        model = np.zeros(DIM)
        for _ in range(timeline.steps[0, list(timeline.clients[0]).index(group)]):
            moved = []
            for client in range(7 * group, 7 * group + 7):
                end = model
                for _ in range(2):
                    end = end - RATE * (end - centres[client])
                moved.append((model - end) if forgers[client] else (end - model))
            model = model + np.median(moved, axis=0)
        ends.append(model)
    expected = timeline.weight[0] @ np.array(ends)
    np.testing.assert_allclose(models_of(found)[0], expected, rtol=1e-4, atol=1e-5)
    between = hyper.replace(edge_aggregator=NormBound(bound=0.01))
    short = run("hierarchical", hyper=between, budget=Ticks(1), num_evals=1)
    assert np.linalg.norm(models_of(short)[0]) <= 0.0101


def test_compressed_messages_are_forged_before_they_are_coded() -> None:
    """An attacker too sends two numbers of five; with feedback both sides keep an estimate."""
    attacks = attacks_of_one_program([Honest(), SignFlip(scale=5.0)])
    for feedback in (False, True):
        hyper = settings_of(
            "fedavg", compression=TopK(kept=2), error_feedback=feedback, malicious=1.0
        )
        swept = {"attack": attacks}
        found = run("fedavg", hyper=hyper, settings=swept, budget=Ticks(1), num_evals=1)
        honest, forged = models_of(found)
        np.testing.assert_allclose(forged, -5 * honest, rtol=1e-5)
        assert np.abs(honest).max() > 0.01


def test_privacy_bounds_what_attackers_send() -> None:
    """The server clips what it decodes, nan included, and only sums."""
    private = {
        "privacy": FixedClipping(clip=0.01, noise=0.0),
        "training.sampling": "with_replacement",
    }
    attacks = {"attack": attacks_of_one_program([SignFlip(scale=1e6), NotFinite()])}
    hyper = settings_of("fedavg", malicious=0.5, **private)
    found = run("fedavg", hyper=hyper, settings=attacks, budget=Ticks(1), num_evals=1)
    assert (np.linalg.norm(models_of(found), axis=1) <= 0.0101).all()
    both = settings_of("fedavg", aggregator=Median(), **private)
    with pytest.raises(ConfigError, match="aggregator is 'median', but must be mean with privacy"):
        run("fedavg", hyper=both)


@pytest.mark.slow
def test_who_sends_nan_is_one_of_the_malicious() -> None:
    """Krum with f = 2 of 7 needs 7 messages, and 5 with f = 1 if one was dropped."""
    hyper = settings_of("fedavg", num_clients=SLOTS, attack=NotFinite(), attackers=(1,))
    problem = Quadratic.of(CENTRES[:SLOTS])
    others = [i for i in range(SLOTS) if i != 1]
    moved = np.array([trained(np.zeros(DIM), i, STEPS) for i in others])
    apart = np.square(moved[:, None] - moved[None]).sum(axis=2)
    best = moved[np.argmin(np.sort(apart, axis=1)[:, 1:4].sum(axis=1))]  # 6 - 1 - 2 neighbours
    options = {"budget": Ticks(1), "num_evals": 1}
    found = run("fedavg", problem, hyper=hyper.replace(aggregator=Krum(assumed=2)), **options)
    np.testing.assert_allclose(models_of(found)[0], best, rtol=1e-5, atol=1e-6)
    # With five of seven dropped, two are too few for Krum, and the server stays.
    hyper = hyper.replace(attackers=(0, 1, 2, 3, 4), aggregator=Krum(assumed=2))
    np.testing.assert_array_equal(models_of(run("fedavg", problem, hyper=hyper, **options)), 0)


@pytest.mark.slow
def test_an_honest_choice_is_honest() -> None:
    """Nobody is at work where the attack that is chosen is none: clients keep to their noise."""
    none, other = attacks_of_one_program([Honest(), SignFlip()])
    options = {"local_privacy": LocalGaussian(clip=0.5, noise=2.0), "attackers": (0, 1, 2, 3)}
    plain = run("fedavg", hyper=settings_of("fedavg", **(options | {"attackers": ()})))
    chosen = run("fedavg", hyper=settings_of("fedavg", attack=none, **options))
    np.testing.assert_allclose(models_of(chosen), models_of(plain), rtol=1e-5, atol=1e-6)
    forged = run("fedavg", hyper=settings_of("fedavg", attack=other, **options))
    assert np.abs(models_of(forged) - models_of(plain)).max() > 0.01


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedavg"])
def test_nobody_remembers_what_is_not_finite(name: str) -> None:
    """After an attack of one tick, the attackers are heard again."""
    more: dict[str, Any] = {"attackers": (0, 1), "attack_ticks": 1, "num_selected": NUM}
    if name == "fedavg":
        more |= {"compression": TopK(kept=2), "error_feedback": True}
    found = run(
        name,
        budget=Ticks(40),
        settings={"attack": attacks_of_one_program([NotFinite(), FreeRider()])},
        hyper=settings_of(name, **more),
    )
    off = np.abs(models_of(found) - CENTRES.mean(axis=0)[None]).max(axis=1)
    assert (off < 0.1).all(), off


@struct.dataclass
class Damaged(Quadratic):
    """The same, but where the model is 0 the losses of client 1 are nan."""

    def loss(self, params: Any, client: Any, examples: Any, key: Any) -> jax.Array:
        is_damaged = (client == 1) & (jnp.abs(params).max() < 1e-9)
        return super().loss(params, client, examples, key) * jnp.where(is_damaged, jnp.nan, 1)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["ca2fl", "feddyn", "qfedavg", "fedavg"])
def test_rules_without_attackers_forget_what_is_not_finite(name: str) -> None:
    """An honest client whose first message is nan is heard again."""
    size = "buffer_size" if name == "ca2fl" else "num_selected"
    more: dict[str, Any] = {"aggregator": Median(), size: NUM}
    if name == "fedavg":
        more |= {"compression": TopK(kept=2), "error_feedback": True}
    elif name == "qfedavg":
        more |= {"client_losses": "minibatch"}
    options = {"hyper": settings_of(name, **more), "budget": Ticks(60)}
    plain, damaged = (
        run(name, quadratic(name), **options),
        run(name, Damaged.of(CENTRES), **options),
    )
    np.testing.assert_allclose(models_of(damaged), models_of(plain), atol=0.02)


@pytest.mark.slow
def test_ticks_without_weight_move_nothing() -> None:
    """Such as those of a round of groups that is not over."""
    hyper = settings_of("hierarchical", ticks_per_round=2, edge_aggregator=Median())
    found = run("hierarchical", hyper=hyper, num_evals=6)
    losses = found.curves.loss.values.ravel()
    assert np.isfinite(losses).all()
    assert (np.abs(np.diff(losses)) > 0).tolist() == [False, True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local_privacy", "privacy"])
def test_noise_in_half_precision_is_gaussian(kind: str) -> None:
    """It is drawn and added in 32 bits: the largest of 40,000 numbers is beyond 3.5 deviations."""
    problem = Quadratic.of(jnp.zeros((1, 40_000), "bfloat16"))
    noise = {
        "local_privacy": LocalGaussian(clip=1.0, noise=1.0),
        "privacy": CorrelatedNoise(clip=1.0, noise=1.0),
    }[kind]
    hyper = SYSTEMS["fedavg"].Hyper(
        num_clients=1, num_selected=1, batch_size=1, local_steps=1, **{kind: noise}
    )
    found = run("fedavg", problem, hyper=hyper, budget=Ticks(1), num_evals=1)
    model = np.asarray(found.models, "float32").ravel()
    assert 3.5 < np.abs(model).max() < 6 and 0.97 < model.std() < 1.03


# --- refused ---


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (
            "fedavg",
            {"aggregator": Krum(assumed=3)},
            "aggregator is 'krum:assumed=3', but must be a rule that can do with 7 messages, as "
            "few as a tick has; it needs 9",
        ),
        (
            "fedbuff",
            {"aggregator": TrimmedMean(), "staleness.rule": "polynomial"},
            "aggregator is 'trimmed_mean', but must be one that weighs messages, because those of "
            "tick [0-9]+ have weights from",
        ),
        ("fedasync", {"aggregator": Krum()}, "can do with 1 messages"),
        ("powerofchoice", {"aggregator": Krum(), "num_chosen": 3}, "can do with 3 messages"),
        ("fedavg", {"aggregator": TrimmedMean(), "weighting": "examples"}, None),
        (
            "hierarchical",
            {"aggregator": Krum(assumed=3)},
            "can do with 7 messages, as few as a tick has; it needs 9",
        ),
        (
            "hierarchical",
            {"aggregator": TrimmedMean(), "work.weighting": "examples"},
            "work.weighting is 'examples', but must be equal with trimmed_mean",
        ),
        (
            "hierarchical",
            {"aggregator": Krum(), "drop_rate": 0.1},
            "where messages may be lost; krum needs 5",
        ),
        ("hierarchical", {"edge_aggregator": Krum()}, "edge_aggregator is 'krum', but must be a"),
        ("fedavg", {"aggregator": "median"}, "aggregator is 'median', but must be a rule of"),
    ],
)
def test_what_a_rule_cannot_do_is_refused(
    name: str, changes: dict[str, Any], sentence: str | None
) -> None:
    """Before compiling, with the numbers of the schedule."""
    if sentence is None:  # All clients have one example here, so that weights are equal.
        assert np.isfinite(models_of(run(name, hyper=settings_of(name, **changes)))).all()
        return
    with pytest.raises(ConfigError, match=sentence):
        run(name, hyper=settings_of(name, **changes))


def test_rules_that_share_a_program_are_checked_one_by_one() -> None:
    rules = rules_of_one_program([Median(), Krum(assumed=2), Krum(assumed=3)])
    with pytest.raises(ConfigError, match="aggregator is 'krum:assumed=3', but must be a rule tha"):
        run("fedavg", settings={"aggregator": rules})


@pytest.mark.slow
def test_batched_lanes_are_told_what_they_cost(capsys: pytest.CaptureFixture) -> None:
    """By default lanes run one after another on a CPU, and each executes the rule it has."""
    rules = {"aggregator": rules_of_one_program([Median(), Mean()])}
    run("fedavg", settings=rules)
    assert "alternatives" not in capsys.readouterr().err
    run("fedavg", settings=rules, layout=Layout(lanes_at_once=True))
    said = capsys.readouterr().err
    assert "batched lanes of fedavg execute all alternatives of aggregator; with" in said


FORGETFUL = ("asks nothing", "asks for a sum", "receives, sums itself", "forgets what it received")


def forgetful(way: str) -> Any:
    """Return FedAvg with an own step that leaves out stages of its messages, and says nothing."""

    def algorithm(problem: Any, hyper: Any, plan: Any) -> Any:
        wire = fedjax_sim.server.Wire(problem, hyper, plan)
        train = local_training(problem, hyper, plan)

        def init(key: Any) -> Any:
            return wire.first_round(problem.init(key))

        def step(key: Any, state: Any, event: Any) -> Any:
            starts = jax.tree.map(lambda leaf: jnp.stack([leaf] * SLOTS), state.server)
            local, work = train(key, event, start=state.server)
            reports, memo = wire.receive(key, event, state.memo, starts, local)
            heard = reports if way == "receives, sums itself" else local
            progress = jax.tree.map(jnp.subtract, heard, starts)
            if way in ("asks for a sum", "forgets what it received"):
                moved = wire.sum(key, event, progress)
            else:
                moved = jax.tree.map(lambda leaf: leaf.mean(axis=0), progress)
            server = jax.tree.map(jnp.add, state.server, moved)
            memo = memo if way == "forgets what it received" else state.memo
            return state._replace(server=server, memo=memo), work

        return wire.algorithm(init, step)

    return SYSTEMS["fedavg"]._replace(algorithm=algorithm)


STAGES: dict[str, dict[str, Any]] = {
    "aggregator": {"aggregator": Median()},
    "privacy": {"privacy": CorrelatedNoise(noise=2.0)},
    "messages.local_privacy": {"local_privacy": LocalGaussian(noise=2.0)},
    "adversary.attack": {"attack": SignFlip(), "malicious": 0.5},
    "messages.compression": {"compression": TopK(kept=2)},
    "messages.downlink": {"downlink": TopK(kept=2)},
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("way", FORGETFUL)
def test_a_step_that_forgets_a_stage_is_refused(way: str, name: str) -> None:
    """Nothing is counted, and no epsilon stated, of what a step leaves out; before compilation.

    A stage that is asked for counts as forgotten if the new state does not depend on it.
    """
    own, problem, hyper = forgetful(way), quadratic("fedavg"), settings_of("fedavg", **STAGES[name])
    asked = {
        "asks nothing": (),
        "asks for a sum": ("aggregator",),
        "receives, sums itself": ("messages.local_privacy", "adversary.attack"),
        "forgets what it received": ("aggregator",),
    }[way]
    if way == "receives, sums itself":
        asked = (*asked, "messages.compression")
    bound = fedjax_sim.bind(own, problem, hyper, budget=Ticks(2))
    step = jax.jit(bound.step)
    if name in asked:
        step.trace(bound.init(), bound.event(0))
        return
    with pytest.raises(ConfigError, match=f"^{name} is .*: this system's step does not ask"):
        step.trace(bound.init(), bound.event(0))


def mean_of_slots(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), tree)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "kind", "method", "instead"),
    [
        (
            "messages.edge_compression",
            edges.EdgeWire,
            "receive",
            lambda *given: (given[5], given[3]),
        ),
        ("edge_aggregator", edges.EdgeWire, "mix", lambda *given: mean_of_slots(given[3])),
        ("messages.compression", stages.Coding, "decode", lambda *given, turns: (given[5], ())),
        ("aggregator", stages.Aggregation, "mean", lambda *given: mean_of_slots(given[-1])),
    ],
)
def test_a_forgotten_stage_of_one_level_is_not_taken_for_the_other(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: type, method: str, instead: Callable
) -> None:
    """Clients and local servers both compress, and both levels have a rule."""
    stages_of_both = {"compression": TopK(kept=2), "edge_compression": TopK(kept=1)}
    rules_of_both = {"aggregator": Median(), "edge_aggregator": Median()}
    hyper = settings_of("hierarchical", **(stages_of_both if "compr" in name else rules_of_both))
    problem = quadratic("hierarchical")
    bound = fedjax_sim.bind(SYSTEMS["hierarchical"], problem, hyper, budget=Ticks(2))
    for level in (edges.EdgeCoding, edges.EdgeAggregation):
        if issubclass(level, kind):
            monkeypatch.setattr(level, method, getattr(kind, method), raising=False)
    monkeypatch.setattr(kind, method, instead)
    with pytest.raises(ConfigError, match=f"^{name} is .*: this system's step does not ask"):
        jax.jit(bound.step).trace(bound.init(), bound.event(0))


@pytest.mark.slow
def test_a_forgotten_stage_is_refused_in_a_sweep() -> None:
    """With a swept share of attackers too; without any stage the same system runs."""
    own, problem, hyper = forgetful("asks nothing"), quadratic("fedavg"), settings_of("fedavg")
    fedjax_sim.sweep(own, problem, hyper, budget=Ticks(2))
    attacked = settings_of("fedavg", attack=SignFlip())
    shares = {"settings": {"malicious": [0.2, 0.4]}, "budget": Ticks(2)}
    with pytest.raises(ConfigError, match=r"adversary.attack is 'sign_flip', but must be none: th"):
        fedjax_sim.sweep(own, problem, attacked, **shares)


def test_buckets_have_a_plain_rule() -> None:
    [several] = rules_of_one_program([Median()])
    with pytest.raises(ConfigError, match="inner is 'one_of:options=median', but must be a rule"):
        check(Bucketing(inner=several))
    with pytest.raises(ConfigError, match="inner is 'secure_sum', but must be a rule of mean,"):
        check(Bucketing(inner=SecureSum()))


def test_canaries_do_not_audit_noise_that_they_do_not_add() -> None:
    private = {"attack": Canary(), "local_privacy": LocalGaussian(noise=2.0)}
    with pytest.raises(ConfigError, match=r"adversary.attack is 'canary', but must be none or an"):
        check(settings_of("fedavg", attackers=(0,), **private))


@pytest.mark.slow
def test_changed_weights_fail_under_a_rule_that_does_not_weigh() -> None:
    """They are only known in the program, whose result is nan instead of something wrong."""
    bound = fedjax_sim.bind(
        SYSTEMS["fedavg"],
        quadratic("fedavg"),
        settings_of("fedavg", aggregator=TrimmedMean()),
        budget=Ticks(2),
    )
    state, event = bound.init(), bound.event(0)
    assert np.isfinite(bound.model(bound.step(state, event)[0])).all()
    halves = event._replace(weight=event.weight * jnp.linspace(0.5, 1, SLOTS))
    assert np.isnan(bound.model(bound.step(state, halves)[0])).all()
    fewer = event._replace(clients=event.clients.at[2].set(-1))
    assert np.isfinite(bound.model(bound.step(state, fewer)[0])).all()


def test_every_kind_is_named_on_the_command_line() -> None:
    assert {parse_rule(str(rule)) for rule in ALL} == set(ALL)
    assert set(RULES) == {rule.name for rule in ALL} | {"one_of"}
    assert {"none", "sign_flip", "alie", "one_of"} <= set(ATTACKS)
