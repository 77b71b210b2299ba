"""A stretch of text to search, which knows where it came from and what label stands before a place in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from itertools import pairwise
from typing import Literal

Format = Literal["text", "csv", "json"]

_LABEL_REACH = 64  # characters; labels further away belong to something else
_LABEL_STOPS = ",;{}\t\r\n"
_DATA = re.compile(r"[0-9]{4}|@")
_JSON_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_JSON_PLAIN = {'"': '"', "\\": "\\", "/": "/", "b": " ", "f": " ", "n": "\n", "r": "\r", "t": "\t"}
# Other spaces, hyphens and full-width digits become the plain ones, one for one, so that no place moves.
_PLAIN = str.maketrans(
    "\u00a0\u2007\u2009\u202f\u2010\u2011\u2012\u2013\u2212" + "".join(map(chr, range(0xFF10, 0xFF1A))),
    "    -----0123456789",
)


class Passage:
    """Text in which to look for identifiers.

    Args:
        source: The text as it stands in the document.
        part: Which part of an e-mail it is; empty otherwise.
        form: `json` has its escapes resolved before the search; `csv` has a header for each column.

    Attributes:
        text: What to search: `source` with escapes resolved and typographic spaces, hyphens and digits plain.
    """

    def __init__(self, source: str, *, part: str = "", form: Format = "text") -> None:
        self.part = part
        self.form = form
        self._source = source
        self._shifts: list[tuple[int, int]] = []
        plain = self._without_escapes(source) if form == "json" and "\\" in source else source
        self.text = plain if plain.isascii() else plain.translate(_PLAIN)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, in the document, of an offset in `text`."""
        if self._shifts:
            at = bisect_right(self._shifts, (offset, len(self._source))) - 1
            if at >= 0:
                offset += self._shifts[at][1]
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def label(self, offset: int) -> str:
        """What names the value at an offset, in lower case: its column's header, the words before it."""
        before = self.text[max(0, offset - _LABEL_REACH) : offset]
        cut = max(before.rfind(stop) for stop in _LABEL_STOPS) + 1
        header = self._header(offset) if self.form == "csv" else ""
        return f"{header} {before[cut:]}".replace("_", " ").lower()

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n", self._source))]

    def _without_escapes(self, source: str) -> str:
        pieces: list[str] = []
        done = length = 0
        for escape in _JSON_ESCAPE.finditer(source):
            code, letter = escape.groups()
            pieces += source[done : escape.start()], chr(int(code, 16)) if code else _JSON_PLAIN[letter]
            length += escape.start() - done + 1
            done = escape.end()
            self._shifts.append((length, done - length))
        pieces.append(source[done:])
        return "".join(pieces)

    def _header(self, offset: int) -> str:
        starts, columns, headers = self._cells
        cell = bisect_right(starts, offset) - 1
        is_body = cell >= len(headers)
        return headers[columns[cell]] if is_body and columns[cell] < len(headers) else ""

    @cached_property
    def _cells(self) -> tuple[list[int], list[int], list[str]]:
        """Start and column of each cell, and the headers (none if the first row looks like data)."""
        mark = max(",;\t", key=self.text.partition("\n")[0].count)
        # A quoted cell is passed over whole: delimiters and line ends in it are text.
        tokens = re.compile(rf'(?<![^{mark}\n])"(?:[^"]++|"")*+"|({mark})|(\n)')
        starts, columns = [0], [0]
        for token in tokens.finditer(self.text):
            if token.lastindex:
                starts.append(token.end())
                columns.append(columns[-1] + 1 if token.lastindex == 1 else 0)
        width = next((at for at in range(1, len(columns)) if columns[at] == 0), 0)
        headers = [self.text[start : end - 1].strip(' "') for start, end in pairwise(starts[: width + 1])]
        return starts, columns, [] if any(_DATA.search(cell) for cell in headers) else headers
