"""Compressors by the names of the command line."""

from fedjax_sim.compression.base import Compressor, Identity
from fedjax_sim.compression.biased import ScaledSign, TopK
from fedjax_sim.compression.grids import BlockQuantization, Dithering, StochasticRounding
from fedjax_sim.compression.powers import Luq
from fedjax_sim.compression.sparse import RandK, RandSparsification
from fedjax_sim.settings import Named, parse_kind

COMPRESSORS: Named[type[Compressor]] = Named.of(
    "compressor",
    Identity,
    BlockQuantization,
    Dithering,
    StochasticRounding,
    RandSparsification,
    RandK,
    Luq,
    TopK,
    ScaledSign,
    example="block:norm=2:block=4",
)
"""Every kind of compressor, by name."""


def parse_compressor(text: str) -> Compressor:
    """Read a compressor from text.

        assert parse_compressor("top_k:kept=100") == TopK(kept=100)

    Args:
      text: A name of `COMPRESSORS`, followed by values for its fields, such as
        "block:norm=inf:block=9". Other fields have their defaults.

    Returns:
      The compressor.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    return parse_kind("compression", COMPRESSORS, text)
