"""Write, read and draw the results of runs.

`results` has the results folder and its files. `plots` draws pictures; it is not imported here,
because matplotlib is slow to load.
"""

from fedjax_sim.reporting.results import Folder, Results, load, save
from fedjax_sim.results.summaries import summary

__all__ = ["Folder", "Results", "load", "save", "summary"]
