"""What becomes of a process and of its files: exit codes, stops, and folders that stay readable.

`endings` turns every way in which a command ends into an exit code and at most one sentence, and
lets a running sweep save before it stops. `folders` writes files that are either whole or absent,
and lets one process at a time write to a folder. The command line, the experiments and everything
that starts processes share them. This room loads neither JAX nor NumPy.
"""

from fedjax_sim.lifecycle.endings import (
    BAD_INPUT,
    EXIT_CODES,
    FAULT,
    INTERRUPTED,
    PARENT,
    STOPPED,
    STORAGE,
    InputError,
    PartError,
    Stopped,
    StorageError,
    asked_to_stop,
    deferring_stops,
    exit_code_of,
    nearest,
    say,
)
from fedjax_sim.lifecycle.folders import (
    LOCK,
    FolderLock,
    read_record,
    remove_scratch,
    write_record,
    write_whole,
)

__all__ = [
    "BAD_INPUT",
    "EXIT_CODES",
    "FAULT",
    "INTERRUPTED",
    "LOCK",
    "PARENT",
    "STOPPED",
    "STORAGE",
    "FolderLock",
    "InputError",
    "PartError",
    "Stopped",
    "StorageError",
    "asked_to_stop",
    "deferring_stops",
    "exit_code_of",
    "nearest",
    "read_record",
    "remove_scratch",
    "say",
    "write_record",
    "write_whole",
]
