"""Clocks of arrivals: the server acts when enough finished work has reached it.

- `clocks`: the server acts when its buffer is full (`Arrivals`), under six readings of when a
  client starts its next update; or it acts at each finished task and sends it to the queue of a
  client drawn at random (`ClientQueues`).
- `queue`: clients or tasks in order of time, as a tree of minima.
"""
