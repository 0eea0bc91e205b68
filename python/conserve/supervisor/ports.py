"""Which process gets which port. Promises: within one plan no port is given twice."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from dataclasses import dataclass

from conserve.errors import ConfigError

_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Given:
    """One port and what it is for: `key` is the setting that it comes from."""

    port: int
    owner: str
    key: str


class Ports:
    """The ports of one host, given out so far."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.given: list[Given] = []

    def take(self, port: int, *, owner: str, key: str) -> int:
        """Give out this very port. Raises ConfigError when another has it, or there is no such port."""
        if not 0 < port <= _LAST_PORT:
            raise ConfigError(f"{key}: {owner} would get port {port}, the last one is {_LAST_PORT}", key=key)
        for other in self.given:
            if other.port == port:
                raise ConfigError(
                    f"{key}: port {port} of {owner} is {other.owner}'s already ({other.key})", key=key
                )
        self.given.append(Given(port, owner, key))
        return port

    def take_free(self, *, owner: str, key: str, hold: bool = False) -> int:
        """Give out a port that the system says is free.

        With `hold` the system names it to nobody else while these `Ports` live, and whoever binds it with SO_REUSEADDR
        may still listen on it.
        """
        held: list[socket.socket] = []
        try:
            while True:
                # Ports that were refused stay held meanwhile, so that the system names another.
                probe = _bound(self._host, 0)
                port = int(probe.getsockname()[1])
                if any(other.port == port for other in self.given):
                    held.append(probe)
                    continue
                if hold:
                    weakref.finalize(self, os.close, probe.detach())
                probe.close()
                return self.take(port, owner=owner, key=key)
        finally:
            for each in held:
                each.close()

    def must_be_free(self) -> None:
        """Raise ConfigError for the first port on which something listens now."""
        for each in self.given:
            try:
                _bound(self._host, each.port).close()
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise ConfigError(
                    f"{each.key}: port {each.port} of {each.owner} cannot be had: {reason}", key=each.key
                ) from error


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as undo:
        made = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        undo.pop_all()
    return made
