"""The walk-through of docs/adapters.md, on the real vLLM: its very commands, with what they are said to answer."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import struct
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random

import httpx2
import pytest

from tests.support.command_line import CommandLine
from tests.support.command_line import write_adapter as write_small_adapter
from tests.support.documents import ROOT, blocks

pytestmark = pytest.mark.engine

CONTACTS = ROOT / "examples" / "adapters" / "contacts"
WEIGHTS = "adapter_model.safetensors"
NAN = 0x7FC0
QUESTION = "Extract the contact as JSON with the keys name, company, email and phone.\n"
SENTENCES = (
    "For orders at Nimbus ask for Clara Olsen: clara.olsen@nimbus.example, +44 20 7946 0321.",
    "Ben Ito of Larch can be reached at ben.ito@larch.example or +44 20 7946 0144.",
    "Please call Mara Lind (Ostrea) on +44 20 7946 0712, or write to mara.lind@ostrea.example.",
    "Our contact at Pell is Otto Brandt, otto.brandt@pell.example, phone +44 20 7946 0555.",
)
STEPS = [
    step
    for block in blocks("walk", "docs/adapters.md")
    for step in re.findall(r"^(tuneplex .*)\n(\d): (.*)$", block.text, re.MULTILINE)
]
SCORE = """
import json, sys
answer = json.load(sys.stdin)["answer"]
print(json.dumps({"score": float(answer.lstrip().startswith('{"name"'))}))
"""


def copy(directory: Path, name: str) -> Path:
    """The example adapter once more."""
    return Path(shutil.copytree(CONTACTS, directory / name))


def changed(adapter: Path, change: object) -> Path:
    """The adapter after all numbers of its second matrices went through `change`, bfloat16 as 16 bits."""
    file = adapter / WEIGHTS
    data = bytearray(file.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    for name, tensor in header.items():
        if "lora_B" in name:
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            numbers = array("H", bytes(data[begin:end]))
            data[begin:end] = array("H", map(change, numbers)).tobytes()  # type: ignore[call-overload]
    file.write_bytes(data)
    return adapter


def write_runs(runs: Path) -> None:
    """What the walk-through adds: five that are broken, a good one and a bad one."""
    chance = Random(1)  # noqa: S311 - weights are no secret
    pickle = copy(runs, "pickle")
    (pickle / WEIGHTS).rename(pickle / "adapter_model.bin")
    cut = copy(runs, "cut") / WEIGHTS
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    write_small_adapter(runs / "other-base")
    changed(copy(runs, "nan"), lambda _number: NAN)
    changed(copy(runs, "nothing"), lambda _number: 0)
    config = copy(runs, "other-alpha") / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 80}))
    changed(copy(runs, "good"), lambda number: number ^ 1 if number & 0x7F else number)  # the last of seven digits
    changed(
        copy(runs, "worse"), lambda number: (number & 0x7FFF) + 0x100 | chance.getrandbits(1) << 15
    )  # 4 x, any sign


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, engine_python: Path, base_model: Path) -> Iterator[CommandLine]:
    """A running fleet with the example adapter `contacts`, and a directory with what was trained again."""
    directory = tmp_path_factory.mktemp("walk")
    line = CommandLine(directory)
    (directory / "fleet.yaml").write_text(
        f"name: walk\nbase: {{source: {base_model}, name: smollm2}}\nengine: {{python: {engine_python}}}\n"
        f"adapters: {{contacts: {CONTACTS}}}\ngateway: {{port: 0}}\n"
        "pools: {default: {max_loras: 2, max_lora_rank: 8, max_model_len: 512, kv_cache: 256MiB}}\n"
    )
    (directory / "score.py").write_text(SCORE)
    write_runs(directory / "runs")
    try:
        started = line.run("up", "--detach", patience_s=300)
        assert started.returncode == 0, started.stderr
        yield line
    finally:
        line.close()


@pytest.fixture(scope="module")
def probes(line: CommandLine) -> Path:
    """The adapter's probes, with what the version that is served says of them."""
    file, bare = line.directory / "probes.jsonl", line.directory / "questions.jsonl"
    asked = ({"messages": [{"role": "user", "content": QUESTION + sentence}]} for sentence in SENTENCES)
    bare.write_text("\n".join(json.dumps(probe) for probe in asked))
    version = json.loads(line.run("adapters", "show", "contacts", "--json").stdout)["promoted"]
    done = line.run("adapters", "probe", version, "--probes", str(bare), patience_s=120)
    assert done.returncode == 0, done.stderr
    file.write_text(done.stdout)
    return file


@contextmanager
def traffic(line: CommandLine) -> Iterator[None]:
    """A client that asks all the while; every request must be answered."""
    url, over, failed = json.loads(line.run("status", "--json").stdout)["url"], threading.Event(), []

    def ask() -> None:
        with httpx2.Client(timeout=120) as client:
            for number in count():
                if over.is_set():
                    break
                messages = [{"role": "user", "content": QUESTION + SENTENCES[number % len(SENTENCES)]}]
                body = {"model": "contacts", "messages": messages, "max_tokens": 4}
                reply = client.post(f"{url}/chat/completions", json=body)
                if not reply.is_success:
                    failed.append(reply.text)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failed


def test_the_walk_through(line: CommandLine, probes: Path) -> None:
    """Each command ends as the page says, with the reason that it gives; requests go on meanwhile."""
    assert probes.is_file()
    assert len(STEPS) == 10
    with traffic(line):
        for command, code, words in STEPS:
            done = line.run(*shlex.split(command)[1:], patience_s=300)
            assert (done.returncode, words) == (int(code), words), f"{command}\n{done.stdout}{done.stderr}"
            assert words in done.stdout + done.stderr, f"{command}\n{done.stdout}{done.stderr}"
    shown = json.loads(line.run("adapters", "show", "contacts", "--json").stdout)
    assert [event["action"] for event in shown["history"] if event["action"] in {"refused", "rolled back"}] == [
        *("refused", "refused", "rolled back")
    ]
