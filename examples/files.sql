-- JSON files in a folder, one record on each line, into a table: the last change of each key wins.
--
--     calve run examples/files.sql --until-caught-up
--     calve read shop.orders
--
-- Fields that only say what happened (seq, op) are named in the envelope and stay out of the table. New files are
-- noticed while it runs; without --until-caught-up it keeps running.

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE orders (
    id BIGINT NOT NULL,
    customer INT,
    amount DECIMAL(12,2),
    status STRING,
    updated_at TIMESTAMP,
    PRIMARY KEY (id) NOT ENFORCED
)
FROM FILES (PATH = 'examples/data/orders', FORMAT = 'json')
ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');

CREATE SINK orders FROM orders
TO ICEBERG CATALOG lake
NAMESPACE "shop" TABLE "orders";
