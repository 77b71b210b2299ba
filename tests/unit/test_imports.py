"""What imports what: imports point down only, and importing the package stays cheap."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import durable_core
from durable_core import errors

ROOT = Path(__file__).parents[2]
MAX_LINES = 400

# From the bottom up: a module may import from its own layer and those before it. The longest prefix counts.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "control_flow", "records", "clock", "arguments"),
    ("identity", "codec", "envelope", "retry", "annotations", "settings", "current", "log", "forking"),
    ("awaited", "plain_code"),
    ("outcomes", "item_table", "map_reference", "map_result", "manifest_lines", "rate", "run_filter"),
    (
        "journal.base",
        "journal.carrying",
        "journal.chunks",
        "journal.damaged",
        "journal.paging",
        "blobs.base",
        "journal.schema",
        "checkpoints.base",
        "checkpoints.checkpoint",
        "checkpoints.replaying",
        "checkpoints.spilled",
        "store",
        "health",
    ),
    ("aws.failures", "aws.transport", "aws.ranges", "aws.table", "aws.provision", "aws.health"),
    ("journal", "blobs", "checkpoints"),
    (
        "step_definition",
        "scope",
        "workflow",
        "manifest",
        "map_options",
        "verbs",
        "context",
        "sync_context",
        "checkpointer",
    ),
    ("engine",),
    ("stores",),
    ("",),  # the package's own __init__, which re-exports
    ("aws", "local", "cli", "cost", "report", "testing", "__main__"),
)
STORES = LAYERS.index(("stores",))
ROOT_INIT = LAYERS.index(("",))

# Executor and checkpointer open a store from its URL: the imports that point up, and only when called.
ALLOWED_UPWARDS = {("engine.executor", "stores"), ("checkpointer_blocking", "stores")}

# Costs are reckoned in the items of the DynamoDB table: their sizes, not the store.
ALLOWED_PARTS_OF_STORES = {(module, "journal._items") for module in ("cost.bill", "cost.of_run")}

# Third-party modules that only some modules may import: who doesn't use that store need not install it.
AWS_CLIENTS = ("boto3", "botocore", "aioboto3", "aiobotocore", "aiohttp")
ONLY_IN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        AWS_CLIENTS,
        (
            "journal.dynamodb",
            "journal._dynamodb",
            "journal._items",
            "journal._conditions",
            "blobs.s3",
            "blobs._s3",
            "aws",
            "local",
        ),
    ),
    **dict.fromkeys(("psycopg", "psycopg_pool"), ("journal.postgres", "journal._postgres")),
    **dict.fromkeys(("typer", "click", "rich"), ("cli",)),
    **dict.fromkeys(("jinja2", "markupsafe"), ("report",)),
    **dict.fromkeys(("moto", "werkzeug", "yaml"), ("local",)),
    "pytest": ("testing",),
}
# These files belong to one store without being named for it.
FAMILIES = {"items": "dynamodb", "conditions": "dynamodb"}
# These belong to none.
STORELESS = (
    "base", "carrying", "chunks", "damaged", "paging", "schema", "checkpoint", "replaying", "spilled",
)  # fmt: skip

CHEAP = {
    "durable_core",
    "pydantic",
    "pydantic_core",
    "structlog",
    "zstandard",
    "typing_extensions",
    "annotated_types",
    "typing_inspection",
}
COSTLY = (*AWS_CLIENTS, "psycopg", "psycopg_pool", "typer", "click", "rich", "pygments", "jinja2", "greenlet")


class Import(NamedTuple):
    target: str
    line: int
    when_called: bool
    for_types: bool


def modules_of(package: Path) -> dict[str, Path]:
    """Every module of a package by its name below the package; the package's own __init__ is ''."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(tree: ast.AST, *, when_called: bool = False, for_types: bool = False) -> list[Import]:
    """Every import of a module, also those in functions and for types only. `from a import b` is `a.b`."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, when_called, for_types) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            found += [
                Import(f"{origin}.{alias.name}", node.lineno, when_called, for_types) for alias in node.names
            ]
        else:
            called = when_called or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typed = for_types or (
                isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            )
            found += imports_of(node, when_called=called, for_types=typed)
    return found


def is_within(module: str, prefix: str) -> bool:
    """Whether a module is the one named, in it, or a part of it in a file of its own (codec_atoms)."""
    return module == prefix or module.startswith((f"{prefix}.", f"{prefix}_"))


def layer_of(module: str) -> int | None:
    if module == "":
        return ROOT_INIT
    ranked = [
        (len(p), n) for n, prefixes in enumerate(LAYERS) for p in prefixes if p and is_within(module, p)
    ]
    return max(ranked)[1] if ranked else None


def family_of(module: str) -> str | None:
    """The store a module belongs to: 'sqlite' for journal._sqlite_writer and for checkpoints.sqlite."""
    folder, _, rest = module.partition(".")
    if folder not in ("journal", "blobs", "checkpoints") or not rest or rest.split(".")[0] in STORELESS:
        return None
    name = rest.split(".")[0].lstrip("_").split("_")[0]
    return FAMILIES.get(name, name)


def complaint(module: str, wanted: Import, known: dict[str, Path], package: str) -> str | None:
    """What is wrong with one import; None if nothing is."""
    if wanted.target.startswith("."):
        return "relative import"
    top, _, below = wanted.target.partition(".")
    if top != package:
        return outside_complaint(module, top, wanted)
    target = below if below in known else below.rpartition(".")[0]
    mine, theirs = layer_of(module), layer_of(target)
    if mine is None or theirs is None:
        return f"{(module if mine is None else target) or package} has no layer: give it one in LAYERS"
    reckons = (module, target) in ALLOWED_PARTS_OF_STORES
    if family_of(target) and family_of(target) != family_of(module) and mine != STORES and not reckons:
        return f"imports the concrete store {target}: only stores.py may"
    if theirs > mine and not ((module, target) in ALLOWED_UPWARDS and wanted.when_called):
        return f"imports upwards, {target}"
    return None


def outside_complaint(module: str, top: str, wanted: Import) -> str | None:
    if top in sys.stdlib_module_names:
        return None
    if layer_of(module) == 0:
        return f"imports {top}: the lowest layer needs nothing but the standard library"
    homes = ONLY_IN.get(top)
    if homes is not None and not any(module.startswith(home) for home in homes):
        return f"imports {top}, which belongs to {', '.join(homes)}"
    if top in AWS_CLIENTS and not (wanted.when_called or wanted.for_types):
        return f"imports {top} at once: only inside functions, so that importing the package stays cheap"
    return None


def import_faults(package: Path) -> list[str]:
    known = modules_of(package)
    faults = []
    for module, path in known.items():
        for wanted in imports_of(ast.parse(path.read_text(encoding="utf-8"))):
            wrong = complaint(module, wanted, known, package.name)
            if wrong:
                faults.append(f"{path.relative_to(package)}:{wanted.line} {wrong}")
    return faults


def long_modules(package: Path, limit: int = MAX_LINES) -> list[str]:
    sizes = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules_of(package).values()
    }
    return [f"{path.relative_to(package)}: {lines} lines" for path, lines in sizes.items() if lines > limit]


def test_imports_point_down_only() -> None:
    assert import_faults(ROOT / "durable_core") == []


def test_no_module_is_longer_than_400_lines() -> None:
    assert long_modules(ROOT / "durable_core") == []


IMPORT_ALONE = """
import json, sys

class Hidden:
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in COSTLY:
            return None
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        self.asked.append([frame.f_globals.get("__name__", ""), name])
        raise ModuleNotFoundError(name, name=name)

COSTLY = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Hidden())
before = set(sys.modules)
import durable_core
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
# Part of the standard library, but named for the platform.
loaded = {name for name in loaded if not name.startswith("_sysconfigdata")}
print(json.dumps({"loaded": sorted(loaded), "asked": Hidden.asked}))
"""


def test_the_package_imports_without_clients_and_terminal_libraries() -> None:
    # structlog looks for rich and greenlet when it is imported and does without; nothing of ours may ask.
    done = subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_ALONE, json.dumps(COSTLY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [ask for ask in seen["asked"] if ask[0].startswith("durable_core")] == []
    assert "durable_core" in seen["loaded"]
    assert set(seen["loaded"]) - CHEAP == set()


# Errors that people catch or that stop a run; the others are usage errors of one kind or another.
CAUGHT = (
    "AmbiguousStep",
    "BranchFailed",
    "CheckpointNotFound",
    "CorruptRecord",
    "CrashLimitReached",
    "DeadlineReached",
    "DurableError",
    "Fenced",
    "InputNotSerializable",
    "JournalUnavailable",
    "MissingBlob",
    "OutputNotSerializable",
    "OutputTooLarge",
    "RunBusy",
    "RunCancelled",
    "RunFailed",
    "RunInputMismatch",
    "RunNotFinished",
    "RunNotFound",
    "RunPruned",
    "StateNotSerializable",
    "StepFailed",
    "StepInDoubt",
    "StepMismatch",
    "StepTimedOut",
    "UsageError",
)


@pytest.mark.parametrize("name", CAUGHT)
def test_an_error_that_people_catch_is_imported_from_the_package_itself(name: str) -> None:
    assert name in durable_core.__all__
    assert getattr(durable_core, name) is getattr(errors, name)


def test_what_the_package_offers_is_sorted_and_there() -> None:
    assert durable_core.__all__ == sorted(durable_core.__all__)
    assert [name for name in durable_core.__all__ if not hasattr(durable_core, name)] == []


def make_package(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "durable_core"
    for name, text in {"__init__.py": "", "errors.py": "", "stores.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


SQLITE = {"journal/__init__.py": "", "journal/base.py": "", "journal/sqlite.py": "", "journal/memory.py": ""}
ENGINE = {"engine/__init__.py": "", "engine/driver.py": ""}
UP = "from durable_core.engine import driver\n"
OPEN_LATER = "def open():\n    from durable_core.stores import open_store\n"


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("errors.py", "import durable_core.stores\n", "imports upwards, stores"),
        ("errors.py", "import pydantic\n", "nothing but the standard library"),
        ("errors.py", "from . import stores\n", "relative import"),
        ("identity.py", "from durable_core.journal import base\n", "imports upwards, journal.base"),
        ("identity.py", "from durable_core import step\n", "imports upwards"),
        ("identity.py", "import typer\n", "imports typer, which belongs to cli"),
        ("journal/base.py", "from durable_core.journal.sqlite import SqliteJournal\n", "concrete store"),
        ("journal/memory.py", "def f():\n    import durable_core.journal.sqlite\n", "concrete store"),
        (
            "checkpoints/sqlite.py",
            "from durable_core.journal.memory import MemoryJournal\n",
            "concrete store",
        ),
        ("journal/memory.py", UP, "imports upwards, engine.driver"),
        ("journal/memory.py", "import psycopg\n", "imports psycopg, which belongs to journal.postgres"),
        ("journal/dynamodb.py", "import boto3\n", "only inside functions"),
        ("workflow.py", UP, "imports upwards, engine.driver"),
        ("workflow.py", f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {UP}", "imports upwards"),
        ("engine/steps.py", "from durable_core.journal import memory\n", "concrete store"),
        ("engine/steps.py", OPEN_LATER, "imports upwards, stores"),
        ("engine/executor.py", "from durable_core.stores import open_store\n", "imports upwards, stores"),
        ("engine/steps.py", "def f():\n    import boto3\n", "imports boto3, which belongs to"),
        ("cli/show.py", "from durable_core.journal.sqlite import SqliteJournal\n", "concrete store"),
        ("odd.py", "import durable_core.errors\n", "odd has no layer"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_found(
    tmp_path: Path, file: str, text: str, told: str
) -> None:
    faults = import_faults(make_package(tmp_path, {**SQLITE, **ENGINE, file: text}))
    assert len(faults) == 1
    assert faults[0].startswith(f"{file}:")
    assert told in faults[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("engine/executor.py", OPEN_LATER),
        ("engine/driver.py", "from durable_core.journal.base import Journal\nimport structlog\n"),
        (
            "journal/sqlite.py",
            "from durable_core.journal import base\nfrom durable_core.errors import Fenced\n",
        ),
        ("journal/_sqlite_writer.py", "from durable_core.journal.sqlite import connect\n"),
        ("checkpoints/sqlite.py", "from durable_core.journal.sqlite import connect\n"),
        ("journal/_conditions.py", "def f():\n    import botocore.exceptions\n"),
        ("journal/postgres.py", "import psycopg\n"),
        ("stores.py", "def open_store():\n    from durable_core.journal.sqlite import SqliteJournal\n"),
        (
            "cli/run.py",
            "import typer\nfrom durable_core import step\nfrom durable_core.stores import open_store\n",
        ),
    ],
)
def test_an_import_that_points_down_is_let_through(tmp_path: Path, file: str, text: str) -> None:
    assert import_faults(make_package(tmp_path, {**SQLITE, **ENGINE, file: text})) == []


def test_a_module_over_the_limit_is_found_and_one_at_the_limit_is_not(tmp_path: Path) -> None:
    package = make_package(tmp_path, {"errors.py": "x = 1\n" * 401, "stores.py": "x = 1\n" * 400})
    assert long_modules(package) == ["errors.py: 401 lines"]
