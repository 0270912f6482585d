"""What is known of choosing clients, as claims of our own.

Claims 1 to 11, on images, are in `claims.toml`. Claims 12 to 22 are the same on plays: a client is
a speaker.
"""

from experiments.harness import Claims

OF_TARGET = 0.95
"""The target, as a share of the accuracy that random FedAvg reaches on held-out data."""
OF_IMAGES = Claims.read("selection")
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
CLAIMS = Claims("selection", {**OF_IMAGES, **SPOKEN}, since=OF_IMAGES[1].since)
