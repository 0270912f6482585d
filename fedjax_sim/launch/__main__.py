"""Run one part of a sweep that was launched from Python.

python -m fedjax_sim.launch CALL I/N FOLDER [--resume]
"""

import sys

from fedjax_sim.launch.parts import run_part

sys.exit(run_part(sys.argv[1:]))
