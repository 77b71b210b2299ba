"""Has runs driven that are due, and lets old ones go: triggered by a schedule."""

from durable_core.aws.sweep import sweep_handler

handler = sweep_handler()
