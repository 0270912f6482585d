"""Write, read and draw the results of runs.

`results` has the results folder and its files. `plots` draws pictures; it is not imported here,
because matplotlib is slow to load.
"""

from fedjax_sim.reporting.results import Folder as Folder
from fedjax_sim.reporting.results import Results as Results
from fedjax_sim.reporting.results import load as load
from fedjax_sim.reporting.results import save as save
from fedjax_sim.results.summaries import summary as summary
