"""What is shipped: one version, the declared dependencies and nothing but the package."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.system import MODULES_THAT_KILL

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# In the standard library of a newer Python than this one may be.
NEWER_STANDARD_LIBRARY = {"annotationlib", "compression"}

# Modules that are not named for the distribution that brings them.
BROUGHT_BY = {
    "psycopg_pool": "psycopg",
    "botocore": "boto3",
    "aiobotocore": "aioboto3",
    "mypy_boto3_dynamodb": "dev",
    "mypy_boto3_s3": "dev",
    "mypy_boto3_sqs": "dev",
    "mypy_boto3_events": "dev",
    "pydantic_core": "pydantic",
    "werkzeug": "moto",
    "yaml": "PyYAML",
}


def test_what_is_left_out_where_there_is_no_proc_is_there() -> None:
    assert [name for name in MODULES_THAT_KILL if not (ROOT / "tests" / name).is_file()] == []


def declared() -> set[str]:
    """Every distribution that the project or one of its extras asks for."""
    extras = [wanted for names in PROJECT["optional-dependencies"].values() for wanted in names]
    return {canonicalize_name(Requirement(wanted).name) for wanted in [*PROJECT["dependencies"], *extras]}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in pins}


def outside_imports(source: str) -> set[str]:
    """The top-level names of all third-party modules that a source imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - NEWER_STANDARD_LIBRARY - {"durable_core"}


def undeclared(sources: dict[str, str]) -> list[str]:
    names = declared() | {"dev"}
    return [
        f"{file}: {module}"
        for file, source in sources.items()
        for module in sorted(outside_imports(source))
        if canonicalize_name(BROUGHT_BY.get(module, module)) not in names
    ]


def literal_versions(source: str) -> list[str]:
    """Version numbers assigned as text to a name that looks like a version of this package."""
    return re.findall(r"^(?:__version__|VERSION)\b[^=\n]*=\s*[\"'](\d[^\"']*)", source, flags=re.MULTILINE)


def sources_of_the_package() -> dict[str, str]:
    return {str(path): path.read_text(encoding="utf-8") for path in (ROOT / "durable_core").rglob("*.py")}


@pytest.fixture(scope="session")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is in the wheel that the build backend makes of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, os.fspath(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_installed_version_is_the_one_in_pyproject() -> None:
    assert metadata.version("durable-core") == PROJECT["version"]


def test_no_module_states_a_version_of_its_own() -> None:
    assert [file for file, source in sources_of_the_package().items() if literal_versions(source)] == []


@pytest.mark.parametrize("line", ['__version__ = "0.1.0"', "VERSION: Final = '1.2'"])
def test_a_version_stated_in_a_module_is_found(line: str) -> None:
    assert len(literal_versions(f"import os\n{line}\n")) == 1


def test_the_command_durable_leads_to_a_function() -> None:
    (command,) = metadata.entry_points(group="console_scripts", name="durable")
    assert command.value == PROJECT["scripts"]["durable"]
    assert callable(command.load())


def test_every_module_that_is_imported_is_declared() -> None:
    assert undeclared(sources_of_the_package()) == []


def test_a_module_that_is_not_declared_is_found() -> None:
    source = "import os, requests\nfrom pydantic import BaseModel\ndef f():\n    from httpx import get\n"
    assert undeclared({"bad.py": source}) == ["bad.py: httpx", "bad.py: requests"]


def test_every_declared_distribution_has_one_pinned_version_that_fits() -> None:
    wanted = [
        Requirement(line)
        for lines in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
        for line in lines
    ]
    pins = pinned()
    unfit = [
        str(one)
        for one in wanted
        if one.name != PROJECT["name"]
        and not one.specifier.contains(pins.get(canonicalize_name(one.name), "0"))
    ]
    assert unfit == []


def test_the_constraints_hold_exact_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    loose = [
        line for line in lines if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.]+", line)
    ]
    assert loose == []


def test_the_wheel_holds_the_package_its_types_and_its_licence(wheel_files: list[str]) -> None:
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "durable_core").rglob("*")
        if path.is_file() and path.suffix in (".py", ".sql", ".html", ".typed")
    }
    assert "durable_core/py.typed" in wheel_files
    assert on_disk - set(wheel_files) == set()
    assert any(name.endswith("/licenses/LICENSE") for name in wheel_files)


def test_the_wheel_holds_nothing_else(wheel_files: list[str]) -> None:
    info = f"durable_core-{PROJECT['version']}.dist-info"
    assert {name.partition("/")[0] for name in wheel_files} == {"durable_core", info}
