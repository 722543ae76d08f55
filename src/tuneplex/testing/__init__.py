"""A fake engine for tests: vLLM's API, known answers, and every way of going wrong.

::

    async with FakeEngine("base", adapters=["legal"]) as engine:
        engine.script(Script(reset_after_chunks=3))
        ...  # point a client or a gateway at engine.url
        assert engine.requests[0].model == "legal"
"""

from tuneplex.testing.engine import FakeEngine
from tuneplex.testing.fake_python import write_fake_python
from tuneplex.testing.script import Record, Script, Sent
from tuneplex.testing.tokens import Tokenizer

__all__ = ["FakeEngine", "Record", "Script", "Sent", "Tokenizer", "write_fake_python"]
