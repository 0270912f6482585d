"""The claims of FAVANO (arXiv 2305.16099) that can be tested, numbered, with where the paper makes them."""

from experiments.harness import Claims

CLAIMS = Claims(
    "favano",
    {
        1: (
            "The mean of all models moves by -eta/(n+1) times the sum of the reweighted progress, whatever data and alpha.",
            "eq. (53)",
        ),
        2: (
            "Both reweightings have the mean gradient as their mean, with the stated variances, for i.i.d. steps.",
            "Sec. 3, App. B",
        ),
        3: (
            "The noise-free expected potential equals its exact formula, and contracts by kappa and kappa'.",
            "Lemma, eq. (6)",
        ),
        4: (
            "Steps between contacts: E[X] = 12.4929 and 2.1870, P(E > 0) = .998428 and .740627.",
            "App. C.2",
        ),
        5: (
            "Contact gaps are geometric(s/n); every client is contacted T s/n times in expectation, fast or slow.",
            "App. C.2",
        ),
        6: (
            "On the linear two-group instance the long-run mean is 0.3166, 0.2310 and, without reweighting, -0.5441.",
            "Sec. 3",
        ),
        7: (
            "Theorem 1's full bound holds on quadratics whenever its conditions do.",
            "Theorem 1, eqs. (225)-(227)",
        ),
        8: (
            "A server step takes 7 units for FAVANO and QuAFL; FedAvg's and FedBuff's depend on the slow share.",
            "App. C.2",
        ),
        9: (
            "Non-IID MNIST: FAVANO > FedBuff > QuAFL, FedAvg; the lead grows as fast clients get rarer.",
            "Table 2, Figs. 1, 2, 5",
        ),
        10: (
            "FAVANO loses little when the fast share drops from 2/3 to 1/9 (88.9 to 87.3), FedBuff much (85.1 to 67.3).",
            "Table 2",
        ),
        11: (
            "IID MNIST: FedBuff and FAVANO within about a point, both above FedAvg and QuAFL, all above 92.",
            "Table 2",
        ),
        12: (
            "QuAFL on non-IID data is far below FAVANO; adopting the server's model closes part of the gap.",
            "Sec. 1, 5",
        ),
        13: (
            "CIFAR-10 non-IID: FAVANO and FedBuff above FedAvg and QuAFL in time; FedBuff's accuracy varies more.",
            "Fig. 3a",
        ),
        14: ("TinyImageNet IID: FAVANO above FedAvg, QuAFL and FedBuff in time.", "Fig. 3b"),
        15: (
            "A larger s improves FAVANO at equal time; 3-bit and 4-bit training loses little.",
            "Fig. 7",
        ),
        16: (
            "LUQ is elementwise unbiased; the gradient floor of a quantized run scales like 2^(-2 bits).",
            "Sec. 4",
        ),
        17: (
            "FAVANO's lower-order terms are linear in n, with no maximum delay; FedBuff's grows with fast clients.",
            "Table 1",
        ),
        18: (
            "Of two workers (1 and 1000 units a gradient) the slow one is 1000 steps late; FAVANO's gaps stay geometric.",
            "Sec. 4",
        ),
        19: (
            "FedBuff's updates come from fast clients by 94 % (66 of 100 fast) and 45 to 50 % (11 fast).",
            "Sec. 5",
        ),
    },
)


SMOKE = "not judged: a smoke run on digits is too small"
JUDGED_BY_TABLE2 = "one column only; favano/table2 judges both"


verdict = CLAIMS.verdict
