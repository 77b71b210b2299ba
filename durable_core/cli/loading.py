"""Importing the user's workflows: `package.module:workflow`, or `path/to/file.py:workflow`.

What to import comes from the command line or the environment, never from the store.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from durable_core.cli.outcome import BrokenModule
from durable_core.cli.output import kept_for_the_result
from durable_core.errors import UsageError, WorkflowNotFound
from durable_core.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType, TracebackType

WORKFLOWS_VARIABLE: Final = "DURABLE_WORKFLOWS"


def load_workflow(target: str) -> Workflow[..., Any]:
    """The workflow that a command line names.

    Raises:
        UsageError: It names none.
        WorkflowNotFound: The module has no such workflow.
        BrokenModule: The module raised while it was imported.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageError(
            f"{target!r} names no workflow",
            remedy="Write MODULE:WORKFLOW, such as invoices:month_end or jobs/nightly.py:main",
        )
    module = load_module(place)
    found = getattr(module, name, None)
    if isinstance(found, Workflow):
        return found
    known = {key: value for key, value in vars(module).items() if isinstance(value, Workflow)}
    if found is not None:
        raise UsageError(f"{name!r} in {place} is no workflow", remedy="Mark the function with @workflow")
    by_name = [key for key, value in known.items() if value.name == name]
    near = by_name or difflib.get_close_matches(name, known, n=1)
    raise WorkflowNotFound(
        f"{place} has no workflow {name!r}",
        remedy=f"Did you mean {place}:{near[0]}?" if near else f"It has: {', '.join(known) or 'none'}",
    )


def load_modules(given: Iterable[str] | None) -> list[str]:
    """Imports the modules that `--workflows`, or else the environment, names; comma separated.

    Returns:
        Their names.
    """
    texts = list(given or ()) or [os.environ.get(WORKFLOWS_VARIABLE, "")]
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        load_module(name)
    return names


def load_module(place: str) -> ModuleType:
    """Imports a module by its dotted name or by its file; the working folder is searched first.

    Raises:
        UsageError: There is no such module.
        BrokenModule: It raised.
    """
    if place.endswith(".py"):
        file = Path(place).resolve()
        if not file.is_file():
            raise UsageError(f"there is no file {place}")
        _search_first(file.parent)
        module = _imported(file.stem, place)
        if Path(getattr(module, "__file__", None) or "").resolve() != file:
            raise UsageError(
                f"{place} can't be imported: another module is named {file.stem!r}",
                remedy="Give the file another name",
            )
        return module
    _search_first(Path.cwd())
    if not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(
            f"{place!r} is no module name",
            remedy="Write it with dots, as in an import (package.module), or name a .py file",
        )
    return _imported(place, place)


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _imported(name: str, place: str) -> ModuleType:
    try:
        with kept_for_the_result():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(error, place) from error  # something that the module itself needs
        raise UsageError(
            f"there is no module {error.name!r} in {Path.cwd()} or among the installed packages",
            remedy="Run this in the folder that has it, or install it",
        ) from error
    except SyntaxError as error:
        code = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"{error.filename}, line {error.lineno}: {error.msg}{code}") from error
    except (Exception, SystemExit) as error:  # the user's code may raise anything, and it is told as theirs
        raise _broken(error, place) from error


def _broken(error: BaseException, place: str) -> BrokenModule:
    frames = _of_the_module(error.__traceback__)
    return BrokenModule(
        f"{place} can't be imported: it raised {type(error).__qualname__}",
        traceback="".join(traceback.format_exception(type(error), error, frames)),
        remedy="Mend the module",
    )


def _of_the_module(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on: without ours and those of the import machinery."""
    found = frames
    while found is not None and (
        found.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or found.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        found = found.tb_next
    return found or frames
