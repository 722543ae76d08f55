"""The state directory: where a fleet keeps what must be found again by another process, or by the next start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path

import msgspec
import platformdirs

from tuneplex.errors import StateError
from tuneplex.files import write_whole
from tuneplex.releases import AdapterRecord
from tuneplex.types import FleetSpec

__all__ = ["StateDir", "SupervisorInfo", "default_path"]

_RUN_PREFIX = "tuneplex-"
_LOCK_PATIENCE_S = 1.0


class SupervisorInfo(msgspec.Struct, frozen=True):
    """What the supervisor tells about itself once its listening socket is bound.

    Attributes:
        pid: Its process.
        started: Unix time, seconds.
        url: Where clients call, with the port that was really bound: `http://127.0.0.1:8000/v1`.
    """

    pid: int
    started: float
    url: str


def default_path(fleet: str) -> Path:
    """Where the state of the fleet with this name belongs on this system."""
    return Path(platformdirs.user_state_dir("tuneplex")) / fleet


class StateDir:
    """The files of one fleet.

    ============================ =============================================================
    `fleet.json`                 the active `FleetSpec`, mode 0600
    `lock`                       held by the supervisor for as long as it lives
    `control.lock`               held by the control process that acts
    `supervisor.json`            `SupervisorInfo`; there once the listening socket is bound
    `logs/`                      one log for each process
    `store.db`                   tenants and keys, unless the fleet file names a database
    `tally`                      what gateways of this start had counted when they ended
    `access.snapshot`            what gateways last knew of them, for starts while the database is down
    `replies/`                   what is kept of replies to requests with an `Idempotency-Key`
    `journal/`                   what each gateway has written down of requests, until control has kept it elsewhere
    `audit/`                     the audit log and the key that signs it
    `holds.json`                 which replicas people have drained, since this start of the fleet
    `run`                        link to a short directory under /tmp that holds the sockets
    ============================ =============================================================

    The sockets live under /tmp because the kernel allows 107 bytes for a socket's path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fleet_file = path / "fleet.json"
        self.lock_file = path / "lock"
        self.supervisor_file = path / "supervisor.json"
        self.logs = path / "logs"
        self.run = path / "run"

    @property
    def run_directory(self) -> Path:
        """The short directory that `run` points to.

        Raises:
            StateError: No fleet runs here.
        """
        try:
            return self.run.readlink()
        except OSError as error:
            raise StateError(f"no fleet runs in {self.path}", hint="start one with: tuneplex up FLEET") from error

    @property
    def store_file(self) -> Path:
        """The store, unless it is in PostgreSQL."""
        return self.path / "store.db"

    @property
    def access_file(self) -> Path:
        """The snapshot of tenants and keys that control starts from while the store is down."""
        return self.path / "access.snapshot"

    @property
    def replies(self) -> Path:
        """Where the gateways keep replies for requests that are sent again."""
        return self.path / "replies"

    @property
    def journal(self) -> Path:
        """Where the gateways write down what becomes of requests."""
        return self.path / "journal"

    @property
    def audit(self) -> Path:
        """The audit log's directory."""
        return self.path / "audit"

    def replies_socket(self, index: int) -> Path:
        """Where a gateway process shows others the replies that it is recording; another one for each process."""
        return self.run_directory / f"gateway-{index}-{os.getpid()}-{secrets.token_hex(4)}.sock"

    @property
    def holds_file(self) -> Path:
        """The replicas that people have told to take no requests."""
        return self.path / "holds.json"

    def store_url(self, spec: FleetSpec) -> str:
        """Where the fleet's store is, as `records.Store` takes it."""
        return spec.store or f"sqlite:///{self.store_file.absolute()}"

    @property
    def tally_file(self) -> Path:
        """What gateways of this start had counted when they ended, for a control that is started anew."""
        return self.path / "tally"

    @property
    def versions_file(self) -> Path:
        """What control knows of adapters' versions, for a start without the database."""
        return self.path / "versions.json"

    @property
    def control_lock_file(self) -> Path:
        """Held by the control process that acts; the next one waits for it."""
        return self.path / "control.lock"

    @property
    def admin_socket(self) -> Path:
        """Where control answers `/status`, `/apply` and `/metrics`."""
        return self.run_directory / "admin.sock"

    @property
    def feed_socket(self) -> Path:
        """Where control feeds the gateways."""
        return self.run_directory / "feed.sock"

    @property
    def supervisor_socket(self) -> Path:
        """Where the supervisor takes control's wishes for keepers."""
        return self.run_directory / "supervisor.sock"

    def create(self) -> None:
        """Make the directories, for this user's eyes only."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs.mkdir(mode=0o700, exist_ok=True)

    def read_spec(self) -> FleetSpec:
        """The active fleet.

        Raises:
            StateError: There is none, or the file is not one of ours.
        """
        try:
            return msgspec.json.decode(self.fleet_file.read_bytes(), type=FleetSpec)
        except FileNotFoundError as error:
            raise StateError(f"{self.fleet_file} does not exist", hint="tuneplex up FLEET writes it") from error
        except msgspec.MsgspecError as error:
            raise StateError(f"{self.fleet_file} is not a fleet: {error}") from error

    def write_spec(self, spec: FleetSpec) -> None:
        """Replace the active fleet as a whole; a crash leaves the old or the new one, never half of each."""
        write_whole(self.fleet_file, msgspec.json.format(msgspec.json.encode(spec), indent=2))

    def read_versions(self) -> tuple[AdapterRecord, ...]:
        """What control knew of adapters' versions when it changed them last; nothing if that cannot be read."""
        try:
            kept = msgspec.json.decode(self.versions_file.read_bytes(), type=tuple[str, tuple[AdapterRecord, ...]])
        except (OSError, msgspec.MsgspecError):
            return ()
        return kept[1]

    def lock(self) -> int:
        """Take the lock that makes this process the directory's only supervisor; it lasts until the process ends.

        Raises:
            StateError: Another supervisor holds it.
        """
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:  # who only looks whether a fleet runs holds the lock for a moment, too
                os.close(descriptor)
                raise StateError(f"a fleet runs in {self.path} already", hint="end it with: tuneplex down")
            time.sleep(0.02)
        return descriptor

    def try_control_lock(self) -> int | None:
        """Take the lock that makes this process the only control that acts, if nobody has it; it lasts as long."""
        descriptor = os.open(self.control_lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        if _try_lock(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def is_locked(self) -> bool:
        """Whether a supervisor lives, whatever files an earlier one may have left behind."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def supervisor(self) -> SupervisorInfo | None:
        """The supervisor that runs here and has bound its socket, or None."""
        if not self.is_locked():
            return None
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            return msgspec.json.decode(self.supervisor_file.read_bytes(), type=SupervisorInfo)
        return None

    def write_supervisor(self, info: SupervisorInfo) -> None:
        """Tell others that the fleet is there; only the supervisor does."""
        write_whole(self.supervisor_file, msgspec.json.encode(info))

    def open_run(self) -> Path:
        """Make a fresh run directory, and remove what a killed supervisor left; only the supervisor does."""
        self.close_run()
        directory = Path(tempfile.mkdtemp(prefix=_RUN_PREFIX, dir="/tmp"))
        try:
            self.run.symlink_to(directory)
        except BaseException:
            directory.rmdir()
            raise
        return directory

    def close_run(self) -> None:
        """Remove the run directory and what points to it."""
        self.supervisor_file.unlink(missing_ok=True)
        with contextlib.suppress(StateError):
            directory = self.run_directory
            if _is_ours(directory):
                shutil.rmtree(directory, ignore_errors=True)
        self.run.unlink(missing_ok=True)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_ours(directory: Path) -> bool:
    """Whether a link leads to a run directory of this user, and not somewhere that somebody else chose."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and directory.name.startswith(_RUN_PREFIX)
