"""The testable claims of FedEM (arXiv 2111.02083): what, where in the paper, and the pass mark.

Some follow from its theorems.
"""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Claims, Criterion

FAR = 5.0
"""Standard errors beyond which a difference counts as real."""

CLAIMS = Claims(
    "fedem",
    {
        1: (
            "Roots of h are EM's fixed points: after convergence ‖h‖ < 1e-10 and theta = "
            "T(s(theta)).",
            "eqs. (5), (6)",
            Criterion(
                "‖h‖ and the last move of theta are below {end:g}, and theta_k is T(S_k) to "
                "{apart:g} all the way.",
                end=1e-10,
                apart=1e-9,
            ),
        ),
        2: (
            "EM is monotone in F in both spaces; FedEM without compression, p = 1, full batches"
            " and gamma = 1 is EM.",
            "Sec. 2",
            Criterion(
                "F never rises by {rise:g} or more, and F of FedEM and EM differ by less than "
                "{apart:g}.",
                rise=1e-12,
                apart=1e-11,
            ),
        ),
        3: (
            "The gradient of W is -B h with B positive definite: fitted mixture, both toys.",
            "A4",
            Criterion(
                "The relative error of the gradient is below {error:g} and the least eigenvalue"
                " of B is positive.",
                error=1e-8,
            ),
        ),
        4: (
            "Block-p-quantization is unbiased with Lemma B's variance; for p = 2 omega is "
            "max(sqrt(q_l) - 1), attained.",
            "Lemma B",
            Criterion(
                "Means and variances are within {far:g} standard errors of Lemma B's; no "
                "relative variance exceeds omega = 1 by more than {exact:g}, and a constant "
                "block attains it.",
                far=FAR,
                exact=1e-12,
            ),
        ),
        5: (
            "The server's memory is the mean of the clients' at every round, with partial "
            "participation too.",
            "Props. C.3.1, D.3",
            Criterion(
                "The memories differ by less than {same:g}.",
                same=1e-12,
            ),
        ),
        6: (
            "H is conditionally unbiased, with variance at most (omega_p mean ‖Delta‖² + "
            "sigma^2) / n.",
            "Prop. C.3.2",
            Criterion(
                "Mean and variance of H are within {far:g} standard errors of h and of the bound.",
                far=FAR,
            ),
        ),
        7: (
            "The bounds of Theorems 1 and 3 hold for every allowed gamma.",
            "Theorems 1, 3",
            Criterion(
                "No left side exceeds its bound, by exact recursions and in runs.",
            ),
        ),
        8: (
            "Without compression and with p = 1 the memories change nothing.",
            "Sec. 2",
            Criterion(
                "‖h‖² differs by less than {same:g} of itself.",
                same=1e-9,
            ),
        ),
        9: (
            "With exact statistics FedEM converges under compression and partial participation;"
            " without memories, or with local ones under partial participation, a floor "
            "proportional to gamma and to mean ‖h_i(s_*)‖² remains.",
            "Sec. 2",
            Criterion(
                "FedEM ends below {end:g}, and the floors of the others are within {share:.0%} "
                "of the predicted ones.",
                end=1e-20,
                share=0.35,
            ),
        ),
        10: (
            "The memories converge: G to 0 with full batches, its mean as 1 / (k_in k_out) for "
            "VR-FedEM.",
            "Prop. E.7",
            Criterion(
                "With full batches G falls below {end:g}, and the means of G for VR-FedEM are "
                "within their bound.",
                end=1e-20,
            ),
        ),
        11: (
            "alpha <= 1 / (1 + omega) keeps the memories stable; clearly above 2 / (1 + omega) "
            "they diverge.",
            "Prop. C.3.4",
            Criterion(
                "With alpha of at most 1 ‖h‖² falls below {end:g}, at the smallest alpha to "
                "{slow:g} of itself, where the memories' error does too; at alpha = 1.5 it "
                "grows more than {grown:g} times.",
                end=1e-20,
                slow=0.1,
                grown=1e6,
            ),
        ),
        12: (
            "VR-FedEM with the step (10) meets (11) and (12) and has no noise floor; FedEM with"
            " that step has one.",
            "Theorem 2",
            Criterion(
                "(11) and (12) hold; VR-FedEM ends below {end:g} ({short:g} after fewer than "
                "{loops} outer loops) and FedEM stays above {floor:g}.",
                end=1e-25,
                short=1e-5,
                loops=20,
                floor=1e-4,
            ),
        ),
        13: (
            "VR-FedEM's step does not depend on m; its E-steps grow like sqrt(m) at k_in = (1 +"
            " omega) sqrt(m / 2), where they are fewest.",
            "Theorem 2, App. E.2",
            Criterion(
                "The step (10) at equal constants is the same for all m; the 95 % interval of the "
                "power of m by which E-steps grow, from one fit for each seed, lies within "
                "{apart:g} of {power:g}; and at m = 100, by 95 % intervals of the ratios over "
                "seeds, the stated k_in needs at most {share:.0%} more E-steps than any other "
                "tried.",
                apart=0.1,
                power=0.5,
                share=0.1,
            ),
        ),
        14: (
            "With n = 1 and omega = 0 VR-FedEM is SPIDER-EM, step by step.",
            "Sec. 3",
            Criterion(
                "The models differ by less than {same:g} at every step.",
                same=1e-12,
            ),
        ),
        15: (
            "Partial participation raises the limiting variance by a factor proportional to 1 / p.",
            "Theorem 3, App. A",
            Criterion(
                "At p = {ps} exact levels over that of p = 1 are at most Theorem 3's factor (1 + 5 "
                "omega_p) / (1 + 5 omega); they are linear in 1 / p to {linear:.0%}; and p times "
                "the level is the same for all p to {same:.0%}. Simulated levels are within "
                "{simulated:.0%} of the exact ones, by whole 95 % intervals.",
                ps="1/4, 1/2, 3/4",
                linear=0.05,
                same=0.1,
                simulated=0.25,
            ),
        ),
        16: (
            "With low noise and n of at least 2 (1 + omega)^2 omega compression leaves the "
            "rounds nearly as they are; with high noise they grow like omega; so with little "
            "noise the bits sent up fall by about the compression factor.",
            "Sec. 2",
            Criterion(
                "With little noise rounds grow by less than a factor of {rounds:g} and bits "
                "fall by the messages' factor to within {bits:g}; with much noise the growth is"
                " linear in 1 + omega to within a factor of {linear:g}.",
                rounds=1.5,
                bits=1.5,
                linear=2,
            ),
        ),
        17: (
            "With high noise the speed-up in n is linear.",
            "Theorem 1",
            Criterion(
                "Per doubling of n the exact level falls by a factor of {factor:g}, give or "
                "take {exact:g}, and the simulated one, by its whole 95 % interval, give or take "
                "{simulated:g}.",
                factor=2,
                exact=0.1,
                simulated=0.6,
            ),
        ),
        18: (
            "At equal epochs VR-FedEM's ‖H‖² and ‖h‖² coincide, orders of magnitude below"
            " FedEM's ‖H‖².",
            "Fig. 1",
            Criterion(
                "At the end VR-FedEM's ‖H‖² and ‖h‖² differ by less than {apart:.0%}, and"
                " ‖H‖² is below {share:g} of FedEM's mean over the second half.",
                apart=0.2,
                share=1e-3,
            ),
        ),
        19: (
            "The same order for MNIST: weights and ‖H‖².",
            "Fig. 3",
            Criterion(
                "VR-FedEM's ‖H‖² ends below {share:g} of FedEM's mean over the second half, "
                "and its weights are smoother, by 95 % intervals of the logarithms of the ratios "
                "over seeds.",
                share=0.1,
            ),
        ),
        20: (
            "FedMissEM decreases F, recovers the trend on rank-2 data, and ends at the "
            "centralised fixed point.",
            "App. F.2",
            Criterion(
                "Without and with division ‖h‖² falls below {left:g} of itself, matrices end"
                " within {apart:.0%} of EM's (RMS), F falls and the trend correlates above "
                "{trend:g} with the truth; EM itself ends within the steps allowed. On counts "
                "whose truth is unknown the trend is compared with that of EM on pooled cells, and "
                "withheld cells have to be predicted better than by means of sites and times (95 % "
                "interval over cells).",
                left=1e-6,
                apart=0.05,
                trend=0.95,
            ),
        ),
    },
    exact=(1, 2, 3),
    algebra=(5, 8, 14),
    pictures={
        "floors": (9,),
        "alpha": (11,),
        "inner": (13,),
        "toy_b": (12,),
        "participation": (15,),
        "blocks": (16,),
        "clients": (17,),
    },
)
"""By number."""

SMOKE = "not judged: too small with --smoke"

verdict = CLAIMS.verdict

Found = Mapping[str, Any]
"""The numbers by which a claim is judged, as its verdict stores them."""
