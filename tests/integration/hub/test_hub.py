"""Models and adapters from a hub: what arrives, what is kept, and what happens when something breaks."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from tuneplex.adapters import fetch_adapter, fetch_base
from tuneplex.errors import SourceError

CONFIG = b'{"r": 8}'
ADAPTER = {"adapter_config.json": CONFIG, "adapter_model.safetensors": b"weights" * 1000}

PICKLED = (
    "has no adapter_model.safetensors, only adapter_model.bin, a pickle, which can run any code and is not fetched"
)


class Repository(Protocol):
    """The part of a test repository that these tests use."""

    def commit(self, files: Mapping[str, bytes], *names: str) -> str:
        """Add a commit."""


class Hold(Protocol):
    """A reply that stops in the middle."""

    reached: threading.Event
    release: threading.Event


class Hub(Protocol):
    """The part of the test hub that these tests use."""

    url: str
    cuts: dict[str, list[int]]
    answers: dict[str, int]
    damaged: set[str]
    asked: list[str]
    agents: set[str]

    def repository(self, name: str) -> Repository:
        """A repository."""

    def hold(self, name: str) -> Hold:
        """Let the next reply with this file stop."""

    def asked_for(self, text: str) -> list[str]:
        """The requests that contain a text."""


class Steps:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.advances: list[tuple[int, int]] = []

    def step(self, text: str) -> None:
        """Note a step."""
        self.steps.append(text)

    def advance(self, done: int, total: int) -> None:
        """Note an advance."""
        self.advances.append((done, total))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache directory."""
    return tmp_path / "cache"


def fetch(hub: Hub, cache: Path, source: str = "hf:acme/lora", steps: Steps | None = None) -> Path:
    """Fetch an adapter."""
    return fetch_adapter("a", source, cache, steps or Steps(), endpoint=hub.url)


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_adapter_arrives(hub: Hub, cache: Path) -> None:
    """An adapter's files arrive in the directory of its commit; code, pickles and other directories do not."""
    others = {"README.md": b"x", "run.py": b"x", "adapter_model.bin": b"x", "sub/adapter_config.json": b"x"}
    commit = hub.repository("acme/lora").commit(ADAPTER | others)
    steps = Steps()
    directory = fetch(hub, cache, steps=steps)
    assert contents(directory) == ADAPTER
    assert directory.name == commit
    assert steps.steps == [f"hf:acme/lora is commit {commit[:12]}", "downloading hf:acme/lora (6.8 KiB)"]
    total = sum(map(len, ADAPTER.values()))
    assert steps.advances[-1] == (total, total)
    assert all(done <= total for done, _ in steps.advances)


def test_base_arrives(hub: Hub, cache: Path) -> None:
    """A base arrives with its configuration, tokenizer and safetensors, once."""
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"w", "model-2.safetensors": b"w"}
    doubles = {"consolidated.safetensors": b"ww", "pytorch_model.bin": b"x", "modeling_x.py": b"x"}
    hub.repository("acme/base").commit(files | doubles)
    found = fetch_base("tiny", "hf:acme/base", cache, Steps(), python=Path("/none"), env={}, endpoint=hub.url)
    assert (found.name, found.source) == ("tiny", "hf:acme/base")
    assert contents(Path(found.path)) == files


def test_nothing_is_fetched_twice(hub: Hub, cache: Path) -> None:
    """The second time only the revision is asked for, and a commit needs no question at all."""
    commit = hub.repository("acme/lora").commit(ADAPTER)
    first = fetch(hub, cache)
    hub.asked.clear()
    assert fetch(hub, cache) == first
    assert len(hub.asked) == 1
    hub.asked.clear()
    assert fetch(hub, cache, f"hf:acme/lora@{commit}") == first
    assert hub.asked == []


def test_revisions(hub: Hub, cache: Path) -> None:
    """A branch, a tag and a commit each lead to their own content, also with a slash in the name."""
    repository = hub.repository("acme/lora")
    old = repository.commit(ADAPTER | {"vocab.json": b"1"}, "v1", "refs/pr/1")
    new = repository.commit(ADAPTER | {"vocab.json": b"2"})
    for revision, commit in {"v1": old, "refs/pr/1": old, "main": new, old: old}.items():
        assert fetch(hub, cache, f"hf:acme/lora@{revision}").name == commit


def test_repository_that_changes(hub: Hub, cache: Path) -> None:
    """A new commit becomes a new directory; the old one stays as it was."""
    repository = hub.repository("acme/lora")
    repository.commit(ADAPTER)
    before = fetch(hub, cache)
    changed = ADAPTER | {"adapter_model.safetensors": b"better"}
    repository.commit(changed)
    after = fetch(hub, cache)
    assert (contents(before), contents(after)) == (ADAPTER, changed)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_hub_that_fails_is_done_without(hub: Hub, cache: Path, status: int) -> None:
    """What was fetched once is used while the hub fails, and that is told."""
    hub.repository("acme/lora").commit(ADAPTER)
    before = fetch(hub, cache)
    hub.answers["/api"] = status
    steps = Steps()
    assert fetch(hub, cache, steps=steps) == before
    assert steps.steps == [f"the hub is out of reach; hf:acme/lora is commit {before.name[:12]} from the cache"]


def test_hub_that_is_gone_is_done_without(hub: Hub, cache: Path) -> None:
    """The same when nothing listens any more; without a copy it is an error."""
    hub.repository("acme/lora").commit(ADAPTER)
    before = fetch(hub, cache)
    hub.url = "http://127.0.0.1:9"
    assert fetch(hub, cache) == before
    with pytest.raises(SourceError, match=r"^hf:acme/lora@v2: could not be fetched: ") as caught:
        fetch(hub, cache, "hf:acme/lora@v2")
    assert "check the network" in caught.value.hint


@pytest.mark.parametrize(
    "source, message, hint",
    [
        ("hf:acme/none", "hf:acme/none: the hub has no such repository, or hides it", "check the name"),
        ("hf:acme/lora@v9", "hf:acme/lora@v9: the repository has no such revision", "name a branch"),
        (f"hf:acme/lora@{'0' * 40}", f"hf:acme/lora@{'0' * 40}: the repository has no such revision", "name a branch"),
    ],
)
def test_what_does_not_exist(hub: Hub, cache: Path, source: str, message: str, hint: str) -> None:
    """A repository or revision that does not exist is named."""
    hub.repository("acme/lora").commit(ADAPTER)
    with pytest.raises(SourceError) as caught:
        fetch(hub, cache, source)
    assert str(caught.value) == message
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "status, message",
    [
        (403, "is gated; the hub wants to know who fetches it"),
        (500, "the hub answered 500"),
        (418, "the hub answered 418"),
    ],
)
def test_hub_that_refuses(hub: Hub, cache: Path, status: int, message: str) -> None:
    """What the hub refuses is told in its words."""
    hub.repository("acme/lora").commit(ADAPTER)
    hub.answers["/api"] = status
    with pytest.raises(SourceError) as caught:
        fetch(hub, cache)
    assert str(caught.value) == f"hf:acme/lora: {message}"


@pytest.mark.parametrize(
    "files, message",
    [
        ({"adapter_config.json": CONFIG}, "hf:acme/lora: has no adapter_model.safetensors"),
        ({"adapter_config.json": CONFIG, "adapter_model.bin": b"x"}, f"hf:acme/lora: {PICKLED}"),
        ({"config.json": b"{}", "model.safetensors": b"x"}, "hf:acme/lora: has no adapter_config.json"),
    ],
)
def test_repository_without_an_adapter(hub: Hub, cache: Path, files: Mapping[str, bytes], message: str) -> None:
    """A repository without what an adapter needs is refused before anything is fetched."""
    hub.repository("acme/lora").commit(files)
    with pytest.raises(SourceError) as caught:
        fetch(hub, cache)
    assert str(caught.value) == message
    assert not hub.asked_for("/resolve/")


def test_adapter_in_the_place_of_the_base(hub: Hub, cache: Path) -> None:
    """A base that is an adapter gets a hint."""
    hub.repository("acme/lora").commit(ADAPTER)
    with pytest.raises(SourceError, match=r"has no config.json") as caught:
        fetch_base("tiny", "hf:acme/lora", cache, Steps(), python=Path("/none"), env={}, endpoint=hub.url)
    assert caught.value.hint == "it belongs under 'adapters'"


def test_connection_cut_once(hub: Hub, cache: Path) -> None:
    """A connection that breaks in the middle of a large file is taken up again where it broke."""
    large = ADAPTER | {"adapter_model.safetensors": bytes(range(256)) * 64 * 1024}
    hub.repository("acme/lora").commit(large)
    hub.cuts["adapter_model.safetensors"] = [15 * 1024 * 1024]
    assert contents(fetch(hub, cache)) == large
    (resumed,) = hub.asked_for("adapter_model.safetensors bytes=")
    assert int(resumed.rpartition("bytes=")[2].rstrip("-")) > 1024 * 1024


def test_fetch_that_fails_in_the_middle(hub: Hub, cache: Path) -> None:
    """After a failure nothing looks complete, and the next try fetches only what is missing."""
    commit = hub.repository("acme/lora").commit(ADAPTER)
    hub.answers[f"/acme/lora/resolve/{commit}/adapter_model"] = 404
    with pytest.raises(SourceError):
        fetch(hub, cache)
    assert not list((cache / "hub" / "adapters" / "acme--lora").glob("[0-9a-f]*"))
    hub.answers.clear()
    hub.asked.clear()
    assert contents(fetch(hub, cache)) == ADAPTER
    assert [request.rpartition("/")[2] for request in hub.asked_for("GET /acme/lora/resolve/")] == [
        "adapter_model.safetensors"
    ]


def test_damaged_file(hub: Hub, cache: Path) -> None:
    """A file with a wrong checksum is thrown away and fetched anew the next time."""
    hub.repository("acme/lora").commit(ADAPTER)
    hub.damaged.add("adapter_model.safetensors")
    with pytest.raises(SourceError, match="arrived damaged: its checksum is wrong"):
        fetch(hub, cache)
    hub.damaged.clear()
    assert contents(fetch(hub, cache)) == ADAPTER


def test_many_at_once(hub: Hub, cache: Path) -> None:
    """Of several that fetch the same at once, one does the work, and all get the same directory."""
    hub.repository("acme/lora").commit(ADAPTER)
    barrier = threading.Barrier(6)
    found: list[Path] = []

    def run() -> None:
        barrier.wait()
        found.append(fetch(hub, cache))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    assert len(hub.asked_for("GET /acme/lora/resolve/")) == 2


SCRIPT = """
import resource, signal, sys
from pathlib import Path
from tuneplex.adapters import SilentProgress, fetch_adapter, hub
from tuneplex.errors import SourceError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    print(fetch_adapter("a", "hf:acme/lora", Path(sys.argv[1]), SilentProgress()))
except SourceError as error:
    print("SourceError", error, error.hint)
"""


def in_a_process(cache: Path, *, largest: int = 1 << 30, **env: str) -> str:
    """Fetch in a process of its own that cannot write larger files, with this environment only."""
    # Byte code would be cut off at the limit too, and stay behind for everybody.
    command = [sys.executable, "-B", "-c", SCRIPT, str(cache), str(largest)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_no_room(hub: Hub, cache: Path) -> None:
    """When the disk takes no more, it is said so, and what is complete stays for the next try."""
    hub.repository("acme/lora").commit(ADAPTER)
    said = in_a_process(cache, largest=5000, HF_ENDPOINT=hub.url)
    assert said.startswith("SourceError hf:acme/lora: cannot be stored: File too large")
    assert "complete files are kept" in said
    assert Path(in_a_process(cache, HF_ENDPOINT=hub.url)).is_dir()


def test_too_little_room(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for all of it nothing is fetched, and both figures are told."""
    hub.repository("acme/lora").commit(ADAPTER)
    usage = shutil.disk_usage(cache.parent)._replace(free=2048)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SourceError, match=r"^hf:acme/lora: needs 6.8 KiB, .* has 2.0 KiB free$"):
        fetch(hub, cache)
    assert not hub.asked_for("/resolve/")


def test_killed_while_fetching(hub: Hub, cache: Path) -> None:
    """A process that is killed in the middle leaves neither a lock nor anything that looks complete."""
    hub.repository("acme/lora").commit(ADAPTER)
    hold = hub.hold("adapter_model.safetensors")
    command = [sys.executable, "-B", "-c", SCRIPT, str(cache), str(1 << 30)]
    with subprocess.Popen(command, env={"HF_ENDPOINT": hub.url}) as process:
        assert hold.reached.wait(30)
        process.kill()
    hold.release.set()
    assert not list((cache / "hub" / "adapters" / "acme--lora").glob("[0-9a-f]*"))
    assert contents(fetch(hub, cache)) == ADAPTER


def test_endpoint_and_offline_mode_come_from_the_environment(hub: Hub, cache: Path) -> None:
    """Without an endpoint, HF_ENDPOINT is asked; with HF_HUB_OFFLINE only the cache is."""
    hub.repository("acme/lora").commit(ADAPTER)
    refused = in_a_process(cache, HF_HUB_OFFLINE="1", HF_ENDPOINT=hub.url)
    assert refused.startswith("SourceError hf:acme/lora: is not in the cache, and HF_HUB_OFFLINE forbids")
    assert hub.asked == []
    directory = in_a_process(cache, HF_ENDPOINT=hub.url)
    assert contents(Path(directory)) == ADAPTER
    hub.asked.clear()
    assert in_a_process(cache, HF_HUB_OFFLINE="1", HF_ENDPOINT=hub.url) == directory
    assert hub.asked == []


def test_nothing_about_this_machine_is_told(hub: Hub, cache: Path) -> None:
    """The hub learns no more than the library and Python versions."""
    hub.repository("acme/lora").commit(ADAPTER)
    fetch(hub, cache)
    words = {part.strip().split("/")[0] for agent in hub.agents for part in agent.split(";")}
    assert words <= {"unknown", "hf_hub", "python", "tuneplex"}
