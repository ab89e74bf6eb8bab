package io.onehop.rados;

/** What went wrong in the native library; its names are those of {@code failure.rs}. */
enum Problem {
    /** Nothing has this name. */
    NOT_FOUND,
    /** Something has this name already. */
    EXISTS,
    /** A part of the path is a file. */
    NOT_A_DIRECTORY,
    /** A directory, where a file is needed. */
    IS_A_DIRECTORY,
    /** A directory with something in it. */
    NOT_EMPTY,
    /** A name that nothing can have. */
    BAD_NAME,
    /** The root would move, or a directory become part of itself. */
    IMPOSSIBLE,
    /** Others keep changing it. */
    BUSY,
    /** It is not the file that was meant. */
    CHANGED,
    /** Another attempt of the task counts. */
    OTHER_ATTEMPT,
    /** The transaction, or the attempt at a task, has ended, one way or the other. */
    ENDED,
    /** The writer was taken for dead. */
    LEASE_LOST,
    /** No answer: it may have happened or not. */
    OUTCOME_UNKNOWN,
    /** The pool is full. */
    NO_SPACE,
    /** No answer within the time. */
    TIMED_OUT,
    /** The key may not do this. */
    DENIED,
    /** The cluster does not listen to this client any more. */
    SHUT_OUT,
    /** No such pool, or no file system in it. */
    NO_FILE_SYSTEM,
    /** Another error of the cluster's. */
    CLUSTER,
    /** There is no librados. */
    NO_LIBRARY,
    /** What is stored is not what was written. */
    CORRUPT,
    /** The file system is of another version. */
    UNKNOWN_VERSION,
    /** The stream or the file system is closed, or was given up. */
    CLOSED,
    /** The two halves of this library misunderstand each other. */
    MISUSE;

    /** Whether it has to do with the cluster, whatever the path: then messages say which cluster. */
    boolean isOfCluster() {
        return switch (this) {
            case OUTCOME_UNKNOWN, NO_SPACE, TIMED_OUT, DENIED, SHUT_OUT, NO_FILE_SYSTEM, NO_LIBRARY, CLUSTER, CORRUPT,
                    UNKNOWN_VERSION -> true;
            default -> false;
        };
    }
}
