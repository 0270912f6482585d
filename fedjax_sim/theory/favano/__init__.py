"""The theory of FAVANO."""
