"""Drives the runs that its queue names."""

from durable_core.aws.drive import drive_handler

handler = drive_handler(workflows="functions.workflows")
