"""Clocks of groups of clients, each behind a local server (Ali and Arafa, arXiv 2302.04851).

- `groups`: the settings of groups (`Groups`, `GroupArrivals`), their members, delays and weights.
- `rounds`: their schedules. The global server waits for all groups, or acts when its buffer of
  their reports is full.
"""
