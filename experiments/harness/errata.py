"""Printed formulas that this project found wrong, with what is right and the test that shows it.

`report` writes them onto the page of claims and into the README. They are as data because the code
that corrects them is spread over the theory of five papers, where a comment "Deviation:" says so.
"""

from typing import NamedTuple


class Erratum(NamedTuple):
    """A printed formula or statement that is wrong.

    Attributes:
      paper: The paper's short name.
      where: Equation, lemma or section.
      printed: What the paper prints.
      right: What is right.
      shown: How that was shown: derivation, exact law or counterexample.
      test: The test that shows it, as "path::name"; it exists and passes.
    """

    paper: str
    where: str
    printed: str
    right: str
    shown: str
    test: str


FAVANO = "tests/experiments/favano/test_bounds.py::test_"
ORDERS = "tests/experiments/favano/test_orders.py::test_"
FALD = "tests/experiments/fald/test_bounds.py::test_"
FEDEM = "tests/experiments/fedem/test_bounds.py::test_"
LATENT = "tests/problems/latent/test_models.py::test_"
STALE = "tests/experiments/fedstaleweight/test_formulas.py::test_"
GROUPS = "tests/experiments/hierarchical/test_bounds.py::test_"

ERRATA = (
    Erratum(
        "favano",
        "(138), from (149) on; the deterministic a^i and b of Theorem 1",
        "E[X^2] / E[X]",
        "E[X^2] / E[X]^2, as in (148)",
        "counterexample: one step with probability .05 has a second moment of 20, the bound is 8",
        f"{FAVANO}second_moment_bound_as_printed_is_false_for_rare_steps",
    ),
    Erratum(
        "favano",
        "(8), (224)",
        "5600 b G^2",
        "5760 b G^2, twice the 2880 that it comes from",
        "derivation",
        f"{FAVANO}bound_of_a_worked_case",
    ),
    Erratum(
        "favano",
        "(16)",
        "the sum of ||a_i - a_j||^2 runs over all ordered pairs",
        "over pairs i < j",
        "counterexample: random vectors",
        f"{FAVANO}averaging_identity_counts_each_pair_once",
    ),
    Erratum(
        "favano",
        "(7)",
        "eta <= 1 / (20 B^2 b K L s) suffices",
        "the proof also needs eta < 1 / (4 L K^2) and a condition of descent, which it does not "
        "imply for few or many local steps",
        "counterexamples: K = 2 and K = 100",
        "tests/theory/test_favano.py::test_conditions_name_what_fails",
    ),
    Erratum(
        "favano",
        "tuning lemma, (47)",
        "eta at most the minimum, and e^(1/3) (r_0 / T)^(2/3)",
        "eta equal to it, and twice the middle term",
        "counterexample: an error with that term alone",
        f"{ORDERS}tuning_lemma_needs_its_factors_of_two",
    ),
    Erratum(
        "favano",
        "corollary (11)-(12); Table 1, FAVANO",
        "F L^2 (K^2 sigma^2 + L^2 K^2 G^2 + ...)^(1/2) in the middle term",
        "F L (K^2 sigma^2 + K^2 G^2 + ...)^(1/2)",
        "derivation, and units",
        f"{ORDERS}time_does_not_depend_on_units",
    ),
    Erratum(
        "favano",
        "Table 1, FedAvg",
        "(F L sigma^2 + (1 - s / n) K G^2) / (s K), and F L^(1/2) G",
        "F L before G^2 too, and F L G",
        "units",
        f"{ORDERS}time_does_not_depend_on_units",
    ),
    Erratum(
        "favano",
        "Table 1, AsyncSGD",
        "(s tau_max F)^(1/2) / eps",
        "F L (s tau_max)^(1/2) / eps",
        "units",
        f"{ORDERS}time_does_not_depend_on_units",
    ),
    Erratum(
        "fald",
        "Lemmas B.3, E.1, E.2",
        "eta < 2 / m",
        "eta <= 1 / (L + m)",
        "counterexample: models diverge between 2 / L and 2 / m",
        f"{FALD}lemmas_are_false_at_the_step_sizes_printed",
    ),
    Erratum(
        "fald",
        "Theorem 5.8 (B.7)",
        "no condition on K",
        "K - 1 <= 24 kappa, as the proof needs step sizes that do not halve in a round",
        "derivation",
        f"{FALD}decreasing_step_sizes_halve_within_a_long_round",
    ),
    Erratum(
        "fald",
        "Theorem C.3 in the appendix",
        "(K - 1)^2 + kappa",
        "K^2 + kappa, as in (38) and Theorem 5.10",
        "derivation",
        f"{FALD}every_term_of_the_bounds",
    ),
    Erratum(
        "fald",
        "Theorem 5.10, Sec. 5.4",
        'partial participation leaves "an extra bias regardless of the scale of eta"',
        "not at rho = 1, where it vanishes with eta",
        "exact law",
        "tests/experiments/fald/test_exact_laws.py::"
        "test_partial_participation_keeps_a_bias_unless_all_noise_is_shared",
    ),
    Erratum(
        "fald",
        "Sec. 7.1, values of gamma",
        "gamma is around 1e8, 4e11, 4e12, 4e13, 4e14",
        "these are gamma^2, for 1000 points a client",
        "exact value",
        "tests/experiments/test_fald.py::test_simulated_problem_is_the_papers",
    ),
    Erratum(
        "fald",
        "Theorem 6.1",
        "the draw of clients amplifies privacy by S / N",
        "only if others' models are as close to the client's as its neighbours' are",
        "counterexample: a client that stands apart",
        "tests/theory/langevin/test_privacy.py::"
        "test_draw_of_clients_does_not_protect_those_who_stand_apart",
    ),
    Erratum(
        "fedem",
        "(9)",
        "(1 - gamma L_W / (2 v_min)) E||h||^2 <= ...",
        "v_min before the left side, as (29) has it",
        "counterexample: exact on a quadratic",
        f"{FEDEM}without_compression_the_bound_is_an_equality_and_the_printed_one_false",
    ),
    Erratum(
        "fedem",
        "recursion of G_k in App. D.3",
        "omega_p in the last term",
        "1 + omega_p",
        "counterexample: exact moments",
        f"{FEDEM}memories_recursion_and_its_printed_form",
    ),
    Erratum(
        "fedem",
        "Sec. 2, omega = 2.5",
        "n >= 16 leaves the step size almost as it is",
        "n >= 61.25; at n = 16 it is halved",
        "exact value of (7)",
        f"{FEDEM}regimes",
    ),
    Erratum(
        "fedem",
        "Sec. 2, high noise regime",
        "gamma_max (1 + omega) sigma^2 / (n / eps) >= 1",
        "gamma_max (1 + omega) sigma^2 / (n eps) >= 1, the ratio of the two terms",
        "derivation",
        f"{FEDEM}complexity",
    ),
    Erratum(
        "fedem",
        "App. F.2, law of the cells",
        "theta is the intensity (Poisson) or the probability of success (Bernoulli), and the "
        "E-step fills in theta",
        "theta is its logarithm or log-odds, and the E-step fills in psi'(theta)",
        "derivation",
        f"{LATENT}missing_cells_are_filled_with_their_expected_values",
    ),
    Erratum(
        "fedem",
        "Algorithm 7",
        "mini-batches of cells as they are",
        "divided by the share of the cells that is sent; else the oracle is biased (A7)",
        "derivation",
        "tests/problems/latent/test_cells.py::"
        "test_cells_are_sent_without_bias_and_with_the_exact_omega",
    ),
    Erratum(
        "fedstaleweight",
        "Algorithm 1",
        "(E[tau] + 1) / n",
        "(E[tau] b + 1) / n, as in (8)",
        "derivation: only this is the inverse share of arrivals",
        f"{STALE}algorithm_1_as_printed_does_not_even_out_shares",
    ),
    Erratum(
        "fedstaleweight",
        "Sec. 4.1",
        "alpha must not decrease at a rate slower than p increases, which would invite throttling",
        "not faster",
        "counterexample",
        f"{STALE}weights_that_fall_too_fast_reward_throttling",
    ),
    Erratum(
        "fedstaleweight",
        "Sec. 4.2.1, rescaling of rates",
        "C r^2 can be made small and A large, so that the mechanism is strictly strategy-proof",
        "both scale alike; truth is best in a buffer if and only if C r^2 <= A",
        "counterexample: the paper's own setting with two slow clients in the buffer",
        f"{STALE}truthfulness_depends_on_the_buffer",
    ),
    Erratum(
        "fedstaleweight",
        "Theorem 1, (10), b = 1",
        "a floor of order eta_l^2",
        "the draw of clients leaves one of order eta_l",
        "counterexample: two clients drawn uniformly",
        f"{STALE}bound_is_violated_by_drawing_clients",
    ),
    Erratum(
        "fedstaleweight",
        "Theorem 1, (10), b >= 2",
        "a guarantee of convergence",
        "the last term alone is above G, and so above any squared gradient",
        "derivation",
        f"{STALE}bound_is_vacuous_beyond_single_updates",
    ),
    Erratum(
        "hierarchical",
        "(20), (39), (40), (41), fourth term",
        "without G^2",
        "with the G^2 of Lemma 1",
        "derivation, and units",
        f"{GROUPS}terms_of_theorem_2_by_hand",
    ),
    Erratum(
        "hierarchical",
        "(22)",
        "t_i^max = ceil(S / c_i)",
        "max(1, ceil(S / c_i)): at S = 0 one iteration is done",
        "counterexample: S = 0",
        "tests/theory/test_hierarchical.py::test_limits_of_the_number_of_iterations",
    ),
    Erratum(
        "hierarchical",
        "Algorithm 1, clock",
        "the clock is set to the length of the last round",
        "lengths of rounds add up, as in (13)",
        "by hand",
        "tests/timelines/grouped/test_groups.py::test_the_clock_by_hand",
    ),
    Erratum(
        "hierarchical",
        "Theorem 1, (19), two rounds or more",
        "a guarantee of convergence",
        "the bound is above G^2, and so above any squared gradient, for every rate",
        "derivation",
        f"{GROUPS}theorem_1_is_vacuous_after_two_rounds",
    ),
    Erratum(
        "hierarchical",
        "Remarks 1 and 2",
        "with one group (18) has no second term, and is strictly below 4 alpha^2 t^2 G^2",
        "the second term is kappa = 1, and both are equal at t = 1",
        "exact value",
        f"{GROUPS}lemma_1_with_one_group",
    ),
    Erratum(
        "hierarchical",
        "Fig. 7a, rounds that S = 20 saves",
        "37 % with c_g = 10",
        "61 %; 37 % is the value for c_g = 30 (Fig. 7b)",
        "exact law of the delays",
        "tests/theory/test_hierarchical.py::test_rounds_saved_by_the_delays_of_figure_7",
    ),
)
"""In the order of the papers."""
