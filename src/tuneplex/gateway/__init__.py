"""The data plane: OpenAI's API in front of engines."""

from tuneplex.gateway.admin import AdminCall, AdminReply
from tuneplex.gateway.core import Gateway
from tuneplex.gateway.protocol import ConnectionLimits
from tuneplex.gateway.replies import Replies
from tuneplex.gateway.server import serve

__all__ = ["AdminCall", "AdminReply", "ConnectionLimits", "Gateway", "Replies", "serve"]
