"""Write, read and draw the results of runs.

`results` has the results folder and its files. `plots` draws pictures; it is not imported here,
because matplotlib is slow to load.
"""

from fedjax_sim.engine.summaries import summary
from fedjax_sim.reporting.results import Folder, Results, load, save

__all__ = ["Folder", "Results", "load", "save", "summary"]
