"""Connections: how many, how long, how slow."""
import socket
import time

import pytest

from conftest import Host


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """An api_host that gives a client one second."""
    h = Host(tmp_path_factory.mktemp("hasty"), "", API_HOST_IDLE_S="1")
    yield h
    h.stop()


def closed(s):
    """Waits until the other end closes; the test's own limit is the socket's timeout."""
    try:
        return s.recv(65536) == b""
    except ConnectionError:
        return True


def test_a_silent_connection_is_closed(hasty):
    with socket.create_connection(("127.0.0.1", hasty.client.port), timeout=60) as s:
        assert closed(s)


def test_a_head_that_comes_byte_by_byte_is_cut_off(hasty):
    with socket.create_connection(("127.0.0.1", hasty.client.port), timeout=60) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.settimeout(0.2)
        with pytest.raises((ConnectionError, EOFError)):
            for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 1000:
                s.sendall(bytes([byte]))
                try:
                    if s.recv(1000) == b"":
                        raise EOFError
                except TimeoutError:
                    pass


def test_a_body_that_never_ends_is_cut_off(hasty):
    head = (f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            f"Authorization: Bearer {hasty.key}\r\n\r\n")
    with socket.create_connection(("127.0.0.1", hasty.client.port), timeout=60) as s:
        s.sendall(head.encode() + b"{")
        assert closed(s)


def test_a_kept_connection_is_closed_when_idle(hasty):
    c = hasty.client.connect()
    assert hasty.client.call("GET", "/healthz", connection=c).status == 200
    assert closed(c.sock)


def test_more_connections_than_there_may_be(api_host):
    """They wait for their turn; those that are served go on, and nothing is lost afterwards."""
    served = api_host.client.connect()
    assert api_host.client.call("GET", "/healthz", connection=served).status == 200
    before = api_host.fds()
    crowd = [socket.create_connection(("127.0.0.1", api_host.client.port)) for _ in range(600)]
    assert api_host.client.call("GET", "/healthz", connection=served).status == 200
    assert api_host.fds() <= before + 520
    for s in crowd:
        s.close()
    assert api_host.client.get("/healthz").status == 200
    deadline = time.monotonic() + 20
    while api_host.fds() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert api_host.fds() <= before
