"""The command `durable`: one module per family of commands.

`running` has `run` and `resume`; `looking` has `list` and `show`; `making` has `init`. `app` puts them
together, `outcome` says which error ends with which exit code, `output` is the only module that writes to
standard output.
"""

from __future__ import annotations

import sys

from durable_core.cli import output


def main() -> int:
    """Runs the command line; what the console script calls.

    Returns:
        The exit code.
    """
    output.prepare()
    from durable_core.cli.app import execute  # later than `prepare`: whatever it tells must be shown

    code = execute(sys.argv[1:])
    output.finish(code)
    return code
