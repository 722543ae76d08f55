"""Object stores for these tests: each is started when a test first needs it, and serves all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.object_proxy import Proxy, proxy
from tests.support.object_stores import ObjectStore, moto_server, seaweedfs


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """SeaweedFS."""
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as store:
        yield store


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Moto's server."""
    with moto_server(tmp_path_factory.mktemp("moto")) as store:
        yield store


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache directory."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def credentials(weed: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of somebody who uses SeaweedFS, and nothing of this machine's own settings."""
    for name, value in weed.env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def front(weed: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """SeaweedFS behind a proxy that can fail, which the environment now names."""
    with proxy(weed.url) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", found.url)
        yield found
