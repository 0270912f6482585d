"""The machine: memory, processes, compiling, and code that was edited in place (`user_code`)."""
