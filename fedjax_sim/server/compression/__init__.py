"""Compressors of the vectors that clients and servers send.

A compressor is a random map Q of a vector x, for one client or under `vmap` over clients. Most are
unbiased and have a constant omega, with E[Q(x)] = x and E||Q(x) - x||^2 <= omega ||x||^2 for every
x (assumption A6 of Dieuleveut et al., FedEM, arXiv 2111.02083). The biased ones have a constant
alpha, with E||Q(x) - x||^2 <= (1 - alpha) ||x||^2. A compressor also counts the bits of a message.
Compressors are frozen structs whose numbers are traced leaves: compressors of one kind with equal
sizes share a compiled program.

Readings. The papers do not say how messages are coded. Bits are counted for a plain code of fixed
length: a float takes `word` bits, and entropy coding is not used. Which entries a sparsifier keeps
follows from a seed that both sides know, and costs no bits.

- `base`: the interface `Compressor`, and no compression (`Identity`).
- `grids`: block quantization, dithering, stochastic rounding and powers of two (`Luq`).
- `powers`: the arithmetic of random rounding (`luq`).
- `sparse`: sparsifiers.
- `biased`: the largest entries, and signs with a scale.
- `messages`: compressors by the names of the command line, compression of whole models, and bits.
"""

from fedjax_sim.kernels.rounding import luq as luq
from fedjax_sim.server.compression.base import Compressor as Compressor
from fedjax_sim.server.compression.base import Identity as Identity
from fedjax_sim.server.compression.grids import BlockQuantization as BlockQuantization
from fedjax_sim.server.compression.grids import Dithering as Dithering
from fedjax_sim.server.compression.grids import Luq as Luq
from fedjax_sim.server.compression.grids import StochasticRounding as StochasticRounding
from fedjax_sim.server.compression.messages import COMPRESSORS as COMPRESSORS
from fedjax_sim.server.compression.messages import parse_compressor as parse_compressor
from fedjax_sim.server.compression.sparse import RandK as RandK
from fedjax_sim.server.compression.sparse import RandSparsification as RandSparsification
from fedjax_sim.server.compression.sparse import ScaledSign as ScaledSign
from fedjax_sim.server.compression.sparse import TopK as TopK
