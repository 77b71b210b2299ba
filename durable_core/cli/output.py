"""Standard output and standard error: writing never fails for what the text is, or because nobody reads it.

Text that comes from data may hold anything; what is printed of it is made `clean` first, so that a run id, a
message or an output can neither move the cursor nor colour the terminal.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Final, TextIO

from durable_core.errors import DurableError

if TYPE_CHECKING:
    from collections.abc import Iterator

# C0, DEL, C1, line separators, and what turns the direction of writing: all that makes a terminal lie.
_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_IN_LINES: Final = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_STDOUT, _STDERR = 1, 2  # descriptors
_WORKER_FILE: Final = os.path.join("concurrent", "futures", "thread.py")  # noqa: PTH118 - the end of a code object's name


class OutputLost(DurableError):
    """Standard output can't be written, for another reason than that nobody reads it any more."""

    code = "OUTPUT_LOST"


def prepare() -> None:
    """Lets the streams show what they can't encode as escapes; closed ones lead to nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - the same
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def write(text: str) -> None:
    """Writes to standard output; a reader that has gone away (`| head`) is no error.

    Raises:
        OutputLost: The text could not be written.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise OutputLost(
            f"standard output can't be written: {error.strerror}",
            remedy="What was recorded is safe: see it with `durable show`",
        ) from error


def tell(text: str) -> None:
    """Writes a line to standard error, if anybody is there to read it."""
    with contextlib.suppress(OSError):  # there is nowhere left to say so
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def clean(text: object) -> str:
    """Text for one line of a terminal: control characters and lone surrogates as escapes."""
    return _CONTROLS.sub(_escaped, str(text))


def clean_lines(text: str) -> str:
    """The same for text that may have lines and tabs."""
    return _IN_LINES.sub(_escaped, text)


def encodable(text: str, stream: TextIO) -> bool:
    """Whether a stream shows the text as it is."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@contextlib.contextmanager
def kept_for_the_result() -> Iterator[None]:
    """Keeps standard output for the result: what the user's code prints meanwhile goes to standard error.

    So does what the processes print that it starts.
    """
    with _kept_from_children(sys.stdout), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _kept_from_children(stdout: TextIO) -> Iterator[None]:
    """Points the descriptor of standard output, which children inherit, to standard error for a while."""
    try:
        kept = os.dup(_STDOUT) if stdout.fileno() == _STDOUT else None
    except (OSError, ValueError, AttributeError):  # no stream of the system's: children don't write to it
        kept = None
    if kept is None:
        yield
        return
    try:
        _flushed(stdout)
        with contextlib.suppress(OSError):  # standard error is closed
            os.dup2(_STDERR, _STDOUT)
        yield
        _flushed(stdout)  # what went past `sys.stdout`, through the stream itself, is no result either
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flushed(stream: TextIO) -> None:
    with contextlib.suppress(OSError):  # whoever writes the result next will meet it, and tell
        stream.flush()


def finish(code: int) -> None:
    """Ends the process here if a step still runs in a thread: Python would wait for it, for ever maybe.

    Its run is either failed, or was left to the next owner, who sees at once that this process is dead.
    """
    if not any(map(_is_busy, threading.enumerate())):
        return
    atexit._run_exitfuncs()  # what a usual exit does too, but without waiting for threads
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _is_busy(thread: threading.Thread) -> bool:
    """Whether a thread runs a step now: an idle one waits in the code of its pool."""
    if not thread.name.startswith("durable-step"):
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and not frame.f_code.co_filename.endswith(_WORKER_FILE)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _discard(stream: TextIO) -> None:
    """Points a stream that nobody reads to nowhere, or its last flush at exit would complain."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: nothing is flushed to anywhere then
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
