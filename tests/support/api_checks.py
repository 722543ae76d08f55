"""schemathesis against a gateway: requests made from its own document, and its replies held against it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.openapi import HTTP_METHODS

__all__ = ["check_api", "narrowed"]

_SEED = 1
# An engine has its own opinion of values that fit our schemas, which are about what the gateway sees to.
_NOT_OURS = "positive_data_acceptance"


def narrowed(document: bytes, names: Sequence[str], *, keyed: bool, tokens: int | None = None) -> dict[str, Any]:
    """The document for one fleet.

    Args:
        document: As the gateway gives it.
        names: Of models, because with other names most requests would end with 404.
        keyed: Whether the fleet has keys.
        tokens: How many a reply shall have, where an engine takes its time.
    """
    found: dict[str, Any] = json.loads(document)
    if not keyed:
        del found["security"]
    for path, item in found["paths"].items():
        for method, operation in item.items():
            assert method.upper() in HTTP_METHODS
            if not keyed:
                operation.pop("security", None)
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    parameter["schema"]["enum"] = [*names]
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                if "{deployment}" not in path:
                    schema["properties"]["model"]["enum"] = [*names]
                if tokens is not None:
                    limit = "max_output_tokens" if path.endswith("/responses") else "max_tokens"
                    schema["properties"][limit] = {"type": "integer", "enum": [tokens]}
                    schema["required"].append(limit)
    return found


async def check_api(
    port: int, document: dict[str, Any], place: Path, *, examples: int, key: str = "", without: Sequence[str] = ()
) -> str:
    """Run it in a process of its own, so that the gateway can go on in this one; what it found, empty if nothing.

    Args:
        port: The gateway's, on loopback.
        document: The OpenAPI document.
        place: A directory for its files.
        examples: How many requests to make up for each operation, beside those that cover its schema.
        key: A key to send.
        without: Checks to leave out.
    """
    path = place / "openapi.json"
    path.write_text(json.dumps(document))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", f"http://127.0.0.1:{port}"]
    command += ["--checks", "all", "--exclude-checks", ",".join((_NOT_OURS, *without)), "--seed", str(_SEED)]
    command += ["--generation-deterministic", "--max-examples", str(examples)]
    command += ["--no-color", "--request-timeout", "300", "--max-response-time", "300", "--warnings", "off"]
    command += ["--header", f"Authorization: Bearer {key}"] if key else []
    process = await asyncio.create_subprocess_exec(
        *command, cwd=place, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return "" if process.returncode == 0 else output.decode()
