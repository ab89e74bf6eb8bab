// pgjdbc: DatabaseMetaData as programs use it that list tables and columns (DBeaver and Metabase stand on it), statements that the
// server prepares, fetch sizes, batches, COPY, transactions.
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.*;
import java.util.Properties;
import org.postgresql.PGConnection;

class Look {
    static void drain(ResultSet rows) throws SQLException {
        int columns = rows.getMetaData().getColumnCount();
        while (rows.next()) for (int column = 1; column <= columns; column++) rows.getObject(column);
        rows.close();
    }

    public static void main(String[] words) throws Exception {
        Properties facts = new Properties();
        facts.put("user", "ada");
        String url = "jdbc:postgresql://127.0.0.1:" + System.getenv("PGPORT") + "/test";
        try (Connection connection = DriverManager.getConnection(url + "?ApplicationName=look&readOnlyMode=transaction", facts)) {
            connection.isValid(10);
            lookAround(connection);
            query(connection);
        }
        System.out.println("pgjdbc " + org.postgresql.util.DriverInfo.DRIVER_VERSION);
    }

    static void lookAround(Connection connection) throws Exception {
        connection.getCatalog();
        connection.getSchema();
        DatabaseMetaData metadata = connection.getMetaData();
        metadata.getDatabaseProductVersion();
        metadata.getMaxColumnNameLength();
        metadata.getSQLKeywords();
        drain(metadata.getCatalogs());
        drain(metadata.getSchemas());
        drain(metadata.getSchemas(null, "pub%"));
        drain(metadata.getTableTypes());
        drain(metadata.getTypeInfo());
        drain(metadata.getTables(null, null, "%", null));
        drain(metadata.getTables("test", "public", "%", new String[] {"TABLE", "VIEW", "FOREIGN TABLE", "MATERIALIZED VIEW", "PARTITIONED TABLE"}));
        drain(metadata.getColumns(null, "public", "%", "%"));
        drain(metadata.getColumns("test", "public", "people", null));
        drain(metadata.getPrimaryKeys(null, "public", "people"));
        drain(metadata.getImportedKeys(null, "public", "people"));
        drain(metadata.getExportedKeys(null, "public", "people"));
        drain(metadata.getIndexInfo(null, "public", "people", false, true));
        drain(metadata.getBestRowIdentifier(null, "public", "people", DatabaseMetaData.bestRowSession, true));
        drain(metadata.getTablePrivileges(null, "public", "people"));
        drain(metadata.getColumnPrivileges(null, "public", "people", "%"));
        drain(metadata.getFunctions(null, "public", "%"));
        drain(metadata.getProcedures(null, "public", "%"));
        drain(metadata.getUDTs(null, "public", "%", null));
        drain(metadata.getClientInfoProperties());
    }

    static void query(Connection connection) throws Exception {
        try (PreparedStatement statement = connection.prepareStatement("SELECT * FROM people WHERE id = ?")) {
            statement.getParameterMetaData().getParameterType(1);
            for (int times = 0; times < 7; times++) {
                statement.setInt(1, 1);
                ResultSet rows = statement.executeQuery();
                // Names of tables and columns that rows are of, which the driver asks the server for.
                rows.getMetaData().getTableName(2);
                rows.getMetaData().isNullable(1);
                rows.getMetaData().isAutoIncrement(1);
                drain(rows);
            }
        }
        connection.setReadOnly(true);
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(1);
            drain(statement.executeQuery("SELECT id, name, height, seen FROM people ORDER BY id"));
        }
        connection.rollback();
        connection.setReadOnly(false);
        connection.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
        connection.getTransactionIsolation();
        try (PreparedStatement statement = connection.prepareStatement("INSERT INTO people (id, name) VALUES (?, ?)")) {
            for (int id = 3; id < 5; id++) {
                statement.setInt(1, id);
                statement.setString(2, "Eve");
                statement.addBatch();
            }
            statement.executeBatch();
        }
        Savepoint one = connection.setSavepoint();
        connection.rollback(one);
        PGConnection own = connection.unwrap(PGConnection.class);
        own.getCopyAPI().copyIn("COPY people (id, name) FROM STDIN", new StringReader("5\tFay\n"));
        own.getCopyAPI().copyOut("COPY people TO STDOUT", new StringWriter());
        try (PreparedStatement statement = connection.prepareStatement("INSERT INTO people (id) VALUES (6)", new String[] {"id"})) {
            statement.executeUpdate();
            drain(statement.getGeneratedKeys());
        }
        connection.rollback();
        connection.setAutoCommit(true);
        try (PreparedStatement statement = connection.prepareStatement("SELECT name FROM people WHERE id = ANY (?)")) {
            statement.setArray(1, connection.createArrayOf("int4", new Integer[] {1, 2}));
            drain(statement.executeQuery());
        }
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(60);
            drain(statement.executeQuery("SELECT 1"));
        }
    }
}
