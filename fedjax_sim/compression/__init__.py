"""Unbiased compressors of what a client sends: random maps Q of a vector x, by themselves or under `vmap` over clients.

Each has a constant omega, with E[Q(x)] = x and E||Q(x) - x||^2 <= omega ||x||^2 for every x (assumption A6 of Dieuleveut et al., FedEM,
arXiv 2111.02083), the exact value of that variance at a given x, and its bits by a stated rule. Compressors are frozen structs whose
numbers are traced leaves: those of one kind and equal sizes share a compiled program. Dimension letters: `D` entries of a vector, `B`
entries of its largest block.

Readings. Bits are those of a plain code of fixed length, as the paper gives none: a float takes `word` bits, and nothing is gained from
the entropy of the entries. Which entries are kept at random follows from a seed that both sides know, and costs nothing.
"""

from fedjax_sim.compression.base import Compressor, Identity
from fedjax_sim.compression.catalogue import COMPRESSORS, parse_compressor
from fedjax_sim.compression.grids import BlockQuantization, Dithering, StochasticRounding
from fedjax_sim.compression.powers import Luq, luq
from fedjax_sim.compression.sparse import RandK, RandSparsification

__all__ = [
    "COMPRESSORS",
    "BlockQuantization",
    "Compressor",
    "Dithering",
    "Identity",
    "Luq",
    "RandK",
    "RandSparsification",
    "StochasticRounding",
    "luq",
    "parse_compressor",
]
