"""The listening socket."""

from __future__ import annotations

import pytest

from tuneplex.app.listener import bind, public_url
from tuneplex.errors import StateError
from tuneplex.types import Listen


def test_the_url_has_the_real_port() -> None:
    """Port 0 lets the system choose, and the URL says what it chose."""
    with bind(Listen(port=0)) as listener:
        assert public_url(Listen(port=0), listener) == f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def test_the_url_of_a_wildcard_can_be_called() -> None:
    """Listening everywhere, with TLS, is shown as an address that a client here can use."""
    with bind(Listen(port=0)) as listener:
        url = public_url(Listen("0.0.0.0", tls_cert="c", tls_key="k"), listener)  # noqa: S104 - only shown
        assert url.startswith("https://127.0.0.1:")
        assert public_url(Listen("::"), listener).startswith("http://[::1]:")


def test_a_port_that_is_taken() -> None:
    """A port in use is named, with what to do."""
    with bind(Listen(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StateError, match=f"127.0.0.1:{port}: something else listens there") as caught:
            bind(Listen(port=port))
        assert "listen.port" in caught.value.hint


def test_an_address_of_another_machine() -> None:
    """An address that this machine does not have is a clear error."""
    with pytest.raises(StateError, match="no such address"):
        bind(Listen("192.0.2.77", 0))


def test_a_name_that_is_none() -> None:
    """A host that is not an address is a clear error."""
    with pytest.raises(StateError, match="cannot listen on"):
        bind(Listen("not an address", 0))
