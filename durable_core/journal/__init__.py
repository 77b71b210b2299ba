"""Stores of runs and steps, and the protocol that they keep."""
