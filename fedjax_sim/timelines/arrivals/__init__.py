"""Clocks of arrivals: the server acts when enough finished work has reached it.

- `buffered`: the server acts when its buffer is full (`Arrivals`), under six readings of when a
  client starts its next update.
- `client_queues`: clients with queues; the server acts at each finished task and sends it to a
  client drawn at random (`ClientQueues`).

Both find the arrivals in order of time, in a tree of minima (`queue`). Where nobody waits for the
server, a fixed number of tasks is at work, and `tasks` follows these from client to client.
"""
