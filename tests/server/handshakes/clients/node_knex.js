// Knex: its questions about tables and columns, a table made, changed and dropped, rows.
const knex = require("knex")({ client: "pg", connection: {} });

(async () => {
  await knex("people").select("name").where({ id: 1 });
  await knex.schema.hasTable("people");
  await knex.schema.hasColumn("people", "name");
  await knex("people").columnInfo();
  await knex.schema.createTable("written", (table) => {
    table.bigInteger("a").notNullable();
    table.string("b");
    table.timestamp("c");
  });
  await knex("written").insert([{ a: 1, b: "x" }, { a: 2 }]).returning("a");
  await knex.transaction(async (own) => own("written").where({ a: 1 }).update({ b: "y" }));
  await knex.schema.alterTable("written", (table) => table.integer("d"));
  await knex.schema.dropTableIfExists("written");
  await knex.destroy();
  console.log("Knex " + require("knex/package.json").version);
})();
