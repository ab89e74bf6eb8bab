// lib/pq by database/sql: queries, prepared statements, transactions, COPY. Grafana's plug-in stood on it.
package main

import (
	"database/sql"
	"fmt"
	"runtime/debug"

	"github.com/lib/pq"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func drain(rows *sql.Rows, err error) {
	check(err)
	_, err = rows.ColumnTypes()
	check(err)
	for rows.Next() {
	}
	check(rows.Err())
	check(rows.Close())
}

func main() {
	db, err := sql.Open("postgres", "sslmode=prefer")
	check(err)
	db.SetMaxOpenConns(1)
	check(db.Ping())
	drain(db.Query("SELECT * FROM people"))
	drain(db.Query("SELECT name FROM people WHERE id = $1", 1))
	drain(db.Query("SELECT name FROM people WHERE id = ANY($1)", pq.Array([]int64{1, 2})))
	statement, err := db.Prepare("SELECT name FROM people WHERE height > $1")
	check(err)
	drain(statement.Query(1.0))
	drain(statement.Query(1.7))
	check(statement.Close())
	tx, err := db.Begin()
	check(err)
	_, err = tx.Exec("INSERT INTO people (id, name) VALUES ($1, $2)", 3, "Eve")
	check(err)
	copies, err := tx.Prepare(pq.CopyIn("people", "id", "name"))
	check(err)
	_, err = copies.Exec(4, "Dan")
	check(err)
	_, err = copies.Exec()
	check(err)
	check(copies.Close())
	check(tx.Rollback())
	check(db.Close())
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/lib/pq" {
			fmt.Println("lib/pq", module.Version[1:])
		}
	}
}
