"""Clocks of arrivals: the server acts when enough finished work has reached it.

- `buffered`: the server acts when its buffer is full (`Arrivals`), under six readings of when a
  client starts its next update.
- `tasks`: a fixed number of tasks; the server acts at each finished one and sends it to the queue
  of a client drawn at random (`ClientQueues`).

Both find the arrivals in order of time. Clients that wait for the server are in a tree of minima
(`queue`). For clients that never wait, `free_arrivals` finds all arrivals at once. Where a fixed
number of tasks is at work, `tasks` follows these from client to client.
"""
