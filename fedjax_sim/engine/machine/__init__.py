"""The machine: memory, processes and compiling."""
