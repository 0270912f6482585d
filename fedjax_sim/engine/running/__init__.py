"""Run prepared programs.

`pieces` runs as many lanes at a time as fit in memory, `groups` one group of them, `chunks` calls
the program until the schedule ends, and `outcomes` is what then comes out.
"""
