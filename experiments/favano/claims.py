"""The testable claims of FAVANO (arXiv 2305.16099): what, where in the paper, and the pass mark."""

from experiments.harness import FAR, Claims, Criterion

CLAIMS = Claims(
    "favano",
    {
        1: (
            "The mean of all models moves by -eta/(n+1) times the sum of the reweighted "
            "progress, whatever data and alpha.",
            "eq. (53)",
            Criterion(
                "The relative error is below {error:g} in float64.",
                error=1e-11,
            ),
        ),
        2: (
            "Both reweightings have the mean gradient as their mean, with the stated variances,"
            " for i.i.d. steps.",
            "Sec. 3, App. B",
            Criterion(
                "All means and variances are within {far:g} standard errors of the stated ones.",
                far=FAR,
            ),
        ),
        3: (
            "The noise-free expected potential equals its exact formula, and contracts by kappa"
            " and kappa'.",
            "Lemma, eq. (6)",
            Criterion(
                "The formula is off by less than {error:g} of the potential, and no expected "
                "potential exceeds its bounds.",
                error=1e-11,
            ),
        ),
        4: (
            "Steps between contacts: E[X] = 12.4929 and 2.1870, P(E > 0) = .998428 and .740627.",
            "App. C.2",
            Criterion(
                "Means are within {far:g} standard errors of the closed forms, which agree with"
                " the paper's digits to {digits:g}.",
                far=FAR,
                digits=5.1e-5,
            ),
        ),
        5: (
            "Contact gaps are geometric(s/n); every client is contacted T s/n times in "
            "expectation, fast or slow.",
            "App. C.2",
            Criterion(
                "Tails and means of the gaps and the contacts per client are within {far:g} "
                "standard errors of the expected ones.",
                far=FAR,
            ),
        ),
        6: (
            "On the linear two-group instance the long-run mean is 0.3166, 0.2310 and, without "
            "reweighting, -0.5441.",
            "Sec. 3",
            Criterion(
                "All means are within {far:g} standard errors of the closed forms, which agree "
                "with the paper's digits to {digits:g}.",
                far=FAR,
                digits=5e-5,
            ),
        ),
        7: (
            "Theorem 1's full bound holds on quadratics whenever its conditions do.",
            "Theorem 1, eqs. (225)-(227)",
            Criterion(
                "In every run the mean plus {far:g} standard errors is at most the bound.",
                far=FAR,
            ),
        ),
        8: (
            "A server step takes 7 units for FAVANO and QuAFL; FedAvg's and FedBuff's depend on"
            " the slow share.",
            "App. C.2",
            Criterion(
                "Every step of FAVANO and QuAFL takes {period} units; FedAvg's means are within"
                " {far:g} standard errors of the closed form; the means of FedAvg and FedBuff "
                "at 34 and 89 slow clients differ by more than {far:g} standard errors; "
                "FedBuff's numbers of steps are within {share:.0%} of the stated ones.",
                far=FAR,
                period=7,
                share=0.02,
            ),
        ),
        9: (
            "Non-IID MNIST: FAVANO > FedBuff > QuAFL, FedAvg; the lead grows as fast clients "
            "get rarer.",
            "Table 2, Figs. 1, 2, 5",
            Criterion(
                "FAVANO is above FedBuff and FedBuff above QuAFL and FedAvg in both non-IID "
                "columns, and FAVANO's lead over FedBuff is larger with 1/9 fast clients than "
                "with 2/3; each by a whole 95 % t interval. Nothing is judged in readings of "
                "FedBuff, or columns, in which a compared method is below twice chance.",
            ),
        ),
        10: (
            "FAVANO loses little when the fast share drops from 2/3 to 1/9 (88.9 to 87.3), "
            "FedBuff much (85.1 to 67.3).",
            "Table 2",
            Criterion(
                "From 2/3 to 1/9 fast clients FAVANO loses less than {favano:g} points and "
                "FedBuff more than {fedbuff:g}, each by a whole 95 % t interval. Nothing is judged "
                "of FAVANO, or of a reading of FedBuff, that is below twice chance in one of the "
                "columns.",
                favano=5,
                fedbuff=10,
            ),
        ),
        11: (
            "IID MNIST: FedBuff and FAVANO within about a point, both above FedAvg and QuAFL, "
            "all above 92.",
            "Table 2",
            Criterion(
                "FedBuff and FAVANO are within {apart:g} point of each other, both above FedAvg "
                "and QuAFL, and all four above {least:g} %, each by a whole 95 % t interval. "
                "Nothing is judged of comparisons with a method that is below twice chance.",
                apart=1,
                least=92,
            ),
        ),
        12: (
            "QuAFL on non-IID data is far below FAVANO; adopting the server's model closes part"
            " of the gap, and alpha changes the speed bias.",
            "Sec. 1, 5",
            Criterion(
                "In both non-IID columns FAVANO is more than {lead:g} points above QuAFL, and "
                "alpha = 1 is above QuAFL and below FAVANO, each by a whole 95 % t interval. The "
                "long-run mean of models is on the fast clients' side with alpha = 1, and on the "
                "slow ones' with either alpha, by more than {far:g} standard errors.",
                lead=10,
                far=FAR,
            ),
        ),
        13: (
            "CIFAR-10 non-IID: FAVANO and FedBuff above FedAvg and QuAFL in time; FedBuff's "
            "accuracy varies more.",
            "Fig. 3a",
            Criterion(
                "FAVANO (stochastic) and FedBuff (lr) end above FedAvg and QuAFL, and FedBuff's "
                "accuracy changes more between evaluations than FAVANO's, each by a whole 95 % t "
                "interval. Nothing is judged of a comparison with a method below twice chance.",
            ),
        ),
        14: (
            "TinyImageNet IID: FAVANO above FedAvg, QuAFL and FedBuff in time.",
            "Fig. 3b",
            Criterion(
                "FAVANO (stochastic) ends above FedAvg, QuAFL and FedBuff (lr), each by a whole "
                "95 % t interval. Nothing is judged of a comparison with a method below twice "
                "chance.",
            ),
        ),
        15: (
            "A larger s improves FAVANO at equal time; 3-bit and 4-bit training loses little.",
            "Fig. 7",
            Criterion(
                "Final accuracy grows from each s to the next in both precisions, and training in "
                "few bits loses less than {lost:g} points at every s, each by a whole 95 % t "
                "interval. Nothing is judged at an s at which a compared run is below twice "
                "chance. The paper only shows curves.",
                lost=5.0,
            ),
        ),
        16: (
            "LUQ is elementwise unbiased; the gradient floor of a quantized run scales like "
            "2^(-2 bits).",
            "Sec. 4",
            Criterion(
                "LUQ's means are within {far:g} standard errors of the values, and from bit to "
                "bit the floor falls by a factor within {share:.0%} of {factor:g}.",
                far=FAR,
                share=0.3,
                factor=4,
            ),
        ),
        17: (
            "FAVANO's lower-order terms are linear in n, with no maximum delay; FedBuff's grows"
            " with fast clients.",
            "Table 1",
            Criterion(
                "The powers of n are 0, 1, 1 for FAVANO and 0, 1.5, 1.5 for QuAFL; FedBuff's "
                "largest staleness with 66 fast clients exceeds that with 11 by more than "
                "{far:g} standard errors; FAVANO's is the same at all shares of slow clients.",
                far=FAR,
            ),
        ),
        18: (
            "Of two workers (1 and 1000 units a gradient) the slow one is 1000 steps late; "
            "FAVANO's gaps stay geometric.",
            "Sec. 4",
            Criterion(
                "Every update of the slow worker is exactly {units} steps late at exact times, "
                "their mean is within {far:g} standard errors of that at geometric times, and "
                "FAVANO's gaps are within {far:g} standard errors of the geometric law.",
                far=FAR,
                units=1000,
            ),
        ),
        19: (
            "FedBuff's updates come from fast clients by 94 % (66 of 100 fast) and 45 to 50 % "
            "(11 fast).",
            "Sec. 5",
            Criterion(
                "Once settled, fast clients send within {point:.0%} of {third:.0%} of the "
                "updates with 66 of them and between {least:.0%} and {most:.0%} with 11, in both "
                "readings by whole 95 % t intervals, and in every case more than their share of "
                "the population by {far:g} standard errors.",
                point=0.01,
                third=0.94,
                least=0.44,
                most=0.51,
                far=FAR,
            ),
        ),
    },
    exact=(3,),
    algebra=(1,),
    pictures={
        "contraction": (3,),
        "contacts": (4, 5),
        "long_run_mean": (6, 12),
        "theorem_1": (7,),
        "step_time": (8,),
        "staleness": (17,),
    },
    stated={
        8: "7 units for FAVANO and QuAFL",
        9: "2/3 fast: FAVANO 88.9, FedBuff 85.1, QuAFL 40.7, FedAvg 38.7; "
        "1/9 fast: 87.3, 67.3, 45.5, 44.8 %",
        10: "FAVANO loses 1.6 points, FedBuff 17.8",
        11: "FedBuff 96.0, FAVANO 95.1, FedAvg 93.4, QuAFL 92.3 %",
        12: "QuAFL 40.7 and 45.5, FAVANO 88.9 and 87.3 %; alpha = 1 is not in the paper",
        13: "curves only: FAVANO and FedBuff highest, FedBuff ragged",
        14: "curves only: FAVANO highest",
        15: "curves only: higher with larger s, QNN close to 32 bits",
        16: "2^(-2 bits)",
        17: "FAVANO: n^0, n^1, n^1; FedBuff has the largest delay as a factor",
        18: "1000 steps",
    },
)
"""By number."""

SMOKE = "not judged: a smoke run on digits is too small"
JUDGED_BY_TABLE2 = "one column only; favano/table2 judges both"

verdict = CLAIMS.verdict
