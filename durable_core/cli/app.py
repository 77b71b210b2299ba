"""The commands put together, and one way out for all of them."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Final

import typer

from durable_core.cli import (
    carrying,
    checkpoints,
    clouding,
    costing,
    doctor,
    listing,
    looking,
    making,
    outcome,
    output,
    pruning,
    repairing,
    reporting,
    running,
    verifying,
    watching,
    working,
)
from durable_core.errors import DurableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG: Final = (
    "Exit codes: 0 done, 1 run failed, 2 usage, 3 not found, 4 busy, 5 not finished, 6 corrupt record, "
    "7 store unavailable, 70 a defect of durable itself, 130 interrupted, 143 terminated."
)
# Typer brings the parser's errors along without a public name for their base.
_ParseError: Final = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="durable",
    help="Batch runs that survive crashes: start them, resume them, look at them.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # errors are told in outcome.py
    rich_markup_mode=None,  # plain help: faster, and the same in pipes
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.write(f"durable-core {version('durable-core')}\n")
        raise typer.Exit


@app.callback()
def _durable(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Takes the options before the command."""


app.command("run")(running.run)
app.command("resume")(running.resume)
app.command("list")(listing.list_runs)
app.command("show")(looking.show)
app.command("watch")(watching.watch)
app.command("signal")(repairing.signal)
app.command("cancel")(repairing.cancel)
app.command("skip")(repairing.skip)
app.command("fork")(repairing.fork)
app.command("report")(reporting.report)
app.command("cost")(costing.cost)
app.command("worker")(working.worker)
app.command("recover")(working.recover)
app.command("prune")(pruning.prune)
app.command("verify")(verifying.verify)
app.command("export")(carrying.export)
app.command("import")(carrying.import_file)
app.command("doctor")(doctor.doctor)
app.command("init")(making.init)
app.command("local-cloud")(clouding.local_cloud)
app.add_typer(checkpoints.checkpoint_app, name="checkpoint")
app.add_typer(checkpoints.workflow_app, name="workflow")


def execute(args: Sequence[str]) -> int:
    """Runs one command.

    Returns:
        The exit code.
    """
    given = args[: args.index("--")] if "--" in args else args
    as_json = "--json" in given
    try:
        ended = app(args, prog_name="durable", standalone_mode=False)
    except DurableError as error:
        try:
            outcome.tell_error(error, as_json=as_json)
        except output.OutputLost as lost:
            outcome.tell_error(lost, as_json=False)
        return outcome.exit_code(error)
    except (KeyboardInterrupt, typer.Abort):
        output.tell("Interrupted.")
        return outcome.INTERRUPTED
    except Exception as error:
        if isinstance(error, _ParseError):
            return _tell_parse_error(error, as_json=as_json)
        output.tell(output.clean_lines(traceback.format_exc()).rstrip("\n"))
        defect = outcome.Defect(
            f"durable met an error that it doesn't know: {type(error).__qualname__}",
            remedy="Please report it with the traceback; what is committed is safe",
        )
        outcome.tell_error(defect, as_json=as_json)
        return outcome.exit_code(defect)
    return ended if isinstance(ended, int) else outcome.DONE


def _tell_parse_error(error: Exception, *, as_json: bool) -> int:
    """What the parser of the command line refuses; without any argument that is the help text."""
    if as_json:
        message = str(getattr(error, "message", "") or error).rstrip(".")
        outcome.tell_error(UsageError(message, remedy="See `durable --help`"), as_json=True)
    else:
        error.show(file=sys.stderr)  # type: ignore[attr-defined]  # the parser's own
    return outcome.USAGE
