"""The gateway in front of the real vLLM, against its own OpenAPI document."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.api_checks import check_api, narrowed
from tests.support.gateways import KEY, open_gateway
from tests.support.real_engine import RealEngine

pytestmark = [pytest.mark.engine, pytest.mark.full]

NAMES = ("base", "ada", "gpt-4o-mini", "nobody")
# What vLLM itself fails at is its failure, and passed on as such; and it need not miss the limit that is only ours.
VLLMS_OWN = ("not_a_server_error", "negative_data_rejection")
FAILED = re.compile(r'tuneplex_outcomes_total\{[^}]*outcome="(broken|unreachable|timeout)"[^}]*\} [1-9]')


async def test_no_request_makes_the_gateway_or_vllm_break_off(
    real_engine: RealEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every reply is one that the document has, whole and valid, whatever is asked."""
    with caplog.at_level(logging.WARNING):
        async with open_gateway(real_engine.endpoint, real_engine.secret) as url:
            origin = url.removesuffix("/v1")
            async with httpx2.AsyncClient(base_url=origin, trust_env=False) as client:
                document = narrowed((await client.get("/openapi.json")).content, NAMES, keyed=True, tokens=2)
                port = urlsplit(origin).port or 0
                found = await check_api(port, document, tmp_path, examples=20, key=KEY, without=VLLMS_OWN)
                page = (await client.get("/metrics")).text
    assert not found, found
    assert 'outcome="complete"' in page
    assert not FAILED.search(page)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
