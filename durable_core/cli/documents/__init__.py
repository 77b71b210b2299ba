"""What `--json` gives, command by command: stable, so that programs may rely on it.

A name once here keeps its meaning and its type; names are only ever added. Times are RFC 3339 in UTC, sizes
are bytes before compression, and what isn't known is null, never left out. Errors are an `ErrorDocument` on
standard output, whatever the command, beside the exit code.
"""
