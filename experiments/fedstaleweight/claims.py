"""The claims of FedStaleWeight (arXiv 2406.02877), and of its specification's derivations, that can be tested; numbered."""

from experiments.harness import Claims

CLAIMS = Claims(
    "fedstaleweight",
    {
        1: ("A client's mean staleness is (sum_j r_j / r_i - 1) / b.", "eq. (6)"),
        2: (
            "1 / (b E[tau_i] + 1) estimates a client's share of arrivals without knowledge of rates.",
            "eq. (7)",
        ),
        3: (
            "Under buffer averaging influence is the share of arrivals: 0.0698 of the slow group, not 1/3.",
            "Sec. 4",
        ),
        4: (
            "FedStaleWeight raises the slow group's influence to 0.20; the deviation from equality falls from 0.527 to 0.262.",
            "eq. (8)",
        ),
        5: (
            "Equal influence is not reached at b = 5; it grows with b towards 1/3 (the window overshoots), and b = 1 changes nothing.",
            "eq. (3)",
        ),
        6: (
            "Weights of eq. (8) divided by b instead of normalised reach equal influence.",
            "eqs. (3), (8)",
        ),
        7: (
            "The kind of average changes the slow group's influence by less than 0.005 at b = 5.",
            "Algorithm 1",
        ),
        8: (
            "Fashion-MNIST: FedStaleWeight's final accuracy exceeds that of buffered averaging.",
            "Fig. 2",
        ),
        9: (
            "CIFAR-10: FedStaleWeight's final accuracy exceeds that of buffered averaging.",
            "Fig. 2",
        ),
        10: (
            "FedStaleWeight reaches the baseline's final accuracy in fewer aggregations on both data sets.",
            "Fig. 2",
        ),
        11: ("The gain comes from labels 0-3; labels 4-9 lose less than that.", "Sec. 6"),
        12: (
            "A throttling client loses influence under FedStaleWeight, and gains under reverse exponential weights at half speed.",
            "Sec. 4",
        ),
        13: (
            "Of a given buffer utility peaks at sqrt(A / C): a fast client with 2 slow ones of 4 others would gain by throttling.",
            "eq. (9)",
        ),
        14: ("With equal rates utility grows up to the true rate if and only if b < n.", "eq. (9)"),
        15: (
            "Staleness with a buffer is that without one divided by b, rounded up at most, update by update.",
            "Assumption 5",
        ),
        16: (
            "Normalised weights stay within their two bounds; U is ((b - 1) tau / (b (tau + 1)))^2.",
            "eq. (11)",
        ),
        17: (
            "The convergence bound says nothing for b >= 2, and is violated for b = 1 with small steps.",
            "Theorem 1",
        ),
        18: (
            "On quadratics the stationary point is the influence-weighted mean: 0.070, 0.203 and, unnormalised, 1/3.",
            "Sec. 4",
        ),
        19: (
            "Weighting stale updates more does not destabilise training at local step size 0.01.",
            "Sec. 6",
        ),
        20: (
            "Eq. (8) and Algorithm 1's formula differ: influence 0.202 and 0.183.",
            "Algorithm 1, eq. (8)",
        ),
    },
)

verdict = CLAIMS.verdict
