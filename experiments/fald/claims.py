"""The testable claims of FA-LD (arXiv 2112.05120), which `claims.toml` states."""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Claims

CLAIMS = Claims.read("fald")
DOUBT: float = CLAIMS[14].criterion.doubt
"""The one-sided p-value of a paired t test at which a 95 % t interval excludes zero."""

verdict = CLAIMS.verdict

Found = Mapping[str, Any]
"""The numbers by which a claim is judged, as its verdict stores them."""
