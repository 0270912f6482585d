"""Life of a process and of its files: exit codes, stops, and folders that stay readable.

`endings` turns every way in which a command ends into an exit code and at most one sentence, and
lets a running sweep save before it stops. `folders` writes files that are either whole or absent,
and lets one process at a time write to a folder. `seals` lets files carry their own digest.
`free_memory` measures what a process may still take. The command line, the experiments and
everything that starts processes share them. This room loads neither JAX nor NumPy.
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
    is_terminal,
    nearest,
    say,
    tell,
)
from fedjax_sim.lifecycle.folders import (
    LOCK,
    FolderLock,
    cache_folder,
    open_own,
    remove_scratch,
    write_npz,
    write_whole,
)
from fedjax_sim.lifecycle.free_memory import free_on_host, write_bytes
from fedjax_sim.lifecycle.seals import (
    check_seal,
    digest_of,
    read_json,
    read_record,
    seal_json,
    write_record,
    write_sealed,
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
    "cache_folder",
    "check_seal",
    "deferring_stops",
    "digest_of",
    "exit_code_of",
    "free_on_host",
    "is_terminal",
    "nearest",
    "open_own",
    "read_json",
    "read_record",
    "remove_scratch",
    "say",
    "seal_json",
    "tell",
    "write_bytes",
    "write_npz",
    "write_record",
    "write_sealed",
    "write_whole",
]
