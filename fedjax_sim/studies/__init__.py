"""Studies: choose settings on validation data, run seeds, compare with intervals, write tables.

`tuning` chooses each system's settings on examples that are held out of the training set, by a
`Criterion`, and runs the choice with other seeds. `statistics` has paired differences with
intervals, corrections for many comparisons, and times of which some were not reached. `comparing`
applies them to the curves of several systems, `tables` lays numbers out for a terminal, Markdown,
CSV or LaTeX, and `pictures` draws what tuning and comparing found.

`fedjax-sim tune` and `fedjax-sim compare` do the same from the command line.
"""

from fedjax_sim.studies.comparing import Comparison as Comparison
from fedjax_sim.studies.comparing import Pair as Pair
from fedjax_sim.studies.comparing import compare as compare
from fedjax_sim.studies.criteria import Criterion as Criterion
from fedjax_sim.studies.statistics import Interval as Interval
from fedjax_sim.studies.statistics import Sample as Sample
from fedjax_sim.studies.tables import Table as Table
from fedjax_sim.studies.tuning import Contestant as Contestant
from fedjax_sim.studies.tuning import Halving as Halving
from fedjax_sim.studies.tuning import Tuned as Tuned
from fedjax_sim.studies.tuning import choose as choose
from fedjax_sim.studies.tuning import hold_out as hold_out
from fedjax_sim.studies.tuning import hold_out_of_clients as hold_out_of_clients
from fedjax_sim.studies.tuning import tune as tune
from fedjax_sim.studies.tuning import tune_and_run as tune_and_run
