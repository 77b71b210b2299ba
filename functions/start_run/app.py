"""Starts runs: called directly, over HTTP, or through EventBridge."""

from durable_core.aws.start import start_handler

handler = start_handler(workflows="functions.workflows")
