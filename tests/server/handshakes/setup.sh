#!/bin/sh
# Fills a folder with the clients that are recorded, by their package managers: Python, Node.js, Go and Maven must be there.
#
#   setup.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/go" "$1/home"
cd "$1"
python3 -m venv venv
venv/bin/pip install --quiet psycopg==3.3.9 psycopg-binary==3.3.9 psycopg2-binary==2.9.13 asyncpg==0.32.0 pg8000==1.31.6 \
    adbc-driver-manager==1.13.0 adbc-driver-postgresql==1.13.0 pyarrow==26.0.1 pandas==3.1.1 sqlalchemy==2.1.9 django==5.2.19
npm install --silent --no-save pg@8.23.1 pg-cursor@2.22.1 postgres@3.4.9 knex@3.3.0
mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
    -Dartifact=org.postgresql:postgresql:42.7.14 -DoutputDirectory=. -Dmdep.stripVersion=true
mv postgresql.jar pgjdbc.jar
cd go
[ -f go.mod ] || go mod init recorded
go get github.com/lib/pq@v1.12.3 github.com/jackc/pgx/v5@v5.12.0
for program in lib_pq pgx; do
    # Beside go.mod, by which it finds its modules.
    mkdir -p "source/$program" && cp "$here/clients/$program.go" "source/$program/main.go"
    GOFLAGS=-mod=mod go build -o "$program" "./source/$program"
done
