package io.onehop.rados;

import org.apache.hadoop.fs.PathIOException;

/**
 * A failure of the cluster's, or of a file in it, for which neither Java nor Hadoop has a class: no space, no answer within the time,
 * damage. The message says what was attempted, on what, and what to do; {@link #getKind} is for programs.
 */
public final class RadosException extends PathIOException {
    private static final long serialVersionUID = 1;

    /** What went wrong. */
    private final Problem problem;

    RadosException(String path, String said, Problem problem) {
        super(path, said);
        this.problem = problem;
    }

    boolean is(Problem other) {
        return problem == other;
    }

    /**
     * A stable word for what went wrong: {@code NO_SPACE}, {@code TIMED_OUT}, {@code OUTCOME_UNKNOWN}, {@code CORRUPT}, {@code BUSY},
     * {@code LEASE_LOST}, {@code SHUT_OUT}, {@code NO_FILE_SYSTEM} and others.
     *
     * @return the word
     */
    public String getKind() {
        return problem.name();
    }
}
