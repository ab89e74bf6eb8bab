"""asyncpg: a pool and what it says when a connection comes back, prepared statements, types that it asks about, COPY, a cursor."""

import asyncio

import asyncpg


async def look(connection):
    await connection.fetch("SELECT * FROM people WHERE id = $1", 1)
    await connection.fetchval("SELECT count(*) FROM people WHERE id = ANY($1::INTEGER[])", [1, 2])
    statement = await connection.prepare("SELECT name FROM people WHERE height > $1")
    statement.get_attributes(), statement.get_parameters()
    await statement.fetch(1)
    async with connection.transaction():
        async for _ in connection.cursor("SELECT id FROM people ORDER BY id", prefetch=1):
            pass
    transaction = connection.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await connection.execute("SELECT 1")
    await transaction.rollback()
    transaction = connection.transaction()
    await transaction.start()
    await connection.executemany("INSERT INTO people (id, name) VALUES ($1, $2)", [(3, "Eve"), (4, None)])
    await connection.copy_records_to_table("people", records=[(5, "Fay")], columns=["id", "name"])
    await connection.copy_from_query("SELECT * FROM people", output=lambda data: asyncio.sleep(0), format="csv", header=True)
    await transaction.rollback()


async def main():
    async with asyncpg.create_pool(min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection:
            await look(connection)
        async with pool.acquire() as connection:
            await connection.fetchrow("SELECT current_user, current_database()")
            await connection.reload_schema_state()
            await connection.set_type_codec("json", encoder=str, decoder=str, schema="pg_catalog")


asyncio.run(main())
print("asyncpg", asyncpg.__version__)
