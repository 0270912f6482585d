"""Test FA-LD's privacy: pinned values, monotonicity, and each step against independent accountants.

"Claim n" is number n of `experiments/fald/claims.toml`.
"""

import itertools
import math
import re

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    get_epsilon_gaussian,
)
from dp_accounting.pld import privacy_loss_distribution as losses
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from experiments.fald.privacy import EXAMPLES, RUN
from fedjax_sim.core.settings import ConfigError
from fedjax_sim.theory import langevin as privacy
from fedjax_sim.theory.langevin import PrivacySetup, guarantee

Numbers = npt.NDArray[np.float64]
PRINTED = RUN._replace(step_size=1e-6)
pytestmark = pytest.mark.filterwarnings("ignore::fedjax_sim.theory.langevin.OutsiderWarning")


def accountant_epsilon(setup: PrivacySetup, num_steps: int, delta: float) -> float:
    """Bound the epsilon of local steps by Renyi accounting.

    The mechanism is Gaussian, with mini-batches drawn without replacement.

    The largest order keeps the bound above log(1 / delta) / 511, whatever the noise.
    """
    single = GaussianDpEvent(setup.noise_multiplier)
    sampled = SampledWithoutReplacementDpEvent(
        EXAMPLES, round(setup.batch_fraction * EXAMPLES), single
    )
    accountant = RdpAccountant(
        [*range(2, 17), 24, 32, 64, 128, 256, 512], NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(SelfComposedDpEvent(sampled, num_steps))
    return float(accountant.get_epsilon(delta))


def exact_epsilon(setup: PrivacySetup, num_steps: int, delta: float) -> float:
    """Compute the epsilon of local steps on all data exactly.

    Gaussian mechanisms compose to one with less noise.
    """
    return float(get_epsilon_gaussian(setup.noise_multiplier / math.sqrt(num_steps), delta))


@pytest.mark.parametrize(
    ("step_size", "epsilons", "drawn_without", "drawn_with"),
    [
        (
            1e-5,
            (0.967425, 0.193485, 1.93485),
            (0.781433, 78.1433, 5e-5),
            (0.734038, 73.4038, 0.366478),
        ),
        (
            1e-6,
            (0.305927, 0.0611853, 0.611853),
            (0.155951, 10.1153, 5e-5),
            (0.143548, 9.10402, 0.224940),
        ),
        (
            1e-8,
            (0.0305927, 0.00611853, 0.0611853),
            (0.0125402, 0.617570, 5e-5),
            (0.0114759, 0.563917, 0.189974),
        ),
    ],
)
def test_printed_values(
    step_size: float,
    epsilons: tuple[float, ...],
    drawn_without: tuple[float, ...],
    drawn_with: tuple[float, ...],
) -> None:
    np.testing.assert_allclose(PRINTED.largest_step_size, 1.06848e-5, rtol=1e-5)
    for scheme, expected in (
        ("without_replacement", drawn_without),
        ("with_replacement", drawn_with),
    ):
        found = guarantee(PRINTED._replace(step_size=step_size, scheme=scheme))
        np.testing.assert_allclose(
            (found.epsilon_step, found.epsilon_batch, found.epsilon_round), epsilons, rtol=5e-6
        )
        np.testing.assert_allclose(
            (found.epsilon_sampled, found.epsilon, found.delta), expected, rtol=5e-6
        )


def test_at_the_largest_step_size() -> None:
    found = guarantee(PRINTED._replace(step_size=PRINTED.largest_step_size))
    np.testing.assert_allclose(
        (found.epsilon_step, found.epsilon_batch), (1, 2 * PRINTED.batch_fraction), rtol=1e-12
    )
    twice = PRINTED._replace(sensitivity=2.0, temperature=3.0)
    np.testing.assert_allclose(
        twice.largest_step_size, 0.75 * PRINTED.largest_step_size, rtol=1e-12
    )
    found = guarantee(twice._replace(step_size=twice.largest_step_size))
    np.testing.assert_allclose(found.epsilon_step, 1, rtol=1e-12)


def test_step_of_the_batch_is_the_formula_for_subsampling() -> None:
    """epsilon_1 is at least log(1 + q (e^epsilon_0 - 1)) for any batch and allowed step size.

    It is 2 q epsilon_0, so it does not depend on q.
    """
    for q, share in itertools.product((1e-3, 0.1, 0.7, 1.0), (1e-6, 0.01, 0.5, 1.0)):
        setup = PRINTED._replace(batch_fraction=q)
        found = guarantee(setup._replace(step_size=share * setup.largest_step_size))
        assert found.epsilon_batch >= privacy._amplified(found.epsilon_step, q)
        np.testing.assert_allclose(found.epsilon_batch, 2 * q * found.epsilon_step, rtol=1e-12)


def test_gaussian_mechanism_of_one_step() -> None:
    """The exact epsilon of one step at delta_0 is between half of epsilon_0 and epsilon_0."""
    for share in (0.05, 0.3, 1.0):
        setup = PRINTED._replace(batch_fraction=1.0)
        setup = setup._replace(step_size=share * setup.largest_step_size)
        exact = exact_epsilon(setup, 1, setup.delta_step)
        assert 0.5 * guarantee(setup).epsilon_step < exact <= guarantee(setup).epsilon_step


@pytest.mark.parametrize("batch_fraction", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("share", [0.03, 0.3, 1.0])
def test_accountant_never_needs_more(batch_fraction: float, share: float) -> None:
    """The accountant's epsilons of a round and of a run are within the guarantee, at its deltas.

    The adversary is the server, which knows who took part.
    """
    setup = PRINTED._replace(batch_fraction=batch_fraction, adversary="server")
    setup = setup._replace(step_size=share * setup.largest_step_size)
    found = guarantee(setup)
    num_steps = setup.local_steps * setup.num_rounds
    assert accountant_epsilon(setup, setup.local_steps, found.delta_round) <= found.epsilon_round
    assert accountant_epsilon(setup, num_steps, found.delta) <= found.epsilon
    assert found.epsilon_sampled == found.epsilon_round
    if batch_fraction == 1:
        assert exact_epsilon(setup, num_steps, found.delta) <= found.epsilon
        # With a tenth of the noise the guarantee would be violated.
        louder = setup._replace(step_size=100 * setup.step_size)
        assert exact_epsilon(louder, 1, setup.delta_step) > found.epsilon_step


@pytest.mark.parametrize("share", [1e-3, 0.1])
def test_rounds_compose_no_better_than_at_best(share: float) -> None:
    """Optimal composition of the steps, and of the rounds, gives no larger epsilon."""
    setup = PRINTED._replace(step_size=share * PRINTED.largest_step_size)
    found = guarantee(setup)
    one = losses.from_privacy_parameters(
        DifferentialPrivacyParameters(found.epsilon_sampled, found.delta_sampled)
    )
    assert one.self_compose(setup.num_rounds).get_epsilon_for_delta(found.delta) <= found.epsilon
    step = losses.from_privacy_parameters(
        DifferentialPrivacyParameters(found.epsilon_batch, setup.batch_fraction * setup.delta_step)
    )
    assert (
        step.self_compose(setup.local_steps).get_epsilon_for_delta(found.delta_round)
        <= found.epsilon_round
    )


def test_amplification_by_the_draw_of_clients() -> None:
    """The formula is exact for randomised response that is given with probability a.

    Otherwise the answer is that of another client, whatever it is.
    """
    for epsilon, a in itertools.product((0.1, 1.0, 5.0), (0.02, 0.2, 1.0)):
        yes, no = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
        # If the client is not drawn, neighbours give the same answer, which is "yes" with
        # probability o. The worst o attains the formula.
        worst = max(
            math.log((a * yes + (1 - a) * o) / (a * no + (1 - a) * o)) for o in (no, 0.5, yes)
        )
        assert worst <= privacy._amplified(epsilon, a) + 1e-12
        np.testing.assert_allclose(worst, privacy._amplified(epsilon, a), rtol=1e-12)
    np.testing.assert_allclose(
        privacy._amplified(29.999999, 0.2), privacy._amplified(30.000001, 0.2), rtol=1e-7
    )
    np.testing.assert_allclose(privacy._amplified(1000.0, 0.2), 1000 + math.log(0.2), rtol=1e-12)


GRID = np.linspace(-20, 140, 160_001)


def normal(mean: float, deviation: float = 1.0) -> Numbers:
    """Compute a normal density on the grid."""
    return stats.norm.pdf(GRID, mean, deviation)


def excess(epsilon: float, *pair: Numbers) -> float:
    """Compute the least delta of two densities for an epsilon, in both directions, on the grid."""
    step = GRID[1] - GRID[0]
    return max(
        float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * step) for p, q in (pair, pair[::-1])
    )


def test_integrated_delta_is_the_gaussian_mechanisms() -> None:
    for shift, epsilon in itertools.product((0.3, 1.0, 3.0), (0.2, 1.0, 3.0)):
        found = excess(epsilon, normal(0), normal(shift))
        np.testing.assert_allclose(get_epsilon_gaussian(1 / shift, found), epsilon, rtol=1e-3)


@pytest.mark.parametrize("shift", [0.3, 1.0, 3.0])
def test_draw_of_clients_protects_among_clients_who_are_alike(shift: float) -> None:
    """Amplification holds if others' models are as close to the client's as its neighbours' are.

    The client's Gaussian mechanism is seen with probability a, and otherwise others' models. At the
    amplified epsilon, the exact delta of the mixtures never exceeds a times the delta of the
    mechanisms, which others with the same models attain.
    """
    here, there = normal(0), normal(shift)
    for epsilon, a in itertools.product((0.2, 1.0), (0.02, 0.2, 0.7)):
        allowed = a * excess(epsilon, here, there)
        found = []
        for others in (
            here,
            there,
            normal(shift / 4),
            normal(shift / 2),
            (here + there) / 2,
            normal(shift / 2, 1.02),
        ):
            assert max(excess(epsilon, drawn, others) for drawn in (here, there)) <= excess(
                epsilon, here, there
            ) * (1 + 1e-9)
            found.append(
                excess(
                    privacy._amplified(epsilon, a),
                    *(a * drawn + (1 - a) * others for drawn in (here, there)),
                )
            )
        assert max(found) <= allowed * (1 + 1e-9)
        np.testing.assert_allclose(found[:2], allowed, rtol=1e-9)


def test_draw_of_clients_does_not_protect_those_who_stand_apart() -> None:
    """A client whose model is far from all others' is seen to take part.

    Then epsilon is not reduced, and only delta is multiplied by a.
    """
    for shift, epsilon, a in itertools.product((0.3, 1.0, 3.0), (0.2, 1.0), (0.02, 0.2, 0.7)):
        here, there = normal(0), normal(shift)
        pair = [a * drawn + (1 - a) * normal(60) for drawn in (here, there)]
        amplified, allowed = privacy._amplified(epsilon, a), a * excess(epsilon, here, there)
        np.testing.assert_allclose(
            excess(amplified, *pair), a * excess(amplified, here, there), rtol=1e-6
        )
        assert excess(amplified, *pair) > 1.001 * allowed
        np.testing.assert_allclose(excess(epsilon, *pair), allowed, rtol=1e-6)


def released(setup: PrivacySetup, places: Numbers) -> Numbers:
    """Compute the density of the average of the drawn clients' models, by enumeration of all draws.

    It is in units of the noise of a step. `places` are the clients' models without their noise.
    """
    draws = list(itertools.product(range(setup.num_clients), repeat=setup.num_selected))
    if setup.scheme == "without_replacement":
        draws = [draw for draw in draws if len(set(draw)) == setup.num_selected]
    total = np.zeros_like(GRID)
    for draw in draws:
        times = np.bincount(draw, minlength=setup.num_clients) / setup.num_selected
        total += normal(float(times @ places), float(np.linalg.norm(times)))
    return total / len(draws)


@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", ["without_replacement", "with_replacement"])
@pytest.mark.parametrize(("num_clients", "num_selected"), [(3, 2), (6, 1)])
def test_guarantee_of_a_round_by_enumeration(
    scheme: str, num_clients: int, num_selected: int
) -> None:
    """Compare exact deltas of a round with one step on all data with the guarantee, at its epsilon.

    The guarantee holds if clients are alike. If one client stands apart, the guarantee against
    outsiders fails when one of six clients is drawn (when two of three are drawn, the slack of the
    formulas suffices), and the guarantee against the server holds.
    """
    setup = PRINTED._replace(
        num_clients=num_clients,
        num_selected=num_selected,
        scheme=scheme,
        least_weight=1 / num_clients,
    )
    setup = setup._replace(local_steps=1, num_rounds=1, batch_fraction=1.0, delta_round=0.0)
    for share in (0.01, 1.0):
        run = setup._replace(step_size=share * setup.largest_step_size)
        shift = 1 / run.noise_multiplier
        found, to_server = guarantee(run), guarantee(run._replace(adversary="server"))
        for reach, are_alike in ((0.0, True), (shift, True), (100.0, False)):
            others = np.linspace(0, reach, num_clients)[1:]
            pair = [released(run, np.array([place, *others])) for place in (0.0, shift)]
            assert (excess(found.epsilon_sampled, *pair) <= found.delta_sampled) == (
                are_alike or num_clients == 3
            )
            assert excess(to_server.epsilon_sampled, *pair) <= to_server.delta_sampled


def test_delta_of_draws_with_replacement_by_enumeration() -> None:
    """delta is the mean over all draws of 3 of 4 clients, by how often one client is drawn."""
    setup = PRINTED._replace(
        num_clients=4, num_selected=3, scheme="with_replacement", least_weight=0.25
    )
    found = guarantee(setup)
    total = 0.0
    for draw in itertools.product(range(4), repeat=3):
        s = draw.count(0)
        if s:
            single = 1.25 * 10 * 0.1 * (1e-6 / 1.25) ** (1 / s**2) + 1e-6
            total += (
                4**-3
                * (math.exp(found.epsilon_round) - 1)
                / (math.exp(found.epsilon_round / s) - 1)
                * single
            )
    np.testing.assert_allclose(found.delta_sampled, total, rtol=1e-12)
    np.testing.assert_allclose(setup.inclusion, 1 - 0.75**3, rtol=1e-12)
    certain = setup._replace(draw_probability=1.0)
    assert certain.inclusion == 1
    assert guarantee(certain).delta > found.delta
    np.testing.assert_allclose(
        setup._replace(draw_probability=0.5).inclusion, 1 - 0.5**3, rtol=1e-12
    )
    one = setup._replace(num_selected=1)
    np.testing.assert_allclose(
        guarantee(one).delta_sampled,
        guarantee(one._replace(scheme="without_replacement")).delta_sampled,
        rtol=1e-12,
    )


def test_monotone() -> None:
    """epsilon and delta are monotone in each setting (claim 16)."""
    epsilon = {
        "step_size": (1e-8, 1e-7, 1e-6, 1e-5),
        "num_selected": (1, 2, 5, 10, 25, 50),
        "num_rounds": (1, 3, 10, 50, 200, 1000),
        "rho": (0.0, 0.3, 0.6, 0.9),
        "sensitivity": (0.1, 0.5, 1.0),
    }
    for scheme in ("without_replacement", "with_replacement"):
        for name, values in epsilon.items():
            rising = [
                guarantee(PRINTED._replace(scheme=scheme, **{name: value})).epsilon
                for value in values
            ]
            assert (np.diff(rising) > 0).all(), name
    falling = [guarantee(PRINTED._replace(temperature=tau)).epsilon for tau in (0.3, 1.0, 3.0)]
    assert (np.diff(falling) < 0).all()
    for name, values in {
        "num_selected": (1, 10, 50),
        "batch_fraction": (0.1, 0.5, 1.0),
        "num_rounds": (1, 10, 100),
    }.items():
        rising = [guarantee(PRINTED._replace(**{name: value})).delta for value in values]
        assert (np.diff(rising) > 0).all(), name
    assert (
        guarantee(PRINTED._replace(scheme="full")).epsilon
        == guarantee(PRINTED._replace(num_selected=50)).epsilon
    )
    assert guarantee(PRINTED._replace(adversary="server")).epsilon > guarantee(PRINTED).epsilon


def test_largest_rho() -> None:
    setup = PRINTED._replace(step_size=1e-7)
    rho = privacy.largest_rho(setup, epsilon=10.0)
    np.testing.assert_allclose(guarantee(setup._replace(rho=rho)).epsilon, 10, rtol=1e-9)
    generous = privacy.largest_rho(setup, epsilon=1e6)
    np.testing.assert_allclose(
        setup._replace(rho=generous).largest_step_size, setup.step_size, rtol=1e-9
    )
    with pytest.raises(ConfigError, match=r"^epsilon is 0\.001"):
        privacy.largest_rho(setup, epsilon=1e-3)
    with pytest.raises(ConfigError, match="delta = 1e-09 larger"):
        privacy.largest_rho(setup, epsilon=10.0, delta=1e-9)


@pytest.mark.parametrize("share", [0.3, 2.0])
def test_best_choice_of_rho_and_step_size(share: float) -> None:
    """For the error 1 / eta + b (1 - rho^2) the best 1 - rho^2 is 1 / sqrt(b c), at most 1."""
    setup = PRINTED._replace(adversary="server")

    def limit(low: float = -9.0, high: float = 0.0) -> float:
        for _ in range(80):
            middle = (low + high) / 2
            at = setup._replace(rho=0.0, step_size=10.0**middle)
            is_within = at.step_size <= at.largest_step_size and guarantee(at).epsilon <= 8
            low, high = (middle, high) if is_within else (low, middle)
        return float(10**low)

    c = limit()
    b = 1 / (c * share**2)
    found = privacy.best_choice(
        setup, lambda eta, rho: 1 / eta + b * (1 - rho**2), epsilon=8.0, delta=1.0
    )
    best = min(share, 1.0)
    assert 1 - found.rho**2 == pytest.approx(best, rel=1e-3)
    assert found.step_size == pytest.approx(c * best, rel=1e-3)
    assert found.error == pytest.approx(1 / (c * best) + b * best, rel=1e-6)
    at = setup._replace(rho=found.rho, step_size=found.step_size * (1 - 1e-9))
    assert 8 * 0.995 < guarantee(at).epsilon <= 8
    with pytest.raises(ConfigError, match="no step size meets them"):
        privacy.best_choice(setup, lambda eta, rho: eta, epsilon=8.0, delta=1e-12)
    with pytest.raises(ConfigError, match="error is 'NaN', but must be a number"):
        privacy.best_choice(setup, lambda eta, rho: eta * np.nan, epsilon=8.0, delta=1.0)


def difference_of_gradients(weights: Numbers, inputs: Numbers, labels: list[int]) -> float:
    """Compute the norm of the difference of two examples' gradients of the cross-entropy.

    `weights` are `f64[C, P]` for C classes and P inputs, `inputs` are `f64[2, P]`.
    """
    logits = weights @ inputs.T
    shares = np.exp(logits - logits.max(axis=0)) / np.exp(logits - logits.max(axis=0)).sum(axis=0)
    wrong = shares - np.eye(len(weights))[:, labels]
    return float(
        np.linalg.norm(np.outer(wrong[:, 0], inputs[0]) - np.outer(wrong[:, 1], inputs[1]))
    )


def test_sensitivity_of_softmax_regression() -> None:
    """The bound is never exceeded, and almost attained.

    It is almost attained by two nearly opposite inputs that are both put in one wrong class.
    """
    random = np.random.default_rng(0)
    for scale in (0.1, 10.0, 100.0):
        inputs = random.normal(size=(100, 2, 3))
        inputs /= np.linalg.norm(inputs, axis=-1, keepdims=True)
        found = [
            difference_of_gradients(
                scale * random.normal(size=(4, 3)), pair, random.integers(4, size=2).tolist()
            )
            for pair in inputs
        ]
        assert max(found) <= privacy.softmax_sensitivity(1.0)
    inputs = np.array([[np.cos(1.5), np.sin(1.5)], [np.cos(1.5), -np.sin(1.5)]])
    extreme = difference_of_gradients(np.array([[1e4, 0.0], [0.0, 0.0]]), inputs, [1, 1])
    assert 0.99 * privacy.softmax_sensitivity(1.0) < extreme <= privacy.softmax_sensitivity(1.0)


def test_what_is_refused() -> None:
    for changes, words in (
        ({"num_selected": 0, "scheme": "with_replacement"}, "from 1 to inf"),
        ({"num_selected": 0}, "num_selected is 0, but must be from 1 to 50"),
        ({"num_selected": 51}, "from 1 to 50"),
        ({"least_weight": 0.03}, "least_weight is 0.03, but must be at most 1 / N = 0.02"),
        ({"draw_probability": 0.01}, "draw_probability is 0.01, but must be None, or from 1 / N"),
        ({"rho": 1.0}, "rho is 1.0, but must be a finite number"),
        ({"least_weight": 0.019}, "1 / N = 0.02 without replacement, which is biased"),
        ({"step_size": 1.1e-5}, "at most 1.06848e-05, condition (59)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            guarantee(PRINTED._replace(**changes))


def test_weights_may_be_unequal_where_they_do_no_harm() -> None:
    """Schemes without bias allow unequal weights, and scheme II allows rounding of 1 / N."""
    for scheme in ("full", "with_replacement"):
        found = [
            guarantee(PRINTED._replace(scheme=scheme, least_weight=least))
            for least in (0.019, 0.02)
        ]
        assert found[0].epsilon > found[1].epsilon
    third = PRINTED._replace(num_clients=3, num_selected=2, least_weight=(1 - 1e-7) / 3)
    np.testing.assert_allclose(
        guarantee(third).epsilon, guarantee(third._replace(least_weight=1 / 3)).epsilon, rtol=1e-6
    )


def test_warns_of_a_delta_that_protects_nobody() -> None:
    guarantee(PRINTED, num_examples=1000)
    with pytest.warns(UserWarning, match="no protection"):
        guarantee(PRINTED._replace(scheme="with_replacement"), num_examples=1000)
