"""A small hub: the few routes of the Hugging Face hub that a download uses, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Repository:
    """One repository: commit -> files, and the commit that each name stands for."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], *names: str) -> str:
        """Add a commit; `main` and the names stand for it from now on."""
        sha = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = dict(files)
        self.refs |= dict.fromkeys(["main", *names], sha)
        return sha


@dataclass
class Hold:
    """A reply that stops in the middle: whether it got there, and when it may go on."""

    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


@dataclass
class LocalHub:
    """What the hub holds, what it was asked, and how it fails.

    Attributes:
        url: Its address, for `HF_ENDPOINT`.
        cuts: File name -> how many bytes a reply has before the connection breaks, once each.
        holds: File name -> a reply that stops after its first byte, once.
        answers: Path prefix -> status that is answered instead, for as long as it stands here.
        damaged: Files that arrive with a wrong byte.
        asked: `METHOD path`, and the range if one was asked for, in order.
        agents: What callers say about themselves.
    """

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)

    def repository(self, name: str) -> Repository:
        """The repository of this name, made if it is new."""
        return self.repositories.setdefault(name, Repository())

    def hold(self, name: str) -> Hold:
        """Let the next reply with this file stop after its first byte."""
        return self.holds.setdefault(name, Hold())

    def asked_for(self, text: str) -> list[str]:
        """The requests that contain a text."""
        return [request for request in self.asked if text in request]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LocalHub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Keep quiet."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer one of the routes."""
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        wanted = self.headers.get("Range", "")
        self.hub.asked.append(f"{self.command} {path} {wanted}".strip())
        self.hub.agents.add(self.headers.get("User-Agent", ""))
        for prefix, status in self.hub.answers.items():
            if path.startswith(prefix):
                return self._error(status, {401: "GatedRepo", 403: "GatedRepo"}.get(status, ""))
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path)
        tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = info or tree or file
        if match is None or match[1] not in self.hub.repositories:
            return self._error(401, "RepoNotFound")
        repository = self.hub.repositories[match[1]]
        sha = repository.refs.get(match[2], match[2])
        if sha not in repository.commits:
            return self._error(404, "RevisionNotFound")
        files = repository.commits[sha]
        if info:
            return self._json({"id": match[1], "sha": sha, "siblings": []})
        if tree:
            return self._json([_entry(name, content) for name, content in files.items()])
        return self._file(sha, match[3], files)

    def _error(self, status: int, code: str) -> None:
        self._start(status, {"X-Error-Code": code, "Content-Length": "0"})

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._start(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self._send(body)

    def _file(self, sha: str, name: str, files: Mapping[str, bytes]) -> None:
        if name not in files:
            return self._error(404, "EntryNotFound")
        content, etag = files[name], _entry(name, files[name])["oid"]
        if name in self.hub.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        body = content[int(begin[1]) :] if begin else content
        headers = {
            "ETag": f'"{etag}"',
            "X-Repo-Commit": sha,
            "Content-Length": str(len(body)),
            "Accept-Ranges": "bytes",
        }
        if begin:
            headers["Content-Range"] = f"bytes {begin[1]}-{len(content) - 1}/{len(content)}"
        self._start(206 if begin else 200, headers)
        cuts = self.hub.cuts.get(name)
        if cuts and self.command == "GET":
            self._send(body[: cuts.pop(0)])
            self.close_connection = True
            return None
        if self.command == "GET" and (hold := self.hub.holds.pop(name, None)):
            self._send(body[:1])
            hold.reached.set()
            hold.release.wait(30)
            self.close_connection = True
            return None
        return self._send(body)

    def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, body: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(name: str, content: bytes) -> dict[str, object]:
    """A file in a listing; weights are large files with a checksum, as on the real hub."""
    oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": oid}
    if name.endswith(".safetensors"):
        sha256 = hashlib.sha256(content).hexdigest()
        entry |= {"oid": oid, "lfs": {"oid": sha256, "size": len(content), "pointerSize": 130}}
    return entry


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    """A hub that listens on a free port."""
    hub = LocalHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield hub
        server.shutdown()
        thread.join()
