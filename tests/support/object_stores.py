"""Object stores as processes on loopback, and a proxy in front of one that fails on demand."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config

__all__ = ["KEY", "SECRET", "ObjectStore", "moto_server", "seaweedfs"]

KEY, SECRET = "tuneplex-test", "a secret of these tests alone"
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class ObjectStore:
    """A server that speaks S3.

    Attributes:
        url: Its address.
        client: Botocore's client of it, for what tests put there and look at.
    """

    url: str
    client: Any = field(repr=False)

    @property
    def env(self) -> Mapping[str, str]:
        """What a program needs in its environment to use it."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def bucket(self, *, locked: bool = False) -> str:
        """A new, empty bucket; with `locked`, one that has Object Lock."""
        name = f"b-{secrets.token_hex(6)}"
        self.client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=locked)
        return name

    def put(self, bucket: str, prefix: str, files: Mapping[str, bytes]) -> str:
        """Store objects below a prefix; their URL."""
        for name, content in files.items():
            self.client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=content)
        return f"s3://{bucket}/{prefix}"

    def files(self, bucket: str, prefix: str) -> dict[str, bytes]:
        """All objects below a prefix, by the rest of their keys."""
        listed = self.client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", ())
        keys = [one["Key"] for one in listed]
        read = {key: self.client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
        return {key.removeprefix(f"{prefix}/"): content for key, content in read.items()}


@contextlib.contextmanager
def seaweedfs(directory: Path) -> Iterator[ObjectStore]:
    """SeaweedFS, which rejects bad secrets and enforces Object Lock; it has ended when the block is left."""
    ports = _free_ports(8)
    config = directory / "s3.json"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    data = directory / "data"
    data.mkdir()
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": data,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "256",
        "volume.max": "500",
        "volume.minFreeSpacePercent": "0",
        "filer": "true",
        "s3": "true",
        "s3.config": config,
        "s3.iam": "false",
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
    }
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    for at, name in enumerate(names):
        options |= {name: str(ports[at]), f"{name}.grpc": str(ports[at + len(names)])}
    weed = Path(sysconfig.get_path("scripts")) / "weed"
    command = [weed, "server", *(f"-{name}={value}" for name, value in options.items())]
    url = f"http://127.0.0.1:{ports[names.index('s3.port')]}"
    with _server([str(part) for part in command], url, directory) as store:
        yield store


@contextlib.contextmanager
def moto_server(directory: Path) -> Iterator[ObjectStore]:
    """Moto's server; it does not look at secrets. It has ended when the block is left."""
    (port,) = _free_ports(1)
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _server(command, f"http://127.0.0.1:{port}", directory) as store:
        yield store


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def _server(command: list[str], url: str, directory: Path) -> Iterator[ObjectStore]:
    log = directory / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=directory, env=_environment(directory))
    try:
        store = ObjectStore(url, _client(url))
        _wait(process, store, log)
        yield store
    finally:
        process.kill()  # what it holds is thrown away
        process.wait()


def _environment(directory: Path) -> dict[str, str]:
    """Nothing of this machine's settings, as they may name other servers."""
    return {"PATH": os.environ["PATH"], "HOME": str(directory)}


def _client(url: str) -> Any:  # noqa: ANN401 - botocore makes its clients' methods at run time
    session = botocore.session.get_session()
    session.set_credentials(KEY, SECRET)
    config = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1},
        read_timeout=60,
    )
    return session.create_client("s3", endpoint_url=url, region_name="us-east-1", config=config)


def _wait(process: subprocess.Popen[bytes], store: ObjectStore, log: Path) -> None:
    """Until it really stores objects: SeaweedFS listens before it has room for any."""
    deadline = time.monotonic() + _PATIENCE_S
    bucket = None
    while True:
        try:
            bucket = bucket or store.bucket()
            store.put(bucket, "ready", {"yes": b"1"})
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text(errors="replace")[-4000:]) from error
            time.sleep(0.1)
        else:
            return
