"""The channel between control and the gateways."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tuneplex.feed import Publisher, Subscriber
from tuneplex.feed.frames import PROTOCOL, FrameError, Hello, greeting, pack, read_frame, read_hello
from tuneplex.feed.sockets import private_socket
from tuneplex.identity import Access, Key, Limits, Tenant
from tuneplex.types import FleetView, GatewayReport, Leases, Model, Replica, Turns


@pytest.fixture
def path() -> Iterator[Path]:
    """A path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="tp", dir="/tmp") as directory:
        yield Path(directory) / "feed.sock"


class Gateway:
    """What a subscriber talks to: it keeps what it is sent, and reports what it is told to."""

    def __init__(self) -> None:
        self.views: list[FleetView] = []
        self.accesses: list[Access] = []
        self.leases: list[Leases] = []
        self.turns: list[Turns] = []
        self.lost = 0
        self.arrived = asyncio.Event()
        self.outstanding: dict[str, int] = {}

    def take(self, view: FleetView) -> None:
        """Keep a view."""
        self.views.append(view)
        self.arrived.set()

    def lose(self) -> None:
        """Count how often control went away."""
        self.lost += 1

    def report(self) -> GatewayReport:
        """A report with the generation of the latest view."""
        return GatewayReport(0, 1, self.views[-1].generation if self.views else -1, self.outstanding)

    async def until(self, generation: int) -> FleetView:
        """Wait for the view of a generation."""
        while not self.views or self.views[-1].generation < generation:
            self.arrived.clear()
            await self.arrived.wait()
        return self.views[-1]


@contextlib.asynccontextmanager
async def subscribed(path: Path) -> AsyncIterator[Gateway]:
    """A gateway that is subscribed for as long as the block runs."""
    gateway = Gateway()
    subscriber = Subscriber(
        path,
        on_view=gateway.take,
        on_access=gateway.accesses.append,
        on_leases=gateway.leases.append,
        on_turns=gateway.turns.append,
        on_lost=gateway.lose,
        report=gateway.report,
        interval_s=0.02,
    )
    task = asyncio.create_task(subscriber.run())
    try:
        yield gateway
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process's place
            await asyncio.sleep(0.005)


async def test_views_go_down_and_reports_come_up(path: Path) -> None:
    """A gateway gets the view whole, and control gets what the gateway says of itself."""
    replica = Replica("r-0", "r", "vllm", "unix:/e", serves={"base": "b"})
    view = FleetView(7, {"base": Model("base", "base")}, {"gpt": "base"}, (replica,))
    publisher = Publisher()
    async with publisher.listening(path), subscribed(path) as gateway:
        gateway.outstanding = {"r-0": 3}
        await publisher.publish(view)
        assert await gateway.until(7) == view
        await until(lambda: publisher.reports and publisher.reports[0].generation == 7)
        assert publisher.reports[0].outstanding == {"r-0": 3}


async def test_a_report_in_a_hurry(path: Path) -> None:
    """What others wait for is reported at once and not when it is time."""
    publisher, gateway = Publisher(), Gateway()
    subscriber = Subscriber(path, on_view=gateway.take, on_access=gateway.accesses.append, report=gateway.report,
                            interval_s=1000.0)  # fmt: skip
    async with publisher.listening(path):
        task = asyncio.create_task(subscriber.run())
        await until(lambda: publisher.reports)
        gateway.outstanding = {"r-0": 5}
        subscriber.hurry()
        await until(lambda: publisher.reports[0].outstanding == {"r-0": 5})
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_nothing_is_sent_before_the_first_view(path: Path) -> None:
    """A control that has just started does not take away what gateways know."""
    publisher = Publisher()
    async with publisher.listening(path), subscribed(path) as gateway:
        await until(lambda: publisher.reports)
        assert gateway.views == []
        assert publisher.connected == 1


async def test_each_kind_of_value_goes_down_by_itself(path: Path) -> None:
    """A gateway gets the latest of each kind, and one kind does not wait for the other."""
    access = Access(3, required=True, salt="s", tenants=(Tenant("acme"),), keys=(Key("k1", "acme", "0" * 64),))
    publisher = Publisher()
    async with publisher.listening(path), subscribed(path) as early:
        await publisher.publish(access)
        await until(lambda: early.accesses)
        assert early.views == []
        await publisher.publish(FleetView(1))
        await publisher.publish(msgspec.structs.replace(access, generation=4))
        async with subscribed(path) as late:
            await late.until(1)
            await until(lambda: late.accesses)
            assert [one.generation for one in late.accesses] == [4]
        await until(lambda: len(early.accesses) > 1)
        assert early.accesses == [access, msgspec.structs.replace(access, generation=4)]
        assert [view.generation for view in early.views] == [1]


async def test_turns_go_down_whole(path: Path) -> None:
    """A gateway takes in how the replicas are shared exactly as it was published, and only the last of several."""
    turns = Turns(4, {0: {"r": 3}, 1: {"r": 1}}, {0: {"a": 0.75}}, {1: {"r": {"m@1": 2}}}, {"r": ("m@1",)})
    publisher = Publisher()
    async with publisher.listening(path):
        await publisher.publish(Turns(3))
        await publisher.publish(turns)
        async with subscribed(path) as gateway:
            await until(lambda: gateway.turns)
            assert gateway.turns == [turns]


async def test_leases_go_down_whole(path: Path) -> None:
    """Shares arrive as they were made, whoever they are for, the latest for who comes late."""
    leases = Leases(
        9,
        {0: {"tenant acme": Limits(3, None, 5)}, 7: {}},
        {"tenant acme": Limits(4, None, 9)},
        {"tokens_per_day": 20000},
    )
    publisher = Publisher()
    async with publisher.listening(path):
        await publisher.publish(Leases(8))
        await publisher.publish(leases)
        async with subscribed(path) as gateway:
            await until(lambda: gateway.leases)
            assert gateway.leases == [leases]
            assert not gateway.views
            assert not gateway.accesses


async def test_a_late_gateway_gets_the_latest_view(path: Path) -> None:
    """Whoever connects later starts with the view as it is now."""
    publisher = Publisher()
    async with publisher.listening(path):
        for generation in range(5):
            await publisher.publish(FleetView(generation))
        async with subscribed(path) as gateway:
            await gateway.until(4)
            assert [view.generation for view in gateway.views] == [4]


async def test_a_gateway_finds_its_control_again(path: Path) -> None:
    """While control is away the gateway keeps its view, knows that it is, and it subscribes to the next one."""
    async with subscribed(path) as gateway:
        for generation in (1, 2):
            publisher = Publisher()
            async with publisher.listening(path):
                await publisher.publish(FleetView(generation))
                await gateway.until(generation)
                assert gateway.lost == generation - 1
            await until(lambda: gateway.lost == len(gateway.views))
        assert [view.generation for view in gateway.views] == [1, 2]


async def test_the_last_report_of_a_gateway_that_ends(path: Path) -> None:
    """Control is told once what a gateway had counted when it went."""
    gone: list[GatewayReport] = []
    publisher = Publisher(on_gone=gone.append)
    async with publisher.listening(path):
        async with subscribed(path) as gateway:
            await until(lambda: publisher.reports)
            gateway.outstanding = {"r-0": 9}
        await until(lambda: gone)
        assert [report.outstanding for report in gone] == [{"r-0": 9}]
        assert publisher.connected == 0


async def test_a_slow_gateway_gets_the_latest_view_only(path: Path) -> None:
    """Views that a gateway did not take in time are replaced, not queued."""
    publisher = Publisher()
    async with publisher.listening(path):
        reader, writer = await asyncio.open_unix_connection(path)
        assert await read_hello(reader)
        many = {f"model-{number}": Model("m" * 100, "v") for number in range(5000)}
        for generation in range(100):
            await publisher.publish(FleetView(generation, many))
            await asyncio.sleep(0)
        decoder = msgspec.msgpack.Decoder(FleetView)
        generations: list[int] = []
        while not generations or generations[-1] < 99:
            view = await read_frame(reader, decoder)
            assert view is not None
            generations.append(view.generation)
        assert len(generations) < 20
        writer.close()


async def test_noise_is_cut_off(path: Path) -> None:
    """Whoever sends what is not a report is disconnected, and nobody else is disturbed."""
    publisher = Publisher()
    async with publisher.listening(path), subscribed(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"\xff\xff\xff\xff noise")
        assert await reader.read() == greeting()
        writer.close()
        await until(lambda: publisher.connected == 1 and publisher.reports)


async def test_a_gateway_of_another_version_is_cut_off(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Control says which version of the feed the other side speaks, and takes none of its reports."""
    publisher = Publisher()
    async with publisher.listening(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(pack(Hello(PROTOCOL + 1)) + pack(GatewayReport(0, 1, 1)))
        assert await reader.read() == greeting()
        writer.close()
        assert publisher.reports == ()
    assert f"it speaks version {PROTOCOL + 1} of the feed and this process version {PROTOCOL}" in caplog.text


async def test_a_control_of_another_version_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A gateway goes on with what it knows, and says which version of the feed control speaks."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack(Hello(PROTOCOL + 1)) + pack(FleetView(7)))
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(speak, path=str(path))
    async with server, subscribed(path) as gateway:
        await until(lambda: "restart the older one" in caplog.text)
        assert gateway.views == []


async def test_a_control_that_is_not_understood_is_asked_again_later(path: Path) -> None:
    """What is no value of ours changes nothing, and a gateway does not spin over it."""
    connections = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        body = msgspec.msgpack.encode({"generation": 7, "models": {}})  # a view as it was before there were two kinds
        writer.write(len(body).to_bytes(4, "big") + body)
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(speak, path=str(path))
    async with server, subscribed(path) as gateway:
        await until(lambda: connections)
        await asyncio.sleep(0.3)
        assert connections == 1
        assert not gateway.views
        assert not gateway.accesses


async def test_frames() -> None:
    """A frame that is cut off is the end, and one with something else in it is an error."""
    decoder = msgspec.msgpack.Decoder(FleetView)
    frame = pack(FleetView(3))
    for data, expected in ((frame, FleetView(3)), (frame[:-1], None), (b"", None)):
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        assert await read_frame(reader, decoder) == expected
    reader = asyncio.StreamReader()
    reader.feed_data(b"\x00\x00\x00\x01\x01")
    with pytest.raises(FrameError):
        await read_frame(reader, decoder)


def test_sockets_are_private(path: Path) -> None:
    """A socket can be opened by this user only, takes the place of a stale one, and its path has a limit."""
    path.touch()
    with private_socket(path):
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="too long for a socket"):
        private_socket(path.with_name("x" * 120))
