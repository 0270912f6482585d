"""Phase two: the compiled program that replays schedules through an algorithm.

`opened` is a lane's algorithm within a trace. `replay` is the compiled program of a group of lanes
with its inputs on the devices, and `prepare` plans it. `bound` is the program of one run in a
user's hands. `client_variance` is a metric that the engine itself computes.
"""
