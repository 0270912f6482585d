"""What servers do with the messages they receive: aggregation, weights, stores and memories."""
