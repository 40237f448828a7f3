-- A log instead of a mirror: every change of a table is a row, with how many came or went (_calve_diff) and when
-- (_calve_time). The time is the database's own, so the log is the same whenever and however often it is made.
--
--     calve run examples/append_log.sql --until-caught-up
--     calve read crm.customer_log
--
-- The table as it was at any moment is the sum of its log:
--
--     SELECT id, name, tier FROM crm.customer_log WHERE _calve_time <= ... GROUP BY ALL HAVING sum(_calve_diff) > 0

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE customers (
    id BIGINT NOT NULL,
    name STRING,
    tier STRING,
    PRIMARY KEY (id) NOT ENFORCED
)
FROM FILES (PATH = 'examples/data/customers', FORMAT = 'json')
ENVELOPE DEBEZIUM (ORDER BY source.lsn);

CREATE SINK customer_log FROM customers
TO ICEBERG CATALOG lake
NAMESPACE "crm" TABLE "customer_log"
MODE APPEND
WITH (TIME COLUMN = ts_ms);
