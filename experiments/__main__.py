"""Runs `python -m experiments`."""

import sys

from experiments.harness.command import main

if __name__ == "__main__":
    sys.exit(main())
