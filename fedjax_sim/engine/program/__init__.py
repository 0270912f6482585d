"""Phase two: the compiled program that replays schedules through an algorithm.

`bound` is the program of one lane, which `fedjax_sim.bind` hands out too; `replay` is the compiled
program of a group of lanes with its inputs on the devices, and `prepare` plans it. `user_code`
notices code that was edited in place, and `client_variance` is a metric that the engine itself
computes.
"""
