"""Streams that may be ended: what they have used up to now, and how they are brought to an end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tuneplex.engines.meters import HiddenUsage, ResponseUsage, ShownUsage
from tuneplex.engines.usage import Aloud, Telling, Usage, asking_aloud
from tuneplex.engines.watching import WatchedChoices, WatchedResponse

NOTE = {"ended_by": "money_per_month", "message": "why"}
FINGERPRINT = b',"system_fingerprint":"f"'


def event(value: dict[str, Any], border: str = "\n\n") -> bytes:
    """One event of a stream."""
    return f"data: {json.dumps(value, separators=(',', ':'))}{border}".encode()


def chunk(index: int = 0, text: str = "a", end: str | None = None, **more: object) -> dict[str, Any]:
    """One event of a chat, without usage."""
    choice = {"index": index, "delta": {"content": text}, "finish_reason": end}
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m@1",
        "choices": [choice],
        **more,
    }


def usage(prompt: int, completion: int, details: object = None) -> dict[str, Any]:
    """As vLLM tells it in each event."""
    told = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    return {"usage": told | {"completion_tokens_details": details}}


def ended(watch: WatchedChoices | WatchedResponse, told: Usage | None = None) -> list[dict[str, Any]]:
    """The events of its end."""
    lines = watch.ending(NOTE, told).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def watched(**more: Any) -> WatchedChoices:  # noqa: ANN401 - the meter's own arguments
    """A stream whose client has asked for nothing."""
    how = {"choices": 1, "prompts": 1, "shown": False} | more
    return WatchedChoices(HiddenUsage(Telling(True, FINGERPRINT)), **how)


@pytest.mark.parametrize("border", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("details", [None, {"reasoning_tokens": 0}])
def test_what_only_we_have_asked_for_is_taken_out(border: str, details: object) -> None:
    """Byte for byte the event that there would have been, alone and among others, whatever the text says."""
    text = '","usage":{"prompt_tokens":1}'
    plain, told = chunk(text=text), chunk(text=text, **usage(7, 2, details))
    watch = watched()
    assert watch.one(event(told, border)) == event(plain, border)
    assert watch.many(event(told, border) * 2) == event(plain, border) * 2
    assert watch.so_far() == Usage(7, 2)
    assert watch.many(b"") == b""


def test_who_asks_for_it_sees_it() -> None:
    """A client's own wish for the usage in every event is left as it is."""
    watch = WatchedChoices(ShownUsage(), choices=1, prompts=1, shown=True)
    told = event(chunk(**usage(7, 2)))
    assert watch.one(told) == told
    assert watch.so_far() == watch.used() == Usage(7, 2)


def test_choices_and_prompts_add_up() -> None:
    """A prompt is paid once however many choices it has, and what is not known yet is not guessed."""
    watch = watched(choices=4, prompts=2)
    for index, prompt, completion in ((0, 5, 1), (1, 5, 2), (2, 9, 1), (0, 5, 2)):
        watch.one(event(chunk(index, **usage(prompt, completion))))
    assert watch.so_far() == Usage(14, 5)
    assert watch.open


def test_the_end_has_the_last_word() -> None:
    """Where the stream comes to its proper end, what it says there is what was used."""
    watch = watched()
    watch.one(event(chunk(**usage(7, 1))))
    watch.one(event(chunk(end="stop", **usage(7, 2))))
    assert not watch.open
    last = chunk() | {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    assert watch.one(event(last)) == b""
    assert watch.used() == Usage(7, 3)


def test_only_what_is_open_is_ended() -> None:
    """A choice that is over is not ended again, one that has said nothing yet is, and nobody makes up thousands."""
    watch = watched(choices=3)
    watch.many(event(chunk(0)) + event(chunk(1, end="stop")))
    ends = ended(watch)
    assert [one["choices"][0]["index"] for one in ends] == [0, 2]
    assert all(one["tuneplex"] == NOTE and one["choices"][0]["finish_reason"] == "length" for one in ends)
    assert {(one["id"], one["model"], one["created"]) for one in ends} == {("c1", "m@1", 5)}
    assert watch.ending(NOTE, None).endswith(b"data: [DONE]\n\n")
    assert len(ended(watched(choices=2**40))) == 1024


def test_the_usage_at_the_end_is_for_who_asked() -> None:
    """It comes after the choices, in a chunk without any."""
    watch = watched()
    watch.one(event(chunk()))
    last = ended(watch, Usage(7, 2))[-1]
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 9)


def test_engines_that_tell_nothing_are_counted() -> None:
    """By their events, as without a limit, and what is strange is passed on."""
    watch = watched()
    strange = b"data: {nonsense\n\n: a comment\n\n"
    assert watch.many(event(chunk()) + strange) == event(chunk()) + strange
    assert (watch.so_far().prompt, watch.so_far().exact) == (0, False)


@pytest.mark.parametrize(
    "given, told",
    [
        (None, (False, False)),
        ("{}", (False, False)),
        ('{"include_usage":true}', (True, False)),
        ('{"include_usage":true,"continuous_usage_stats":"yes"}', (True, True)),
        ('{"continuous_usage_stats":true,"other":[1]}', (False, False)),
    ],
)
def test_how_it_is_asked_for(given: str | None, told: tuple[bool, bool]) -> None:
    """Both options are asked for beside what the client has given, and its own wish is remembered."""
    fields = {} if given is None else {"stream_options": msgspec.Raw(given.encode())}
    aloud = asking_aloud(fields)
    assert isinstance(aloud, Aloud)
    assert (aloud.usage, aloud.always) == told
    asked = json.loads(bytes(aloud.options))
    assert (asked["include_usage"], asked["continuous_usage_stats"]) == (True, True)
    assert ("other" in asked) is ("other" in (given or ""))


@pytest.mark.parametrize("given", ["7", '{"include_usage":"perhaps"}', '{"continuous_usage_stats":[]}'])
def test_options_that_are_none_stay_as_they_are(given: str) -> None:
    """The engine must see and refuse them."""
    assert asking_aloud({"stream_options": msgspec.Raw(given.encode())}) is None


def test_a_response_with_several_items() -> None:
    """What is done stays as it is; what is open is done as far as it is, with every kind of text in its place."""
    watch = WatchedResponse(ResponseUsage())
    done = {"type": "message", "id": "m0", "status": "completed", "content": [{"type": "output_text", "text": "hi"}]}
    open_item = {"type": "reasoning", "id": "r1", "status": "in_progress", "content": []}
    place = {"item_id": "r1", "output_index": 1, "content_index": 0}
    said: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "resp_1", "model": "m@1", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**done, "status": "in_progress"}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hi"},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.output_item.added", "output_index": 1, "item": open_item},
        {"type": "response.reasoning_part.added", **place, "part": {"type": "reasoning_text", "text": ""}},
        {"type": "response.reasoning_text.delta", **place, "delta": "we"},
        {"type": "response.reasoning_text.delta", **place, "delta": "ll"},
    ]
    for number, fields in enumerate(said):
        one = event({**fields, "sequence_number": number})
        assert watch.one(one) == one
    assert watch.open
    events = ended(watch, Usage(3, 4))
    kinds = [one["type"] for one in events]
    assert kinds == [
        "response.reasoning_text.done",
        "response.reasoning_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [one["sequence_number"] for one in events] == [8, 9, 10, 11]
    assert events[0] == {**place, "type": kinds[0], "sequence_number": 8, "text": "well"}
    response = events[-1]["response"]
    assert response["output"][0] == done
    assert response["output"][1]["content"] == [{"type": "reasoning_text", "text": "well"}]
    assert (response["model"], response["usage"]["total_tokens"]) == ("m@1", 7)


def test_a_response_that_is_over_is_not_ended() -> None:
    """There is nothing to end."""
    watch = WatchedResponse(ResponseUsage())
    told = {"input_tokens": 3, "output_tokens": 2}
    watch.many(event({"type": "response.completed", "response": {"usage": told}}))
    assert not watch.open
    assert watch.used() == watch.so_far() == Usage(3, 2)
