"""Phase two: the compiled program that replays schedules through an algorithm.

`opened` is a lane's algorithm within a trace. `prepare` plans the program of a group of lanes,
`placed` puts the lanes on devices, and `replay` compiles and runs it. `windows` and `reads` bring
in examples from files. `bound` is the program of one run in a user's hands.
"""
