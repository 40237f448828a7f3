-- A table with partitions: by the day of the last change, and by a hash of the customer.
--
--     calve run examples/partitioned.sql --until-caught-up
--     calve read shop.orders_by_day
--
-- An order that changes goes to the partition of its new day, and is gone from that of the old one. Transforms are
-- bucket(n, c), truncate(w, c), year(c), month(c), day(c), hour(c) and void(c); a column alone is its own value.

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE orders (
    id BIGINT NOT NULL,
    customer INT,
    amount DECIMAL(12,2),
    status STRING,
    updated_at TIMESTAMP,
    PRIMARY KEY (id) NOT ENFORCED
)
FROM FILES (PATH = 'examples/data/orders', FORMAT = 'json', MAX FILES PER CHECKPOINT = 1)
ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');

CREATE SINK orders_by_day FROM orders
TO ICEBERG CATALOG lake
NAMESPACE "shop" TABLE "orders_by_day"
PARTITION BY (day(updated_at), bucket(4, customer));
