package io.onehop.rados;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Map;
import java.util.TreeMap;

/**
 * The text of {@code _SUCCESS}: JSON in the form that Hadoop's committers for object stores write and its {@code ManifestSuccessData}
 * reads.
 *
 * <p>Written by hand: in the jars that Spark has, Hadoop's JSON classes are known by other names than in Hadoop's own.
 */
final class SuccessFile {
    /** What the format is called by those who read it. */
    private static final String NAME = "org.apache.hadoop.fs.s3a.commit.files.SuccessData/1";

    private final Map<String, Long> metrics = new TreeMap<>();
    private final Map<String, String> diagnostics = new TreeMap<>();

    void count(String name, long value) {
        metrics.put(name, value);
    }

    void say(String name, String value) {
        diagnostics.put(name, value);
    }

    byte[] encode(String committer, String description, String jobId, String jobIdSource, String host, Instant now) {
        StringBuilder to = new StringBuilder("{\n");
        field(to, "name", quoted(NAME));
        field(to, "success", "true");
        field(to, "timestamp", Long.toString(now.toEpochMilli()));
        field(to, "date", quoted(now.toString()));
        field(to, "hostname", quoted(host));
        field(to, "committer", quoted(committer));
        field(to, "description", quoted(description));
        field(to, "jobId", quoted(jobId));
        field(to, "jobIdSource", quoted(jobIdSource));
        StringBuilder counts = new StringBuilder();
        metrics.forEach((name, value) -> entry(counts, name, value.toString()));
        field(to, "metrics", "{" + counts + "\n  }");
        StringBuilder texts = new StringBuilder();
        diagnostics.forEach((name, value) -> entry(texts, name, quoted(value)));
        field(to, "diagnostics", "{" + texts + "\n  }");
        to.append("  \"filenames\" : [ ]\n}\n");
        return to.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static void field(StringBuilder to, String name, String value) {
        to.append("  ").append(quoted(name)).append(" : ").append(value).append(",\n");
    }

    private static void entry(StringBuilder to, String name, String value) {
        to.append(to.length() == 0 ? "\n    " : ",\n    ").append(quoted(name)).append(" : ").append(value);
    }

    static String quoted(String text) {
        StringBuilder to = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                to.append('\\').append(c);
            } else if (c < ' ') {
                to.append(String.format("\\u%04x", (int) c));
            } else {
                to.append(c);
            }
        }
        return to.append('"').toString();
    }
}
