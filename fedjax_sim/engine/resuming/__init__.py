"""Go on from where an earlier process stopped.

`checkpoint` knows the files, `identities` what must be equal for a run to be the same one,
`longer_runs` how a finished run goes on to a longer budget, and `packing` the form of arrays in
files.
"""
