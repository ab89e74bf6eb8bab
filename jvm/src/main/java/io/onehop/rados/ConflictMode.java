package io.onehop.rados;

import java.util.Arrays;
import java.util.Locale;

/** What is to become of what a job finds where it writes; decided at the moment of its commit, all at once. */
enum ConflictMode {
    /** It stays, but for files of the same names: they are replaced. As {@code FileOutputCommitter} does it. */
    APPEND,
    /** There must not be anything, but for names that begin with "_" or ".". */
    FAIL,
    /** All of it goes. */
    REPLACE,
    /** Directories below go in which the job has put files: dynamic partition overwriting. */
    PARTITIONS;

    static ConflictMode parse(String key, String text) {
        return Arrays.stream(values()).filter(mode -> mode.toString().equals(text)).findFirst()
                .orElseThrow(() -> new IllegalArgumentException(
                        key + " is '" + text + "': it must be one of " + Arrays.toString(values())));
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
