"""Checkpoints: go on from where an earlier process stopped."""
