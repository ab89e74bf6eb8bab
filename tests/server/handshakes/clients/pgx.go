// pgx, by itself and by database/sql: its ways to execute, types that it asks about, batches, COPY. Grafana's plug-in stands on it.
package main

import (
	"context"
	"fmt"
	"runtime/debug"

	"database/sql"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func drain(rows pgx.Rows, err error) {
	check(err)
	for rows.Next() {
		_, err := rows.Values()
		check(err)
	}
	check(rows.Err())
}

func main() {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, "")
	check(err)
	check(connection.Ping(ctx))
	drain(connection.Query(ctx, "SELECT * FROM people WHERE id = $1", 1))
	drain(connection.Query(ctx, "SELECT * FROM people WHERE id = $1", 2))
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for _, mode := range modes {
		drain(connection.Query(ctx, "SELECT name FROM people WHERE id = $1 AND height < $2", mode, 1, 2.5))
	}
	drain(connection.Query(ctx, "SELECT name FROM people WHERE id = ANY($1)", []int32{1, 2}))
	tx, err := connection.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadWrite})
	check(err)
	inner, err := tx.Begin(ctx)
	check(err)
	_, err = inner.Exec(ctx, "INSERT INTO people (id, name) VALUES ($1, $2)", 3, "Eve")
	check(err)
	check(inner.Commit(ctx))
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"people"}, []string{"id", "name"}, pgx.CopyFromRows([][]any{{4, "Dan"}, {5, nil}}))
	check(err)
	batch := &pgx.Batch{}
	batch.Queue("SELECT count(*) FROM people")
	batch.Queue("SELECT name FROM people WHERE id = $1", 1)
	check(tx.SendBatch(ctx, batch).Close())
	check(tx.Rollback(ctx))
	_, err = connection.LoadType(ctx, "people")
	check(err)
	_, err = connection.LoadTypes(ctx, []string{"people"})
	check(err)
	check(connection.Close(ctx))

	db, err := sql.Open("pgx", "default_query_exec_mode=cache_statement")
	check(err)
	db.SetMaxOpenConns(1)
	check(db.Ping())
	for range 2 {
		rows, err := db.Query("SELECT id, name, seen FROM people WHERE id = $1", 1)
		check(err)
		_, err = rows.ColumnTypes()
		check(err)
		check(rows.Close())
	}
	check(db.Close())
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/jackc/pgx/v5" {
			fmt.Println("pgx", module.Version[1:])
		}
	}
}
