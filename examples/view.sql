-- Tables that follow a SELECT over a change stream: a filter, and totals by group.
--
--     calve run examples/view.sql --until-caught-up
--     calve read shop.big_orders
--     calve read crm.tiers
--
-- An order that falls to 50 or below leaves the table; a tier that loses its last customer does, too.

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');

CREATE SOURCE orders (id BIGINT NOT NULL, customer INT, amount DECIMAL(12,2), PRIMARY KEY (id) NOT ENFORCED)
FROM FILES (PATH = 'examples/data/orders', FORMAT = 'json')
ENVELOPE UPSERT (ORDER BY seq, DELETE WHEN op = 'd');

CREATE VIEW big_orders AS
SELECT id, customer, amount AS "Amount" FROM orders WHERE amount > 50;

CREATE SINK big_orders FROM big_orders TO ICEBERG CATALOG lake NAMESPACE "shop" TABLE "big_orders";

-- Totals over updates need the whole row in `before`, which Debezium writes.
CREATE SOURCE customers (id BIGINT NOT NULL, name STRING, tier STRING, PRIMARY KEY (id) NOT ENFORCED)
FROM FILES (PATH = 'examples/data/customers', FORMAT = 'json', MAX FILES PER CHECKPOINT = 1)
ENVELOPE DEBEZIUM (ORDER BY source.lsn);

CREATE VIEW tiers AS
SELECT tier, count(*) AS customers FROM customers GROUP BY tier;

CREATE SINK tiers FROM tiers TO ICEBERG CATALOG lake NAMESPACE "crm" TABLE "tiers";
