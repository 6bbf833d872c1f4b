-- The shop of `up --demo` and of compose.yaml: 1,000 customers, 100 products, 5,000 orders.
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text NOT NULL);
CREATE TABLE products (id int PRIMARY KEY, name text NOT NULL, price numeric(10, 2) NOT NULL);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id int NOT NULL REFERENCES customers,
    product_id int NOT NULL REFERENCES products,
    quantity int NOT NULL,
    status text NOT NULL DEFAULT 'new',
    placed_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO customers
SELECT n, 'Customer ' || n, (ARRAY['Bergen', 'Cork', 'Gent', 'Lyon', 'Porto', 'Turku'])[n % 6 + 1]
FROM generate_series(1, 1000) n;
INSERT INTO products SELECT n, 'Product ' || n, n + 0.95 FROM generate_series(1, 100) n;
INSERT INTO orders (customer_id, product_id, quantity, status)
SELECT n % 1000 + 1, n % 100 + 1, n % 5 + 1, 'sent' FROM generate_series(1, 5000) n;
