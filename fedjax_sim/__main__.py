"""Run the command line by `python -m fedjax_sim`, which does the same as `fedjax-sim`."""

import sys

from fedjax_sim.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
