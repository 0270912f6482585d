"""Results folders and pictures."""
