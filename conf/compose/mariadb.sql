-- The stock of compose.yaml: 100 products in 3 warehouses, and an event that changes ten of them each second.
CREATE TABLE warehouses (id int PRIMARY KEY, city varchar(40) NOT NULL);
CREATE TABLE stock (
    product_id int, warehouse_id int, pieces int NOT NULL, counted_at timestamp(6) NOT NULL DEFAULT current_timestamp(6),
    PRIMARY KEY (product_id, warehouse_id)
);
INSERT INTO warehouses VALUES (1, 'Bergen'), (2, 'Gent'), (3, 'Porto');
INSERT INTO stock (product_id, warehouse_id, pieces) SELECT p.seq, w.seq, 100 FROM seq_1_to_100 p, seq_1_to_3 w;
CREATE EVENT sales ON SCHEDULE EVERY 1 SECOND DO
    UPDATE stock SET pieces = pieces + floor(rand() * 7) - 3, counted_at = current_timestamp(6)
    WHERE product_id BETWEEN second(now()) AND second(now()) + 9 AND warehouse_id = 1 + second(now()) % 3;
