"""FedEM's Fig. 3: a mixture of ten Gaussians on MNIST by FedEM and VR-FedEM (claim 19).

See arXiv 2111.02083, Sec. 4. It shows weights and ‖H‖². All 70,000 images are used: pixels that
are always 0 are dropped, 20 principal components of values in [0, 1] are taken, and 100 clients
have 700 images each at random. The covariance is shared and fitted (210 statistics); gamma = 0.001,
mini-batches of 20, and the same start for both systems. Where the paper is silent: omega = 1, alpha
= 0.01, p = 0.75, k_in = 35, and 1000 epochs, as VR-FedEM makes about 12 inner steps an epoch and
needs 10,000. `--smoke` uses the bundled digits with 10 clients.
"""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.fedem.claims import CLAIMS, SMOKE, Found, verdict
from experiments.fedem.setup import PAPER, curves_of, even, figure_of, mean_after, span
from experiments.harness import Arguments, Judges, Outcome, Sizes, Study, Verdict, interval, rule
from fedjax_sim import Ticks, datasets
from fedjax_sim.problems import latent
from fedjax_sim.problems.latent.estimates import principal_components
from fedjax_sim.results.plots import LABELS
from fedjax_sim.systems import fedem, vr_fedem

COMPONENTS, DIMENSIONS, GAMMA, BATCH, INNER = 10, 20, 0.001, 20, 35


STUDY = Study(
    full=Sizes(5, dataset="mnist", num_clients=100, epochs=1000),
    smoke=Sizes(2, dataset="digits", num_clients=10, epochs=12),
)


def judge(found: Found) -> Verdict:
    """Judge claim 19 by intervals over seeds."""
    field, last = (np.array(found[name]) for name in ("FedEM", "VR-FedEM at the end"))
    rough = {name: np.array(values) for name, values in found["roughness of weights"].items()}
    ratio = interval(np.log10(last / field))
    smoother = interval(np.log10(rough["FedEM"] / rough["VR-FedEM"]))
    below = ratio._replace(mean=np.log10(CLAIMS[19].criterion.share) - ratio.mean)
    parts = {"‖H‖²": below.above(), "smoother weights": smoother.above()}
    why = (
        f"{found['images']} images, {found['epochs']} epochs, {len(field)} seeds: FedEM's ‖H‖² "
        f"over the second half {span(field)}, VR-FedEM's at the end {span(last)}, powers of ten "
        f"apart {ratio} (95 %); second differences of the weights between evaluations "
        f"{span(rough['FedEM'])} and {span(rough['VR-FedEM'])}"
    )
    return verdict(19, found, rule(parts), why)


JUDGES: Judges = {19: judge}


def run(arguments: Arguments) -> Outcome:
    """Run both systems from the same starts."""
    sizes = STUDY.choose(arguments)
    data = datasets.load(sizes.dataset, data_dir=arguments.data_dir)
    images = np.concatenate([data.train_images, data.test_images])
    pixels = int((images.reshape(len(images), -1) == 0).all(axis=0).sum())
    features = principal_components(images, DIMENSIONS)
    each = len(features) // sizes.num_clients
    order = np.random.default_rng(0).permutation(len(features))[: each * sizes.num_clients]
    problem = latent.make_estimation(
        latent.GaussianMixture(COMPONENTS), features[order], even(sizes.num_clients, each)
    )
    shared: dict[str, Any] = {
        "num_clients": sizes.num_clients,
        "batch_size": BATCH,
        "gamma": GAMMA,
        **PAPER,
    }
    options: dict[str, Any] = {"seeds": sizes.seeds, "num_evals": 200, "wide": False}
    ticks = -(-sizes.epochs * each // BATCH)
    loops = -(-sizes.epochs * each // (each + 2 * BATCH * INNER))
    curves = {
        "FedEM": curves_of(
            fedem.system,
            problem,
            fedem.paper(**shared),
            budget=Ticks(ticks),
            **options,
            **arguments.kept("FedEM"),
        ),
        "VR-FedEM": curves_of(
            vr_fedem.system,
            problem,
            vr_fedem.paper(inner_steps=INNER, **shared),
            budget=Ticks(loops * INNER),
            **options,
            **arguments.kept("VR-FedEM"),
        ),
    }
    field = {name: mean_after(curve, "field", sizes.epochs / 2) for name, curve in curves.items()}
    last = curves["VR-FedEM"].field.isel(eval=-1).values
    found = {
        "FedEM": field["FedEM"].tolist(),
        "VR-FedEM at the end": last.tolist(),
        "roughness of weights": {
            name: _roughness(curve).tolist() for name, curve in curves.items()
        },
        "images": len(order),
        "epochs": sizes.epochs,
    }
    judged = verdict(19, found, None, SMOKE) if arguments.smoke else judge(found)
    config = {**sizes.config(), "images": len(order), "pixels always 0": pixels}
    return Outcome(curves, figures_of(curves), [judged], config)


def figures_of(curves: dict[str, xr.Dataset]) -> dict[str, Figure]:
    """Draw weights and ‖H‖² of the first seed."""
    figures: dict[str, Figure] = {}
    for name, curve in curves.items():
        epochs, label = curve.epochs.values[0], name.lower().replace("-", "_")
        weights = {
            f"component {g}": (epochs, curve[f"pi_{g}"].values[0]) for g in range(COMPONENTS)
        }
        figures[f"fig3_{label}_weights.png"] = figure_of(
            weights, x="epochs", y="weight of a component", title=f"{name}, seed 0", log=False
        )
        figures[f"fig3_{label}_field.png"] = figure_of(
            {"‖H‖²": (epochs, curve.field.values[0])},
            x="epochs",
            y=LABELS["field"],
            title=f"{name}, seed 0",
        )
    return figures


def _roughness(data: xr.Dataset) -> np.ndarray:
    """Return each seed's mean second difference of the weights, late. No drift counts."""
    weights = np.stack(
        [data[f"pi_{g}"].values[:, data.sizes["eval"] // 2 :] for g in range(COMPONENTS)]
    )
    return np.asarray(np.abs(np.diff(weights, n=2, axis=-1)).mean(axis=(0, 2)), float)
