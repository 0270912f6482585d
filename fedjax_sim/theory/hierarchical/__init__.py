"""The theory of hierarchical federated learning."""
