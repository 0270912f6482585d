"""The theory of FA-LD."""
