"""What is known of choosing clients, as claims of our own, and the marks, set before the run.

Claims 1, 3, 5, 6, 8 and 10 put into our words and numbers what papers found in other settings. The
others are questions that we ask. "A is r times as fast as B" compares the virtual time to the
target, "needs fewer rounds" the number of server steps; both are ratios of geometric means.

Claims 1 to 11 are judged on images. Claims 12 to 22 are the same on plays: a client is a speaker.
"""

from experiments.harness import Claim, Claims, Criterion

OF_TARGET = 0.95
"""The target, as a share of the accuracy that random FedAvg reaches on held-out data."""
EARLIER = "{who} reaches the target in less virtual time than {base} by a whole 95 % t interval."


def _earlier(who: str, base: str) -> Criterion:
    return Criterion(EARLIER, who=who, base=base)


SINCE = "2026-11-27"
"""Date of the criteria."""
OF_IMAGES = Claims(
    "selection",
    {
        1: Claim(
            "ours",
            "ours, after Lai et al. 2021 (OSDI): 1.2 to 14.1 times as fast",
            "Oort reaches an accuracy earlier than a random choice of clients.",
            Criterion(
                "Oort is more than {ratio:g} times as fast as FedAvg by a whole 95 % t interval.",
                ratio=1.2,
            ),
        ),
        2: Claim(
            "ours",
            "ours",
            "What Oort gains comes from shorter rounds, and not from fewer of them.",
            Criterion(
                "Oort reaches the target in less virtual time than FedAvg, and FedAvg needs fewer "
                "than {rounds:g} times as many rounds as Oort, each by a whole 95 % t interval.",
                rounds=1.1,
            ),
            changed=(
                "holds -> undecided: rounds were counted to an accuracy averaged over 300 units of "
                "time, which are 3 rounds of FedAvg and 10 of Oort. Now nothing is averaged."
            ),
        ),
        3: Claim(
            "ours",
            "ours, after Cho et al. 2020 (arXiv 2010.01243)",
            "Power-of-Choice needs fewer rounds than a random choice of clients.",
            Criterion(
                "FedAvg needs more than {ratio:g} times as many rounds to the target as "
                "Power-of-Choice by a whole 95 % t interval.",
                ratio=1,
            ),
            changed=(
                "fails -> undecided: rounds were counted to an accuracy averaged over 300 units of "
                "time, by which this claim is decided (0.88) and without which it is open (1.11)."
            ),
        ),
        4: Claim(
            "ours",
            "ours",
            "In time the advantage of Power-of-Choice is smaller, as its choice ignores speed.",
            Criterion(
                "The ratio of FedAvg's to Power-of-Choice's rounds to the target is larger than "
                "that of their times by a whole 95 % t interval of the difference of logarithms."
            ),
        ),
        5: Claim(
            "ours",
            "ours, after Chai et al. 2020 (arXiv 2001.09249)",
            "TiFL reaches an accuracy earlier than a random choice of clients.",
            _earlier("TiFL", "FedAvg"),
        ),
        6: Claim(
            "ours",
            "ours, after Nishio and Yonetani 2019 (arXiv 1804.08333)",
            "FedCS reaches an accuracy earlier than a random choice of clients.",
            _earlier("FedCS", "FedAvg"),
        ),
        7: Claim(
            "ours",
            "ours",
            "Hearing fast clients alone costs accuracy in the end.",
            Criterion(
                "At the end of the budget FedAvg is more than {lead:g} points above FedCS by a "
                "whole 95 % t interval. Nothing is judged if one of them is below twice chance.",
                lead=0,
            ),
        ),
        8: Claim(
            "ours",
            "ours, after Jiang et al. 2022 (arXiv 2206.09264)",
            "Pisces reaches an accuracy earlier than FedBuff, which chooses at random.",
            _earlier("Pisces", "FedBuff"),
        ),
        9: Claim(
            "ours",
            "ours",
            "Choosing clients gains more where the server waits than where it does not.",
            Criterion(
                "The ratio of FedAvg's to Oort's time to the target is larger than that of "
                "FedBuff's to Pisces's by a whole 95 % t interval of the difference of logarithms."
            ),
        ),
        10: Claim(
            "ours",
            "ours, after Chai et al. 2021 (arXiv 2010.05958)",
            "Tiers that do not wait for each other (FedAT) reach an accuracy earlier than FedAvg.",
            _earlier("FedAT", "FedAvg"),
        ),
        11: Claim(
            "ours",
            "ours",
            "Not waiting gains more than choosing.",
            Criterion(
                "FedBuff, which chooses at random, reaches the target in less virtual time than "
                "{rules}, each by a whole 95 % t interval.",
                rules="Oort, Power-of-Choice, TiFL and FedCS",
            ),
        ),
    },
    since=SINCE,
)
ON_SPEAKERS = len(OF_IMAGES)
"""What is added to the number of a claim on images for that on speakers."""
SPOKEN = {
    number + ON_SPEAKERS: claim._replace(
        text=f"Tiny Shakespeare by speaker: {claim.text}", changed=""
    )
    for number, claim in OF_IMAGES.items()
}
SPOKEN[20] = SPOKEN[20]._replace(
    changed=(
        "undecided -> holds: the one run that has not reached the target, as it diverged, is "
        "FedAvg's. It counts with the whole budget, which does not make the ratio larger than it "
        "is. Until 2026-11-28 any such run left the claim open."
    )
)
CLAIMS = Claims("selection", {**OF_IMAGES, **SPOKEN}, since=SINCE)
