"""Compressors by the names of the command line."""

from fedjax_sim.compression.base import Compressor, Identity
from fedjax_sim.compression.grids import BlockQuantization, Dithering, StochasticRounding
from fedjax_sim.compression.powers import Luq
from fedjax_sim.compression.sparse import RandK, RandSparsification
from fedjax_sim.settings import ConfigError, check, fields, parse

COMPRESSORS: dict[str, type[Compressor]] = {
    kind.name: kind
    for kind in (
        Identity,
        BlockQuantization,
        Dithering,
        StochasticRounding,
        RandSparsification,
        RandK,
        Luq,
    )
}
"""Every kind of compressor, by name."""


def parse_compressor(text: str) -> Compressor:
    """Read a compressor from text.

    Args:
      text: A name of `COMPRESSORS`, followed by values for its fields, such as
        "block:norm=inf:block=9". Other fields have their defaults.

    Returns:
      The compressor.

    Raises:
      ConfigError: If the name, a field or a value is not allowed.
    """
    name, *words = text.split(":")
    if name not in COMPRESSORS:
        raise ConfigError(
            "compression",
            text,
            "one of " + ", ".join(COMPRESSORS) + ", with values such as block:norm=2:block=4",
        )
    kind, values = COMPRESSORS[name], {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or field in values:
            raise ConfigError(
                f"compression {name}",
                word,
                "name=value with each name once, and the names "
                + (", ".join(fields(kind)) or "none"),
            )
        values[field] = parse(kind, field, value)
    compressor = kind(**values)
    check(compressor)
    return compressor
