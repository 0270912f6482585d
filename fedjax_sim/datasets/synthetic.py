"""Synthetic(alpha, beta), the data with two kinds of heterogeneity of FedProx's experiments.

Source: FedProx (Li et al., arXiv 1812.06127), section 5.1, after Shamir et al. (2014). For client k

    u_k ~ N(0, alpha),  W_k ~ N(u_k, 1) `[10, 60]`,  b_k ~ N(u_k, 1) `[10]`
    B_k ~ N(0, beta),   v_k ~ N(B_k, 1) `[60]`,      x ~ N(v_k, Sigma),  Sigma_jj = j^-1.2
    y = argmax softmax(W_k x + b_k)

beta says how much clients' inputs differ. alpha is meant to say how much their models differ, but
u_k adds the same number to the logits of all classes, so that labels do not depend on it: what
differs between clients' models is W_k - u_k, whatever alpha. In the variant "iid" all
clients share one W and one b, with entries from N(0, 1), and v_k = 0.

Reading of the paper: alpha and beta are standard deviations, as in its public code, which made the
data that everybody compares on. The sizes n_k, of which the paper says only that they follow a
power law, are the public code's too: 50 plus a lognormal number, rounded down, whose logarithm has
the mean 4 and the standard deviation 2.
"""

import re

import numpy as np

from fedjax_sim.core.settings import AtLeast0, ConfigError, Count, Seed, checked
from fedjax_sim.datasets.arrays import Dataset, from_arrays

DIMENSION = 60
CLASSES = 10
LEAST_EXAMPLES = 50
HELD_OUT = 0.1
"""Share of each client's examples, at the end, that is kept for testing."""


@checked
def make_synthetic(
    alpha: AtLeast0,
    beta: AtLeast0,
    *,
    num_clients: Count = 30,
    seed: Seed = 0,
    is_iid: bool = False,
) -> Dataset:
    """Draw the data of Synthetic(alpha, beta); the partition "natural" keeps its clients.

        far_apart = make_synthetic(1.0, 1.0, num_clients=5)
        assert far_apart.train_images.shape[1:] == (1, 1, 60) and far_apart.num_classes == 10

    Args:
      alpha: Spread of the means of clients' models, at least 0; it changes no label.
      beta: How much clients' inputs differ, at least 0.
      num_clients: Number of clients.
      seed: Whole number of at least 0.
      is_iid: Whether all clients have the same model and the same inputs' law; alpha and beta must
        then be 0.

    Returns:
      Features `f32[n, 1, 1, 60]` and labels of ten classes for training and testing. Equal
      arguments give equal data.

    Raises:
      ConfigError: If an argument is not allowed.
    """
    for name, value in (("alpha", alpha), ("beta", beta)):
        if is_iid and value:
            raise ConfigError(name, value, "0, as the data are IID")
    rng = np.random.default_rng(seed)
    sizes = LEAST_EXAMPLES + np.floor(rng.lognormal(4, 2, num_clients)).astype(int)
    deviations = np.arange(1, DIMENSION + 1) ** (-1.2 / 2)
    common = rng.normal(size=(CLASSES, DIMENSION + 1))
    inputs, labels = [], []
    for size in sizes:
        model = rng.normal(rng.normal(0, alpha), 1, (CLASSES, DIMENSION + 1))
        center = rng.normal(rng.normal(0, beta), 1, DIMENSION)
        if is_iid:
            model, center = common, np.zeros(DIMENSION)
        x = center + deviations * rng.normal(size=(size, DIMENSION))
        inputs.append(x)
        labels.append(np.argmax(x @ model[:, :-1].T + model[:, -1], axis=1))
    is_test = [np.arange(size) >= size - max(1, int(HELD_OUT * size)) for size in sizes]
    x, y, held_out = (np.concatenate(each) for each in (inputs, labels, is_test))
    arrays = x[~held_out], y[~held_out], x[held_out], y[held_out]
    name = "synthetic_iid" if is_iid else f"synthetic_{alpha:g}_{beta:g}"
    clients = np.repeat(np.arange(num_clients), sizes)[~held_out]
    return from_arrays(*arrays, num_classes=CLASSES, name=name, train_clients=clients)


def from_name(name: str) -> Dataset:
    """Draw the data with 30 clients that FedProx's public code calls by a name.

    Args:
      name: "synthetic_iid", or "synthetic_ALPHA_BETA" such as "synthetic_0.5_0.5".

    Returns:
      The data.

    Raises:
      ConfigError: If the name is neither.
    """
    if name == "synthetic_iid":
        return make_synthetic(0, 0, is_iid=True)
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(f"synthetic_{number}_{number}", name)
    if found is None:
        raise ConfigError("dataset", name, "synthetic_iid or a name such as synthetic_0.5_0.5")
    return make_synthetic(float(found[1]), float(found[2]))
