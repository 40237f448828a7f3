"""A job of Flink that upserts a sequence into an Iceberg table, with a commit per second. Runs in Flink's own Python.

    python flink_job.py '{"catalog": {...}, "table": "shop.t", "keys": 2000, "changes": 20000, "rate": 500, "jars": []}'

Change `n` sets the row of key `n % keys` to `n`. They are in order, so a snapshot whose greatest value is `n` has to
have all changes up to that one, and no other.
"""

import json
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]  # see above


def main() -> None:
    """Run the job to its end."""
    given = json.loads(sys.argv[1])
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in given["jars"]),
        "parallelism.default": "1",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "1s",
        "restart-strategy.type": "none",
    }
    for name, value in settings.items():
        tables.get_config().set(name, value)
    options = ", ".join(f"'{name}'='{value}'" for name, value in given["catalog"].items())
    tables.execute_sql(f"CREATE CATALOG lake WITH ('type'='iceberg', {options})")
    tables.execute_sql(
        "CREATE TEMPORARY TABLE changes (n BIGINT) WITH ('connector'='datagen', "
        f"'rows-per-second'='{given['rate']}', 'fields.n.kind'='sequence', "
        f"'fields.n.start'='0', 'fields.n.end'='{given['changes'] - 1}')"
    )
    tables.execute_sql(
        f"CREATE TABLE lake.{given['table']} (id BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED) "
        "WITH ('format-version'='2', 'write.upsert.enabled'='true')"
    )
    tables.execute_sql(f"INSERT INTO lake.{given['table']} SELECT MOD(n, {given['keys']}), n FROM changes").wait()


if __name__ == "__main__":
    main()
