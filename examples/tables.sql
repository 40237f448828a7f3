-- A pipeline of tables: orders as they arrive, the valid ones, and totals by customer. Each is a table of its own, and the
-- source of the next one.
--
--     calve run examples/tables.sql --until-caught-up
--     calve read shop.customer_totals
--     calve sql "SHOW CONSUMERS"

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE orders (id BIGINT NOT NULL, customer INT, amount DECIMAL(12,2), PRIMARY KEY (id) NOT ENFORCED)
FROM FILES (PATH = 'examples/data/orders', FORMAT = 'json')
ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');

CREATE SINK raw_orders FROM orders TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "raw_orders";

-- The changes of that table, with the rows before each change. The consumer keeps snapshots until they are read.
CREATE SOURCE raw_changes FROM ICEBERG TABLE lake.shop.raw_orders (CONSUMER = 'cleaning');
CREATE VIEW valid AS SELECT id, customer, amount FROM raw_changes WHERE amount > 0;
CREATE SINK valid_orders FROM valid TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "valid_orders";

-- Upserts have no row before a change, so totals over `orders` would be refused; over changes of a table they are kept.
CREATE SOURCE valid_changes FROM ICEBERG TABLE lake.shop.valid_orders;
CREATE VIEW customer_totals AS
SELECT customer, count(*) AS orders, sum(amount) AS amount FROM valid_changes GROUP BY customer;
CREATE SINK customer_totals FROM customer_totals TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "customer_totals";
