"""FAVANO's Table 2 with the messages of QuAFL coded by its lattice, MNIST non-IID.

Judges claim 39. The cells are those of favano/table2 at the printed rate 0.5: FAVANO with
stochastic reweighting, QuAFL with full messages, and QuAFL whose messages both ways are rounded to
the lattice of Davies et al. in 8 bits an entry and decoded with the receiver's model. `--reduced`
has the column with 1/9 fast clients alone, which has least work, up to T = 1000 with five seeds.
"""

from collections.abc import Mapping
from typing import Any

from experiments import harness
from experiments.favano import setup
from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.harness import Arguments, Judges, Outcome, Sample, Study, Verdict
from fedjax_sim.results import plots
from fedjax_sim.server.compression import Lattice

FAVANO, WHOLE, LATTICE = "FAVANO, stochastic", "QuAFL", "QuAFL, lattice"
METHODS = {
    FAVANO: setup.METHODS[FAVANO],
    WHOLE: setup.METHODS[WHOLE],
    LATTICE: setup.METHODS[WHOLE]._replace(
        settings={"compression": Lattice(colors=256, distance=1.0)}
    ),
}
COLUMNS = [name for name in setup.COLUMNS if name.startswith("non-IID")]
FULL = setup.MNIST.study.full
IMAGES = setup.MNIST._replace(
    study=Study(
        full=FULL,
        reduced=FULL.replace(seeds=5, time_budget=1000.0, words="1/9 fast alone, T = 1000"),
        smoke=setup.MNIST.study.smoke,
    )
)
CHANCE = 10.0
"""Accuracy of chance, in percent."""
Found = Mapping[str, Any]


def judge(found: Found) -> Verdict:
    """Judge claim 39 from final accuracies in percent by method and column."""
    marks, parts = CLAIMS[39].criterion, {}
    cells = {
        method: {column: Sample.read(each) for column, each in row.items()}
        for method, row in found["accuracy"].items()
    }
    columns = list(cells[FAVANO])
    for words, other in (("lattice", LATTICE), ("full messages", WHOLE)):
        for column in columns:
            parts[f"{words} behind ({column.removeprefix('non-IID, ')})"] = harness.ahead(
                cells[FAVANO][column], cells[other][column], CHANCE, marks.lead
            )
    bits = found["bits, lattice over full"]
    parts["fewer bits"] = harness.unless_unknown(bits < marks.bits, bits)
    seeds = cells[FAVANO][columns[0]].seeds
    told = "; ".join(
        f"{column}: " + ", ".join(f"{method} {row[column]}" for method, row in cells.items())
        for column in columns
    )
    reduced = harness.reduction(seeds, found["words"])
    ruling = harness.rule(parts, reduced, harness.begins("lattice"))
    return verdict(39, found, ruling, f"{told}; {bits:.2f} of the bits; {seeds} seeds")


JUDGES: Judges = {39: judge}


def run(arguments: Arguments) -> Outcome:
    """Run the three methods in both columns, and judge the claim."""
    columns = COLUMNS[1:] if arguments.reduced else COLUMNS
    ran = setup.runs(arguments, IMAGES, columns, METHODS)
    accuracy = {
        method: {
            column: setup.final_sample(ran.curves[f"{method} | {column}"])._asdict()
            for column in columns
        }
        for method in METHODS
    }
    bits = {
        method: float(ran.curves[f"{method} | {columns[-1]}"].uplink_bits.isel(eval=-1).mean())
        for method in METHODS
    }
    found = {
        "accuracy": accuracy,
        "bits, lattice over full": bits[LATTICE] / bits[WHOLE],
        "words": ran.config["reduced"],
    }
    verdicts = harness.judge_all(JUDGES, {39: found}, SMOKE if arguments.smoke else "")
    figures = {
        f"{'slow' if column == COLUMNS[1] else 'fast'}.png": plots.curves_figure(
            ran.of(column), "accuracy", title=ran.title(column)
        )
        for column in columns
    }
    return Outcome(setup.as_groups(ran.curves), figures, verdicts, ran.config)
