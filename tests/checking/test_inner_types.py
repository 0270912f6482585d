"""Inner helpers get what their signatures declare: short runs under beartype's import hook.

At run time only the functions that users call are checked. The hook has to be there before the
package is imported, so one process of its own runs a system of each kind of schedule.
"""

import subprocess
import sys

import pytest

SCRIPT = """
import tests.typechecks
import jax
import numpy as np
from beartype.roar import BeartypeCallHintViolation
import fedjax_sim
from fedjax_sim.timelines import cohorts

problem = fedjax_sim.problems.Quadratic.of(np.eye(7, 3), noise=0.1)
for name in ("fedavg", "favano", "oort"):
    system = fedjax_sim.SYSTEMS[name]
    hyper = system.paper(num_clients=7, local_steps=2)
    known = fedjax_sim.settings.names_of(type(hyper))
    hyper = hyper.replace(**{"num_selected": 3} if "num_selected" in known else {})
    fedjax_sim.simulate(system, problem, hyper, budget=fedjax_sim.Ticks(3))
    print(name)
try:
    cohorts.client_weighting(3)
except BeartypeCallHintViolation:
    print("refused")
"""


@pytest.mark.slow
def test_inner_helpers_get_what_they_declare() -> None:
    """A wrong type is found, so the hook is at work."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["refused"]), done.stderr[-3000:]
