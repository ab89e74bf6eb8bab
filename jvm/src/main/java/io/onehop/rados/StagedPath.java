package io.onehop.rados;

import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskType;

/**
 * A path that says to whom a file belongs until it is visible: {@code BASE/__transaction-ID-WORD/TASK/ATTEMPT/REST}. What is written
 * there is a file of that attempt at a task of that transaction, and has the path {@code BASE/REST} when both are committed. WORD says
 * what it may replace then: {@code new} nothing, {@code any} a file.
 *
 * <p>Output formats know nothing of transactions: they are given a directory to write into, and this is one. Nothing has such a path in
 * the file system itself, so no listing ever shows it.
 *
 * @param transaction its identity
 * @param mayReplace whether a file of this name may be there when it becomes visible
 * @param task the task's name
 * @param attempt the attempt's name
 * @param base what is before the marker
 * @param rest what is after it, without a slash before it; empty for the attempt's own directory
 */
record StagedPath(String transaction, boolean mayReplace, String task, String attempt, Path base, String rest) {
    private static final String MARKER = "/__transaction-";
    private static final Pattern PATTERN =
            Pattern.compile("^(.*?)/__transaction-([0-9a-f]{32})-(new|any)/([^/]+)/([^/]+)(?:/(.*))?$");

    /** What a path says, if it says such a thing. */
    static Optional<StagedPath> of(Path path) {
        String text = path.toUri().getPath();
        if (!text.contains(MARKER)) {
            return Optional.empty();
        }
        Matcher parts = PATTERN.matcher(text);
        if (!parts.matches()) {
            return Optional.empty();
        }
        String above = parts.group(1).isEmpty() ? "/" : parts.group(1);
        Path base = new Path(path.toUri().getScheme(), path.toUri().getAuthority(), above);
        String rest = parts.group(6) == null ? "" : parts.group(6);
        return Optional.of(new StagedPath(
                parts.group(2), parts.group(3).equals("any"), parts.group(4), parts.group(5), base, rest));
    }

    /** The directory that an attempt writes into. */
    static Path directory(Path base, String transaction, boolean mayReplace, TaskAttemptID id) {
        String marker = MARKER.substring(1) + transaction + (mayReplace ? "-any" : "-new");
        return new Path(base, marker + "/" + task(id) + "/" + attempt(id));
    }

    /**
     * What a task is called: its kind and its number. Not its job, which has another name in the driver of Spark than in its tasks; a
     * transaction is one job's.
     */
    static String task(TaskAttemptID id) {
        return (id.getTaskType() == TaskType.REDUCE ? "r" : "m") + "_" + id.getTaskID().getId();
    }

    /** What an attempt is called. */
    static String attempt(TaskAttemptID id) {
        return id.toString();
    }

    boolean isDirectory() {
        return rest.isEmpty();
    }

    /** Where the file will be. */
    Path destination() {
        return isDirectory() ? base : new Path(base, new Path(null, null, rest));
    }

    /** What is unlike that of every other attempt. */
    String key() {
        return key(transaction, task, attempt);
    }

    static String key(String transaction, String task, String attempt) {
        return transaction + "/" + task + "/" + attempt;
    }
}
