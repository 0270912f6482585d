"""Phase one, on the host: draw the schedules and place the lanes.

`drawing` draws the schedules of `lanes`, as long as `budgets` of time or energy ask for;
`schedule` cuts them to that and lays them out, with rows for old server models;
`placement` decides what runs together and on which device, by the cost of a local step.
"""
