"""Labelled image sets and texts as NumPy arrays.

Data sets are bundled with scikit-learn, fetched through tensorflow-datasets, or read from a user's
own file. Where to look:

- `catalogue`: the names of all sets, and `load` and `load_text`, which load a set by name.
- `arrays` and `text`: the two forms of a data set, `Dataset` and `Text`, and how to make one from
  your own arrays or text.
- `fetched`: the list of sets that are fetched, and how they are prepared and cached. To add a set,
  add an entry there.
- `raw_files`: readers of the files in which those sets are published.
"""

from fedjax_sim.datasets.arrays import Dataset, from_arrays
from fedjax_sim.datasets.catalogue import is_text, load, load_text, names
from fedjax_sim.datasets.text import Text, from_text

__all__ = ["Dataset", "Text", "from_arrays", "from_text", "is_text", "load", "load_text", "names"]
