package io.onehop.rados;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;

/** The exception that Hadoop's contract asks for, with what the native library has said. */
final class Failures {
    private Failures() {}

    /** Something that waits for the cluster. */
    interface Call<T> {
        T run() throws NativeException;
    }

    /** The same without a result. */
    interface Action {
        void run() throws NativeException;
    }

    /** Does something on a path, with errors that name it. */
    static <T> T of(Where where, Call<T> call) throws IOException {
        try {
            return call.run();
        } catch (NativeException e) {
            throw translate(where, e);
        }
    }

    static void ofAction(Where where, Action action) throws IOException {
        of(where, () -> {
            action.run();
            return null;
        });
    }

    private static IOException translate(Where where, NativeException cause) {
        String path = where.path();
        String said = cause.getMessage() + (cause.problem().isOfCluster() ? " [" + where.cluster() + "]" : "");
        String text = path + ": " + said;
        return switch (cause.problem()) {
            case NOT_FOUND -> new FileNotFoundException(text);
            case EXISTS, IS_A_DIRECTORY -> new FileAlreadyExistsException(text);
            case NOT_A_DIRECTORY -> new ParentNotDirectoryException(text);
            case NOT_EMPTY -> new PathIsNotEmptyDirectoryException(path);
            case DENIED -> new AccessDeniedException(path, null, said);
            case CLOSED -> new PathIOException(path, said);
            case NO_FILE_SYSTEM -> new RadosException(path, said + ": are the pool and a file system in it there? `onehop rados mkfs`"
                    + " makes a file system, and so does " + Settings.PREFIX + Settings.CREATE, cause.problem());
            default -> new RadosException(path, said, cause.problem());
        };
    }
}
