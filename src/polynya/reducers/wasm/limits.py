"""The limits of a module and of its sandbox."""

from __future__ import annotations

import msgspec

from polynya.base.limits import KIB, MIB, REDUCER_STATE_BYTES_MAX

BATCH_BYTES_MAX = 64 * MIB  # of records in one frame: one record of 32 MiB and others
MEMORY_BYTES = 64 * MIB  # of a module, unless its reducer says otherwise
FUEL_PER_MIB = 10**10  # Rust needs 2 * 10^7 for a MiB of small records, AssemblyScript 10^9
CALL_CPU_SECONDS = 5.0  # of one call
COMPILE_CPU_SECONDS = 60  # a Go program of 3.2 MB takes 9 to 20 seconds, and 1 GiB
COMPILE_DATA_BYTES = 2048 * MIB  # memory of the process while it compiles
STACK_BYTES = 1 * MIB
TABLE_ELEMENTS_MAX = 10_000
TABLES_MAX = 4
LOG_BYTES_MAX = 4 * KIB  # output of a run, by WASI
MESSAGE_BYTES_MAX = 4 * KIB  # the module's own reason for a trap
COMPILED_BYTES_MAX = 128 * MIB  # native code of a module
# A stopped or overloaded machine, for the process is limited in CPU time
CALL_WALL_SECONDS = 600.0
COMPILE_WALL_SECONDS = 600.0


class Budget(msgspec.Struct, frozen=True, array_like=True):
    """The resources of one instance. A call gets fuel for each MiB begun of its input."""

    memory_bytes: int = MEMORY_BYTES
    fuel_per_mib: int = FUEL_PER_MIB
    state_bytes: int = REDUCER_STATE_BYTES_MAX
    cpu_seconds: float = CALL_CPU_SECONDS

    def fuel(self, length: int) -> int:
        return self.fuel_per_mib * max(1, -(-length // MIB))
