"""What a commit asks of an object store and a REST catalog: requests by price class, and bytes by kind.

    PYTHONPATH=. python benchmarks/footprint.py [--rows 20000 200000] [--changes 1000 10000] [--batches 8]

A sink with a key index and without maintenance keeps a table in an S3 server (S3Proxy) and a REST catalog, both behind
proxies that count; its state, with the key index, is in the store as well. Files of changes (90 % updates, 5 % inserts,
5 % deletes) are local and arrive one after the other. Printed and recorded are medians per commit:

    writes    PUT, POST and LIST requests: S3's expensive class
    reads     GET and HEAD requests
    catalog   requests to the catalog

and bytes that were uploaded, by kind. Latencies of this server mean nothing; numbers of requests do not depend on it.
The cost model (`benchmarks/cost_model.py`) is fitted to them. `make servers` fetches the servers. The table is compared
with the last change of each key.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from checking import CHECK, difference, digest_of_files, expected_digest
from harness import DATA, Case, Recording, add_arguments, recording
from workload import COLUMNS, DDL, Workload, make_workload

import calve
from calve.model.spec import Upsert
from tests.support.servers.lakehouse import BUCKET, Lakehouse, started
from tests.support.servers.listening import Request

KINDS = {"data": ".parquet", "manifests": ".avro", "metadata": ".metadata.json", "vectors": ".puffin"}
MB = 1e6


def request_class(request: Request) -> str:
    """By price: those of S3 that write or list, those that read; deletes are free."""
    if request.method in {"PUT", "POST"} or "list-type" in request.path:
        return "writes"
    return "free" if request.method == "DELETE" else "reads"


def kind_of(request: Request) -> str:
    """What is uploaded."""
    path = request.path.partition("?")[0]
    if "/state/" in path:
        return "index" if "/index/" in path else "records"
    return next((kind for kind, suffix in KINDS.items() if path.endswith(suffix)), "other")


def counts_of(servers: Lakehouse) -> dict[str, float]:
    """What was asked since the last look."""
    found = defaultdict[str, float](float)
    for request in servers.store.proxy.seen:
        found[request_class(request)] += 1
        if request.method in {"PUT", "POST"}:
            found[f"{kind_of(request)}_bytes"] += len(request.body)
    found["catalog"] = len(servers.catalog_proxy.seen)
    servers.calm()
    return dict(found)


def measure(servers: Lakehouse, workload: Workload, home: Path) -> tuple[list[dict[str, float]], str]:
    """Counts of every commit, and what is wrong with the table."""
    incoming, namespace = home / "incoming", f"b{workload.rows}x{workload.changes}"
    incoming.mkdir(parents=True)
    lake = calve.connect(home=home / "home", **servers.properties)
    lake.spark(master="local[2]")
    envelope = Upsert(order_by=("seq",), delete_when="op = 'd'", columns=", ".join(COLUMNS))
    source = calve.files(incoming, format="parquet", schema=DDL, envelope=envelope)
    into = lake.table(f"{namespace}.orders")
    sink = calve.sink(source, name=namespace, into=into, key=["id"], maintenance="off", key_index="on")
    query = sink.start(state=f"s3://{BUCKET}/state/{namespace}")
    found = []
    for file in workload.files():
        (incoming / file.name).hardlink_to(file)
        query.await_caught_up(600)
        found.append(counts_of(servers))
    query.stop()
    (home / "copy").mkdir()
    pq.write_table(lake.open().load_table(str(into)).scan().to_arrow(), home / "copy" / "rows.parquet")
    return found[1:], difference(digest_of_files(home / "copy"), expected_digest(workload))


def record(results: Recording, workload: Workload, counts: Sequence[dict[str, float]], wrong: str) -> None:
    """One case per class of requests, and one for bytes."""
    size = f"{workload.changes:,} changes into {workload.rows:,} rows"
    later = counts[len(counts) // 2 :]  # the first commits make the key index
    bytes_of = {
        name.removesuffix("_bytes"): statistics.median(one.get(name, 0.0) for one in later)
        for name in sorted({name for one in later for name in one if name.endswith("_bytes")})
    }
    for name in ("writes", "reads", "catalog"):
        case = Case(f"{name} of a commit, {size}", "requests", "", CHECK)
        if wrong:
            results.disqualify(case, "calve", wrong)
            continue
        results.add(case, "calve", [one.get(name, 0.0) for one in later])
    if not wrong:
        values = [sum(count for name, count in one.items() if name.endswith("_bytes")) / MB for one in later]
        facts = {f"{kind}_bytes": round(count) for kind, count in bytes_of.items()}
        results.add(Case(f"uploads of a commit, {size}", "MB", "", CHECK), "calve", values, **facts)


def main() -> None:
    """Measure, check and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--changes", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--batches", type=int, default=8)
    add_arguments(parser)
    given = parser.parse_args()
    with (
        recording("footprint", "What a commit asks of the store", given) as results,
        tempfile.TemporaryDirectory(prefix="calve-footprint-") as folder,
    ):
        servers = started(Path(folder))
        try:
            for rows in given.rows:
                for changes in given.changes:
                    workload = make_workload(DATA, rows, given.batches, changes)
                    counts, wrong = measure(servers, workload, Path(folder) / f"{rows}x{changes}")
                    record(results, workload, counts, wrong)
        finally:
            servers.stop()


if __name__ == "__main__":
    main()
