"""Bounds of hierarchical FL: against runs that they must bound, and values worked out by hand."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from experiments.hierarchical.formulas import bounds
from fedjax_sim.theory.hierarchical import Delays
from tests.theory.hierarchical_delays import UNEQUAL, Integers, Numbers, draw_rounds


class Logistic(NamedTuple):
    """Logistic regression with clients that differ and inputs of length at most 1.

    So G is at most 1 and L at most 1 / 4.

    Attributes:
        inputs: `f64[N, n, P]`, n examples of each of N clients.
        labels: `f64[N, n]`, -1 or 1.
        group_size: Number of clients of each group.
    """

    inputs: Numbers
    labels: Numbers
    group_size: tuple[int, ...]

    @classmethod
    def make(cls, group_size: tuple[int, ...], seed: int) -> "Logistic":
        """Draw a problem with 12 examples of 4 features for each client."""
        random = np.random.default_rng(seed)
        inputs = random.normal(size=(sum(group_size), 12, 4)) + random.normal(
            size=(sum(group_size), 1, 4)
        )
        inputs /= (
            np.linalg.norm(inputs, axis=-1, keepdims=True)
            * random.uniform(1.0, 1.5, inputs.shape[:2])[..., None]
        )
        return cls(
            inputs,
            np.sign(inputs @ random.normal(size=4) + 0.3 * random.normal(size=inputs.shape[:2])),
            group_size,
        )

    @property
    def smoothness(self) -> float:
        """L, the largest over clients."""
        return max(float(np.linalg.eigvalsh(a.T @ a / len(a))[-1]) for a in self.inputs) / 4

    def members(self, group: int) -> slice:
        """Select the clients of a group."""
        first = sum(self.group_size[:group])
        return slice(first, first + self.group_size[group])

    def sample_gradients(self, models: Numbers, clients: slice) -> Numbers:
        """Compute the gradient of each example at R models `f64[R, P]`: `f64[R, clients, n, P]`."""
        margin = np.einsum("rp,knp->rkn", models, self.inputs[clients]) * self.labels[clients]
        return -(self.labels[clients] / (1 + np.exp(margin)))[..., None] * self.inputs[clients]

    def loss(self, models: Numbers, clients: slice = slice(None)) -> Numbers:
        """Compute the mean loss of some clients at R models `f64[R, P]`: `f64[R]`."""
        margin = np.einsum("rp,knp->rkn", models, self.inputs[clients]) * self.labels[clients]
        return np.log1p(np.exp(-margin)).mean(axis=(1, 2))


class Run(NamedTuple):
    """What was measured in U rounds of M groups, as means over replicas with one path of delays.

    Attributes:
        deviation: `f64[U, M]`, E||x^(u+1) - x_i||^2.
        global_square: `f64[U]`, E||grad f(x^u)||^2.
        group_square: For each group, E||grad f_i||^2 before each local iteration.
        global_loss: `f64[U + 1]`, loss before each round and after the last.
        group_loss: For each group, its loss before each local iteration and after the last one of
            each round.
        constants: L of the problem, and the largest G^2 and sigma^2 met during the run.
    """

    deviation: Numbers
    global_square: Numbers
    group_square: list[list[Numbers]]
    global_loss: Numbers
    group_loss: list[list[Numbers]]
    constants: bounds.Constants


def play(problem: Logistic, iterations: Integers, *, lr: float, replicas: int, seed: int) -> Run:
    """Run the paper's algorithm with batches of one example, for given iterations `i64[U, M]`."""
    random = np.random.default_rng(seed)
    num_groups, everyone = len(problem.group_size), slice(None)
    weight = np.array(problem.group_size) / sum(problem.group_size)
    x = np.tile(np.array([2.0, -2.0, 1.0, 0.0]), (replicas, 1))
    deviation, global_square, global_loss = [], [], [problem.loss(x).mean()]
    group_square: list[list[Numbers]] = [[] for _ in range(num_groups)]
    group_loss: list[list[Numbers]] = [[] for _ in range(num_groups)]
    largest = [0.0, 0.0]
    for counts in iterations:
        global_square.append(
            np.sum(problem.sample_gradients(x, everyone).mean(axis=(1, 2)) ** 2, axis=1).mean()
        )
        ends = []
        for i, t in enumerate(counts):
            y, members = x, problem.members(i)
            for _ in range(t):
                each = problem.sample_gradients(y, members)
                second = np.sum(each**2, axis=-1).mean(axis=-1)
                variance = second - np.sum(each.mean(axis=2) ** 2, axis=-1)
                largest = [max(largest[0], second.max()), max(largest[1], variance.max())]
                group_square[i].append(np.sum(each.mean(axis=(1, 2)) ** 2, axis=1).mean())
                group_loss[i].append(problem.loss(y, members).mean())
                drawn = random.integers(each.shape[2], size=each.shape[:2])
                gradient = np.take_along_axis(each, drawn[..., None, None], axis=2)[:, :, 0].mean(
                    axis=1
                )
                y = y - lr * gradient
            group_loss[i].append(problem.loss(y, members).mean())
            ends.append(y)
        x = x + sum(w * (y - x) / t for w, y, t in zip(weight, ends, counts, strict=True))
        deviation.append([np.sum((x - y) ** 2, axis=1).mean() for y in ends])
        global_loss.append(problem.loss(x).mean())
    constants = bounds.Constants(problem.smoothness, *largest)
    return Run(
        np.array(deviation),
        np.array(global_square),
        group_square,
        np.array(global_loss),
        group_loss,
        constants,
    )


@pytest.fixture(scope="module")
def logistic() -> Logistic:
    return Logistic.make((3, 5), seed=2)


@pytest.fixture(scope="module")
def path() -> Integers:
    """Draw the iterations of twenty rounds of groups of unequal speed."""
    return draw_rounds(np.random.default_rng(3), UNEQUAL, 5.0, 20)[0]


@pytest.fixture(scope="module")
def ran(logistic: Logistic, path: Integers) -> Run:
    return play(logistic, path, lr=0.5, replicas=300, seed=4)


def test_the_gradient_bound_met_is_the_problems(ran: Run) -> None:
    assert 0.05 < ran.constants.gradient_variance < ran.constants.gradient_square < 1
    assert 0.02 < ran.constants.smoothness <= 0.25


def test_lemma_1_on_the_logistic_problem(ran: Run, path: Integers, logistic: Logistic) -> None:
    weight = np.array(logistic.group_size) / 8
    square = ran.constants.gradient_square
    sharp = bounds.deviation_bound_sharp(path, lr=0.5, gradient_square=square, group_weight=weight)
    loose = bounds.deviation_bound(
        path, lr=0.5, gradient_square=square, group_size=logistic.group_size
    )
    assert np.all(ran.deviation <= sharp)
    assert np.all(sharp <= loose)
    # The sharp bound is not merely valid but of the right size.
    assert np.max(ran.deviation / sharp) > 0.02


@pytest.mark.parametrize("iterations", [(1, 1, 1), (4, 1, 2), (7, 3, 5)])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 5, 1)])
def test_lemma_1_sharp_is_attained_by_opposing_gradients(
    sizes: tuple[int, ...], iterations: tuple[int, ...]
) -> None:
    """With gradient +v in the first group and -v in the others, the algorithm meets the bound."""
    weight, t = np.array(sizes) / sum(sizes), np.array(iterations)
    lr, gradient = 0.3, np.array([3.0, 4.0])
    signs = np.array([1.0, -1.0, -1.0])
    ends = -lr * (t * signs)[:, None] * gradient
    x = np.sum((weight / t)[:, None] * ends, axis=0)
    sharp = bounds.deviation_bound_sharp(t, lr=lr, gradient_square=25.0, group_weight=weight)
    assert np.sum((x - ends[0]) ** 2) == pytest.approx(sharp[0], rel=1e-12)
    assert sharp[0] == pytest.approx((lr * 5 * (iterations[0] + 1 - 2 * weight[0])) ** 2, rel=1e-12)
    assert np.sum((x - ends[0]) ** 2) <= bounds.deviation_bound(
        t[0], lr=lr, gradient_square=25.0, group_size=sizes
    )


def test_lemma_1_is_tight_for_many_equal_groups_of_one_iteration() -> None:
    size, t = np.ones(2000), np.ones(2000)
    sharp = bounds.deviation_bound_sharp(t, lr=0.1, gradient_square=2.0, group_weight=size / 2000)[
        0
    ]
    assert sharp / bounds.deviation_bound(
        1, lr=0.1, gradient_square=2.0, group_size=size
    ) == pytest.approx(1, abs=3e-3)
    # A single group equals the global model: there is no deviation after one iteration.
    assert (
        bounds.deviation_bound_sharp([1], lr=0.1, gradient_square=2.0, group_weight=[1.0])[0] == 0
    )


def test_imbalance() -> None:
    assert bounds.imbalance([7, 7, 7]) == pytest.approx(1)
    assert bounds.imbalance([1, 9]) == pytest.approx(2 * 82 / 100)
    assert bounds.imbalance([1, 10**6, 1]) == pytest.approx(3, abs=1e-4)


def test_lemma_1_with_one_group() -> None:
    """Against Remarks 1 and 2: the second term is there, and at t = 1 nothing is gained."""
    t = np.arange(1, 30)
    found = bounds.deviation_bound(t, lr=0.2, gradient_square=3.0, group_size=[7])
    np.testing.assert_allclose(found, 2 * 0.04 * 3 * (t**2 + 1))
    earlier = 4 * 0.04 * t**2 * 3
    assert found[0] == pytest.approx(earlier[0])
    assert np.all(found[1:] < earlier[1:])


def test_theorem_2_and_the_direct_bound(ran: Run, path: Integers, logistic: Logistic) -> None:
    terms: dict[str, Any] = {
        "lr": 0.5,
        "constants": ran.constants,
        "group_size": logistic.group_size,
        "descent": ran.global_loss[0] - ran.global_loss[-1],
    }
    whole, direct = bounds.global_bound(path, **terms), bounds.global_bound_direct(path, **terms)
    assert ran.global_square.mean() <= direct.total <= whole.total
    # The bound is of the right order of magnitude.
    assert ran.global_square.mean() > 0.05 * direct.total
    assert direct.descent == whole.descent > 0
    assert direct.drift == pytest.approx(whole.drift / 4)


def test_terms_of_theorem_2_by_hand() -> None:
    """Two rounds of groups of 1 and 3 clients, with t = (2, 3) and (4, 1).

    kappa is 2 * 10 / 16 = 1.25, and M |N_i|^2 / N^2 is 1 / 8 and 9 / 8.
    """
    t = np.array([[2, 3], [4, 1]])
    constants = bounds.Constants(2.0, 3.0, 0.5)
    found = bounds.global_bound(t, lr=0.1, constants=constants, group_size=[1, 3], descent=0.7)
    assert found.descent == pytest.approx(2 * 0.7 / 0.2)
    assert found.others == pytest.approx(12 * 0.01 * 4 * 3 * 1.25**2)
    assert found.noise == pytest.approx(0.1 * 2 * 1.25 * 0.5)
    assert found.previous == pytest.approx(12 * 0.01 * 4 * 3 * (1 / 8 * 4 / 2 + 9 / 8 * 9 / 2))
    # (t - 1)(2t - 1) / 6 is 0.5 and 3.5 for t = 2 and 4, and 5 / 3 and 0 for t = 3 and 1.
    assert found.drift == pytest.approx(4 * 0.01 * 4 * 3 * (1 / 8 * 2 + 9 / 8 * 5 / 6))
    assert found.total == pytest.approx(sum(found))


def test_theorem_1_of_one_round(logistic: Logistic) -> None:
    """With one round, a group is isolated and does mini-batch SGD: (19) is informative."""
    iterations = np.array([[40, 25]])
    ran = play(logistic, iterations, lr=1.0, replicas=200, seed=5)
    for i in range(2):
        descent = float(ran.group_loss[i][0] - ran.group_loss[i][-1])
        found = bounds.group_bound(
            iterations,
            lr=1.0,
            constants=ran.constants,
            group_size=logistic.group_size,
            group=i,
            descent=descent,
        )
        left = float(np.mean(ran.group_square[i]))
        assert 0.1 * found.total < left <= found.total
        assert found.restarts == found.iterations == 0
        assert not bounds.is_group_bound_vacuous(iterations, group=i)


def test_theorem_1_is_vacuous_after_two_rounds(
    ran: Run, path: Integers, logistic: Logistic
) -> None:
    for i in range(2):
        descent = float(ran.group_loss[i][0] - ran.group_loss[i][-1])
        assert descent > 0
        assert bounds.is_group_bound_vacuous(path, group=i)
        for lr in np.geomspace(1e-4, 4, 30):
            found = bounds.group_bound(
                path,
                lr=lr,
                constants=ran.constants,
                group_size=logistic.group_size,
                group=i,
                descent=descent,
            )
            assert found.total > ran.constants.gradient_square
        assert float(np.mean(ran.group_square[i])) <= found.total
    assert not bounds.is_group_bound_vacuous([[1, 1], [2, 1]], group=0)
    assert bounds.is_group_bound_vacuous([[1, 1], [1, 1]], group=0)


def test_terms_of_theorem_1_by_hand() -> None:
    constants = bounds.Constants(2.0, 3.0, 0.5)
    found = bounds.group_bound(
        [[2, 3], [4, 1]], lr=0.1, constants=constants, group_size=[1, 3], group=1, descent=0.7
    )
    assert found.descent == pytest.approx(2 * 0.7 / 0.4)
    assert found.noise == pytest.approx(0.1 * 2 * 0.5 / 3)
    assert found.restarts == pytest.approx((1 / 0.4 + 2 * 3 * 1.25 * 0.1 / 4) * 3)
    assert found.iterations == pytest.approx(2 * 3 * 0.1 / 4 * 9 * 3)


def test_corollary_1_as_time_grows_fourfold(logistic: Logistic) -> None:
    scaled = []
    for rounds in (16, 64, 256):
        iterations = draw_rounds(np.random.default_rng(rounds), UNEQUAL, 3.0, rounds)[0]
        ran = play(
            logistic,
            iterations,
            lr=bounds.corollary_lr(rounds, smoothness=logistic.smoothness),
            replicas=10,
            seed=6,
        )
        limit = bounds.corollary_bound(
            rounds,
            sync_time=3.0,
            delays=UNEQUAL,
            constants=ran.constants,
            group_size=logistic.group_size,
            descent=ran.global_loss[0] - ran.global_loss[-1],
        )
        assert ran.global_square.mean() <= limit
        scaled.append(np.sqrt(rounds) * ran.global_square.mean())
    # If the gradients did not fall, each value would be twice the one before.
    first, second = scaled[1] / scaled[0], scaled[2] / scaled[1]
    assert second < first < 1.8
    assert bounds.corollary_lr(4, smoothness=8.0) == 1 / 8
    with pytest.raises(ValueError, match="at least"):
        bounds.corollary_bound(
            3,
            sync_time=1.0,
            delays=UNEQUAL,
            constants=bounds.Constants(2.0, 1.0, 1.0),
            group_size=[1, 1],
            descent=1.0,
        )


def test_corollary_1_follows_from_theorem_2() -> None:
    """With alpha = 1 / sqrt(U) and maximal counts, the corollary is slightly above (20)."""
    delays = Delays(np.array([1.0, 0.5]), np.array([0.1, 0.1]))
    constants, size, rounds = bounds.Constants(0.7, 2.0, 0.3), [2, 6], 25
    most = np.tile([5, 10], (rounds, 1))
    whole = bounds.global_bound(
        most, lr=1 / 5, constants=constants, group_size=size, descent=0.4
    ).total
    limit = bounds.corollary_bound(
        rounds, sync_time=5.0, delays=delays, constants=constants, group_size=size, descent=0.4
    )
    assert whole <= limit < 1.1 * whole
    # kappa is 2 * 40 / 64, and kappa_t, with counts, is 2 * (10^2 + 60^2) / 64.
    by_hand = (2 * 0.4 + 0.7 * 1.25 * 0.3) / 5 + 0.49 * 2 * (
        12 * 1.25**2 + (12 + 4 / 3) * 115.625
    ) / 25
    assert limit == pytest.approx(by_hand)
