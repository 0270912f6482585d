"""The version of the package."""

__version__ = "0.1.0"
"""For people and for the package index."""
