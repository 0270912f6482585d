"""Whether simulated clocks agree with measured ones, as claims of our own in `claims.toml`."""

from experiments.harness import Claims

CLAIMS = Claims.read("clocks")
