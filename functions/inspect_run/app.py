"""Tells how a run stands: called directly."""

from durable_core.aws.inspect import inspect_handler

handler = inspect_handler()
