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
    static <T> T of(Object path, Call<T> call) throws IOException {
        try {
            return call.run();
        } catch (NativeException e) {
            throw translate(path, e);
        }
    }

    static void ofAction(Object path, Action action) throws IOException {
        of(path, () -> {
            action.run();
            return null;
        });
    }

    static IOException translate(Object path, NativeException cause) {
        String text = path + ": " + cause.getMessage();
        IOException thrown = switch (cause.problem()) {
            case NOT_FOUND -> new FileNotFoundException(text);
            case EXISTS, IS_A_DIRECTORY -> new FileAlreadyExistsException(text);
            case NOT_A_DIRECTORY -> new ParentNotDirectoryException(text);
            case NOT_EMPTY -> new PathIsNotEmptyDirectoryException(path.toString());
            case DENIED -> new AccessDeniedException(path.toString(), null, cause.getMessage());
            case CLOSED -> new PathIOException(path.toString(), cause.getMessage());
            default -> new RadosException(path.toString(), cause);
        };
        if (thrown.getCause() == null) {
            thrown.initCause(cause);
        }
        return thrown;
    }
}
