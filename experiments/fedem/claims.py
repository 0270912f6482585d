"""The claims of FedEM (arXiv 2111.02083), and what follows from its theorems, that can be tested; numbered."""

from experiments.harness import Claims

CLAIMS = Claims(
    "fedem",
    {
        1: (
            "Roots of h are EM's fixed points: after convergence ||h|| < 1e-10 and theta = T(s(theta)).",
            "eqs. (5), (6)",
        ),
        2: (
            "EM is monotone in F in both spaces; FedEM without compression, p = 1, full batches and gamma = 1 is EM.",
            "Sec. 2",
        ),
        3: ("The gradient of W is -B h with B positive definite: fitted mixture, both toys.", "A4"),
        4: (
            "Block-p-quantization is unbiased with Lemma B's variance; for p = 2 omega is max(sqrt(q_l) - 1), attained.",
            "Lemma B",
        ),
        5: (
            "The server's memory is the mean of the clients' at every round, with partial participation too.",
            "Props. C.3.1, D.3",
        ),
        6: (
            "H is conditionally unbiased, with variance at most (omega_p mean ||Delta||^2 + sigma^2) / n.",
            "Prop. C.3.2",
        ),
        7: ("The bounds of Theorems 1 and 3 hold for every allowed gamma.", "Theorems 1, 3"),
        8: ("Without compression and with p = 1 the memories change nothing.", "Sec. 2"),
        9: (
            "With exact statistics FedEM converges under compression and partial participation; without memories, or with local ones under "
            "partial participation, a floor proportional to gamma and to mean ||h_i(s_*)||^2 remains.",
            "Sec. 2",
        ),
        10: (
            "The memories converge: G to 0 with full batches, its mean as 1 / (k_in k_out) for VR-FedEM.",
            "Prop. E.7",
        ),
        11: (
            "alpha <= 1 / (1 + omega) keeps the memories stable; clearly above 2 / (1 + omega) they diverge.",
            "Prop. C.3.4",
        ),
        12: (
            "VR-FedEM with the step (10) meets (11) and (12) and has no noise floor; FedEM with that step has one.",
            "Theorem 2",
        ),
        13: (
            "VR-FedEM's step does not depend on m; its E-steps grow like sqrt(m) at k_in = (1 + omega) sqrt(m / 2).",
            "Theorem 2",
        ),
        14: ("With n = 1 and omega = 0 VR-FedEM is SPIDER-EM, step by step.", "Sec. 3"),
        15: (
            "Partial participation raises FedEM's limiting variance about like 1 / p.",
            "Theorem 3",
        ),
        16: (
            "With low noise and n of at least 2 (1 + omega)^2 omega compression leaves the rounds nearly as they are; with high noise they "
            "grow like omega; so with little noise the bits sent up fall by about the compression factor.",
            "Sec. 2",
        ),
        17: ("With high noise the speed-up in n is linear.", "Theorem 1"),
        18: (
            "At equal epochs VR-FedEM's ||H||^2 and ||h||^2 coincide, orders of magnitude below FedEM's ||H||^2.",
            "Fig. 1",
        ),
        19: ("The same order for MNIST: weights and ||H||^2.", "Fig. 3"),
        20: (
            "FedMissEM decreases F, recovers the trend on rank-2 data, and ends at the centralised fixed point.",
            "App. F.2",
        ),
    },
)

SMOKE = "not judged: too small with --smoke"

verdict = CLAIMS.verdict
