"""The testable claims of FAVANO (arXiv 2305.16099), which `claims.toml` states."""

from experiments.harness import Claims

CLAIMS = Claims.read("favano")
SMOKE = "not judged: a smoke run on digits is too small"

verdict = CLAIMS.verdict
