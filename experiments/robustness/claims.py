"""What is known of robust rules, as claims of our own, which `claims.toml` states."""

from experiments.harness import Claims

CLAIMS = Claims.read("robustness")
SHARE: float = CLAIMS[3].criterion.share
"""Share of malicious clients at which most claims are judged."""
