"""The claims of hierarchical FL (arXiv 2302.04851), and of its specification's derivations, that can be tested; numbered."""

from experiments.harness import Claims

CLAIMS = Claims(
    "hierarchical",
    {
        1: (
            "Expected iterations, round times and rounds are those of the closed forms, for every printed delay setting.",
            "Sec. II, V",
        ),
        2: (
            "Every group does from 1 to max(1, S / c rounded up) iterations in every round.",
            "eq. (22)",
        ),
        3: (
            "On the same delays iterations grow with S, and the number of rounds falls, path by path.",
            "eqs. (7), (13)",
        ),
        4: ("S = 0 is centralised SGD over all clients, whatever the groups.", "Sec. V"),
        5: ("Lemma 1 holds; opposing gradients attain alpha G (t + 1 - 2 w).", "eq. (18)"),
        6: (
            "Theorem 2, with G^2 in its fourth term, holds on logistic regression, and so does the bound without its detour.",
            "eq. (20)",
        ),
        7: (
            "Theorem 1 holds, and exceeds G^2 in every run of two rounds or more whose loss has not increased.",
            "eq. (19)",
        ),
        8: (
            "sqrt(U) times the average squared gradient stays bounded as T grows by factors of 4.",
            "Corollary 1",
        ),
        9: (
            "Division by t keeps the fixed point at the optimum as alpha goes to 0; plain averaging does not.",
            "eq. (10)",
        ),
        10: (
            "On quadratics contraction and noise floor of a round are those of the closed forms.",
            "eq. (12)",
        ),
        11: ("Group accuracies fluctuate more early than late.", "Fig. 3"),
        12: (
            "A small group with skewed data gains from the hierarchy while the large group loses little.",
            "Fig. 4",
        ),
        13: (
            "Isolated groups end below the cooperative model, with disjoint labels and with Dirichlet(0.1).",
            "Fig. 5",
        ),
        14: (
            "With slow exchanges S = 5 matches S = 0 at equal time, with about 17 % fewer global rounds.",
            "Fig. 6",
        ),
        15: ("S = 5 beats S = 0 and S = 20 at the end, for c_g = 10 and 30.", "Fig. 7"),
        16: (
            "For c_g = 30 the curves of S = 0 and S = 20 cross once, near 750, S = 0 leading before.",
            "Fig. 7b",
        ),
        17: ("S = 20 needs about 37 % fewer global rounds than S = 0.", "Fig. 7"),
        18: (
            "Four groups: S = 0 leads until about 300; S = 12 is best finally, ahead of S = 24.",
            "Fig. 8",
        ),
        19: ("64 clients, S = 6: 4 groups beat 2 and 8.", "Fig. 9"),
        20: (
            "With shifts that do not depend on size more clients on the slow server beat an equal split.",
            "Fig. 10",
        ),
        21: ("An equal split beats an unequal one under the linear delay model.", "Fig. 11"),
        22: ("Final accuracy at fixed T falls with c_g.", "Fig. 12"),
        23: ("A growing S beats a fixed one, by more for a larger final S.", "Fig. 13"),
        24: (
            "Full batches, one convex quadratic: S = 0 has at every time a loss no larger than any S > 0.",
            "eq. (12)",
        ),
        25: (
            "There S > 0 leads only with gradient noise, from a time that grows without bound as the noise or alpha falls.",
            "eq. (12)",
        ),
        26: (
            'Under "average" S > 0 leads early without noise, and there is no lower noise floor.',
            "eq. (12)",
        ),
        27: (
            "Fig. 8 with the printed numbers gives identical curves for S = 0, 12 and 24.",
            "Fig. 8",
        ),
        28: ("Figs. 10a and 10b coincide after swapping the groups' names.", "Fig. 10"),
    },
)

verdict = CLAIMS.verdict
