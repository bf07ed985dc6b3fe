"""A wire between the backend and the real engine that can be cut, as when the engine dies or hangs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager

SOCKET = "/var/run/docker.sock"


class Wire:
    """Forwards connections to the engine's socket until told otherwise."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._passing = threading.Event()
        self._passing.set()
        self._cut = False
        self.held_answers = 0
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def cut(self) -> None:
        """Refuse new connections and end all that are there, without a word."""
        self._cut = True
        with self._lock:
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._cut = False
        self._passing.set()

    def hold_answers(self) -> None:
        """Let requests through, but no answer back."""
        self._passing.clear()

    def close(self) -> None:
        self.cut()
        self._passing.set()
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=10)
        self._server.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self._cut:
                near.close()
            else:
                self._start(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(SOCKET)
            with self._lock:
                self._ends |= {near, far}
            answers = self._start(self._forward, far, near, True)
            self._forward(near, far, False)
            answers.join()
            with self._lock:
                self._ends -= {near, far}

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and not self._passing.is_set():
                    self.held_answers += 1
                    self._passing.wait()
                target.sendall(data)
        for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with contextlib.suppress(OSError):
                end.shutdown(how)


@contextmanager
def a_wire() -> Iterator[Wire]:
    wire = Wire()
    try:
        yield wire
    finally:
        wire.close()
