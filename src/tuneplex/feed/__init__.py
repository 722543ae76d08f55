"""The channel between control and the gateways: what gateways must know goes down, reports come up."""

from tuneplex.feed.publisher import Publisher
from tuneplex.feed.subscriber import Subscriber

__all__ = ["Publisher", "Subscriber"]
