"""One file per paper: its constants and bounds as functions."""
