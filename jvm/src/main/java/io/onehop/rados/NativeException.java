package io.onehop.rados;

/**
 * What the native library throws: a problem and a sentence about it. Nobody outside this package sees one: {@link Failures} makes
 * the exception of it that Hadoop's contract asks for.
 */
final class NativeException extends Exception {
    private static final long serialVersionUID = 1;

    private final Problem problem;

    /** Called by the native library. */
    NativeException(String problem, String message) {
        // Thrown where it is translated, which has the trace; and often, for what just is not there.
        super(message, null, false, false);
        this.problem = Problem.valueOf(problem);
    }

    Problem problem() {
        return problem;
    }
}
