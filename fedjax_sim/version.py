"""The version of the package."""

__version__ = "0.1.0"
"""The version, as the package index has it."""
