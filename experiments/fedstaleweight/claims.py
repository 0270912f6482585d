"""The testable claims of FedStaleWeight (arXiv 2406.02877), with place and pass mark.

Some follow from the derivations of its specification.
"""

from experiments.harness import Claims, Criterion

CLAIMS = Claims(
    "fedstaleweight",
    {
        1: (
            "A client's mean staleness is (sum_j r_j / r_i - 1) / b.",
            "eq. (6)",
            Criterion(
                "The largest relative error of any client's mean staleness is below {error:.0%}.",
                error=0.02,
            ),
        ),
        2: (
            "1 / (b E[tau_i] + 1) estimates a client's share of arrivals without knowledge of "
            "rates.",
            "eq. (7)",
            Criterion(
                "The largest relative error of any client's estimated share is below {error:.0%}.",
                error=0.02,
            ),
        ),
        3: (
            "Under buffer averaging influence is the share of arrivals: 0.0698 of the slow "
            "group, not 1/3.",
            "Sec. 4",
            Criterion(
                "The slow group's influence is within {close:g} of {slow:g}, and influence "
                "equals the share of updates.",
                close=0.002,
                slow=0.0698,
            ),
        ),
        4: (
            "FedStaleWeight raises the slow group's influence to 0.20; the deviation from "
            "equality falls from 0.527 to 0.262.",
            "eq. (8)",
            Criterion(
                "The slow group's influence is within {close:g} of {slow:g}, and the deviation "
                "within {close:g} of {before:g} without and {after:g} with FedStaleWeight.",
                close=0.01,
                slow=0.2,
                before=0.527,
                after=0.262,
            ),
        ),
        5: (
            "Equal influence is not reached at b = 5; it grows with b towards 1/3 (the window "
            "overshoots), and b = 1 changes nothing.",
            "eq. (3)",
            Criterion(
                "With the cumulative average the slow group's influence rises with b, from "
                "{first:g} to within {first_close:g} at b = 1, to less than 1/3 + {above:g}; at"
                " b = 5 it is more than {short:g} below 1/3; with the window it is above 1/3 at"
                " b = 30 and 60.",
                first=0.0698,
                first_close=0.005,
                above=0.01,
                short=0.1,
            ),
        ),
        6: (
            "Weights of eq. (8) divided by b instead of normalised reach equal influence.",
            "eqs. (3), (8)",
            Criterion(
                "The slow group's influence is within {close:g} of 1/3.",
                close=0.01,
            ),
        ),
        7: (
            "The kind of average changes the slow group's influence by less than 0.005 at b = 5.",
            "Algorithm 1",
            Criterion(
                "The four averages differ by less than {spread:g}.",
                spread=0.005,
            ),
        ),
        8: (
            "Fashion-MNIST: FedStaleWeight's final accuracy exceeds that of buffered averaging.",
            "Fig. 2",
            Criterion(
                "The final accuracy is higher by a whole 95 % t interval, paired by seed.",
            ),
        ),
        9: (
            "CIFAR-10: FedStaleWeight's final accuracy exceeds that of buffered averaging.",
            "Fig. 2",
            Criterion(
                "The final accuracy is higher by a whole 95 % t interval, paired by seed.",
            ),
        ),
        10: (
            "FedStaleWeight reaches the baseline's final accuracy in fewer aggregations on both"
            " data sets.",
            "Fig. 2",
            Criterion(
                "On both data sets mean accuracy reaches the baseline's final one before the last "
                "server step, and is above it at the end by a whole 95 % t interval.",
            ),
        ),
        11: (
            "The gain comes from labels 0-3; labels 4-9 lose less than that.",
            "Sec. 6",
            Criterion(
                "Accuracy on labels 0-3 rises, and that on labels 4-9 falls by less than that, "
                "each by a whole 95 % t interval.",
            ),
        ),
        12: (
            "A throttling client loses influence under FedStaleWeight, and gains under reverse "
            "exponential weights at half speed.",
            "Sec. 4",
            Criterion(
                "FedStaleWeight's influence falls with every further throttling, and reverse "
                "exponential weights give more at half speed than at full.",
            ),
        ),
        13: (
            "Of a given buffer utility peaks at sqrt(A / C): a fast client with 2 slow ones of "
            "4 others would gain by throttling.",
            "eq. (9)",
            Criterion(
                "Utility rises {near:.0%} before sqrt(A / C) and falls {near:.0%} behind it, "
                "and truth is best with up to {slow} slow client of 4 others and not with more.",
                near=0.01,
                slow=1,
            ),
        ),
        14: (
            "With equal rates utility grows up to the true rate if and only if b < n.",
            "eq. (9)",
            Criterion(
                "For n = 6 the slope of utility at the true rate is positive at b = 2 and 5, "
                "and below {zero:g} at b = 6.",
                zero=1e-12,
            ),
        ),
        15: (
            "Staleness with a buffer is that without one divided by b, rounded up at most, "
            "update by update.",
            "Assumption 5",
            Criterion(
                "Every update's staleness lies between the division rounded down and rounded up.",
            ),
        ),
        16: (
            "Normalised weights stay within their two bounds; U is ((b - 1) tau / (b (tau + "
            "1)))^2.",
            "eq. (11)",
            Criterion(
                "Weights are within their bounds to {exact:g}, and both forms of U agree to "
                "{exact:g}.",
                exact=1e-12,
            ),
        ),
        17: (
            "The convergence bound says nothing for b >= 2, and is violated for b = 1 with "
            "small steps.",
            "Theorem 1",
            Criterion(
                "The bound is vacuous for every b from 2 to 19 and staleness from 1 to 39, and "
                "at b = 1 the left side exceeds the right.",
            ),
        ),
        18: (
            "On quadratics the stationary point is the influence-weighted mean: 0.070, 0.203 "
            "and, unnormalised, 1/3.",
            "Sec. 4",
            Criterion(
                "Whole 95 % t intervals of means over seeds are within {close:g} of {mean:g} "
                "(mean), {eq8:g} (eq. (8)) and 1/3 (unnormalised).",
                close=0.006,
                mean=0.0698,
                eq8=0.2025,
            ),
        ),
        19: (
            "Weighting stale updates more does not destabilise training at local step size 0.01.",
            "Sec. 6",
            Criterion(
                "On quadratics no run diverges at a local step size of {lr:g} or less, and no "
                "run on images diverges.",
                lr=0.01,
            ),
        ),
        20: (
            "Eq. (8) and Algorithm 1's formula differ: influence 0.202 and 0.183.",
            "Algorithm 1, eq. (8)",
            Criterion(
                "Influence is within {close:g} of {eq8:g} (eq. (8)) and {alg1:g} (Algorithm 1),"
                " the second being smaller. The 95 % t interval of the difference of accuracies is "
                "known, whether or not it covers zero.",
                close=0.01,
                eq8=0.2021,
                alg1=0.1830,
            ),
        ),
    },
    exact=(13, 14, 16, 17),
    algebra=(15,),
    pictures={
        "influence": (3, 4, 6),
        "speeds": (3, 4, 20),
        "buffers": (5,),
        "throttling": (12,),
    },
    stated={
        3: "0.0698 of the slow group",
        8: "curves only: FedStaleWeight above FedAvg with a buffer at the end",
        9: "curves only: FedStaleWeight above FedAvg with a buffer at the end",
        10: "curves only: the baseline's final accuracy is passed early",
        11: "said in the text, without numbers",
        19: "said in the text: stable with the step size 0.01",
    },
)
"""By number."""

verdict = CLAIMS.verdict
