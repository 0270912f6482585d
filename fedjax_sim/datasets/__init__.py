"""Labelled image sets and texts as NumPy arrays.

Data sets are bundled with scikit-learn, computed, fetched through tensorflow-datasets, or read from
a user's own file. Where to look:

- `catalogue`: the names of all sets, and `load` and `load_text`, which load a set by name.
- `arrays` and `text`: the two forms of a data set, `Dataset` and `Text`, and how to make one from
  your own arrays or text.
- `fetched`: the list of sets that are fetched, readers of the files in which these are published,
  and how they are prepared and cached. To add a set, add an entry there.
- `synthetic`: FedProx's Synthetic(alpha, beta).

What there is to fetch. Files are downloaded over https into the cache on first use, or read from
`--data-dir`, and read only if they have the SHA-256 noted in `fetched`. Files whose size is not
published have a question mark, and the memory that the arrays take. `fedjax-sim list datasets`
prints this table with the files' names.

================== =============== ==================== ===========================================
data set           to fetch        licence              from
================== =============== ==================== ===========================================
mnist              12 MB           CC BY-SA 3.0         storage.googleapis.com
fashion_mnist      31 MB           MIT                  fashion-mnist.s3.eu-central-1.amazonaws.com
cifar10            170 MB          none stated          www.cs.toronto.edu
tiny_imagenet      248 MB          non-commercial       cs231n.stanford.edu
federated_emnist   ?, 587 MB held  none stated, by NIST storage.googleapis.com
cifar100           169 MB          none stated          www.cs.toronto.edu
tiny_shakespeare   1 MB            public domain        raw.githubusercontent.com
shakespeare        ?, 5 MB held    public domain        storage.googleapis.com
================== =============== ==================== ===========================================

Their own clients, for the partition "natural", come with `federated_emnist` (3400 writers),
`shakespeare` (715 roles), `tiny_shakespeare` (speakers) and `synthetic_A_B` (30). For CIFAR-10
by Dirichlet shares use the partition "dirichlet", for CIFAR-100 by Pachinko allocation "pachinko".
"""

from fedjax_sim.datasets.arrays import Dataset as Dataset
from fedjax_sim.datasets.arrays import from_arrays as from_arrays
from fedjax_sim.datasets.catalogue import is_text as is_text
from fedjax_sim.datasets.catalogue import load as load
from fedjax_sim.datasets.catalogue import load_text as load_text
from fedjax_sim.datasets.catalogue import names as names
from fedjax_sim.datasets.catalogue import what_to_fetch as what_to_fetch
from fedjax_sim.datasets.files import Stored as Stored
from fedjax_sim.datasets.files import stored as stored
from fedjax_sim.datasets.synthetic import make_synthetic as make_synthetic
from fedjax_sim.datasets.text import Text as Text
from fedjax_sim.datasets.text import from_text as from_text
