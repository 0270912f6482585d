"""Life of a process and of its files: exit codes, stops, and folders that stay readable.

`endings` turns every way in which a command ends into an exit code and at most one sentence, and
lets a running sweep save before it stops. `folders` writes files that are either whole or absent,
and lets one process at a time write to a folder. `seals` lets files carry their own digest.
`free_memory` measures what a process may still take. The command line, the experiments and
everything that starts processes share them. This room loads neither JAX nor NumPy.
"""

from fedjax_sim.core.lifecycle.endings import BAD_INPUT as BAD_INPUT
from fedjax_sim.core.lifecycle.endings import EXIT_CODES as EXIT_CODES
from fedjax_sim.core.lifecycle.endings import INTERRUPTED as INTERRUPTED
from fedjax_sim.core.lifecycle.endings import PARENT as PARENT
from fedjax_sim.core.lifecycle.endings import STOPPED as STOPPED
from fedjax_sim.core.lifecycle.endings import STORAGE as STORAGE
from fedjax_sim.core.lifecycle.endings import InputError as InputError
from fedjax_sim.core.lifecycle.endings import PartError as PartError
from fedjax_sim.core.lifecycle.endings import Stopped as Stopped
from fedjax_sim.core.lifecycle.endings import StorageError as StorageError
from fedjax_sim.core.lifecycle.endings import asked_to_stop as asked_to_stop
from fedjax_sim.core.lifecycle.endings import deferring_stops as deferring_stops
from fedjax_sim.core.lifecycle.endings import exit_code_of as exit_code_of
from fedjax_sim.core.lifecycle.endings import is_terminal as is_terminal
from fedjax_sim.core.lifecycle.endings import listening as listening
from fedjax_sim.core.lifecycle.endings import nearest as nearest
from fedjax_sim.core.lifecycle.endings import say as say
from fedjax_sim.core.lifecycle.endings import tell as tell
from fedjax_sim.core.lifecycle.folders import LOCK as LOCK
from fedjax_sim.core.lifecycle.folders import FolderLock as FolderLock
from fedjax_sim.core.lifecycle.folders import cache_folder as cache_folder
from fedjax_sim.core.lifecycle.folders import open_own as open_own
from fedjax_sim.core.lifecycle.folders import remove_scratch as remove_scratch
from fedjax_sim.core.lifecycle.folders import write_whole as write_whole
from fedjax_sim.core.lifecycle.free_memory import free_on_host as free_on_host
from fedjax_sim.core.lifecycle.free_memory import write_bytes as write_bytes
from fedjax_sim.core.lifecycle.seals import check_seal as check_seal
from fedjax_sim.core.lifecycle.seals import digest_of as digest_of
from fedjax_sim.core.lifecycle.seals import read_arrays as read_arrays
from fedjax_sim.core.lifecycle.seals import read_json as read_json
from fedjax_sim.core.lifecycle.seals import read_record as read_record
from fedjax_sim.core.lifecycle.seals import seal_json as seal_json
from fedjax_sim.core.lifecycle.seals import write_arrays as write_arrays
from fedjax_sim.core.lifecycle.seals import write_record as write_record
from fedjax_sim.core.lifecycle.seals import write_sealed as write_sealed
