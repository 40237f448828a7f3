-- A topic of a Debezium connector into a table. What cannot be read is kept aside, in shop.orders_dead_letters.
-- It needs a broker (pip install "calve[kafka]"):
--
--     calve run examples/kafka.sql --until-caught-up
--     calve read shop.orders

CREATE CONNECTION lake TO ICEBERG CATALOG (TYPE = 'embedded');
CREATE CONNECTION broker TO KAFKA (BROKER = 'localhost:9092');

CREATE SOURCE orders (
    id BIGINT NOT NULL,
    customer INT,
    amount DECIMAL(12,2),
    PRIMARY KEY (id) NOT ENFORCED
)
FROM KAFKA CONNECTION broker (TOPIC = 'shop.public.orders', MAX OFFSETS PER CHECKPOINT = 100000)
FORMAT JSON
INCLUDE TIMESTAMP AS changed_at
ENVELOPE DEBEZIUM;

CREATE SINK orders FROM orders
TO ICEBERG CATALOG lake
NAMESPACE "shop" TABLE "orders"
WITH (ON BAD ROW = 'dead letter');
