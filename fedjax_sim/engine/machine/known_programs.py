"""Which programs were compiled before, and what they take, so that equal calls do not ask again.

The programs themselves are kept by JAX, which looks for them at every call. If it has dropped one
that counts as known here, it compiles that program when it is called.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

MOST_KNOWN = 128
"""Forms that are kept; the one that was looked for longest ago is dropped first."""


class Size(NamedTuple):
    """What a compiled program takes on one device.

    Attributes:
      arrays: Bytes of arguments, results and temporary arrays, without arguments that all lanes
        share.
      code: Bytes of the program.
    """

    arrays: int
    code: int


_known: OrderedDict[Hashable, tuple[Size, ...]] = OrderedDict()
_lock = threading.Lock()


def find(form: Hashable) -> tuple[Size, ...] | None:
    """Look up programs.

    Args:
      form: Static arguments of the programs, and shapes of the others. No arrays.

    Returns:
      The size of each; () if it was not measured, None if they have not been compiled.
    """
    with _lock:
        if form in _known:
            _known.move_to_end(form)
        return _known.get(form)


def keep(form: Hashable, sizes: tuple[Size, ...] = ()) -> None:
    """Note that programs are compiled.

    Args:
      form: As in `find`.
      sizes: The size of each; () if it was not measured.
    """
    with _lock:
        _known[form] = sizes
        _known.move_to_end(form)
        while len(_known) > MOST_KNOWN:
            _known.popitem(last=False)


def forget() -> None:
    """Forget all programs, as JAX drops them."""
    with _lock:
        _known.clear()
