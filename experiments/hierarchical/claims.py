"""The testable claims of hierarchical FL (arXiv 2302.04851), which `claims.toml` states."""

from experiments.harness import Claims

CLAIMS = Claims.read("hierarchical")

verdict = CLAIMS.verdict
