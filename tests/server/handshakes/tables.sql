-- What recorded clients look at, on the server of the recording and on Onehop. Of types that both know by one name.
CREATE TABLE people (id INTEGER NOT NULL, name TEXT, born DATE, height DECIMAL(5,2), seen TIMESTAMP);
CREATE TABLE visits (person BIGINT NOT NULL, at TIMESTAMP WITH TIME ZONE, length DOUBLE PRECISION, paid BOOLEAN);
CREATE VIEW tall AS SELECT name FROM people WHERE height > 1.8;
INSERT INTO people VALUES
    (1, 'Ada', DATE '1815-12-10', 1.65, NULL),
    (2, 'Bob', NULL, 1.90, TIMESTAMP '2024-02-29 12:00:00');
INSERT INTO visits VALUES (1, TIMESTAMP WITH TIME ZONE '2024-07-01 00:00:00+00', 0.5, true), (2, NULL, NULL, false);
