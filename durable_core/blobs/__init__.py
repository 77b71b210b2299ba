"""Stores for large outputs. `base` has the contract; each other module is one store."""
