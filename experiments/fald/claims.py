"""The testable claims of FA-LD (arXiv 2112.05120), which `claims.toml` states."""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Claims, Ruling, Verdict

CLAIMS = Claims.read("fald")
LEAST_CHAINS = 100
"""The least number of chains for a verdict on chains."""
DOUBT: float = CLAIMS[14].criterion.doubt
"""The one-sided p-value of a paired t test at which a 95 % t interval excludes zero."""

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
