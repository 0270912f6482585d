"""The figures, tables and claims of the papers, one package per paper, run from a clone.

`python -m experiments list` names them all; `python -m experiments run favano/fig1 --smoke` runs
one. What they share is in `harness`.
"""
