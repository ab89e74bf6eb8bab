// node-postgres: a pool, parameters, prepared statements, pg-cursor, transactions.
const { Pool, Client } = require("pg");
const Cursor = require("pg-cursor");

(async () => {
  const pool = new Pool({ application_name: "look" });
  await pool.query("SELECT * FROM people");
  await pool.query("SELECT name FROM people WHERE id = $1 AND born < $2", [1, new Date("2024-02-29T00:00:00Z")]);
  for (let id = 1; id < 3; id++) await pool.query({ name: "by-id", text: "SELECT name FROM people WHERE id = $1", values: [id] });
  await pool.query("SELECT count(*) FROM people WHERE id = ANY($1::INTEGER[])", [[1, 2]]);
  await pool.end();
  const client = new Client();
  await client.connect();
  await client.query("BEGIN");
  await client.query("INSERT INTO people (id, name) VALUES ($1, $2)", [3, "Eve"]);
  await client.query("ROLLBACK");
  const cursor = client.query(new Cursor("SELECT id FROM people ORDER BY id"));
  await cursor.read(1);
  await cursor.read(10);
  await cursor.close();
  await client.end();
  console.log("node-postgres " + require("pg/package.json").version);
})();
