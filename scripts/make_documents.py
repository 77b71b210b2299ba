"""Make a folder of documents with planted identifiers, and a truth file that says where each one is.

    python scripts/make_documents.py OUT [--count 240] [--seed 7]

writes `OUT/documents/` and `OUT/truth.json`. The same arguments give the same bytes. Nothing here uses the
detectors that are measured with it. Every document also holds near misses, which must not be found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import dataclass, field
from datetime import date, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, from anywhere

from scripts.made_identifiers import FIRST_NAMES, KINDS, LABELS, MAKERS, near_miss

if TYPE_CHECKING:
    from collections.abc import Sequence

AS_OF: Final = date(2026, 1, 1)
RETENTION_YEARS: Final = 7
_WORDS_LIST = """
the committee agreed that supplier terms remain unchanged until further notice and asked finance to
review every open position before closing while legal prepares a summary of obligations under
section nine of the agreement
"""
_WORDS = _WORDS_LIST.split()


@dataclass
class Draft:
    """A document in the making: remembers what was planted and how it was written."""

    rng: random.Random
    planted: list[tuple[str, str, str]] = field(default_factory=list)  # kind, as written, part
    records: list[tuple[date, str, str]] = field(default_factory=list)  # day, as written, part
    part: str = ""
    cores: set[str] = field(default_factory=set)

    def plant(self, kind: str, *, labelled: bool = False) -> str:
        """A new identifier, as it is to be written; forms that need a label only if there will be one."""
        shown = MAKERS[kind](self.rng, labelled)
        # One number written in two ways is one finding: the truth must not ask for two.
        while _core(shown) in self.cores:
            shown = MAKERS[kind](self.rng, labelled)
        self.cores.add(_core(shown))
        self.planted.append((kind, shown, self.part))
        return shown

    def record_date(self) -> str:
        """A date that will stand under a record label; half of them are past retention."""
        age_days = self.rng.choice((self.rng.randrange(30, 2_500), self.rng.randrange(2_600, 9_000)))
        day = AS_OF - timedelta(days=age_days)
        shown = self.rng.choice(
            (
                day.isoformat(),
                f"{day.day} {day:%B} {day.year}",
                f"{day:%B} {day.day}, {day.year}",
                f"{day:%d.%m.%Y}",
            )
        )
        self.records.append((day, shown, self.part))
        return shown

    def prose(self, words: int) -> str:
        """Filler without any digit."""
        return " ".join(self.rng.choices(_WORDS, k=words)).capitalize() + "."


def text_document(draft: Draft, kinds: Sequence[str], *, lines: int = 25) -> str:
    """Prose with identifiers in sentences and under labels."""
    out = [draft.prose(6), "", f"Date: {draft.record_date()}", ""]
    for kind in kinds:
        labelled = draft.rng.random() < 0.5
        shown = draft.plant(kind, labelled=labelled)
        after = draft.rng.choice((".", ", as agreed.", " (confirmed)", " 12/27", "; thanks"))
        before = f"{LABELS[kind]}: " if labelled else f"{draft.prose(4)[:-1]} "
        out.append(f"{before}{shown}{'.' if after == ' 12/27' and kind != 'card' else after}")
    out += [f"{draft.prose(5)[:-1]}; {near_miss(draft.rng)}." for _ in range(len(kinds) + 3)]
    out += [draft.prose(draft.rng.randrange(6, 14)) for _ in range(max(0, lines - len(out)))]
    head, body = out[:4], out[4:]
    draft.rng.shuffle(body)
    return "\n".join((*head, *body)) + "\n"


def markdown_document(draft: Draft, kinds: Sequence[str]) -> str:
    """Headings, a list, a table and a code block."""
    rows = [f"| {LABELS[kind]} | {draft.plant(kind, labelled=kind != 'phone')} |" for kind in kinds]
    table = ["| What | Value |", "|---|---|", *rows]
    items = [f"- {near_miss(draft.rng)}" for _ in range(len(kinds) + 4)]
    head = [
        f"# {draft.prose(4)}",
        "",
        f"*Signed on:* {draft.prose(3)}",
        "",
        f"Signed on: {draft.record_date()}",
        "",
    ]
    return (
        "\n".join((*head, *table, "", *items, "", "```", near_miss(draft.rng), "```", "", draft.prose(30)))
        + "\n"
    )


def csv_document(draft: Draft, kinds: Sequence[str], *, rows: int = 12) -> str:
    """Quotes, doubled quotes, delimiters and line ends inside cells."""
    delimiter = draft.rng.choice((",", ";", "\t"))
    columns = [kind for kind in KINDS if kind in kinds] or ["email"]
    header = ["name", "remark", *(LABELS[kind].lower() for kind in columns), "closed_on", "order_no"]
    lines = [delimiter.join(header)]
    for row in range(rows):
        tricky = row < 200 or row % 8 == 0  # to make one takes longer than to write the rest of the row
        aside, reason = (near_miss(draft.rng) if tricky else draft.prose(6) for _ in range(2))
        remark = f'"{draft.prose(4)} ""{aside}""\n{draft.prose(2)}{delimiter} {reason}"'
        filled = row < 6 or row % 50 == 0
        values = [draft.plant(kind, labelled=True) if filled else "" for kind in columns]
        closed = draft.record_date() if filled else ""
        closed = f'"{closed}"' if delimiter in closed else closed
        order = (
            f"{draft.rng.randrange(100, 600)}-{draft.rng.randrange(10, 99)}-{draft.rng.randrange(1000, 9999)}"
        )
        lines.append(delimiter.join((draft.rng.choice(FIRST_NAMES), remark, *values, closed, order)))
    return "\n".join(lines) + "\n"


def json_document(draft: Draft, kinds: Sequence[str]) -> str:
    """Nested objects and lists, indented or in one line, with or without escapes for what isn't ASCII."""
    people = [
        {
            LABELS[kind].lower(): draft.plant(kind, labelled=True),
            "note": near_miss(draft.rng),
            "tags": [draft.prose(2)],
        }
        for kind in kinds
    ]
    content = {
        "created_at": draft.record_date(),
        "meta": {
            "levels": [{"deep": {"deeper": {"people": people}}}],
            "text": f"{draft.prose(3)}\n{draft.prose(3)}",
        },
        "counts": [draft.rng.randrange(10**12, 10**13) for _ in range(3)],
        "remark": near_miss(draft.rng),
    }
    return json.dumps(content, indent=draft.rng.choice((None, 2)), ensure_ascii=draft.rng.random() < 0.5)


def mail_document(draft: Draft, kinds: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """A multipart e-mail with encoded parts and an attachment; and the text of each part."""
    texts: dict[str, str] = {}
    message = EmailMessage()
    for name in ("From", "To"):
        draft.part = f"header {name}"
        address = draft.plant("email", labelled=True)
        while not address.isascii():
            draft.planted.pop()
            address = draft.plant("email", labelled=True)
        message[name] = f"{draft.rng.choice(FIRST_NAMES).title()} <{address}>"
        texts[draft.part] = str(message[name])
    message["Subject"] = f"Ärger mit {draft.prose(3)}"
    message["Message-ID"] = f"<{draft.rng.randbytes(8).hex()}@mail.fenwold.co.uk>"
    draft.part = "body 1"
    texts[draft.part] = text_document(draft, kinds)
    message.set_content(texts[draft.part], cte=draft.rng.choice(("quoted-printable", "base64")))
    draft.part = "attachment people.csv"
    texts[draft.part] = csv_document(draft, kinds[:2], rows=3)
    message.add_attachment(
        texts[draft.part].encode(), "text", "csv", filename="people.csv", params={"charset": "utf-8"}
    )
    message.add_attachment(draft.rng.randbytes(300), "image", "png", filename="scan.png")
    message.set_boundary(f"=={draft.rng.randbytes(8).hex()}==")
    return message.as_bytes(), texts


class Folder:
    """Where the documents go, and the truth about them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.truth: list[dict[str, object]] = []
        self.documents = 0

    def add(self, name: str, content: bytes, draft: Draft, texts: dict[str, str]) -> None:
        """Write a document, and note where in its text each planted identifier is."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.documents += 1
        for kind, shown, part in draft.planted:
            self._note(name, kind, shown, part, texts[part])
        for day, shown, part in draft.records:
            self._note(name, "record_date", shown, part, texts[part], day=day.isoformat())

    def add_text(self, name: str, text: str, draft: Draft, encoding: str = "utf-8") -> None:
        """The same for a document that is one text."""
        self.add(name, text.encode(encoding, "replace"), draft, {"": text})

    def _note(self, name: str, kind: str, shown: str, part: str, text: str, **more: str) -> None:
        at = _place(text, shown)
        entry = {
            "document": f"{self.root.name}/{_printable(name)}",
            "kind": kind,
            "value": shown,
            "part": part,
        }
        place = {"line": text.count("\n", 0, at) + 1, "column": at - text.rfind("\n", 0, at)}
        self.truth.append({**entry, **place, **more})


def make_folder(out: Path, *, count: int = 240, seed: int = 7) -> Folder:
    """Write everything.

    Args:
        out: Gets `documents/` and `truth.json`.
        count: Ordinary documents, spread over the five formats; about a dozen odd ones come on top.
        seed: Of all that is random.
    """
    folder = Folder(out / "documents")
    for index in range(count):
        rng = random.Random(f"{seed}-{index}")
        draft = Draft(rng)
        kinds = rng.choices(KINDS, k=rng.randrange(1, 7)) if index % 6 else []
        shelf = f"{('letters', 'finance', 'people')[index % 3]}/{index // 60:02d}"
        match index % 5:
            case 0:
                folder.add_text(f"{shelf}/memo {index:03d}.txt", text_document(draft, kinds), draft)
            case 1:
                folder.add_text(f"{shelf}/note-{index:03d}.md", markdown_document(draft, kinds), draft)
            case 2:
                folder.add_text(f"{shelf}/table-{index:03d}.csv", csv_document(draft, kinds), draft)
            case 3:
                folder.add_text(f"{shelf}/export-{index:03d}.json", json_document(draft, kinds), draft)
            case _:
                folder.add(f"{shelf}/mail-{index:03d}.eml", *_with_draft(draft, mail_document(draft, kinds)))
    _odd_documents(folder, seed)
    truth = {"as_of": AS_OF.isoformat(), "retention_years": RETENTION_YEARS, "planted": folder.truth}
    (out / "truth.json").write_text(json.dumps(truth, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


def _with_draft(draft: Draft, made: tuple[bytes, dict[str, str]]) -> tuple[bytes, Draft, dict[str, str]]:
    return made[0], draft, made[1]


def _odd_documents(folder: Folder, seed: int) -> None:
    rng = random.Random(f"{seed}-odd")
    for name, encoding in (
        ("latin 1.txt", "latin-1"),
        ("utf-16.txt", "utf-16"),
        ("with mark.md", "utf-8-sig"),
    ):
        draft = Draft(rng)
        text = "Größe, café, naïve, Übergabe\n" + text_document(draft, ("phone", "iban", "card", "ssn"))
        folder.add_text(f"odd/{name}", text, draft, encoding)
    for name in ("Überweisungen März.csv", "名簿.csv"):
        draft = Draft(rng)
        folder.add_text(f"odd/{name}", csv_document(draft, ("iban", "phone")), draft)
    draft = Draft(rng)
    text = "Ein Stück Käse für Müller\n" + text_document(draft, ("email", "card", "ssn"))
    broken = text.encode().replace(b"K\xc3\xa4se", b"K\xe4se\xff")
    folder.add("odd/broken.txt", broken, draft, {"": broken.decode("utf-8", "replace")})
    draft = Draft(rng)
    folder.add_text("odd/large.txt", text_document(draft, KINDS * 20, lines=16_000), draft)
    draft = Draft(rng)
    folder.add_text("odd/large.csv", csv_document(draft, KINDS, rows=9_500), draft)
    folder.add("odd/empty.txt", b"", Draft(rng), {})
    folder.add("odd/picture.txt", b"\x89PNG\r\n\x1a\n\x00\x00" + rng.randbytes(2_000), Draft(rng), {})
    folder.add("odd/cut-off.json", b'{"a": [1, {"b": "', Draft(rng), {})
    for link, target in (("loop", "."), ("gone.txt", "nowhere.txt"), ("outside.txt", "../../truth.json")):
        path = folder.root / "odd" / link
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    draft = Draft(rng)
    text = text_document(draft, ("email", "card"))
    try:
        folder.add_text(os.fsdecode(b"odd/caf\xe9.txt"), text, draft)
    except OSError:
        folder.add_text("odd/cafe.txt", text, draft)  # a file system that takes UTF-8 names only


def _core(shown: str) -> str:
    """What stays of an identifier however it is written."""
    solid = "".join(filter(str.isalnum, shown)).lower()
    return solid[-8:] if solid[-1].isdigit() else solid


def _place(text: str, shown: str) -> int:
    """Where something stands in a text by itself, not as the end of something longer; in JSON escaped."""
    for written in (shown, json.dumps(shown)[1:-1]):
        at = text.find(written)
        while at >= 0:
            end = at + len(written)
            if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
                return at
            at = text.find(written, at + 1)
    raise ValueError(f"{shown!r} was planted and is not there")


def _printable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    folder = make_folder(options.out, count=options.count, seed=options.seed)
    print(f"{folder.documents} documents, {len(folder.truth)} planted, in {folder.root}")


if __name__ == "__main__":
    main()
