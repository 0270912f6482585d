"""Go on from where an earlier process stopped.

`checkpoint` writes and reads states, and knows what must be equal for a run to be the same one;
`files` names the files.
"""
