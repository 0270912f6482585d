"""FAVANO's mu_T next to the server's model, and QuAFL with its lattice, on handwritten digits.

Judges claims 37 and 38. There are 30 clients with two classes each, of which 1/9 are fast, and a
perceptron 64-32-10. mu_T is the mean of the server's and all clients' models, which Theorem 1 is
about; the paper's experiments evaluate the server's model. QuAFL's messages are coded by the
lattice of Davies et al. in 8 bits an entry and decoded with the receiver's model. The paper's
comparison of QuAFL and FAVANO is on MNIST, with full messages here; this is small enough for a CPU.
"""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np

import fedjax_sim
from experiments import harness
from experiments.favano.claims import CLAIMS, SMOKE, verdict
from experiments.harness import Arguments, Judges, Outcome, Sample, Sizes, Study, Verdict, images
from fedjax_sim import models, partition, problems
from fedjax_sim.server.compression import Lattice

STUDY = Study(
    full=Sizes(10, dataset="digits", time_budget=3000.0),
    smoke=Sizes(2, dataset="digits", time_budget=100.0),
)
SHARED: dict[str, Any] = {"num_clients": 30, "num_selected": 6, "batch_size": 32, "lr": 0.2}
SERVER, MEAN = "FAVANO", "FAVANO, mu_T"
WHOLE, LATTICE = "QuAFL", "QuAFL, lattice"
RUNS: dict[str, tuple[str, dict[str, Any], Literal["server", "mean"]]] = {
    SERVER: ("favano", {}, "server"),
    MEAN: ("favano", {}, "mean"),
    WHOLE: ("quafl", {}, "server"),
    LATTICE: ("quafl", {"compression": Lattice(colors=256, distance=0.5)}, "server"),
}
Found = Mapping[str, Any]


def samples(found: Found) -> dict[str, Sample]:
    """Read the final accuracies in percent."""
    return {name: Sample.read(each) for name, each in found["accuracy"].items()}


def judge_mean(found: Found) -> Verdict:
    """Judge claim 37 from final accuracies in percent and the distance of the models."""
    marks, own, far = CLAIMS[37].criterion, samples(found), found["largest distance"]
    parts = {
        "accuracies": harness.lead(own[MEAN], own[SERVER]).within(marks.close),
        "distance": harness.unless_unknown(far < marks.near, far),
    }
    why = (
        f"mu_T {own[MEAN].mean:.1f} %, server {own[SERVER].mean:.1f} %; their distance is at most "
        f"{far:.3f} of the server's way; digits, {own[MEAN].seeds} seeds"
    )
    return verdict(37, found, harness.rule(parts, deciding=harness.begins("accuracies")), why)


def judge_lattice(found: Found) -> Verdict:
    """Judge claim 38 from final accuracies in percent."""
    marks, own = CLAIMS[38].criterion, samples(found)
    bits = found["uplink bits, lattice over full"]
    parts = {
        "as with full messages": harness.lead(own[LATTICE], own[WHOLE]).within(marks.close),
        "fewer bits": harness.unless_unknown(bits < marks.bits, bits),
        "FAVANO ahead": harness.lead(own[SERVER], own[LATTICE]).above(marks.lead),
    }
    means = ", ".join(f"{name} {each.mean:.1f} %" for name, each in own.items())
    why = f"{means}; {bits:.2f} of the bits; digits, {own[LATTICE].seeds} seeds"
    ruling = harness.rule(parts, deciding=harness.begins("as with full messages"))
    return verdict(38, found, ruling, why)


JUDGES: Judges = {37: judge_mean, 38: judge_lattice}


def run(arguments: Arguments) -> Outcome:
    """Run FAVANO with both outputs, and QuAFL with both kinds of messages."""
    sizes = STUDY.choose(arguments, least_seeds=2)
    data = images.load(sizes.dataset, arguments.data_dir)
    shares = [
        partition.make("classes", data.train_labels, num_clients=30, seed=seed)
        for seed in sizes.seed_range
    ]
    tasks = problems.make_classifications(models.MLP((32,), data.num_classes), data, shares)
    runs = {}
    for name, (system, settings, output) in RUNS.items():
        of = fedjax_sim.SYSTEMS[system]
        runs[name] = fedjax_sim.sweep(
            of,
            tasks,
            of.paper(**SHARED, slow_fraction=8 / 9, **settings),
            seeds=sizes.seed_range,
            budget=fedjax_sim.Time(sizes.time_budget),
            num_evals=10,
            keep=fedjax_sim.Keep(models=True, output=output),
            **arguments.kept(name),
        )
    curves = {name: ran.curves for name, ran in runs.items()}
    ends = {name: vectors(ran.samples) for name, ran in runs.items()}
    server, mean = ends[SERVER], ends[MEAN]
    apart = np.linalg.norm(mean[:, -1] - server[:, -1], axis=-1)
    way = np.linalg.norm(server[:, -1] - server[:, 0], axis=-1)
    bits = [float(curves[name].uplink_bits.isel(eval=-1).mean()) for name in (LATTICE, WHOLE)]
    accuracy = {
        name: Sample.of(100 * each.accuracy.isel(eval=-1).values.ravel())._asdict()
        for name, each in curves.items()
    }
    found: dict[int, Found] = {
        37: {
            "accuracy": {name: accuracy[name] for name in (SERVER, MEAN)},
            "largest distance": float(np.max(apart / way)),
        },
        38: {
            "accuracy": {name: accuracy[name] for name in (SERVER, WHOLE, LATTICE)},
            "uplink bits, lattice over full": bits[0] / bits[1],
        },
    }
    verdicts = harness.judge_all(JUDGES, found, SMOKE if arguments.smoke else "")
    return Outcome(curves, {}, verdicts, sizes.config())


def vectors(samples: Any) -> np.ndarray:
    """Join the leaves of kept models to vectors: `f64[seeds, evaluations, P]`."""
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(samples)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=-1)
