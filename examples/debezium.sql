-- Change records as Debezium writes them: before, after, op. Deletes and updates of every kind are applied by key.
--
--     calve run examples/debezium.sql --until-caught-up
--     calve read crm.customers

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE customers (
    id BIGINT NOT NULL,
    name STRING,
    tier STRING,
    PRIMARY KEY (id) NOT ENFORCED
)
FROM FILES (PATH = 'examples/data/customers', FORMAT = 'json')
ENVELOPE DEBEZIUM (ORDER BY source.lsn);

CREATE SINK customers FROM customers
TO ICEBERG CATALOG lake
NAMESPACE "crm" TABLE "customers"
WITH (ON TRUNCATE = 'halt');
