"""Flink's side of `stream.py`: one job that upserts the changes of a table into another one, a commit per second.

Runs in an environment of its own (`scripts/fetch_flink.py`). The table of changes has one snapshot per file and is read
snapshot by snapshot by one reader, so that the changes of a key stay in order; two writers apply them. Flink's SQL does
not read deletes out of Parquet, so all changes are upserts here.
"""

import json
import sys
import time
from pathlib import Path

from pyflink.table import (  # type: ignore[import-not-found]  # it has an environment of its own
    EnvironmentSettings,
    TableEnvironment,
    TableResult,
)

COLUMNS = "id BIGINT, customer INT, amount DOUBLE, status STRING, updated TIMESTAMP_LTZ(6)"
READ = {
    "streaming": "true",
    "monitor-interval": "50ms",
    "starting-strategy": "INCREMENTAL_FROM_EARLIEST_SNAPSHOT",
    "max-planning-snapshot-count": "1",
}


def begin(warehouse: Path, jars: list[Path]) -> TableResult:
    """Start the job."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "pipeline.jars": ";".join(jar.as_uri() for jar in jars),
        "parallelism.default": "1",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "1s",
        "restart-strategy.type": "none",
    }
    for name, value in settings.items():
        tables.get_config().set(name, value)
    tables.execute_sql(
        f"CREATE CATALOG h WITH ('type'='iceberg', 'catalog-type'='hadoop', 'warehouse'='{warehouse.as_uri()}')"
    )
    tables.execute_sql("USE CATALOG h")
    tables.execute_sql(
        f"CREATE TABLE b.orders ({COLUMNS}, PRIMARY KEY (id) NOT ENFORCED) "
        "WITH ('format-version'='2', 'write.upsert.enabled'='true')"
    )
    options = ", ".join(f"'{name}'='{value}'" for name, value in READ.items())
    return tables.execute_sql(
        "INSERT INTO b.orders /*+ OPTIONS('write-parallelism'='2') */ "
        f"SELECT id, customer, amount, status, updated FROM b.changes /*+ OPTIONS({options}) */"
    )


def newest(table: Path) -> Path:
    """The metadata of a table of a Hadoop catalog."""
    return table / "metadata" / f"v{(table / 'metadata' / 'version-hint.text').read_text().strip()}.metadata.json"


def commits_of(table: Path) -> list[dict[str, float]]:
    """Time and records of every commit."""
    if not (table / "metadata" / "version-hint.text").exists():
        return []
    snapshots = json.loads(newest(table).read_text()).get("snapshots", [])
    return [{"at": s["timestamp-ms"] / 1000, "changes": int(s["summary"].get("added-records", 0))} for s in snapshots]


def main() -> None:
    """Answer requests from standard input: `load` waits for the rows, `stream` for all changes."""
    home, rows, changes, *jars = sys.argv[1:]
    table = Path(home) / "b" / "orders"
    job = begin(Path(home), [Path(jar) for jar in jars])
    for line in sys.stdin:
        request = line.strip()
        wanted = int(rows) + (0 if request == "load" else int(changes))
        while sum(commit["changes"] for commit in commits_of(table)) < wanted:
            time.sleep(0.1)
        if request == "stream":
            job.get_job_client().cancel().result()
        print(json.dumps({"commits": commits_of(table), "table": str(newest(table))}), flush=True)


if __name__ == "__main__":
    main()
