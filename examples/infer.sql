-- The same files as in files.sql, with columns that are determined from them when the source is created.
--
--     calve run examples/infer.sql --until-caught-up
--     calve sql "SHOW CREATE SOURCE orders"
--
-- `calve init examples/data/orders` writes such a file by itself, with declared columns and everything else guessed.

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE orders (amount DECIMAL(12,2), PRIMARY KEY (id) NOT ENFORCED)
FROM FILES (PATH = 'examples/data/orders', FORMAT = 'json')
ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd') INFER;

CREATE SINK orders FROM orders
TO ICEBERG CATALOG lake
NAMESPACE "shop" TABLE "orders";
