"""The page: one HTML file with its style, its program and its data, which asks nothing of any network.

Everything that comes from a store is escaped: by the template where it is text, as JSON without `<` where it
is data, and the program puts it into the page as text only. Should that ever fail, the page's own policy runs
no other program than this one.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Mapping

_STYLES: Final = ("page.css", "rows.css")
_PROGRAMS: Final = ("model.js", "rows.js", "details.js", "overview.js", "page.js")


def page(document: Mapping[str, Any]) -> str:
    """The HTML of a report.

    Args:
        document: What `template.html` and its program show: `run`, `timeline`, `maps`, `slowest`, `largest`,
            `cost`, `values`, `made`.
    """
    style, program = _joined(_STYLES), f"(() => {{\n{_joined(_PROGRAMS)}}})();"
    template = _environment().get_template("template.html")
    return template.render(
        document,
        data=dict(document),
        style=Markup(style),  # noqa: S704 - our own files
        program=Markup(program),  # noqa: S704 - our own files
        style_hash=_hash(style),
        program_hash=_hash(program),
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": True, "separators": (",", ":")}
    return environment


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join(map(_source, names))


def _hash(text: str) -> str:
    """As a content security policy names what is inline."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
