"""What all experiments share: command line, claims and verdicts, sizes, statistics, tables.

`experiment` says what an experiment is given and returns, `registry` finds the experiments,
`command` parses the command line and writes the results folder, `parts` lets several processes run
the lanes of one experiment, `claims` holds a paper's claims and the verdicts on them, `sizes` says
how large a study is run, `schedules` draws the timelines of many lanes, `statistics` is the one
standard by which verdicts are given, `comparison` chooses each method's settings on held-out data,
`images` has small ones for studies with many runs, `ledger` keeps results as data and writes them
into the README and a page (`page`), and `tables` lays out what is printed.
"""

from experiments.harness.claims import Claim, Claims, Criterion, Verdict, verdict_table
from experiments.harness.command import main, run_experiment
from experiments.harness.experiment import Arguments, Outcome
from experiments.harness.schedules import are_fast, by_speed, draw
from experiments.harness.sizes import Sizes, Study, other_data
from experiments.harness.statistics import (
    FAR,
    LEAST_LEAD,
    NOT_RUN,
    Estimate,
    Interval,
    Ruling,
    Sample,
    all_of,
    begins,
    difference,
    estimate,
    interval,
    interval_of_error,
    lead,
    mean_and_error,
    reduction,
    rule,
    spread_of,
    spread_table,
    unless_collapsed,
    unless_unknown,
)
from experiments.harness.tables import table

__all__ = [
    "FAR",
    "LEAST_LEAD",
    "NOT_RUN",
    "Arguments",
    "Claim",
    "Claims",
    "Criterion",
    "Estimate",
    "Interval",
    "Outcome",
    "Ruling",
    "Sample",
    "Sizes",
    "Study",
    "Verdict",
    "all_of",
    "are_fast",
    "begins",
    "by_speed",
    "difference",
    "draw",
    "estimate",
    "interval",
    "interval_of_error",
    "lead",
    "main",
    "mean_and_error",
    "other_data",
    "reduction",
    "rule",
    "run_experiment",
    "spread_of",
    "spread_table",
    "table",
    "unless_collapsed",
    "unless_unknown",
    "verdict_table",
]
