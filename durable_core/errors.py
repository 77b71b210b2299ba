"""Every error of this package, by who has to do something; `retryable`: the same call may succeed later."""

from __future__ import annotations

from typing import ClassVar


class DurableError(Exception):
    """Base of all errors of this package.

    Args:
        message: What happened, as one sentence without its full stop.
        run_id, step_id: The run and the step it happened to.
        remedy: What the reader can do about it, as one sentence.
    """

    code: ClassVar[str] = "DURABLE_ERROR"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        step_id: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.run_id, self.step_id, self.remedy = message, run_id, step_id, remedy

    def __str__(self) -> str:
        named = (("run", self.run_id), ("step", self.step_id))
        where = ", ".join(f"{word} {value!r}" for word, value in named if value is not None)
        sentence = f"{self.message} ({where})" if where else self.message
        return f"{sentence}. {self.remedy}" if self.remedy else sentence


# ---- The caller asked for something that can't be: change the call. ----


class UsageError(DurableError):
    """The call itself is wrong: an unknown option, a bad argument, a workflow that can't be run like this."""

    code = "USAGE"


class InvalidId(UsageError):
    """An id or name is empty, blank, too long, path-like, or has characters outside `[A-Za-z0-9._:@+=-]`."""

    code = "INVALID_ID"


class RunningLoop(UsageError):
    """A blocking call was made inside a running event loop: `await` the method of the same name instead."""

    code = "RUNNING_LOOP"


class InvalidEvent(UsageError):
    """What a function was called with can't be understood: no request, or no batch of messages."""

    code = "INVALID_EVENT"


class WorkflowNotFound(UsageError):
    """No workflow of that name is known to this process."""

    code = "WORKFLOW_NOT_FOUND"


class UnresolvedAnnotation(UsageError):
    """A return or input annotation can't be resolved to a type that values can be restored as."""

    code = "UNRESOLVED_ANNOTATION"


class AmbiguousStep(UsageError):
    """Two tasks or threads called one step name in one scope: order would decide identity."""

    code = "AMBIGUOUS_STEP"


class RunNotFound(DurableError):
    """The store has no run of that id."""

    code = "RUN_NOT_FOUND"


class StepNotFound(DurableError):
    """The run has no step of that id."""

    code = "STEP_NOT_FOUND"


class CheckpointNotFound(DurableError):
    """The store has no checkpoint of that session, or the session none of that step."""

    code = "CHECKPOINT_NOT_FOUND"


class RunInputMismatch(DurableError):
    """The run id is taken by another workflow, or by the same one with other inputs."""

    code = "RUN_INPUT_MISMATCH"


# ---- The run is not there yet, or not ours: wait, or let it be. ----


class RunBusy(DurableError):
    """Somebody else drives the run.

    Attributes:
        owner: Who drives it, as a person can read it: host and process.
        lease_left_s: Seconds until the lease ends unless it is renewed.
    """

    code = "RUN_BUSY"
    retryable = True

    def __init__(self, run_id: str, *, owner: str, lease_left_s: float) -> None:
        super().__init__(
            f"{owner} drives the run; its lease ends in {max(lease_left_s, 0):.1f} s unless it is renewed",
            run_id=run_id,
            remedy="Wait for it (wait=True, --wait), or end that process: a dead owner's run is free at once",
        )
        self.owner = owner
        self.lease_left_s = lease_left_s


class RunPruned(DurableError):
    """The run is being pruned, or was this moment: nothing can go on with what is left of it."""

    code = "RUN_PRUNED"
    retryable = True


class Fenced(DurableError):
    """A later owner drives the run, or it was cancelled; this one has given way."""

    code = "FENCED"


class DeadlineReached(DurableError):
    """The deadline came first: the run was released as PENDING, and resumes where it stopped."""

    code = "DEADLINE_REACHED"
    retryable = True


class RunEnded(DurableError):
    """The run is over, and takes no more events."""

    code = "RUN_ENDED"


class RunNotFinished(DurableError):
    """The run has no output yet."""

    code = "RUN_NOT_FINISHED"
    retryable = True


# ---- The workflow's own outcome. ----


class RunFailed(DurableError):
    """The run ended FAILED. What happened here is chained as its cause; `error` tells what was recorded.

    Attributes:
        error: Code, type name, message and traceback text of what ended the run.
    """

    code = "RUN_FAILED"

    def __init__(self, run_id: str, error: dict[str, str], *, remedy: str | None = None) -> None:
        super().__init__(
            f"the run failed: {_told(error)}",
            run_id=run_id,
            remedy=remedy or "Mend the cause, then resume the run: committed steps are not run again",
        )
        self.error = error


def _told(error: dict[str, str]) -> str:
    kind = "" if error.get("code", "").endswith("_FAILED") else f"{error.get('type', 'error')}: "
    return f"{kind}{error.get('message', '')}"  # a failed step, map or branch says itself what it is


class RunCancelled(DurableError):
    """The run was cancelled."""

    code = "RUN_CANCELLED"


class RunCrashLimitReached(DurableError):
    """The run was taken over too often from owners that died without finishing a step."""

    code = "RUN_CRASH_LIMIT_REACHED"


class RunStalled(DurableError):
    """Drives of the run came to their deadline too often without finishing anything."""

    code = "RUN_STALLED"


class ChunkStalled(DurableError):
    """A chunk of a map was handed back at its deadline too often with nothing done."""

    code = "CHUNK_STALLED"


class StepFailed(DurableError):
    """A step has FAILED; raised alike when it happens (with `__cause__`) and when it is replayed.

    Attributes:
        error: Code, type name, message and traceback text of the exception that ended the step.
    """

    code = "STEP_FAILED"

    def __init__(self, run_id: str, step_id: str, error: dict[str, str]) -> None:
        super().__init__(f"the step failed: {_told(error)}", run_id=run_id, step_id=step_id)
        self.error = error


class BranchFailed(DurableError):
    """A branch of `parallel` failed; the others were let to their next step boundary. The cause is chained.

    Attributes:
        branch: The first branch that failed, as step ids begin with it.
        join_id: The id under which the failed join is recorded.
    """

    code = "BRANCH_FAILED"

    def __init__(self, run_id: str, branch: str, message: str) -> None:
        super().__init__(f"branch {branch!r} failed: {message}", run_id=run_id)
        self.branch = branch
        self.join_id: str | None = None


class CrashLimitReached(StepFailed):
    """The step's process died during the step `crash_limit` times; its body is not started again."""

    code = "CRASH_LIMIT_REACHED"


class MapFailed(StepFailed):
    """More items of a map failed than it tolerates, or not all could be read; a resume runs only the rest."""

    code = "MAP_FAILED"

    @property
    def succeeded(self) -> int:
        """Items with an output."""
        return int(self.error.get("succeeded", 0))

    @property
    def failed(self) -> int:
        """Items without."""
        return int(self.error.get("failed", 0))


class ItemsFailed(DurableError):
    """Items of a map failed, and `MapResult.raise_for_failures` was asked to say so."""

    code = "ITEMS_FAILED"


class ManifestError(DurableError):
    """The manifest of a map can't be read, or a line of it is no item."""

    code = "MANIFEST"


class EventTimeout(StepFailed):
    """An event that was waited for didn't come in time."""

    code = "EVENT_TIMEOUT"


class EventInvalid(StepFailed):
    """The payload of an event doesn't fit the type that it was waited for as; it is taken all the same."""

    code = "EVENT_INVALID"


class StepTimedOut(DurableError):
    """The body of a step ran longer than its `timeout_s`."""

    code = "STEP_TIMED_OUT"


class StepInDoubt(DurableError):
    """An `at_most_once` step may or may not have happened, and nothing can tell: a person has to decide."""

    code = "STEP_IN_DOUBT"


class StepMismatch(DurableError):
    """A step was called with another input than is recorded under its id: the code or its data changed."""

    code = "STEP_MISMATCH"


# ---- Values that can't be stored, or can't be read back. ----


class NotSerializable(DurableError):
    """A value can't be stored.

    Attributes:
        path: Where in the value, such as `.items[3].conn`; empty for the value itself.
    """

    code = "NOT_SERIALIZABLE"

    def __init__(self, message: str, *, path: str = "", **named: str | None) -> None:
        super().__init__(message, **named)
        self.path = path


class OutputNotSerializable(NotSerializable):
    """The output of a step or workflow can't be stored, or fails its return annotation."""

    code = "OUTPUT_NOT_SERIALIZABLE"


class InputNotSerializable(NotSerializable):
    """An argument of a step or an input of a workflow can't be stored or hashed."""

    code = "INPUT_NOT_SERIALIZABLE"


class StateNotSerializable(NotSerializable):
    """The state of a checkpoint can't be stored, or would not come back as it is."""

    code = "STATE_NOT_SERIALIZABLE"


class OutputTooLarge(NotSerializable):
    """A value is larger than the cap."""

    code = "OUTPUT_TOO_LARGE"


class CorruptRecord(DurableError):
    """Stored data fails its hash, its size, its format or its schema."""

    code = "CORRUPT_RECORD"


class MissingBlob(CorruptRecord):
    """A record points to a large output that is not in the blob store."""

    code = "MISSING_BLOB"


class UnknownType(CorruptRecord):
    """A stored value names a class that this process has not imported, and no annotation says what it is."""

    code = "UNKNOWN_TYPE"


# ---- The store. ----


class JournalUnavailable(DurableError):
    """The store can't be reached or can't take a write now; nothing was lost, and the run can be resumed.

    Attributes:
        waited_s: Seconds that the store itself waited before it gave up: no use to ask again at once.
    """

    code = "JOURNAL_UNAVAILABLE"
    retryable = True

    def __init__(self, message: str, *, waited_s: float = 0.0, **named: str | None) -> None:
        super().__init__(message, **named)
        self.waited_s = waited_s


class StoreMisconfigured(DurableError):
    """The store is there but not fit: not writable, not permitted, or not what it should be."""

    code = "STORE_MISCONFIGURED"


class StoreNotFound(DurableError):
    """There is no store at that URL, and this call doesn't make one."""

    code = "STORE_NOT_FOUND"


class SchemaTooNew(StoreMisconfigured):
    """The store was written by a newer version of this package."""

    code = "SCHEMA_TOO_NEW"
