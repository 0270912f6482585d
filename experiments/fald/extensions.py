"""FA-LD next to what its Secs. 2 and 6 name: random averaging, FedPA, and a budget of privacy.

Judges claims 28 to 30 of arXiv 2112.05120. Clients are Gaussian: four in one dimension with
unequal Hessians for random averaging, eight for FedPA, fifty for the budget, whose run is that of
`privacy`.
"""

from typing import Any

import jax
import numpy as np
import optax

import fedjax_sim
from experiments import harness
from experiments.fald.claims import CLAIMS, Found, verdict
from experiments.fald.formulas import exact_laws
from experiments.fald.formulas.exact_laws import GaussianTarget, Participation
from experiments.fald.privacy import RUN
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict
from fedjax_sim import Keep, Layout, Ticks
from fedjax_sim.problems import GaussianClients, Quadratic
from fedjax_sim.systems import langevin
from fedjax_sim.theory import langevin as privacy

STUDY = Study(
    full=Sizes(seeds=4000, ticks=60, rounds=100), smoke=Sizes(seeds=20, ticks=4, rounds=4)
)
HESSIANS, CENTERS = np.array([0.5, 1.0, 2.0, 4.0]), np.array([1.0, -1.0, 0.5, 2.0])
LOCAL_STEPS, STEP_SIZES = 5, (0.1, 0.01, 0.001)


def moments(step_size: float, *, is_random: bool) -> tuple[float, float]:
    """Mean and variance at rest of the averaged model, for K or a geometric number of steps."""
    steps = np.arange(1, 60 * LOCAL_STEPS) if is_random else np.array([LOCAL_STEPS])
    chance = (1 - 1 / LOCAL_STEPS) ** (steps - 1) / LOCAL_STEPS if is_random else np.ones(1)
    target = GaussianTarget(HESSIANS[:, None, None], CENTERS[:, None], np.full(4, 0.25))
    rounds = [
        exact_laws.one_round(target, step_size=step_size, local_steps=int(k), rho=0.0)
        for k in steps
    ]
    factor = np.array([each.powers.mean() for each in rounds])
    shift = np.array([each.shifts.mean() for each in rounds])
    noise = np.array([each.noise.item() for each in rounds])
    mean = chance @ shift / (1 - chance @ factor)
    rest = chance @ (2 * factor * shift * mean + shift**2 + noise)
    return float(mean), float(rest / (1 - chance @ factor**2) - mean**2)


def measure_random(sizes: Sizes) -> Found:
    """Compare random averaging with the target, with averaging at every K, and with chains."""
    center = float(HESSIANS @ CENTERS / HESSIANS.sum())
    spread = float(1 / np.sqrt(HESSIANS.mean()))
    errors, ratios = {}, {}
    for size in STEP_SIZES:
        laws = [moments(size, is_random=each) for each in (True, False)]
        far = [np.hypot(mean - center, np.sqrt(var) - spread) for mean, var in laws]
        errors[f"{size:g}"] = float(far[0])
        ratios[f"{size:g}"] = float((laws[0][0] - center) / (laws[1][0] - center))
    with jax.enable_x64(True):
        problem = GaussianClients.of(HESSIANS[:, None, None], CENTERS[:, None], counts=[1] * 4)
        hyper = langevin.paper(
            num_clients=4,
            step_size=STEP_SIZES[0],
            temperature=1.0,
            local_steps=LOCAL_STEPS,
            averaging="random",
            gradient="exact",
        )
        layout = Layout(slots_at_once=4, lanes_at_once=True, lane_devices=1)
        how: dict[str, Any] = {"budget": Ticks(sizes.ticks), "num_evals": 1, "layout": layout}
        run = fedjax_sim.sweep(langevin.system, problem, hyper, seeds=sizes.seeds, **how)
    chains = np.asarray(run.models, float).ravel()
    mean, var = moments(STEP_SIZES[0], is_random=True)
    errors_of_chains = [
        (chains.mean() - mean) / np.sqrt(var / len(chains)),
        (chains.var() - var) / np.sqrt(((chains - chains.mean()) ** 2).var() / len(chains)),
    ]
    return {
        "errors": errors,
        "biases over those of every K": ratios,
        "standard errors off": [float(abs(each)) for each in errors_of_chains],
        "chains": len(chains),
    }


def measure_fedpa(sizes: Sizes) -> Found:
    """Compare how far FedPA and FedAvg stay from the mode, each at its best settings."""
    random = np.random.default_rng(3)
    problem = Quadratic.of(
        random.normal(size=(8, 4)), curvature=np.geomspace(0.1, 1, 8), noise=1.0, start=3.0
    )
    shared: dict[str, Any] = {"num_clients": 8, "num_selected": 8, "local_steps": 40}
    rates = {"lr": [0.02, 0.1, 0.3], "server_lr": [1.0, 0.3, 0.1, 0.03, 0.01]}
    kinds: dict[str, tuple[dict[str, Any], dict[str, list[float]]]] = {
        "fedavg": ({"server_optimizer": optax.sgd}, {}),
        "fedpa": ({"burn_in": 8, "num_samples": 8}, {"shrinkage": [0.1, 1.0, 10.0, 100.0, 1000.0]}),
    }
    found = {}
    for name, (settings, more) in kinds.items():
        system = fedjax_sim.SYSTEMS[name]
        run = fedjax_sim.sweep(
            system,
            problem,
            system.Hyper(**shared, **settings, batch_size=1),
            seeds=3,
            settings=rates | more,
            budget=Ticks(sizes.rounds),
            num_evals=sizes.rounds,
            keep=Keep(models=True),
        )
        models = np.asarray(run.samples, float)  # Lanes, of which seeds are the last axis.
        late = models[:, models.shape[1] // 2 :]
        away = np.sum((late - np.asarray(problem.optimum)) ** 2, axis=-1).mean(axis=1)
        found[name] = float(np.sqrt(np.nanmin(away.reshape(-1, 3).mean(axis=-1))))
    return {"distance": found}


def measure_budget() -> Found:
    """Compare the joint choice of rho and step size with the best rho at the printed step size."""
    hessian, clients = 5e4, RUN.num_clients
    drawn = Participation("without_replacement", RUN.num_selected)
    spread = (clients - 1) * drawn.excess(np.full(clients, 1 / clients))
    steps = RUN.local_steps * RUN.num_rounds

    def error(size: Any, rho: Any) -> np.ndarray:
        """W2 after all rounds; phi of claim 18 inflates the variance."""
        left = steps * np.log1p(-size * hessian)
        phi = 1 + (1 - np.square(rho)) * spread
        variance = phi / (hessian * (1 - size * hessian / 2)) * -np.expm1(2 * left)
        return np.hypot(0.2 * np.exp(left), np.sqrt(variance) - hessian**-0.5)

    setup, found = RUN._replace(adversary="server"), {}
    for epsilon in (15.0, 20.0, 40.0):
        choice = privacy.best_choice(setup, error, epsilon=epsilon)
        limit = privacy.largest_rho(setup._replace(rho=0.0), epsilon=epsilon)
        alone = error(RUN.step_size, np.linspace(0, limit, 400))
        found[f"{epsilon:g}"] = {
            "rho": choice.rho,
            "step size": choice.step_size,
            "error": choice.error,
            "error with rho alone": float(alone.min()),
        }
    return {"by epsilon": found}


def judge_random(found: Found) -> Verdict:
    """Judge claim 28 by exact laws, and by chains."""
    marks, errors = CLAIMS[28].criterion, [*found["errors"].values()]
    ratio = [*found["biases over those of every K"].values()][-1]
    off = found["standard errors off"]
    parts = {
        "goes to 0": harness.unless_unknown(errors[-1] < marks.share * errors[0], errors),
        "twice the bias": harness.unless_unknown(abs(ratio / 2 - 1) < marks.close, ratio),
        "chains": harness.unless_unknown(max(off) < marks.far, off),
    }
    told = ", ".join(f"{error:.2g}" for error in errors)
    why = (
        f"W2 at rest {told} at the step sizes {', '.join(found['errors'])}; the bias of the mean "
        f"is {ratio:.3f} times that of every K; {found['chains']} chains are {max(off):.1f} "
        "standard errors off"
    )
    return verdict(28, found, harness.rule(parts, deciding=harness.begins("goes to 0")), why)


def judge_fedpa(found: Found) -> Verdict:
    """Judge claim 29 by distances from the mode."""
    marks, far = CLAIMS[29].criterion, found["distance"]
    ratio = far["fedpa"] / far["fedavg"]
    why = f"FedPA ends {far['fedpa']:.3g} from the mode, FedAvg {far['fedavg']:.3g}"
    return verdict(29, found, harness.unless_unknown(ratio <= marks.share, ratio), why)


def judge_budget(found: Found) -> Verdict:
    """Judge claim 30 by errors within budgets."""
    marks, told, shares = CLAIMS[30].criterion, [], []
    for epsilon, each in found["by epsilon"].items():
        shares.append(each["error"] / each["error with rho alone"])
        told.append(
            f"epsilon {epsilon}: rho {each['rho']:.3f} and step size {each['step size']:.2g}, "
            f"{shares[-1]:.2f} of the error"
        )
    holds = harness.unless_unknown(max(shares) <= marks.share, shares)
    return verdict(30, found, holds, "; ".join(told))


JUDGES: Judges = {28: judge_random, 29: judge_fedpa, 30: judge_budget}


def run(arguments: Arguments) -> Outcome:
    """Compute laws, run chains and FedPA, and judge the claims."""
    sizes = STUDY.choose(arguments)
    found = {28: measure_random(sizes), 29: measure_fedpa(sizes), 30: measure_budget()}
    reason = "not judged: too small with --smoke" if arguments.smoke else ""
    return Outcome({}, {}, harness.judge_all(JUDGES, found, reason), sizes.config())
