import fcntl
import io
import os
import socket
import struct
import termios
from pathlib import Path

import pytest

from calve.errors import InvalidInput
from calve.spark.session import driver_memory, heap_of, is_local, local_cores
from calve.spark.session_log import open_log
from calve.spark.workers import PromptInput, acknowledging, archives_of_spark, forks_task_workers

GIB = 1 << 30


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[*]", 8),
        ("local[2,4]", 2),
        ("local[*, 4]", 8),
        ("local-cluster[2,1,512]", 8),
    ],
)
def test_a_local_master_says_how_many_tasks_run_at_once(master: str, cores: int) -> None:
    assert local_cores(master, 8) == cores


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,512]", False),
        ("spark://localhost:7077", False),
        ("yarn", False),
        ("k8s://https://local", False),
    ],
)
def test_a_master_is_local_where_driver_and_executors_are_one_process(master: str, *, local: bool) -> None:
    assert is_local(master) is local


@pytest.mark.parametrize(("machine", "heap"), [(1 * GIB, 1 * GIB), (3 * GIB, 3 * GIB // 2), (64 * GIB, 4 * GIB)])
def test_the_heap_is_half_of_the_machine_within_bounds(machine: int, heap: int) -> None:
    assert driver_memory(machine) == heap


@pytest.mark.parametrize(
    ("text", "heap"), [("6g", 6 * GIB), ("2048m", 2 * GIB), ("2048", 2 * GIB), ("1GB", GIB), ("much", 0)]
)
def test_the_heap_that_a_user_asks_for_is_read_as_spark_reads_it(text: str, heap: int) -> None:
    assert heap_of(text) == heap


def test_only_archives_of_spark_itself_leave_the_import_path(tmp_path: Path) -> None:
    home = tmp_path / "pyspark"
    linked = tmp_path / "linked"
    linked.symlink_to(home)
    ours = [f"{home}/python/lib/pyspark.zip", f"{linked}/jars/spark-core.jar"]
    theirs = ["", str(home), "/usr/lib/python311.zip", f"{tmp_path}/userFiles/mine.zip"]
    assert archives_of_spark([*theirs[:2], *ours, *theirs[2:]], home) == ours


def test_only_workers_of_tasks_are_forked_with_calve_imported() -> None:
    assert forks_task_workers(["pyspark.worker"])
    assert forks_task_workers([])  # of Spark 3.5
    assert not forks_task_workers(["pyspark.sql.worker.plan_data_source_read"])


def test_a_home_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r'cannot write to ".*/file"') as caught:
        open_log(tmp_path / "file")
    assert "Not a directory" in caught.value.detail


def test_a_log_that_grew_large_is_put_aside(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.write_bytes(b"x" * (9 << 20))
    assert open_log(tmp_path).stat().st_size == 0
    assert (tmp_path / "logs" / "spark.log.1").stat().st_size == 9 << 20


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection, the first of which has used up the acknowledgements that new ones send at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    for _ in range(100):
        right.sendall(b"x")
        left.sendall(left.recv(1))
        right.recv(1)
    return left, right


def unacknowledged(sender: socket.socket) -> int:
    """Bytes that the other end has not acknowledged."""
    (count,) = struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, b"\0" * 4))
    return int(count)


def test_a_worker_acknowledges_what_it_read_before_it_waits_for_more() -> None:
    worker, jvm = connected()
    with worker, jvm, PromptInput(os.fdopen(os.dup(worker.fileno()), "rb")) as prompt:
        for piece in (b"a", b"b", b"c"):
            jvm.sendall(piece)
            assert prompt.read(1) == piece
            worker.setblocking(False)  # noqa: FBT003 - the name of the call
            assert prompt.read(1) is None, "there is no more"
            assert unacknowledged(jvm) == 0, "it came back at once, not 40 ms later"
            worker.setblocking(True)  # noqa: FBT003 - the same


def test_a_worker_reads_everything_that_was_read_ahead_or_comes_through_another_socket() -> None:
    left, right = socket.socketpair()
    with left, right:
        file = os.fdopen(os.dup(left.fileno()), "rb")
        right.sendall(b"abc")
        assert file.read(1) == b"a", "the rest is in its buffer"
        right.sendall(bytes(100_000))
        right.shutdown(socket.SHUT_WR)
        found = io.BytesIO()
        acknowledging(lambda infile, outfile: outfile.write(infile.read()))(file, found)
        assert found.getvalue() == b"bc" + bytes(100_000)
        assert file.closed
