"""The papers' figures and tables, one file each: `python -m experiments.NAME [--smoke] [--out DIR]`."""
