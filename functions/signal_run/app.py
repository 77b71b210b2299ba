"""Sends events to runs, and cancels them: called directly, over HTTP, or through EventBridge."""

from durable_core.aws.signal import signal_handler

handler = signal_handler()
