"""The testable claims of FedStaleWeight (arXiv 2406.02877), which `claims.toml` states."""

from experiments.harness import Claims

CLAIMS = Claims.read("fedstaleweight")

verdict = CLAIMS.verdict
