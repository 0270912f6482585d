"""The common ground of all rooms; it imports nothing of theirs.

- `types`: the words used here (tick, slot, lane), and the contract between the rooms; it hands on
  `problem`, the contract of problems, and `options`, the options of a run.
- `events`: the event of one tick, and the facts that are known of it beforehand.
- `clocks`: the contract of live clocks, which make events from what was learnt.
- `settings`: declared types, checked at public calls; typed, documented settings of systems.
- `streams`: named streams of random numbers.
- `trees`: parts of models, chosen by the paths of their leaves.
- `batching`: one function for every slot of a tick or every lane, batched or in turn.
- `targets`: the device that a program is compiled for.
- `lifecycle`: exit codes, stops, and folders that stay readable.
"""

import lazy_loader

_NAMES = "batching clocks events lifecycle settings streams targets trees types"
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES.split())
