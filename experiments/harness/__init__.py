"""What all experiments share: command line, claims and verdicts, sizes, schedules, the ledger.

`experiment` says what an experiment is given and returns, `registry` finds the experiments,
`command` parses the command line and writes the results folder, `parts` lets several processes run
the lanes of one experiment, `claims` holds a paper's claims and the verdicts on them, `sizes` says
how large a study is run, `schedules` draws the timelines of many lanes, `statistics` is the one
standard by which verdicts are given, `images` has small ones for studies with many runs, and
`ledger` keeps results as data and writes them into the README and a page (`page`). Intervals,
tuning and tables are those of `fedjax_sim.studies`.

In all experiments `arguments` is the command line, `sizes` or `size` the size of the study, `data`
the data set, `name` a name such as PAPER/NAME of an experiment or that of a panel, and `run` the
function of an experiment.
"""

from experiments.harness.claims import Claim as Claim
from experiments.harness.claims import Claims as Claims
from experiments.harness.claims import Criterion as Criterion
from experiments.harness.claims import Judges as Judges
from experiments.harness.claims import Verdict as Verdict
from experiments.harness.claims import judge_all as judge_all
from experiments.harness.command import main as main
from experiments.harness.command import run_experiment as run_experiment
from experiments.harness.experiment import Arguments as Arguments
from experiments.harness.experiment import Outcome as Outcome
from experiments.harness.schedules import are_fast as are_fast
from experiments.harness.schedules import by_speed as by_speed
from experiments.harness.schedules import draw as draw
from experiments.harness.sizes import Sizes as Sizes
from experiments.harness.sizes import Study as Study
from experiments.harness.sizes import other_data as other_data
from experiments.harness.statistics import FAR as FAR
from experiments.harness.statistics import LEAST_LEAD as LEAST_LEAD
from experiments.harness.statistics import NOT_RUN as NOT_RUN
from experiments.harness.statistics import Estimate as Estimate
from experiments.harness.statistics import Ruling as Ruling
from experiments.harness.statistics import ahead as ahead
from experiments.harness.statistics import all_of as all_of
from experiments.harness.statistics import begins as begins
from experiments.harness.statistics import estimate as estimate
from experiments.harness.statistics import reduction as reduction
from experiments.harness.statistics import rule as rule
from experiments.harness.statistics import spread_table as spread_table
from experiments.harness.statistics import unless_collapsed as unless_collapsed
from experiments.harness.statistics import unless_unknown as unless_unknown
from fedjax_sim.studies.statistics import Interval as Interval
from fedjax_sim.studies.statistics import Sample as Sample
from fedjax_sim.studies.statistics import difference as difference
from fedjax_sim.studies.statistics import interval as interval
from fedjax_sim.studies.statistics import interval_of_error as interval_of_error
from fedjax_sim.studies.statistics import lead as lead
from fedjax_sim.studies.tables import table as table
