"""The testable claims of hierarchical FL (arXiv 2302.04851): what, where, and the pass mark.

Some follow from the derivations of its specification. Intervals are of differences paired by seed.
The paper shows curves and states few numbers.
"""

from experiments.harness import Claims, Criterion

FAR = 5.0
"""Standard errors beyond which a difference between drawn schedules and closed forms is real."""
EQUAL = 1.0
"""Points of accuracy within which two count as equal."""

CLAIMS = Claims(
    "hierarchical",
    {
        1: (
            "Expected iterations, round times and rounds are those of the closed forms, for "
            "every printed delay setting.",
            "Sec. II, V",
            Criterion(
                "Iterations, round times and rounds relative to S = 0 are within {far:g} "
                "standard errors of the closed forms, and the number of rounds within "
                "{rounds:g} more than that.",
                far=FAR,
                rounds=0.1,
            ),
        ),
        2: (
            "Every group does from 1 to max(1, S / c rounded up) iterations in every round.",
            "eq. (22)",
            Criterion(
                "Every group stays within its bounds in every round of every run.",
            ),
        ),
        3: (
            "On the same delays iterations grow with S, and the number of rounds falls, path by"
            " path.",
            "eqs. (7), (13)",
            Criterion(
                "In every round of every run iterations do not fall and times do not fall as S "
                "grows.",
            ),
        ),
        4: (
            "S = 0 is centralised SGD over all clients, whatever the groups.",
            "Sec. V",
            Criterion(
                "Losses differ from FedAvg's by less than {same:g} of themselves.",
                same=1e-5,
            ),
        ),
        5: (
            "Lemma 1 holds; opposing gradients attain alpha G (t + 1 - 2 w).",
            "eq. (18)",
            Criterion(
                "All deviations are within the sharp bound, which is within (18), and opposing "
                "gradients attain their value to {exact:g} of it.",
                exact=1e-6,
            ),
        ),
        6: (
            "Theorem 2, with G^2 in its fourth term, holds on logistic regression, and so does "
            "the bound without its detour.",
            "eq. (20)",
            Criterion(
                "The left side is at most the bound without the detour, and that at most (20).",
            ),
        ),
        7: (
            "Theorem 1 holds, and exceeds G^2 in every run of two rounds or more whose loss has"
            " not increased.",
            "eq. (19)",
            Criterion(
                "The left side is at most the bound for both groups; the bound exceeds G^2 over"
                " many rounds and not in one.",
            ),
        ),
        8: (
            "sqrt(U) times the average squared gradient stays bounded as T grows by factors of 4.",
            "Corollary 1",
            Criterion(
                "The scaled left side is within its bound at every U, and grows by less from step "
                "to step, in the last step by a factor of less than {factor:g}.",
                factor=1.1,
            ),
        ),
        9: (
            "Division by t keeps the fixed point at the optimum as alpha goes to 0; plain "
            "averaging does not.",
            "eq. (10)",
            Criterion(
                "Ends are within {close:g} of the closed form; with division by t the end at "
                "the smallest alpha is below that at the largest over {divisor:g}, with plain "
                "averaging it stays above {stays:g}.",
                close=1e-4,
                divisor=10,
                stays=0.8,
            ),
        ),
        10: (
            "On quadratics contraction and noise floor of a round are those of the closed forms.",
            "eq. (12)",
            Criterion(
                "Contraction is that of the closed form to {close:g}, and floors are within "
                "{far:g} standard errors.",
                close=1e-4,
                far=4.0,
            ),
        ),
        11: (
            "Group accuracies fluctuate more early than late.",
            "Fig. 3",
            Criterion(
                "More points are lost between looks in the first fifth of the time than in the "
                "last, by a whole 95 % t interval.",
            ),
        ),
        12: (
            "A small group with skewed data gains from the hierarchy while the large group "
            "loses little.",
            "Fig. 4",
            Criterion(
                "The small group gains, and the large one loses less than {little:g} points, each "
                "by a whole 95 % t interval.",
                little=2.0,
            ),
        ),
        13: (
            "Isolated groups end below the cooperative model, with disjoint labels and with "
            "Dirichlet(0.1).",
            "Fig. 5",
            Criterion(
                "The cooperative model is ahead of every isolated group by a whole 95 % t "
                "interval.",
            ),
        ),
        14: (
            "With slow exchanges S = 5 matches S = 0 at equal time, with about 17 % fewer "
            "global rounds.",
            "Fig. 6",
            Criterion(
                "S = 5 and S = 0 are equal at T to {equal:g} point by a whole 95 % t interval; S = "
                "5 takes {least:g} to {most:g} % fewer rounds.",
                equal=EQUAL,
                least=12,
                most=21,
            ),
        ),
        15: (
            "S = 5 beats S = 0 and S = 20 at the end, for c_g = 10 and 30.",
            "Fig. 7",
            Criterion(
                "S = 5 is ahead of S = 0 and of S = 20 at T by a whole 95 % t interval, for both "
                "c_g. Nothing is judged at a T below {least:g}.",
                least=1000,
            ),
        ),
        16: (
            "For c_g = 30 the curves of S = 0 and S = 20 cross once, near 750, S = 0 leading "
            "before.",
            "Fig. 7b",
            Criterion(
                "The curves change places once, between {first:g} and {last:g}, and S = 0 is ahead "
                "before, both by whole 95 % t intervals; open if neither is ahead at T.",
                first=600,
                last=900,
            ),
        ),
        17: (
            "S = 20 needs about 37 % fewer global rounds than S = 0.",
            "Fig. 7",
            Criterion(
                "S = 20 takes {least:g} to {most:g} % fewer rounds with c_g = 10 and with c_g = "
                "30, by schedules alone and in runs.",
                least=33,
                most=41,
            ),
        ),
        18: (
            "Four groups: S = 0 leads until about 300; S = 12 is best finally, ahead of S = 24.",
            "Fig. 8",
            Criterion(
                "S = 0 is ahead of S = 12 and 24 at 100, 200 and 300, or until the other first "
                "passes it between {first:g} and {last:g}; S = 12 is ahead of both at T; each by "
                "a whole 95 % t interval.",
                first=250,
                last=350,
            ),
        ),
        19: (
            "64 clients, S = 6: 4 groups beat 2 and 8.",
            "Fig. 9",
            Criterion(
                "Four groups are ahead of two and of eight at T by a whole 95 % t interval.",
            ),
        ),
        20: (
            "With shifts that do not depend on size more clients on the slow server beat an "
            "equal split.",
            "Fig. 10",
            Criterion(
                "Twenty clients on the slow server are ahead of fifteen at T by a whole 95 % t "
                "interval, in both panels.",
            ),
        ),
        21: (
            "An equal split beats an unequal one under the linear delay model.",
            "Fig. 11",
            Criterion(
                "The equal split is ahead at T by a whole 95 % t interval.",
            ),
        ),
        22: (
            "Final accuracy at fixed T falls with c_g.",
            "Fig. 12",
            Criterion(
                "Accuracy at T falls from each c_g to the next by a whole 95 % t interval.",
            ),
        ),
        23: (
            "A growing S beats a fixed one, by more for a larger final S.",
            "Fig. 13",
            Criterion(
                "A growing S is ahead at T by a whole 95 % t interval for every final S, and leads "
                "grow with it by more than their intervals together.",
            ),
        ),
        24: (
            "Full batches, one convex quadratic: S = 0 has at every time a loss no larger than "
            "any S > 0.",
            "eq. (12)",
            Criterion(
                "No S > 0 is ever below S = 0 by more than {slack:g} of its loss.",
                slack=1e-5,
            ),
        ),
        25: (
            "There S > 0 leads only with gradient noise, from a time that grows without bound "
            "as the noise or alpha falls.",
            "eq. (12)",
            Criterion(
                "With noise S = 5 leads S = 0 from a time that does not fall as alpha falls, "
                "and is later with less noise, in runs and in theory; without noise it never "
                "leads by more than {slack:g}.",
                slack=1e-5,
            ),
        ),
        26: (
            'Under "average" S > 0 leads early without noise, and there is no lower noise floor.',
            "eq. (12)",
            Criterion(
                "Without noise S = 20 leads S = 5 and S = 5 leads S = 0 at time 200; late loss "
                'with noise for S = 5 over that for S = 0 is above {average:g} under "average" '
                "and below {divided:g} with division.",
                average=0.85,
                divided=0.5,
            ),
        ),
        27: (
            "Fig. 8 with the printed numbers gives identical curves for S = 0, 12 and 24.",
            "Fig. 8",
            Criterion(
                "Accuracies and times are equal to the bit.",
            ),
        ),
        28: (
            "Figs. 10a and 10b coincide after swapping the groups' names.",
            "Fig. 10",
            Criterion(
                "With deterministic iteration delays mirrored runs have the same models to "
                "{same:g} of their norm; with random delays they are equal at T to {equal:g} point "
                "by a whole 95 % t interval.",
                same=1e-12,
                equal=EQUAL,
            ),
        ),
    },
    exact=(4, 5, 9, 24),
    algebra=(2, 3, 27),
    pictures={
        "sample_path": (1, 2, 3),
        "corollary": (8,),
        "order_groups": (19,),
        "order_sizes": (20,),
        "best_sync_time": (25,),
    },
    stated={
        11: "curves only: ragged early, smooth late",
        12: "curves only: the small group gains much, the large one is near its accuracy alone",
        13: "curves only: cooperating above both isolated groups",
        14: "curves only: S = 5 meets S = 0",
        15: "curves only: S = 5 highest at the end in both panels",
        16: "curves cross near 750",
        17: "37 % fewer rounds",
        18: "curves only: S = 0 leads until about 300, S = 12 ends highest",
        19: "curves only: M = 4 highest",
        20: "curves only: unequal sizes above equal ones",
        21: "curves only: the equal split above the unequal one",
        22: "curves only: lower with larger c_g",
        23: "curves only: growing above fixed, most for S = 20",
    },
)
"""By number."""

verdict = CLAIMS.verdict
