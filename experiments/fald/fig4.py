"""FA-LD's Fig. 4: accuracy, Brier score and ECE of averaged predictions, with warm-up.

See arXiv 2112.05120. The runs and all choices are in `experiments.fald.images`. `--results` draws
from the results folder of the other figure; `--dataset mnist` runs one of the two data sets. This
concerns claims 14 and 15. They also need the runs without warm-up, which are the same runs.
"""

from experiments.fald.images import judge, measure, picture, study, text_of
from experiments.harness import Arguments, Outcome, verdict_table

PREFIXES = ("", "warm_")


def run(arguments: Arguments) -> Outcome:
    """Run or read the study, draw the figure and judge the claims."""
    ran = study(arguments)
    inputs = measure(ran, PREFIXES)
    verdicts = judge(inputs)
    text = text_of(ran, PREFIXES[-1]) + "\n\n" + verdict_table(verdicts)
    figures = {"fig4.png": picture(ran, PREFIXES[-1])}
    return Outcome(ran.curves, figures, verdicts, ran.config, text, inputs)
