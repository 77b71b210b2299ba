"""Control flow: derived from BaseException, which `except Exception` in a workflow doesn't stop."""

from __future__ import annotations


class ControlFlow(BaseException):
    """Base of what unwinds a workflow without being an outcome of it."""


class RunInterrupted(ControlFlow):
    """The process was asked to stop; the run is released and nothing more is begun in it."""


class BranchHalted(ControlFlow):
    """A sibling branch has failed; this one begins nothing more."""


class WorkflowOver(ControlFlow):
    """The workflow has ended; tasks that it left behind begin nothing more."""


class RunSuspended(ControlFlow):
    """Every live branch waits; the run is released until it is woken."""


class HandOver(ControlFlow):
    """The deadline is near; the run is released for the next process."""


class NotBegun(HandOver):
    """The same, told to a step of which there is no record yet."""
