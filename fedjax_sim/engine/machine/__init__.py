"""The machine: its memory, its processes, and what compiling for it takes."""
