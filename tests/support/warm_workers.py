"""The daemon of Spark's Python workers, for warm JVMs: forked from a process that has imported what tasks run.

A JVM starts one for every session that runs Python in tasks, and each would spend almost two seconds of CPU on the same
imports. What the JVM starts here imports nothing: it hands its arguments, environment and streams to the process that
forks, and waits. The fork is what `calve.spark.workers` would have become.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import parent_process

ADDRESS = "CALVE_TESTS_WARM_WORKERS"
"""The variable with the path of the socket."""
_SIZE = 8
"""Bytes of the number of bytes that follow."""
_STREAMS = (0, 1, 2)


def serve(listener: socket.socket) -> None:
    """Fork a daemon for each connection, until the process that started this one has ended."""
    manager = import_module("calve.spark.workers").prepare_daemon(imports=True)
    signal.signal(signal.SIGCHLD, _reap)
    parent = parent_process()
    assert parent is not None
    while parent.sentinel not in wait([listener, parent.sentinel]):
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                _become_daemon(connection, manager)


def _reap(*_: object) -> None:
    """Wait for those that have ended: otherwise `tests.support.cpu` would not see what they took."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _become_daemon(connection: socket.socket, manager: Callable[[], None]) -> None:
    """In the fork. It does not return."""
    code = 1
    try:
        size, streams, _, _ = socket.recv_fds(connection, _SIZE, len(_STREAMS))
        with connection.makefile("rb") as file:
            folder, variables = json.loads(file.read(int.from_bytes(size, "big")))
        for stream, descriptor in zip(_STREAMS, streams, strict=True):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        manager()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        os._exit(code)


def hand_over(address: str) -> None:
    """Let a fork be what this process is, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        told = json.dumps([os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109 - less to import
        socket.send_fds(connection, [len(told).to_bytes(_SIZE, "big")], _STREAMS)
        connection.sendall(told)
        connection.recv(1)


if __name__ == "__main__":
    hand_over(os.environ[ADDRESS])
    sys.exit()
