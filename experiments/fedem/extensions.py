"""FedEM's extensions: probabilities p_i of workers, streams of fresh examples, and sparsity.

Judges claims 32 to 34 of arXiv 2111.02083 on a mean seen through noise.
"""

import jax
import jax.numpy as jnp
import numpy as np

from experiments import harness
from experiments.fedem import setup
from experiments.fedem.claims import CLAIMS, SMOKE, Found
from experiments.fedem.formulas import bounds
from experiments.harness import Arguments, Outcome, Sizes, Study
from fedjax_sim import Keep, Ticks, sweep
from fedjax_sim.core.schedules import Table
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.noisy_mean import Seen
from fedjax_sim.systems import fedem
from fedjax_sim.theory import fedem as theory

STUDY = Study(full=Sizes(seeds=20, ticks=800), smoke=Sizes(seeds=2, ticks=20))
NUM, EXAMPLES, DIM, BATCH, KAPPA, RIDGE, LASSO = 10, 20, 4, 5, 0.5, 0.25, 0.3
CHANCES = np.linspace(0.2, 1.0, NUM)


def examples(*, are_centered: bool) -> np.ndarray:
    """Draw examples of clients: `f64[N, M, q]`; centered ones have the law's mean exactly."""
    y = setup.clients_apart(NUM, EXAMPLES, DIM, spread=2.0)
    if not are_centered:
        return y
    centers = 2 * np.random.default_rng(1).normal(size=(NUM, 1, DIM))
    return y - y.mean(axis=1, keepdims=True) + centers


def over_bound(
    toy: setup.Toy,
    run: theory.FedEMSetup,
    sizes: Sizes,
    sigma2: float,
    problem: object,
    **more: object,
) -> Found:
    """Compare the mean of ||h(S_K)||^2 over seeds with the bound of Theorem 3 at gamma_max."""
    gamma = theory.largest_step_size(run)
    curves = setup.curves_of(
        fedem.system,
        problem,
        fedem.paper(
            num_clients=NUM, batch_size=BATCH, gamma=gamma, compression=setup.BLOCKS, **more
        ),
        seeds=sizes.seeds,
        budget=Ticks(sizes.ticks),
        num_evals=sizes.ticks,
    )
    field = curves.mean_field.transpose("seed", "eval").values
    shares = {}
    for k_max in (sizes.ticks // 16, sizes.ticks // 4, sizes.ticks):
        mean = field[:, :k_max].mean(axis=1)
        bound = bounds.bound(run, gamma=gamma, k_max=k_max, gap=toy.gap, sigma2=sigma2).total
        error = mean.std(ddof=1) / np.sqrt(len(mean))
        shares[f"{k_max}"] = float((mean.mean() + CLAIMS[32].criterion.far * error) / bound)
    return {"share of the bound": shares, "seeds": sizes.seeds}


def measure_chances(sizes: Sizes) -> Found:
    """Compare a run with unequal p_i with Theorem 3's bound (claim 32)."""
    toy = setup.Toy(examples(are_centered=False), KAPPA, ridge=RIDGE)
    least, most = CHANCES.min(), CHANCES.max()
    run = theory.FedEMSetup(toy.known.constants, NUM, 1.0, least, spread=most / least)
    table = Table(by="client", factors=tuple(CHANCES))
    sigma2 = float(toy.known.noise.mean()) / BATCH
    return over_bound(toy, run, sizes, sigma2, toy.problem, participation_schedule=table)


def measure_stream(sizes: Sizes) -> Found:
    """Compare a run on a stream with Theorem 1's bound (claim 33)."""
    y = examples(are_centered=True)
    toy, centers = setup.Toy(y, KAPPA, ridge=RIDGE), y.mean(axis=1)

    def draw(key: jax.Array, client: jax.Array) -> Seen:
        noise = jax.random.normal(key, (DIM,))
        return Seen(jnp.asarray(centers)[client] + noise, jnp.asarray(KAPPA))

    run = theory.FedEMSetup(toy.known.constants, NUM, 1.0)
    with jax.enable_x64(True):
        online = latent.Stream.of(toy.problem, draw, seed=7)
    return over_bound(toy, run, sizes, KAPPA**2 * DIM / BATCH, online)


def measure_sparsity(sizes: Sizes) -> Found:
    """Compare FedEM's limit under an l1 penalty with the minimiser in closed form (claim 34)."""
    y = examples(are_centered=False)
    mean = KAPPA * y.mean(axis=(0, 1))
    mean[:2] *= 0.2 / np.abs(mean[:2])  # Two coordinates that the penalty sets to 0.
    y = y + (mean / KAPPA - y.mean(axis=(0, 1)))
    model = latent.NoisyMean(RIDGE, LASSO)
    seen = Seen(y.reshape(-1, DIM), np.full(NUM * EXAMPLES, KAPPA))
    with jax.enable_x64(True):
        problem = latent.make_estimation(
            model, seen, setup.even(NUM, EXAMPLES), start=np.full(DIM, 3.0)
        )
        run = sweep(
            fedem.system,
            problem,
            fedem.paper(
                num_clients=NUM,
                batches="full",
                gamma=0.2,
                participation=0.5,
                compression=setup.BLOCKS,
            ),
            seeds=sizes.seeds,
            budget=Ticks(sizes.ticks),
            num_evals=1,
            keep=Keep(models=True),
        )
        last = jnp.asarray(run.models).reshape(sizes.seeds, DIM)
        found = np.asarray(jax.vmap(problem.maximise)(last))
    best = np.sign(mean) * np.maximum(np.abs(mean) - LASSO, 0) / (KAPPA + RIDGE)
    return {
        "zeros": int((best == 0).sum()),
        "other zeros": int(((found == 0) != (best == 0)).sum()),
        "largest error": float(np.abs(found - best).max()),
        "seeds": sizes.seeds,
    }


JUDGES = CLAIMS.declared(32, 33, 34)


def run(arguments: Arguments) -> Outcome:
    """Run the three extensions, and judge the claims."""
    sizes = STUDY.choose(arguments)
    found = {32: measure_chances(sizes), 33: measure_stream(sizes), 34: measure_sparsity(sizes)}
    verdicts = harness.judge_all(JUDGES, found, SMOKE if arguments.smoke else "")
    return Outcome({}, {}, verdicts, sizes.config())
