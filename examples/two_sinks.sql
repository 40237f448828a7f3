-- A load generator, and two sinks side by side: one commits as data comes, one every two seconds.
--
--     calve run examples/two_sinks.sql --until-caught-up
--     calve status

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE generated FROM LOAD GENERATOR orders (ROWS = 20000, UPDATES = 5000, MAX ROWS PER CHECKPOINT = 10000);

CREATE SINK at_once FROM generated
INTO ICEBERG CATALOG CONNECTION lake (NAMESPACE = 'demo', TABLE = 'at_once')
KEY (id) MODE UPSERT;

CREATE SINK in_batches FROM generated
INTO ICEBERG CATALOG CONNECTION lake (NAMESPACE = 'demo', TABLE = 'in_batches')
KEY (id) MODE UPSERT
WITH (COMMIT INTERVAL = '2s', COMPRESSION = 'snappy');
