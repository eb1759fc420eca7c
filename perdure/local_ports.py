"""Ports of this machine for servers that must be told their port before they start."""

import contextlib
import socket
from collections import deque
from secrets import randbelow

HOST = "127.0.0.1"

LOWEST, END = 15_000, 32_768
"""Ports that no system hands out by itself: Linux gives connections and port 0 those from 32768 up, others from 49152.

One of those may belong to somebody else's connection by the time the server that was told it starts.
"""

_given: deque[int] = deque(maxlen=1_000)


def find_free_port() -> int:
    """A port of the loopback address that nothing uses right now, and that was not given to others lately."""
    while True:
        port = LOWEST + randbelow(END - LOWEST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            if port not in _given:
                _given.append(port)
                return port
