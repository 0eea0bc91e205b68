from __future__ import annotations

import socket

import pytest

from conserve.supervisor.ports import Ports


def test_a_held_port_is_free_for_its_owner_and_for_nobody_else() -> None:
    ports = Ports("127.0.0.1")
    port = ports.take_free(owner="router", key="router.port", hold=True)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port))
    ports.must_be_free()
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        owner.bind(("127.0.0.1", port))
        owner.listen()


def test_a_held_port_is_let_go_with_its_plan() -> None:
    ports = Ports("127.0.0.1")
    port = ports.take_free(owner="router", key="router.port", hold=True)
    del ports
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
