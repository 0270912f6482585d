"""Clocks of groups of clients, each behind a local server (Ali and Arafa, arXiv 2302.04851).

- `groups`: the settings of groups (`Groups`), their members, delays and weights.
- `rounds`: the global server waits for all groups.
- `arrivals`: groups do not wait for each other, and the global server acts when its buffer of
  their reports is full (`GroupArrivals`).
"""
