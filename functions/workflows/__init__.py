"""Workflows that come with durable-core, to be read, run and copied; a user's own go here too."""
