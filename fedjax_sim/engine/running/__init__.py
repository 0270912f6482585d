"""Run prepared programs.

`pieces` runs as many lanes at a time as fit in memory, `chunks` calls their program until the
schedule ends, and `outcomes` is what then comes out.
"""
