"""The privacy of a run: Theorem 6.1 next to the tight accountants of dp-accounting."""

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import numpy as np
import optax

from fedjax_sim.core.schedules import Constant
from fedjax_sim.core.settings import ConfigError, checked, fields, value_of
from fedjax_sim.core.settings.declared import AtLeast0, Count, Fraction
from fedjax_sim.server.accounting import NoisySteps, epsilon_after
from fedjax_sim.theory.langevin.theorem import PrivacySetup, guarantee


class Accounts(NamedTuple):
    """Epsilons of one run, for the client with the least privacy.

    Attributes:
        delta: delta, which all epsilons have.
        paper: epsilon^(3) of Theorem 6.1; infinity if the step size exceeds condition (59), NaN
            with control variates, which it does not cover.
        rdp: epsilon by Renyi divergences.
        pld: epsilon by privacy loss distributions, which cover no mini-batches: NaN with these.
        noise_multiplier: Standard deviation of a step's private noise over the step's sensitivity.
        num_steps: Local steps that are accounted for.
        setup: The run as Theorem 6.1 sees it, with those deltas of its stages that `paper` has.
    """

    delta: float
    paper: float
    rdp: float
    pld: float
    noise_multiplier: float
    num_steps: int
    setup: PrivacySetup


@checked
def privacy_of(
    run: Any,
    problem: Any,
    rounds: Count | None = None,
    *,
    sensitivity: AtLeast0 | None = None,
    delta: Fraction = 1e-5,
    adversary: str = "server",
) -> Accounts:
    """Compute the privacy of an FA-LD run from its settings and its problem.

    Every local step of a client is a Gaussian mechanism. A mini-batch of B of n_c examples gives
    the step eta / (q p_c) times the sum of its gradients, q = B / n_c, so that replacing one
    example moves it by at most eta Delta_l / (q p_c), while its private noise has the standard
    deviation sqrt(2 eta tau (1 - rho^2) / p_c). Steps compose; what the server computes from them,
    compressed messages included, reveals no more. Derived, except for Theorem 6.1.

    With the control variates "client" the step has eta / p_c times a whole gradient too, and eta /
    (q p_c) times the gradients of the batch twice. Replacing one example moves it by at most
    eta Delta_l (2 + q) / (q p_c), in every step, so that drawing mini-batches amplifies nothing.

    Args:
        run: What `sweep` or `simulate` returned, whose schedules say how often each client took
            part, or the settings of such a run (`fedjax_sim.systems.langevin.Hyper`), under which a
            client is taken to take part in every round.
        problem: The problem, for the clients' numbers of examples.
        rounds: Number of rounds, at most those of a run; None for all of `run`.
        sensitivity: Delta_l, largest distance between the gradients of two examples' losses. None
            takes twice the setting `example_clip`, which bounds it for any model, but not the whole
            gradients of control variates.
        delta: delta of the whole run, in (0, 1). For Theorem 6.1 it is divided equally among steps,
            rounds and run.
        adversary: As in `PrivacySetup`; only Theorem 6.1 knows "outsider".

    Returns:
        The epsilons.

    Raises:
        ConfigError: If settings differ between the lanes of a run, a setting is not accounted for,
            a number is outside its range, or `rounds` is more than a run has.
    """
    lanes, timelines = getattr(run, "hypers", [run]), getattr(run, "timelines", ())
    _check_equal(lanes)
    hyper, most = lanes[0], max((len(each.time) for each in timelines), default=0)
    if rounds is None and not timelines:
        allowed = "a whole number of at least 1, or a run in place of its settings"
        raise ConfigError("rounds", None, allowed)
    num_rounds = int(most if rounds is None else rounds)
    if timelines and num_rounds > most:
        allowed = f"at most {most}, those of the run, or given with the settings of the run instead"
        raise ConfigError("rounds", num_rounds, allowed)
    has_control = hyper.control_variates.anchor != "none"
    clip = 0.0 if has_control else 2 * hyper.training.example_clip
    bound = clip if sensitivity is None else sensitivity
    for each in lanes:
        _check_accounted(each, bound)
    counts = np.asarray(problem.counts)
    share = _equal_shares(lanes, counts)
    times = np.full(counts.shape, num_rounds)
    if timelines:  # of the lane in which the client took part most often
        sent = [np.asarray(each.clients)[:num_rounds] for each in timelines]
        times = np.max([np.bincount(x[x >= 0], minlength=len(counts)) for x in sent], axis=0)
    batch = counts if hyper.gradient == "exact" else np.full(counts.shape, hyper.batch_size)
    # A batch that is larger than the client's examples has some of them more than once.
    fraction = np.where(batch < counts, batch / counts, batch / counts / np.ceil(batch / counts))
    setup = PrivacySetup(
        num_clients=len(counts),
        num_selected=hyper.num_selected,
        scheme=hyper.participants,
        local_steps=int(hyper.local_steps),
        num_rounds=num_rounds if adversary == "outsider" else max(int(times.max()), 1),
        step_size=float(hyper.step_size),
        temperature=float(hyper.temperature * hyper.dynamics.friction),
        rho=float(hyper.rho),
        batch_fraction=float(fraction.min()),
        sensitivity=float(bound),
        least_weight=float(share.min()),
        delta_step=delta / 3,  # Divided among steps and rounds below, when these are known.
        delta_round=delta / 3,
        delta_total=delta / 3,
        adversary=adversary,
        draw_probability=float(share.max()),
    )
    rounds_taken = setup.num_rounds * setup.inclusion
    delta_step = delta / 3 / setup.local_steps / rounds_taken
    setup = setup._replace(delta_step=delta_step, delta_round=delta / 3 / rounds_taken)
    steps = setup.local_steps * times
    seen = counts if has_control else np.minimum(batch, counts)
    kinds = [NoisySteps(int(n), int(b), "rdp", delta) for n, b in zip(counts, seen, strict=True)]
    noise = []
    for p, q in zip(share, fraction, strict=True):
        of_client = setup._replace(least_weight=p, batch_fraction=q)
        noise.append(float(of_client.noise_multiplier / (2 + q if has_control else 1)))
    rdp = [float(epsilon_after(*each)) for each in zip(steps, kinds, noise, strict=True)]
    worst = int(np.argmax(rdp))
    by_pld, pld = kinds[worst]._replace(accountant="pld"), np.nan
    if by_pld.batch == by_pld.num_examples:
        pld = float(epsilon_after(steps[worst], by_pld, noise[worst]))
    paper = np.nan if has_control else _paper(setup, delta)
    return Accounts(delta, paper, rdp[worst], pld, noise[worst], int(steps[worst]), setup)


def _paper(setup: PrivacySetup, delta: float) -> float:
    """Compute epsilon^(3) at a delta^(3) of at most `delta`."""
    if setup.step_size > setup.largest_step_size:
        return np.inf
    found = guarantee(setup)
    if found.delta > delta * (1 + 1e-9):
        allowed = f"server with draws with replacement, as delta would be {found.delta:.2g}"
        raise ConfigError("adversary", setup.adversary, allowed)
    return found.epsilon


def _check_equal(lanes: Sequence[Any]) -> None:
    """Check that lanes are of FA-LD, and that the settings that matter are equal."""
    for name in _ACCOUNTED:
        if not all(is_dataclass(each) and name in fields(type(each)) for each in lanes):
            allowed = "one of FA-LD, or a run of it"
            raise ConfigError("run", type(lanes[0]).__module__, allowed)
        given = [value_of(each, name) for each in lanes]
        values: set[Any] = {x if x is None or isinstance(x, str) else float(x) for x in given}
        if len(values) > 1:
            raise ConfigError(name, ", ".join(map(str, sorted(values))), _ONE_VALUE)


def _equal_shares(lanes: Sequence[Any], counts: np.ndarray) -> np.ndarray:
    """Compute the clients' weights, `f[N]` of sum 1, which must be the same in all lanes."""
    shares = []
    for each in lanes:
        given = counts if each.client_weights is None else np.asarray(each.client_weights, float)
        weights = np.broadcast_to(given, counts.shape)
        shares.append(weights / weights.sum())
    if np.ptp(shares, axis=0).max() > 1e-9:
        raise ConfigError("client_weights", "different between lanes", _ONE_VALUE)
    return shares[0]


_ACCOUNTED = (
    *("step_size", "temperature", "rho", "dynamics.friction", "local_steps", "batch_size"),
    *("gradient", "training.example_clip", "participants", "num_selected"),
    "control_variates.anchor",
)
"""Settings on which the privacy of a run depends, and which may have several values."""

_ONE_VALUE = "one value; give the settings of one lane, run.hypers[i], and the rounds"


def _check_accounted(hyper: Any, sensitivity: float) -> None:
    """Refuse runs that are not accounted for."""
    if not 0 < sensitivity < np.inf:
        clip = "or else the setting example_clip, which bounds it without control variates"
        raise ConfigError("sensitivity", sensitivity, f"above 0 and finite, {clip}")
    if hyper.rho >= 1:
        raise ConfigError("rho", float(hyper.rho), "below 1: shared noise protects nothing")
    if hyper.control_variates.anchor == "global":
        allowed = "none or client to be accounted for, as global ones are sent without noise"
        raise ConfigError("control_variates.anchor", hyper.control_variates.anchor, allowed)
    identity = "optax.identity, as another may change the sensitivity"
    for name, needed, allowed in (
        ("step_size_schedule", Constant(), "constant to be accounted for"),
        ("dynamics.noise_correction", False, "false to be accounted for"),
        ("preconditioning.preconditioner", "none", "none, as gradients are sent without noise"),
        ("dynamics.transform", optax.identity, identity),
    ):
        if (value := value_of(hyper, name)) != needed:
            raise ConfigError(name, getattr(value, "__name__", value), allowed)
