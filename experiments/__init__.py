"""The figures, tables and claims of the papers, one package per paper, run from a clone.

`python -m experiments list` names them all; `python -m experiments run favano/table2 --smoke` runs
one. What they share is in `harness`.
"""
