"""The engine: draw the schedule, choose a layout, replay the schedule through an algorithm."""
