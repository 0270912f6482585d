"""FedEM's identities and theorems (arXiv 2111.02083) on models where much is known.

Judges claims 1 to 8, 10, 12 and 14: fixed points, monotony and the gradient of W on a small
mixture; quantizers; memories; Theorems 1 to 3 on means seen through noise. These have ten clients
of twenty examples, ridge 0.25 and kappa 1/2 ("toy A"), or of a hundred examples with unequal noise
("toy B").
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.fedem.claims import CLAIMS, Found, verdict
from experiments.fedem.formulas import bounds as formulas
from experiments.fedem.formulas import variance_reduction
from experiments.fedem.setup import (
    BATCH,
    BLOCKS,
    DIM,
    KAPPA,
    RIDGE,
    SPARSE,
    M,
    N,
    Toy,
    clients_apart,
    curves_of,
    even,
    exact_variance,
    figure_of,
    toy_a,
    toy_b,
)
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, judge_all
from fedjax_sim import Ticks, compression, streams
from fedjax_sim.core.types import Algorithm, Event, Plan
from fedjax_sim.problems import latent
from fedjax_sim.server import Memories
from fedjax_sim.systems import em, fedem, vr_fedem
from fedjax_sim.theory import fedem as theory

STUDY = Study(
    full=Sizes(seeds=400, draws=40_000, rounds=(50, 200, 1000), loops=(1, 5, 20)),
    smoke=Sizes(seeds=60, draws=4000, rounds=(20, 60), loops=(1, 5)),
)
"""Seeds, rounds and outer loops are those of the theorems; draws are those of one step and of
the quantizers."""


# Fixed points: claims 1 to 3 ---------------------------------------------------------------------


def mixture() -> Any:
    """Make three Gaussians in four dimensions, with fitted covariance, for six clients of 40."""
    random = np.random.default_rng(1)
    y = (
        random.normal(size=(240, 4)) @ random.normal(size=(4, 4)) / 2
        + 2 * random.normal(size=(3, 4))[random.integers(0, 3, 240)]
    )
    return latent.make_estimation(latent.GaussianMixture(3), y, even(6, 40))


def measure_fixed_points() -> dict[int, Found]:
    """Follow EM in both spaces, and FedEM as EM, and differentiate W, for claims 1 to 3."""
    with jax.enable_x64(True):
        problem = mixture()

        def mean_statistics(params: Any) -> Any:
            return problem.client_statistics(problem.natural(params)).mean(axis=0)

        @jax.jit
        def both_spaces(start: Any) -> Any:
            """Follow EM on statistics and on parameters.

            Returned are ‖h‖ at the end, the last move of theta, F on both ways with the
            distance of theta_k from T(S_k), and the last statistics.
            """

            def step(carry: Any, _: None) -> Any:
                statistics, params = carry
                maximiser = problem.maximise(statistics)
                apart = jnp.stack(
                    [jnp.max(jnp.abs(a - b)) for a, b in zip(maximiser, params, strict=True)]
                ).max()
                after = (mean_statistics(maximiser), problem.maximise(mean_statistics(params)))
                return after, (problem.objective(maximiser), problem.objective(params), apart)

            (statistics, params), curves = jax.lax.scan(
                step, (start, problem.maximise(start)), length=3000
            )
            again = problem.maximise(mean_statistics(params))
            moved = jnp.stack(
                [jnp.max(jnp.abs(a - b)) for a, b in zip(again, params, strict=True)]
            ).max()
            return jnp.linalg.norm(problem.mean_field(statistics)), moved, curves, statistics

        @jax.jit
        def gradients(statistics: Any) -> Any:
            """Return the gradient of W, -B h, the eigenvalues of B, and its asymmetry."""
            slope = jax.grad(lambda s: problem.objective(problem.maximise(s)))(statistics)
            matrix = jax.jacobian(lambda s: problem.natural(problem.maximise(s)))(statistics)
            return (
                slope,
                -matrix.T @ problem.mean_field(statistics),
                jnp.linalg.eigvalsh((matrix + matrix.T) / 2),
                matrix - matrix.T,
            )

        start = problem.init(jax.random.key(3))
        field, moved, (of_statistics, of_params, apart), end = jax.tree.map(
            np.asarray, both_spaces(start)
        )
        rises = np.max([np.diff(each).max() for each in (of_statistics, of_params)])
        last = {}
        for system, hyper in (
            (em.system, em.paper(num_clients=6)),
            (fedem.system, fedem.paper(num_clients=6, batches="full", batch_size=40, gamma=1.0)),
        ):
            data = curves_of(
                system, problem.replace(start=start), hyper, budget=Ticks(50), num_evals=50
            )
            last[system.name] = data.objective.values[0]
        off = float(np.abs(last["em"] - last["fedem"]).max())
        off_by_hand = float(np.abs(last["fedem"] - of_statistics[:51]).max())
        found = [jax.tree.map(np.asarray, gradients(each)) for each in (start, (start + end) / 2)]
        gradient = {
            "relative error": np.max(
                [np.abs(own - wanted).max() / np.abs(own).max() for own, wanted, _, _ in found]
            ),
            "least eigenvalue": np.min([values[0] for _, _, values, _ in found]),
            "asymmetry": np.max([np.abs(skew).max() for *_, skew in found]),
            "relative error on the toys": _toy_gradients(),
        }
    return {
        1: {"h": float(field), "theta moves": float(moved), "theta off T(S)": float(apart.max())},
        2: {
            "largest rise of F": rises,
            "FedEM apart from EM": off,
            "FedEM apart from EM by hand": off_by_hand,
        },
        3: gradient,
    }


def _toy_gradients() -> float:
    worst = []
    for kappa in (KAPPA, 1 / (1 + np.random.default_rng(2).uniform(0, 3, (N, M)) ** 2)):
        toy = Toy(clients_apart(N, M, DIM, spread=2.0), kappa)
        slope = jax.grad(lambda s, toy=toy: toy.problem.objective(toy.problem.maximise(s)))(
            jnp.asarray(toy.start)
        )
        expected = -toy.known.constants.least * toy.known.slope * (toy.known.optimum - toy.start)
        worst.append(np.abs(slope - expected).max() / np.abs(expected).max())
    return float(np.max(worst))


# Quantizers and memories: claims 4 to 6, 8, 10 ---------------------------------------------------


def measure_quantizers(sizes: Sizes) -> Found:
    """Compare draws of block quantization, and its constant, with Lemma B (claim 4)."""
    random = np.random.default_rng(5)
    norms, x, draws = (1.0, 2.0, np.inf), random.normal(size=11) ** 3, sizes.draws
    quantizers = [compression.parse_compressor(f"block:norm={norm}:block=4") for norm in norms]
    many = np.concatenate([random.normal(size=(20_000, 6)), [[1.0, 1, 1, 1, 0, 0]]])

    @jax.jit
    def run(key: Any, x: Any, many: Any) -> Any:
        samples = [
            jax.vmap(each.apply, (0, None))(jax.random.split(key, draws), x) for each in quantizers
        ]
        return samples, jax.vmap(lambda x: exact_variance(BLOCKS, x))(many)

    with jax.enable_x64(True):
        samples, variances = run(jax.random.key(1), jnp.asarray(x), jnp.asarray(many))
    relative = np.asarray(variances) / np.sum(many**2, axis=1)
    far = {}
    for norm, sample in zip(norms, samples, strict=True):
        # An entry is 0 or its block's norm. Its variance is computed and not estimated, as a rare
        # value may never have been drawn.
        scale = np.repeat([np.linalg.norm(x[i : i + 4], norm) for i in (0, 4, 8)], 4)[:11]
        error = np.sqrt(np.abs(x) * np.maximum(scale - np.abs(x), 0) / draws)
        drawn = np.asarray(sample)
        shift = np.abs(drawn.mean(axis=0) - x)[error > 0] / error[error > 0]
        squares = np.sum((drawn - x) ** 2, axis=1)
        expected = sum(
            np.linalg.norm(b, 1) * np.linalg.norm(b, norm) - b @ b for b in (x[:4], x[4:8], x[8:])
        )
        far[f"p = {norm:g}"] = [
            float(shift.max()),
            float(abs(squares.mean() - expected) / squares.std() * math.sqrt(draws)),
        ]
    return {
        "standard errors": far,
        "constant block": float(relative[-1]),
        "largest relative variance": float(relative[:-1].max()),
        "draws": draws,
    }


def judge_quantizers(found: Found) -> Verdict:
    """Judge claim 4."""
    largest, marks = np.max([*found["standard errors"].values()]), CLAIMS[4].criterion
    relative, constant = found["largest relative variance"], found["constant block"]
    holds = largest < marks.far and relative <= 1 + marks.exact and abs(constant - 1) < marks.exact
    why = (
        f"largest deviation {largest:.1f} standard errors of {found['draws']} draws; variance up "
        f"to {relative:.3f} of omega = 1, or 1"
    )
    return verdict(4, found, holds, why)


def measure_memories(sizes: Sizes) -> tuple[Found, Found]:
    """Compare both memories along runs, and the law of H after three rounds (claims 5 and 6)."""
    toy, rounds, frozen_at = toy_a(), 60, 3
    known, worst, far, ratios = toy.known, [], [], []
    everyone = jnp.arange(N, dtype="int32")

    def algorithm(p: Any) -> Algorithm:
        how = {"gamma": 0.2, "participation": p, "compression": SPARSE}
        hyper = fedem.paper(num_clients=N, batch_size=BATCH, **how)
        return fedem.system.algorithm(toy.problem, hyper, Plan(slots_at_once=N))

    def step(key: Any, state: fedem.State, tick: Any, p: Any, coins: Any) -> fedem.State:
        """Take one round, in which clients take part by coin flips."""
        at_tick, present = jnp.full(N, tick), jax.random.bernoulli(coins, p, (N,))
        steps, weight = present.astype("int32"), present.astype(float)
        event = Event(tick, everyone, steps, at_tick, weight, at_tick, at_tick, tick)
        return algorithm(p).step(key, state, event)[0]

    @jax.jit
    def run(p: Any) -> Any:
        key, coins = jax.random.split(jax.random.key(7))
        first = algorithm(p).init(key)

        def one(state: fedem.State, tick: Any) -> Any:
            state = step(key, state, tick, p, jax.random.fold_in(coins, tick))
            return state, state

        return jax.lax.scan(one, first, jnp.arange(rounds, dtype="int32"))[1]

    @jax.jit
    def fields(p: Any, frozen: fedem.State) -> Any:
        keys = jax.random.split(jax.random.key(8), (sizes.draws, 2))
        return jax.vmap(lambda key: step(key[0], frozen, jnp.int32(frozen_at), p, key[1]).field)(
            keys
        )

    with jax.enable_x64(True):
        for p in (1.0, 0.5):
            states = run(p)
            apart = states.memory.clients.mean(axis=1) - states.memory.server
            worst.append(float(jnp.abs(apart).max()))
            frozen = jax.tree.map(lambda leaf: leaf[frozen_at - 1], states)
            drawn = np.asarray(fields(p, frozen))
            local = known.local_fields + known.slope * (known.optimum - np.asarray(frozen.server))
            away = np.sum((np.asarray(frozen.memory.clients) - local) ** 2, axis=1)
            delta2 = away + known.noise / BATCH
            setup = theory.FedEMSetup(known.constants, N, 1.0, p)
            expected = formulas.field_variance_bound(
                setup, delta2=float(delta2.mean()), sigma2=float(known.noise.mean()) / BATCH
            )
            moved = np.abs(drawn.mean(axis=0) - local.mean(axis=0))
            shift = moved / drawn.std(axis=0) * math.sqrt(sizes.draws)
            squares = np.sum((drawn - local.mean(axis=0)) ** 2, axis=1)
            far += [
                float(shift.max()),
                float(abs(squares.mean() - expected) / squares.std() * math.sqrt(sizes.draws)),
            ]
            ratios.append(float(squares.mean() / expected))
    memories = {"largest difference": float(np.max(worst)), "rounds": rounds}
    return memories, {"standard errors": far, "variance over bound": ratios}


def measure_irrelevance() -> Found:
    """Run the same mini-batches in nine ways (claim 8).

    There are three alphas, with memories that start at h_i(S_0) or at 0, and without memories.
    """
    toy = toy_a()
    ways = {"mean_field": ["fedem", "naive"], "zero": ["fedem"]}
    how: dict[str, Any] = {"seeds": 1, "batch": BATCH, "gamma": 0.3}
    ran = [
        toy.curves(
            fedem.system,
            60,
            60,
            settings={"alpha": [0.01, 0.5, 1.0], "field_rule": rules},
            memory_start=start,
            **how,
        )
        for start, rules in ways.items()
    ]
    fields = np.concatenate([data.mean_field.values.reshape(-1, 61) for data in ran])
    return {"relative difference": float(np.max(np.abs(fields / fields[0] - 1)))}


# Theorems: claims 7, 10, 12 ----------------------------------------------------------------------


EXACTLY = "exact recursions"
"""Where the numbers of claim 7 have those of exact recursions, next to those of runs."""


def measure_theorems(sizes: Sizes) -> Found:
    """Compare exact recursions and runs with the bounds of Theorems 1 and 3 (claim 7)."""
    toy = toy_a()
    known, sigma2 = toy.known, toy.sigma2(BATCH)
    shares = []
    for omega in (0.1, 1.0, 9.0):
        for p in (1.0, 0.75, 0.25):
            setup = theory.FedEMSetup(known.constants, N, omega, p)
            for gamma in theory.largest_step_size(setup) * np.array([1, 0.5, 0.25, 0.1, 0.02]):
                run = toy.moments(setup, gamma=gamma, k_max=1000, sigma2=sigma2)
                for k_max in (1, 10, 50, 200, 1000):
                    right = formulas.bound(
                        setup, gamma=gamma, k_max=k_max, gap=toy.gap, sigma2=sigma2
                    ).total
                    shares.append(run.mean_field[:k_max].mean() / right)
    table: dict[str, Any] = {EXACTLY: {"largest share": np.max(shares), "cases": len(shares)}}
    for p in (1.0, 0.5):
        setup = theory.FedEMSetup(known.constants, N, 1.0, p)
        gammas = [theory.largest_step_size(setup) / factor for factor in (1, 4)]
        swept: dict[str, Any] = {"seeds": sizes.seeds, "settings": {"gamma": gammas}}
        how: dict[str, Any] = {"batch": BATCH, "participation": p, "compression": BLOCKS}
        data = toy.curves(fedem.system, sizes.rounds[-1], sizes.rounds[-1], **swept, **how)
        for i, gamma in enumerate(gammas):
            for k_max in sizes.rounds:
                left = float(data.mean_field.values[i, :, :k_max].mean())
                right = formulas.bound(
                    setup, gamma=gamma, k_max=k_max, gap=toy.gap, sigma2=sigma2
                ).total
                table[f"p = {p}, gamma = {gamma:.3g}, {k_max} rounds"] = [left, right]
    return table


def judge_theorems(found: Found) -> Verdict:
    """Judge claim 7."""
    worst, cases = (found[EXACTLY][name] for name in ("largest share", "cases"))
    shares = [sides[0] / sides[1] for name, sides in found.items() if name != EXACTLY]
    ratio = np.max(shares)
    why = (
        f"left over right at most {worst:.4f} in {cases} exact cases, {ratio:.2f} in "
        f"{len(shares)} with block quantization"
    )
    return verdict(7, found, worst <= 1 and ratio <= 1, why)


def measure_reduction(sizes: Sizes) -> tuple[dict[int, Found], Figure]:
    """Compare runs on toy B with their bounds (claims 10 and 12).

    VR-FedEM runs at the step size (10), and FedEM at the same one.
    """
    toy = toy_b()
    constants, inner = toy.known.constants, 20
    gamma = theory.vr_step_size(constants, num_clients=N, omega=1.0)
    common: dict[str, Any] = {"gamma": gamma, "compression": BLOCKS}
    batch = variance_reduction.batch_size(inner, 1.0)
    ticks = inner * sizes.loops[-1]
    many: dict[str, Any] = {"seeds": sizes.seeds // 2, **common}
    reduced = toy.curves(vr_fedem.system, ticks, ticks, batch=batch, inner_steps=inner, **many)
    plain = toy.curves(fedem.system, ticks, ticks, batch=20, **many)
    exact = toy.curves(fedem.system, 200, 20, seeds=5, **common)
    field, mean_field, memory = (
        values.mean(axis=0)
        for values in (
            reduced.field.values[:, 1:],
            reduced.mean_field.values[:, :-1],
            reduced.memory_error.values[:, :-1],
        )
    )
    table, cesaro = {}, {}
    for loops in sizes.loops:
        num = inner * loops
        most = variance_reduction.field_bound(
            constants, gamma=gamma, inverse_step_size=1 / (2 * gamma), num_steps=num, gap=toy.gap
        )
        mean_square = field[:num].mean()
        related = variance_reduction.mean_field_bound(
            constants,
            num_clients=N,
            gamma=gamma,
            inner_steps=inner,
            batch_size=5,
            field=mean_square,
        )
        table[f"{loops} loops"] = {
            "(11)": [mean_square, most],
            "(12)": [mean_field[:num].mean(), related],
        }
        of_memory = variance_reduction.memory_bound(
            constants, omega=1.0, gamma=gamma, num_steps=num, gap=toy.gap
        )
        cesaro[f"{loops} loops"] = [memory[:num].mean(), of_memory]
    last = float(reduced.mean_field.values[:, -1].max())
    floor = float(plain.mean_field.values[:, -inner:].mean())
    forgotten = float(exact.memory_error.values[..., -1].max())
    lines = {
        f"toy B, {name}": (data.ticks.values[0], data.mean_field.values.mean(axis=0))
        for name, data in (("VR-FedEM", reduced), ("FedEM", plain))
    }
    title = "A mean seen through unequal noise, the step of eq. (10)"
    return {
        10: {"full batches, G after 200 rounds": forgotten, "mean G and its bound": cesaro},
        12: table | {"VR-FedEM, ‖h‖² at the end": last, "FedEM": floor},
    }, figure_of(lines, x="rounds", y="mean ‖h‖²", title=title)


def judge_reduction(found: Found) -> Verdict:
    """Judge claim 12."""
    last, floor, marks = found["VR-FedEM, ‖h‖² at the end"], found["FedEM"], CLAIMS[12].criterion
    table = {name: sides for name, sides in found.items() if name.endswith(" loops")}
    kept = all(left <= right for sides in table.values() for left, right in sides.values())
    loops = max(int(name.split()[0]) for name in table)
    small = marks.end if loops >= marks.loops else marks.short
    why = (
        f"(11) and (12) {'hold' if kept else 'fail'} for {', '.join(table)}; ‖h‖² after {loops} "
        f"loops {last:.0e}, FedEM stays at {floor:.1e}"
    )
    return verdict(12, found, kept and last < small and floor > marks.floor, why)


# SPIDER: claim 14 --------------------------------------------------------------------------------


def measure_spider(seed: int = 3, *, loops: int = 3, inner: int = 8, batch: int = 4) -> Found:
    """Compare one client without compression with SPIDER-EM in NumPy (claim 14).

    Both use the same mini-batches.
    """
    random = np.random.default_rng(4)
    y, kappa = random.normal(size=(1, 50, DIM)) + 1, 1 / (1 + random.uniform(0, 3, (1, 50)) ** 2)
    toy, gamma, num = Toy(y, kappa), 0.3, loops * inner
    hyper = vr_fedem.paper(
        num_clients=1,
        batch_size=batch,
        inner_steps=inner,
        gamma=gamma,
        memories=Memories(alpha=0.3),
    )
    with jax.enable_x64(True):
        algorithm = vr_fedem.system.algorithm(toy.problem, hyper, Plan(slots_at_once=1))
        ticks, ones, nobody = (
            np.arange(num, dtype=np.int32),
            np.ones((num, 1), np.int32),
            np.zeros((num, 1), np.int32),
        )
        events = Event(
            ticks, nobody, ones, nobody, ones.astype(float), ticks[:, None], nobody, nobody[:, 0]
        )
        key = jax.random.key(seed)

        @jax.jit
        def run() -> Any:
            def step(state: fedem.State, event: Event) -> Any:
                state, _ = algorithm.step(key, state, event)
                return state, state.server

            return jax.lax.scan(step, algorithm.init(key), jax.tree.map(jnp.asarray, events))[1]

        found = np.asarray(run())
        batch_key = jax.random.fold_in(streams.stream(key, "batches"), 0)
        drawn = [
            np.asarray(jax.random.bits(jax.random.fold_in(batch_key, k), (batch,), "uint32") % 50)
            for k in range(num)
        ]
    examples = kappa[0][:, None] * y[0]

    def statistics(s: np.ndarray, rows: Any) -> np.ndarray:
        return ((1 - kappa[0][rows])[:, None] * s / (1 + RIDGE) + examples[rows]).mean(axis=0)

    now = before = toy.start
    apart = []
    oracle = np.zeros(DIM)
    for k in range(num):
        oracle = (
            statistics(now, slice(None))
            if k % inner == 0
            else oracle + statistics(now, drawn[k]) - statistics(before, drawn[k])
        )
        before, now = now, now + gamma * (oracle - now)
        apart.append(np.abs(found[k] - now).max())
    return {"largest difference": float(np.max(apart)), "steps": num}


JUDGES: Judges = {
    **CLAIMS.declared(1, 2, 3, 5, 6, 8, 10, 14),
    4: judge_quantizers,
    7: judge_theorems,
    12: judge_reduction,
}


def run(arguments: Arguments) -> Outcome:
    """Measure and judge the claims."""
    sizes = STUDY.choose(arguments, least_seeds=4)
    memories, field = measure_memories(sizes)
    reduction, figure = measure_reduction(sizes)
    measured: dict[int, Found] = {
        **measure_fixed_points(),
        4: measure_quantizers(sizes),
        5: memories,
        6: field,
        7: measure_theorems(sizes),
        8: measure_irrelevance(),
        **reduction,
        14: measure_spider(),
    }
    drawn = {**dict.fromkeys(reduction, sizes.seeds // 2), 4: sizes.draws, 6: sizes.draws}
    seeds = {f"fedem-{number}": each for number, each in drawn.items()}
    verdicts = [each._replace(seeds=seeds.get(each.id, 0)) for each in judge_all(JUDGES, measured)]
    return Outcome({}, {"toy_b.png": figure}, verdicts, sizes.config())
