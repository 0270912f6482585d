"""What clients do between two messages: gradient steps, E-steps and Langevin noise."""
