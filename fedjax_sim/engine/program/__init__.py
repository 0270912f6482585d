"""Phase two: the compiled program that replays schedules through an algorithm.

`prepare` plans the program of a group of lanes, `replay` is that program with its inputs on the
devices, and `client_variance` a metric that the engine itself computes.
"""
