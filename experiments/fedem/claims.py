"""The testable claims of FedEM (arXiv 2111.02083): what, where in the paper, and the pass mark.

Some follow from its theorems.
"""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Claim, Claims, Criterion

FAR = 5.0
"""Standard errors beyond which a difference counts as real."""

CLAIMS = Claims(
    "fedem",
    {
        1: Claim(
            "statement",
            "eqs. (5), (6)",
            (
                "EM in the expectation space has the roots of h as its fixed points: after "
                "convergence ||h|| < 1e-10 and theta = T(s(theta))."
            ),
            Criterion(
                "‖h‖ and the last move of theta are below {end:g}, and theta_k is T(S_k) to "
                "{apart:g} all the way.",
                end=1e-10,
                apart=1e-9,
            ),
            kind="exact",
        ),
        2: Claim(
            "statement",
            "Sec. 2",
            (
                "EM is monotone in F in both spaces; FedEM without compression, p = 1, full "
                "batches and gamma = 1 is EM."
            ),
            Criterion(
                "F never rises by {rise:g} or more, and F of FedEM and EM differ by less than "
                "{apart:g}.",
                rise=1e-12,
                apart=1e-11,
            ),
            kind="exact",
        ),
        3: Claim(
            "statement",
            "A4",
            (
                "A4, without its bounds on all of space: the gradient of W is -B h with B positive "
                "definite. Tested on a fitted mixture and two toy problems."
            ),
            Criterion(
                "The relative error of the gradient is below {error:g} and the least "
                "eigenvalue of B is positive.",
                error=1e-8,
            ),
            kind="exact",
        ),
        4: Claim(
            "statement",
            "Lemma B",
            (
                "Block-p-quantization is unbiased, with E||Quant(x) - x||^2 = sum_l (||x_l||_1 "
                "||x_l||_p - ||x_l||_2^2); for p = 2 omega is max(sqrt(q_l) - 1), attained."
            ),
            Criterion(
                "Means and variances are within {far:g} standard errors of Lemma B's; no "
                "relative variance exceeds omega = 1 by more than {exact:g}, and a constant "
                "block attains it.",
                far=FAR,
                exact=1e-12,
            ),
        ),
        5: Claim(
            "statement",
            "Props. C.3.1, D.3",
            (
                "The server's memory is the mean of the clients' at every round, with partial "
                "participation too."
            ),
            Criterion("The memories differ by less than {same:g}.", same=1e-12),
            kind="algebra",
            follows="both memories add alpha times the same messages, from equal starts.",
        ),
        6: Claim(
            "statement",
            "Prop. C.3.2",
            (
                "H is conditionally unbiased, with variance at most (omega_p mean ‖Delta‖² + "
                "sigma^2) / n."
            ),
            Criterion(
                "Mean and variance of H are within {far:g} standard errors of h and of the bound.",
                far=FAR,
            ),
        ),
        7: Claim(
            "statement",
            "Theorems 1, 3",
            (
                "The bounds (8) of Theorem 1 and of Theorem 3 on E||h(S_K)||^2 hold for every "
                "allowed gamma, as printed. (9), the case without compression, is not a part: as "
                "printed it is false, see the errata."
            ),
            Criterion("No left side exceeds its bound, by exact recursions and in runs."),
            changed=(
                "holds -> holds: (8) and Theorem 3 are tested with the printed constants; the "
                "corrected ones are those of (9) and of the recursion in D.3."
            ),
        ),
        8: Claim(
            "statement",
            "Sec. 2",
            "Without compression and with p = 1 the memories change nothing.",
            Criterion("‖h‖² differs by less than {same:g} of itself.", same=1e-9),
            kind="algebra",
            follows="without compression a message and its memory cancel.",
        ),
        9: Claim(
            "statement",
            "Sec. 2, App. A",
            (
                "The memories mitigate heterogeneity: with exact statistics FedEM converges "
                "under compression and partial participation, and without memories, or with "
                'local ones, "such an update is expected not to be robust to data '
                'heterogeneity": a floor proportional to gamma and to mean ||h_i(s_*)||^2 '
                "remains."
            ),
            Criterion(
                "FedEM ends below {end:g}, and the floors of the others are within {share:.0%} "
                "of the predicted ones.",
                end=1e-20,
                share=0.35,
            ),
        ),
        10: Claim(
            "statement",
            "Prop. E.7",
            (
                'The memories converge: G to 0 with full batches, and for VR-FedEM "the Cesaro '
                "average [of E G] decreases proportionally to the number of iterations k_in "
                'k_out".'
            ),
            Criterion(
                "With full batches G falls below {end:g}, and the means of G for VR-FedEM are "
                "within their bound.",
                end=1e-20,
            ),
        ),
        11: Claim(
            "derived",
            "Prop. C.3.4",
            (
                "alpha <= 1 / (1 + omega) keeps the memories stable; clearly above 2 / (1 + "
                "omega) they diverge."
            ),
            Criterion(
                "At omega = 1 and alpha = 0.1, 0.5 and 0.7 ‖h‖² falls below {end:g}, at alpha = "
                "0.01 to {slow:g} of itself, where the memories' error does too; at alpha = 1.5 "
                "it grows more than {grown:g} times.",
                end=1e-20,
                slow=0.1,
                grown=1e6,
            ),
        ),
        12: Claim(
            "statement",
            "Theorem 2",
            (
                "VR-FedEM with the step (10) meets (11) and (12) and has no noise floor; FedEM "
                "with that step has one."
            ),
            Criterion(
                "(11) and (12) hold; VR-FedEM ends below {end:g} ({short:g} after fewer than "
                "{loops} outer loops) and FedEM stays above {floor:g}.",
                end=1e-25,
                short=1e-5,
                loops=20,
                floor=1e-4,
            ),
        ),
        13: Claim(
            "statement",
            "Theorem 2, App. E.2",
            (
                '"VR-FedEM does not require the step sizes to decrease with m", and its '
                "evaluations grow like sqrt(m) at k_in = (1 + omega) sqrt(m / 2), where they are "
                "fewest."
            ),
            Criterion(
                "The step (10) at equal constants is the same for all m; the 95 % interval of "
                "the power of m by which E-steps grow, from one fit for each seed, lies within "
                "{apart:g} of {power:g}; and at m = 100, by 95 % intervals of the ratios over "
                "seeds, the stated k_in needs at most {share:.0%} more E-steps than any other "
                "tried.",
                apart=0.1,
                power=0.5,
                share=0.1,
            ),
        ),
        14: Claim(
            "statement",
            "Sec. 3",
            "With n = 1 and omega = 0 VR-FedEM is SPIDER-EM, step by step.",
            Criterion("The models differ by less than {same:g} at every step.", same=1e-12),
            kind="algebra",
            follows="with one client and no compression the two algorithms have the same lines.",
        ),
        15: Claim(
            "statement",
            "Theorem 3, App. A",
            (
                '"Theorem 3 highlights that partial participation impacts [...] the limiting '
                'variance (which increases by a factor proportional to p^-1)."'
            ),
            Criterion(
                "At p = {ps} exact levels over that of p = 1 are at most Theorem 3's factor (1 "
                "+ 5 omega_p) / (1 + 5 omega), and linear in 1 / p to {linear:.0%}; as another "
                "part, p times the level is the same for all p to {same:.0%}. Simulated levels "
                "are within {simulated:.0%} of the exact ones, by whole 95 % intervals.",
                ps="1/4, 1/2, 3/4",
                linear=0.05,
                same=0.1,
                simulated=0.25,
            ),
        ),
        16: Claim(
            "statement",
            "tabular of regimes, Sec. 2",
            (
                'Low noise and n large against omega^3: complexity times 1. "We then improve the '
                "communication cost of each iteration without increasing the optimization "
                "complexity, effectively reducing the communication budget 'for free'.\""
            ),
            Criterion(
                "Without noise and with n of at least 2 (1 + omega)^2 omega the rounds to an "
                "epsilon-stationary point, at which the mean of ||h||^2 over all rounds is at most "
                "a small epsilon (K is uniform in Theorem 1), grow by less than a factor of "
                "{rounds:g}. Bits then fall by the messages' factor to within the same. As another "
                "part, the rounds until the last ||h||^2 is a millionth of the first do.",
                rounds=1.5,
            ),
            stated="times 1",
            changed=(
                "fails -> holds -> holds in part, as the last round is a part now: the rounds "
                "had been counted until the last ||h||^2 is a "
                "millionth of the first (times 1.2, 1.8 and 3.9), where the paper's complexity is "
                "that of the mean over all rounds (times 1.001, 1.002 and 1.016, which the curves "
                "of that run had shown when the criterion was changed). Much noise is another "
                "cell of the table and claim 22."
            ),
            since="2026-11-28",
        ),
        17: Claim(
            "derived",
            "Sec. 2, after Theorem 1",
            (
                "With high noise the complexity is of order (1 + omega) sigma^2 / (n eps^2), and "
                "so has a linear speed-up in n."
            ),
            Criterion(
                "Per doubling of n from 10 to 80 the fewest rounds over step sizes to an "
                "epsilon-stationary point, as in claim 16, fall by a factor of {factor:g}, give "
                "or take {rounds:g}; as another part, the level at one step size does, give or "
                "take {exact:g} by exact law, and in runs, by the whole 95 % interval, give or "
                "take {simulated:g}.",
                factor=2,
                rounds=0.3,
                exact=0.1,
                simulated=0.6,
            ),
            changed=(
                "holds -> holds, as a derived claim: the paper does not speak of a speed-up. Now "
                "judged by rounds; it was judged by the level at one step size alone. Noise and "
                "epsilon were chosen after pilots, in which rounds could not be counted."
            ),
            since="2026-11-28",
        ),
        18: Claim(
            "figure",
            "Fig. 1",
            (
                "VR-FedEM's ||H||^2 and ||h||^2 coincide and lie orders of magnitude below "
                'FedEM\'s ||H||^2: "the results illustrate the variance reduction".'
            ),
            Criterion(
                "At the end VR-FedEM's ‖H‖² and ‖h‖² differ by less than {apart:.0%}, and ‖H‖² "
                "is below {share:g} of FedEM's mean over the second half.",
                apart=0.2,
                share=1e-3,
            ),
        ),
        19: Claim(
            "figure",
            "Fig. 3",
            (
                'MNIST: "a similar experiment [...] to illustrate the behaviour of FedEM and '
                'VR-FedEM", with curves of the weights of the mixture and of ||H||^2. They are '
                "read here as showing the order of Fig. 1."
            ),
            Criterion(
                "VR-FedEM's ‖H‖² ends below {share:g} of FedEM's mean over the second half, "
                "and its weights are smoother, by 95 % intervals of the logarithms of the "
                "ratios over seeds.",
                share=0.1,
            ),
            stated="curves only",
        ),
        20: Claim(
            "derived",
            "Sec. 4, App. F.2",
            (
                "FedMissEM is FedEM on matrices with missing cells: it decreases F, recovers the "
                "trend of counts of rank 2 and ends at the centralised fixed point. Tested on "
                "synthetic counts of 200 sites by 60 months; the paper has counts of eBird, 9721 "
                "by 525 (claims 21 and 25)."
            ),
            Criterion(
                "On synthetic counts whose truth is known ||h||^2 falls below {left:g} of "
                "itself, matrices end within {apart:.0%} of EM's (RMS), F falls and the trend "
                "correlates above {trend:g} with the truth, without and with division; EM "
                "itself ends within the steps allowed.",
                left=1e-6,
                apart=0.05,
                trend=0.95,
            ),
            changed=(
                "holds in part -> holds in part, as a derived claim: the synthetic counts are "
                "200 by 60, not 9721 by 525; the paper's figure has a row of its own."
            ),
        ),
        21: Claim(
            "figure",
            "Fig. 2",
            (
                'eBird, Common Buzzard and Mallard: "we recover aggregated temporal trends at '
                'the national French level for these two bird species" (2,465 observers, 9,721 '
                "sites, 525 months; App. F.2 has them from January 2000 to September 2020, which "
                "are 249)."
            ),
            Criterion(
                "On the data of the paper, with its settings, the trend correlates above "
                "{trend:g} with that of EM on pooled cells.",
                trend=0.95,
            ),
            stated="curves only",
            cost=(
                "the counts are given out on request only and may not be passed on; with them "
                "about an hour of a core for each species"
            ),
        ),
        22: Claim(
            "statement",
            "tabular of regimes, Sec. 2",
            "High noise, and any n against omega^3: complexity times omega.",
            Criterion(
                "With much noise the growth of rounds to an epsilon-stationary point, as in claim "
                "16, is linear in 1 + omega to within a factor of {linear:g}.",
                linear=2,
            ),
            kind="exact",
            stated="times omega",
            changed=(
                "a part of claim 16 -> holds; rounds are counted to the mean over rounds now, as "
                "the paper has it."
            ),
            since="2026-11-28",
        ),
        23: Claim(
            "statement",
            "tabular of regimes, Sec. 2",
            "Low noise and n small against omega^3: complexity times omega^(3/2) / sqrt(n).",
            Criterion(
                "Without noise, at the step (7) and n below 2 (1 + omega)^2 omega, the rounds to "
                "an epsilon-stationary point, as in claim 16, over those of omega = 0 are "
                "proportional to omega^(3/2) / sqrt(n), which is what the paper says of them: "
                "their quotient is the same to within a factor of {near:g} for omega from 9 to "
                "49 and for n from 2 to 10.",
                near=2,
            ),
            kind="algebra",
            follows="by the step, rounds grow like 1 / gamma.",
            stated="times omega^(3/2) / sqrt(n)",
            changed=(
                "holds -> holds, as algebra: by the step, rounds grow like 1 / gamma. It "
                "was run on exact recursions. The criterion asks for "
                "proportionality, as the paper's text does, and was stated after a pilot at "
                "omega = 9."
            ),
            since="2026-11-28",
        ),
        24: Claim(
            "statement",
            "Sec. 3 and its tabular",
            (
                'VR-FedEM, omega^3 far below n: "the complexity is then similar to the one of '
                'SPIDER-EM"; far above n it is "higher to the one of SPIDER-EM [...] (by a factor '
                'proportional to omega^(3/2) / sqrt(n))".'
            ),
            Criterion(
                "At the step (10) the rounds of VR-FedEM to an epsilon-stationary point, as in "
                "claim 16, over those of omega = 0 are proportional to omega^(3/2) / sqrt(n) for "
                "n = 10, to within a factor of {near:g} for omega from 9 to 49, and for n = "
                "10,000 they grow by less than a factor of {free:g} at omega = 1 and 2.",
                near=2,
                free=1.5,
            ),
            kind="algebra",
            follows="by the step, rounds grow like 1 / gamma.",
            stated="times 1; times omega^(3/2) / sqrt(n)",
            changed=(
                "holds -> holds, as algebra: by the step, rounds grow like 1 / gamma. It "
                "was run at both ends of the table. For few clients the constant of "
                "proportionality is 4. The criterion was stated after a pilot at omega = 9."
            ),
            since="2026-11-28",
        ),
        25: Claim(
            "derived",
            "Sec. 4, Fig. 2",
            (
                "At the shape of the paper's counts (9,721 sites, 525 months, 5,980 counts of "
                "2,465 observers on ten servers) and with its settings (150 epochs, gamma = "
                "1e-4, alpha = 1e-3, b = 100, rank 2, lambda = 0) FedMissEM recovers the trend. "
                "Tested on made-up counts of rank 2, whose truth is known."
            ),
            Criterion(
                "The sums over sites of the fitted matrix correlate above {trend:g} over the "
                "months with those of the truth. How the start, EM on the pooled cells and "
                "means of sites and months do is stated next to it.",
                trend=0.95,
            ),
            changed=(
                "no row -> fails: claim 20 had been run at 200 by 60 only. At the paper's shape "
                "its settings leave the matrix where it starts. The criterion is that of claim 20, "
                "and was stated after a pilot of 25 rounds."
            ),
            since="2026-11-27",
        ),
        26: Claim(
            "statement",
            "corollary of Theorem 1",
            (
                "With gamma = (gap n / (k_max L_W (1 + 5 omega) sigma^2))^(1/2), at most "
                "gamma_max, E||h(S_K)||^2 is at most 4 / v_min times the larger of (gap L_W (1 + 5 "
                "omega) sigma^2 / (n k_max))^(1/2) and gap / (gamma_max k_max)."
            ),
            Criterion(
                "By exact recursions the mean of ||h||^2 over k_max rounds is at most the bound, "
                "for omega from 0.1 to 30, sigma^2 over five decades and k_max from 1 to 10,000."
            ),
            kind="exact",
            changed="no row -> holds: the exact mean is at most .425 of the bound.",
            since="2026-11-29",
        ),
        27: Claim(
            "statement",
            "App. E.2",
            (
                "VR-FedEM's evaluations of conditional expectations are of order sqrt(m) sqrt(n) "
                'sqrt(omega) / eps, "which corresponds to a sublinear increase w.r.t. omega".'
            ),
            Criterion(
                "At the step (10) and the stated k_in the powers of omega and of n by which the "
                "formula of E.2 grows are within {close:g} of 1/2 where omega^3 is at least "
                "1000 n.",
                close=0.05,
            ),
            kind="algebra",
            follows="the formula of E.2 is evaluated, and has these powers.",
            changed=(
                "no row -> holds, as algebra. With batches of an example or more, as they must "
                "be, the power of omega is 1.5 at m = 100."
            ),
            since="2026-11-29",
        ),
        28: Claim(
            "statement",
            "Sec. 2",
            (
                '"The communication cost of each iteration is typically reduced by compression of '
                'a factor at least omega."'
            ),
            Criterion(
                "By this package's count of bits 32-bit numbers take at least omega times as many, "
                "for block-2-quantization with omega = 1 and for dithering with q = 100 and 4 "
                "levels, the paper's cases; as another part, for one block of 10 to 10,000 "
                "entries."
            ),
            kind="exact",
            changed=(
                "no row -> holds in part: it is so in the cases of the paper, and not for one "
                "long block."
            ),
            since="2026-11-29",
        ),
        29: Claim(
            "statement",
            "Sec. 2",
            (
                "Random dithering with s levels and the norm r satisfies A6 with omega = O(q^(1/r) "
                "+ q^(1/2)) / s."
            ),
            Criterion(
                "The exact relative variance is at most (q^(1/r) + q^(1/2)) / s for r = 1, 2, 4 "
                "and inf, q from 2 to 4096 and s from 1 to 64, on sparse, constant, steep and "
                "random vectors; means and variances of drawn messages are within {far:g} standard "
                "errors of the exact ones.",
                far=FAR,
            ),
            changed="no row -> holds: the exact variance is at most .984 of the bound.",
            since="2026-11-29",
        ),
        30: Claim(
            "ours",
            "Sec. 2",
            (
                "Where clients' speeds differ, a FedEM with a buffer, whose messages may be stale, "
                "is sooner than rounds in virtual time; where all E-steps take one constant time, "
                "it is not."
            ),
            Criterion(
                "With a third of the clients eight times as slow the mean of ||h||^2 is a "
                "thousandth of its start at least {sooner:g} times as early as with the best of "
                "two kinds of rounds, each at its best step size; as other parts, so it is with "
                "exponential times of one mean, and with constant times it is at most {near:g} "
                "times as early.",
                sooner=1.5,
                near=1.1,
            ),
            changed=(
                "no row -> fails: with a third of the clients slow the buffer is 1.4 times as "
                "early, less than the 1.5 asked for."
            ),
            since="2026-11-29",
        ),
        31: Claim(
            "statement",
            "Sec. 1, after Theorem 2",
            (
                '"Seen as a root finding algorithm in a quantized FL setting, VR-FedEM can be '
                "compared to VR-DIANA: we show that VR-FedEM does not require the step sizes to "
                'decrease with m."'
            ),
            Criterion(
                "Each method has, for every seed, the step size of a grid in half octaves with "
                "which ||h||^2 first is a thousandth of its start, at m = 25, 100 and 400. By 95 % "
                "intervals of the power of m that it follows, VR-FedEM's is above -{flat:g} with "
                "slopes of one sign and of both; as another part, VR-DIANA's is below "
                "-{falling:g} with slopes of both signs, where it would be -1/2 if passes alone "
                "kept models together.",
                flat=0.1,
                falling=0.25,
            ),
            changed="no row -> holds: best step sizes go like m^-.03 and, of VR-DIANA, m^-.45.",
            since="2026-11-30",
        ),
        32: Claim(
            "statement",
            "App. A, after A9",
            (
                "Partial participation with probabilities p_i that depend on the worker: the "
                "results extend, with messages divided by p_i."
            ),
            Criterion(
                "With p_i from 0.2 to 1 and gamma_max of the least, the mean of ||h(S_K)||^2 over "
                "seeds plus {far:g} standard errors is at most the bound of Theorem 3 with the "
                "least p_i, whose noise is 1 + omega_p (1 + 4 r) at a spread r of the p_i, after a "
                "sixteenth, a quarter and all of the rounds.",
                far=FAR,
            ),
            changed="no row -> holds: the measured mean is at most .93 of the bound.",
            since="2026-11-30",
        ),
        33: Claim(
            "statement",
            "A7",
            (
                "The online setting, in which oracles are of fresh examples at every round, is "
                "covered: Theorem 1 holds with the variance of the clients' laws."
            ),
            Criterion(
                "On streams the mean of ||h(S_K)||^2 over seeds, h of the laws, plus {far:g} "
                "standard errors is at most the bound (8) at gamma_max, after a sixteenth, a "
                "quarter and all of the rounds.",
                far=FAR,
            ),
            changed="no row -> holds: the measured mean is at most .60 of the bound.",
            since="2026-11-30",
        ),
        34: Claim(
            "statement",
            "eq. (1)",
            (
                'The penalty R may be chosen "to promote sparsity": with an l1 penalty FedEM ends '
                "at the sparse minimiser of F."
            ),
            Criterion(
                "With whole batches, p = 1/2 and quantized messages the parameters are 0 exactly "
                "where those of the minimiser in closed form are, of which some are, and "
                "elsewhere within {error:g} of it, for every seed.",
                error=1e-8,
            ),
            changed="no row -> holds: the zeros are those of the proximal step to rounding.",
            since="2026-11-30",
        ),
    },
    since="2026-11-27",
    pictures={
        "clocks": (30,),
        "floors": (9,),
        "alpha": (11,),
        "inner": (13,),
        "toy_b": (12,),
        "participation": (15,),
        "blocks": (16,),
        "regimes": (23, 24),
        "clients": (17,),
    },
)
"""By number."""

SMOKE = "not judged: too small with --smoke"

verdict = CLAIMS.verdict

Found = Mapping[str, Any]
"""The numbers by which a claim is judged, as its verdict stores them."""
