"""The claims of FA-LD (arXiv 2112.05120), and of its specification's derivations, that can be tested; numbered."""

from experiments.harness import Claims

CLAIMS = Claims(
    "fald",
    {
        1: (
            "With one local step and everyone averaged, the law is that of SGLD, for any rho.",
            "Sec. 2.2",
        ),
        2: (
            "The average of the injected noise has covariance 2 eta tau I for any rho and weights, a client's 2 eta T_c.",
            "eq. (17)",
        ),
        3: ("The lemmas and theorems hold as inequalities, at all steps.", "Lemmas B.1 to F.1"),
        4: (
            "At a constant step size W2 falls at least by 1 - eta m / 4 a step, to a floor that goes to 0 with eta.",
            "Theorem 5.7",
        ),
        5: ("At decreasing step sizes W2 goes to 0 at least as fast as k^-1/2.", "Theorem 5.8"),
        6: (
            "More heterogeneous clients raise the floor if there is more than one local step.",
            "Theorem 5.7",
        ),
        7: (
            "The number of rounds to an accuracy first falls and then rises with the number of local steps.",
            "Sec. 5.2",
        ),
        8: (
            "More shared noise does no harm, and reduces the error if there is more than one local step.",
            "Theorem 5.9",
        ),
        9: ("Partial participation leaves a bias that does not vanish with eta.", "Theorem 5.10"),
        10: (
            "That bias falls with S and rho, is no larger without replacement than with, and none at S = N without.",
            "Sec. 5.4",
        ),
        11: (
            "With replacement the mean is unbiased for unequal weights; without it is not.",
            "Lemma C.1",
        ),
        12: (
            "About 30 times fewer rounds at K = 3000 than at K = 100, at step size 1e-7.",
            "Fig. 1a",
        ),
        13: (
            "Floors under partial participation hardly depend on eta, are larger for smaller S, and ordered.",
            "Fig. 2",
        ),
        14: (
            "K = 1 is worst in accuracy and Brier score on MNIST and Fashion-MNIST, and in ECE in three of four panels.",
            "Figs. 3, 4",
        ),
        15: ("The best K depends on the metric and on warm-up.", "Figs. 3, 4"),
        16: (
            "Epsilon and delta are monotone; epsilon is finite if and only if rho < 1; accuracy and privacy trade off by rho.",
            "Theorem 6.1",
        ),
        17: (
            "With one Hessian and everyone averaged the law depends on none of K, rho and the clients' centers.",
            "Sec. 5.1",
        ),
        18: (
            "The stationary covariance under partial participation follows phi, in both schemes, also at unequal weights.",
            "Sec. 5.4",
        ),
        19: (
            "With many local steps the mean is that of the local modes: 0.002969 for two clients at K = 100.",
            "Sec. 5.2",
        ),
        20: (
            "A client that is left alone samples exp(-f^c / T_c): at rho = 0 its own posterior.",
            "eq. (17)",
        ),
    },
)

verdict = CLAIMS.verdict
