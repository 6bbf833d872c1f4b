-- One transaction of the demo's customers, for pgbench: an order is placed, another one proceeds, the oldest one goes.
\set customer random(1, 1000)
\set product random(1, 100)
\set quantity random(1, 5)
\set age random(1, 300)
BEGIN;
INSERT INTO orders (customer_id, product_id, quantity) VALUES (:customer, :product, :quantity);
UPDATE orders SET status = CASE status WHEN 'new' THEN 'paid' ELSE 'sent' END
WHERE id = (SELECT max(id) FROM orders) - :age AND status <> 'sent';
DELETE FROM orders WHERE id < (SELECT max(id) FROM orders) - 5000;
COMMIT;
