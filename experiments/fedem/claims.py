"""The testable claims of FedEM (arXiv 2111.02083), which `claims.toml` states."""

from collections.abc import Mapping
from typing import Any

from experiments.harness import Claims

CLAIMS = Claims.read("fedem")
SMOKE = "not judged: too small with --smoke"

verdict = CLAIMS.verdict

Found = Mapping[str, Any]
"""The numbers by which a claim is judged, as its verdict stores them."""
