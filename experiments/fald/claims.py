"""The testable claims of FA-LD (arXiv 2112.05120): what, where in the paper, and the pass mark.

Some follow from the derivations of its specification.
"""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Claims, Criterion, Ruling, Verdict

FAR, LEAST_CHAINS = 5.0, 100
"""Standard errors that the largest of many deviations of chains from their exact laws may have, and
the least number of chains for a verdict on chains."""
DOUBT = 0.025
"""The one-sided p-value of a paired t test at which a 95 % t interval excludes zero."""

CLAIMS = Claims(
    "fald",
    {
        1: (
            "With one local step and everyone averaged, the law is that of SGLD, for any rho.",
            "Sec. 2.2",
            Criterion(
                "Exact moments differ by less than {exact:g}, and chains are within {far:g} "
                "standard errors of them.",
                exact=1e-10,
                far=FAR,
            ),
        ),
        2: (
            "The average of the injected noise has covariance 2 eta tau I for any rho and "
            "weights, a client's 2 eta T_c.",
            "eq. (17)",
            Criterion(
                "All variances are within {far:g} standard errors of the stated ones.",
                far=FAR,
            ),
        ),
        3: (
            "The lemmas and theorems hold as inequalities, at all steps.",
            "Lemmas B.1 to F.1",
            Criterion(
                "No bounded quantity exceeds its bound by more than {slack:g} of it, as Lemma "
                "F.1 can be met with equality.",
                slack=1e-9,
            ),
        ),
        4: (
            "At a constant step size W2 falls at least by 1 - eta m / 4 a step, to a floor that"
            " goes to 0 with eta.",
            "Theorem 5.7",
            Criterion(
                "The distance to the law at rest never exceeds what (1 - eta m / 4)^k allows by"
                " more than {slack:g} of it, and floors fall by more than a factor of "
                "{factor:g} for every fourth of the step size.",
                slack=1e-9,
                factor=3,
            ),
        ),
        5: (
            "At decreasing step sizes W2 goes to 0 at least as fast as k^-1/2.",
            "Theorem 5.8",
            Criterion(
                "The fitted power of k is at most {power:g} on both problems.",
                power=-0.5,
            ),
        ),
        6: (
            "More heterogeneous clients raise the floor if there is more than one local step.",
            "Theorem 5.7",
            Criterion(
                "With more than one local step exact floors rise with alpha for unequal Hessians, "
                "and by at least {flat:g} of themselves for one Hessian; with one step they change "
                "by less. Chains are within {far:g} standard errors of the exact laws, all "
                "covariances included.",
                flat=1e-3,
                far=FAR,
            ),
        ),
        7: (
            "The number of rounds to an accuracy first falls and then rises with the number of "
            "local steps.",
            "Sec. 5.2",
            Criterion(
                "In every protocol (fixed step size, best step size for each K, best with noisy "
                "gradients, the bound) the first and the last K need more rounds than the best "
                "one.",
            ),
        ),
        8: (
            "More shared noise does no harm, and reduces the error if there is more than one "
            "local step.",
            "Theorem 5.9",
            Criterion(
                "With more than one local step exact floors rise nowhere by {flat:g} of "
                "themselves as rho grows, and fall for unequal Hessians and, by at least {flat:g}, "
                "for one Hessian; chains are within {far:g} standard errors of the exact laws, all "
                "covariances included. For the logistic posterior the largest biases of means and "
                "of standard deviations differ between rho = 0 and 1 by more than {apart:g} "
                "standard errors: those with rho = 1 are the smaller ones at every number of local "
                "steps (no harm), and at one at least (less error).",
                apart=2,
                flat=1e-3,
                far=FAR,
            ),
        ),
        9: (
            "Partial participation leaves a bias that does not vanish with eta.",
            "Theorem 5.10",
            Criterion(
                "W2 at the smallest step size is above {share:g} of W2 at the next one, which is "
                "above {least:g}. The bias vanishes if W2 is below {vanished:g} of W2 at the "
                "largest step size.",
                share=0.9,
                least=1e-3,
                vanished=0.02,
            ),
        ),
        10: (
            "That bias falls with S and rho, is no larger without replacement than with, and "
            "none at S = N without.",
            "Sec. 5.4",
            Criterion(
                "W2 falls in S and rho and is smaller without replacement; the schemes differ "
                "by less than {same:g} at S = 1, and without replacement S = N differs from "
                "full participation by less than that; chains are within {far:g} standard "
                "errors of the exact laws.",
                same=1e-7,
                far=FAR,
            ),
        ),
        11: (
            "With replacement the mean is unbiased for unequal weights; without it is not.",
            "Lemma C.1",
            Criterion(
                "Means with replacement are within {far:g} standard errors of the exact ones; "
                "without replacement the mean would move by more than {apart:g}, and the system"
                " refuses unequal weights.",
                far=FAR,
                apart=0.1,
            ),
        ),
        12: (
            "The best K is about 3000, with about 30 times fewer rounds than at K = 100, at step "
            "size 1e-7.",
            "Fig. 1a",
            Criterion(
                "By exact laws K = 100 needs {least:g} to {most:g} times the rounds of K = 3000, "
                "and both K = 1000 and K = 10000 need more than K = 3000, for every alpha; chains "
                "are within {far:g} standard errors of the exact laws, all covariances included, "
                "and more than {arrived:.0%} of the sets arrive.",
                least=20,
                most=40,
                far=FAR,
                arrived=0.5,
            ),
        ),
        13: (
            "Floors under partial participation hardly depend on eta, are larger for smaller S,"
            " and ordered.",
            "Fig. 2",
            Criterion(
                "Exact floors are ordered by S and scheme at every step size; partial ones "
                "change by less than a factor of {partial:g} over the step sizes, that of "
                "everyone by more than {everyone:g}; all are within {usual:.0%} of their means "
                "over draws of the data; chains are within {far:g} standard errors of the exact"
                " laws.",
                partial=1.6,
                everyone=5,
                usual=0.15,
                far=FAR,
            ),
        ),
        14: (
            "K = 1 is worst in accuracy and Brier score on MNIST and Fashion-MNIST, and in ECE "
            "in three of four panels.",
            "Figs. 3, 4",
            Criterion(
                "In each of the eleven panels named every other K beats K = 1 by a whole 95 % t "
                "interval, a one-sided p-value of at most {doubt:g}. A panel contradicts it if K "
                "= 1 beats another K at {doubt:g} over the number of comparisons.",
                doubt=DOUBT,
            ),
        ),
        15: (
            "The best K depends on the metric and on warm-up.",
            "Figs. 3, 4",
            Criterion(
                "Two metrics of one set of runs, and one metric with and without warm-up, have "
                "no K in common that no other beats, at a one-sided {doubt:g} for all comparisons "
                "together. A part is false if in every pair both panels leave one and the same K "
                "unbeaten.",
                doubt=DOUBT,
            ),
        ),
        16: (
            "Epsilon and delta are monotone; epsilon is finite if and only if rho < 1; accuracy"
            " and privacy trade off by rho.",
            "Theorem 6.1",
            Criterion(
                "Epsilon and delta rise in all ways tried; printed values are met to "
                "{printed:g}; epsilon of a batch at the largest step size is 2 q to {exact:g}; "
                "rho = 1 is refused and epsilon grows by more than {near:g} times as rho nears "
                "1; W2 falls with rho.",
                printed=1e-5,
                exact=1e-9,
                near=50,
            ),
        ),
        17: (
            "With one Hessian and everyone averaged the law depends on none of K, rho and the "
            "clients' centers.",
            "Sec. 5.1",
            Criterion(
                "Laws differ by less than {same:g} of their scale.",
                same=1e-9,
            ),
        ),
        18: (
            "The stationary covariance under partial participation follows phi, in both "
            "schemes, also at unequal weights.",
            "Sec. 5.4",
            Criterion(
                "Closed form and recursion differ by less than {exact:g}, printed variances are"
                " met to {printed:g}, and chains are within {far:g} standard errors of the "
                "exact laws.",
                exact=1e-10,
                printed=6e-7,
                far=FAR,
            ),
        ),
        19: (
            "With many local steps the mean is that of the local modes: 0.002969 for two "
            "clients at K = 100.",
            "Sec. 5.2",
            Criterion(
                "The stationary mean is {mean:.6f} to {digits:g}, and chains are within {far:g}"
                " standard errors of the exact laws.",
                mean=0.002969,
                digits=6e-7,
                far=FAR,
            ),
        ),
        20: (
            "A client that is left alone samples exp(-f^c / T_c): at rho = 0 its local posterior.",
            "eq. (17)",
            Criterion(
                "Means and variances are within {far:g} standard errors of those of exp(-f^c / "
                "T_c), allowing for the step size.",
                far=FAR,
            ),
        ),
    },
    exact=(3, 4, 5, 7, 9, 16, 17),
)
"""By number."""

verdict = CLAIMS.verdict

Found = Mapping[str, Any]
"""The numbers by which a claim is judged, as its verdict stores them."""


def of_chains(
    number: int, found: Found, ruling: Ruling | bool, why: str, name: str = "chains"
) -> Verdict:
    """Give the verdict on a claim about chains; it is undecided if they are too few.

    Args:
      number: The claim's number.
      found: The numbers by which it is judged.
      ruling: The ruling if there are enough chains.
      why: The numbers behind it in a sentence.
      name: Where `found` has the number of chains.
    """
    judged, num = verdict(number, found, ruling, why), found[name]
    few = f"not judged: {num} chains are too few; "
    return judged if num >= LEAST_CHAINS else judged.undecided(few)
