// Postgres.js: types that it asks about first, parameters, a cursor, a transaction.
const fs = require("fs");
const path = require("path");
const postgres = require("postgres");

(async () => {
  const sql = postgres({ max: 1 });
  await sql`SELECT * FROM people WHERE id = ${1}`;
  await sql`SELECT name FROM people WHERE id IN ${sql([1, 2])}`;
  await sql`SELECT count(*) FROM people WHERE id = ANY(${[1, 2]})`;
  await sql.unsafe("SELECT 1; SELECT 2");
  await sql`SELECT id FROM people ORDER BY id`.cursor(1, () => {});
  await sql.begin(async (own) => {
    await own`INSERT INTO people ${own([{ id: 3, name: "Eve" }], "id", "name")}`;
    await own.savepoint((inner) => inner`DELETE FROM people WHERE id = 3`);
    await own`DELETE FROM people WHERE id = 3`;
  });
  await sql.end();
  // It exports no package.json.
  const own = path.join(path.dirname(require.resolve("postgres")), "..", "..", "package.json");
  console.log("Postgres.js " + JSON.parse(fs.readFileSync(own)).version);
})();
