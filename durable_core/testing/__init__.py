"""Aids for tests: of workflows, and of stores written by others."""
