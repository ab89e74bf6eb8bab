package io.onehop.rados;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/**
 * The border to the native library: the functions of {@code crates/jni}, one for one.
 *
 * <p>A <em>handle</em> is a number that stands for a file system or a stream. Using one that was closed, that was never issued or
 * that stands for something else throws; so does everything that the cluster refuses. Handles may be used from many threads, and
 * be closed while they are: what goes on goes on to its end.
 *
 * <p>A direct buffer belongs to the call for as long as it takes: nobody else may touch it. That is why nothing outside this
 * package can call these.
 *
 * <p>Texts that may have any character are passed in UTF-8, by {@link #utf8}.
 */
final class Native {
    static {
        NativeLibrary.load();
    }

    private Native() {}

    /** Has the library loaded. */
    static void initialize() {}

    /** A path in UTF-8. Refuses half a surrogate pair, which would come back as another name. */
    static byte[] utf8(String text) throws NativeException {
        try {
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            byte[] array = new byte[bytes.remaining()];
            bytes.get(array);
            return array;
        } catch (CharacterCodingException e) {
            throw new NativeException(Problem.BAD_NAME.name(), "the name is not valid Unicode: " + text);
        }
    }

    /** The pool and the namespace that an authority names, as it is in a URI: encoded. */
    static native String[] authority(String authority) throws NativeException;

    /** A handle of a file system. Options are names and values by turns: those of {@code mount.rs}. */
    static native long mount(String authority, String[] options) throws NativeException;

    static native void unmount(long mount) throws NativeException;

    static native int pieceBytes(long mount) throws NativeException;

    /** Bytes read and written, operations that read and wrote, bytes copied by renames. */
    static native long[] moved(long mount) throws NativeException;

    /** An {@link Entry}. */
    static native byte[] stat(long mount, byte[] path) throws NativeException;

    /** A page of {@link Entry entries} behind a name, or from the beginning. */
    static native byte[] list(long mount, byte[] path, byte[] after) throws NativeException;

    static native void makeDirectories(long mount, byte[] path) throws NativeException;

    /** {@code replace}: a file that has the new name goes, at the same moment. */
    static native void rename(long mount, byte[] from, byte[] to, boolean replace) throws NativeException;

    /** Makes one file of several in one directory, at one moment; the first keeps its name. Copies nothing. */
    static native void concat(long mount, byte[] directory, byte[][] names) throws NativeException;

    static native void setModified(long mount, byte[] path, long millis) throws NativeException;

    static native void removeFile(long mount, byte[] path) throws NativeException;

    static native void removeEmptyDirectory(long mount, byte[] path) throws NativeException;

    static native void removeAll(long mount, byte[] path) throws NativeException;

    /** A handle of an input stream. Policies are those of {@code input.rs}. */
    static native long open(long mount, byte[] path, String policy) throws NativeException;

    /** The {@link Entry} of an open file, but for its name. */
    static native byte[] opened(long input) throws NativeException;

    /** Reads {@code least} to {@code length} bytes, fewer only at the end of the file. */
    static native int readArray(long input, long at, int least, byte[] array, int offset, int length)
            throws NativeException;

    /** The same into a direct buffer; {@code offset} counts from the buffer's beginning. */
    static native int readDirect(long input, long at, int least, ByteBuffer buffer, int offset, int length)
            throws NativeException;

    /** Reads all of a range, whatever else is read; short only at the end of the file. */
    static native int readArrayAt(long input, long at, byte[] array, int offset, int length) throws NativeException;

    /** The same into a direct buffer. */
    static native int readDirectAt(long input, long at, ByteBuffer buffer, int offset, int length)
            throws NativeException;

    /**
     * Reads ranges side by side, each into the beginning of a direct buffer, or, where there is none, into an array from an offset on.
     */
    static native void readRanges(
            long input, long[] positions, int[] lengths, ByteBuffer[] buffers, byte[][] arrays, int[] offsets)
            throws NativeException;

    /** Gives back what was read ahead. */
    static native void unbuffer(long input) throws NativeException;

    static native void closeInput(long input) throws NativeException;

    /** A handle of an output stream. {@code parents}: directories that are missing are made. */
    static native long create(long mount, byte[] path, boolean replace, boolean parents) throws NativeException;

    /** Takes all of a range of a direct buffer. */
    static native void write(long output, ByteBuffer buffer, int offset, int length) throws NativeException;

    /** Makes the file visible, and says what it is. The handle stays. */
    static native byte[] commit(long output) throws NativeException;

    /** Gives the file up; false: it was visible, or given up, before. */
    static native boolean abort(long output) throws NativeException;

    /** Gives the handle back; a file that was not committed is given up. */
    static native void closeOutput(long output) throws NativeException;

    /**
     * Begins a transaction: many files, written by many processes, that are visible at one moment or never. Its identity is all that
     * anybody needs to have it, in whatever process. Who does not renew it within its lease has it aborted.
     */
    static native String begin(long mount, long leaseMillis) throws NativeException;

    /** {@code pending}, {@code committing}, {@code committed} or {@code aborted}. */
    static native String transactionState(long mount, String transaction) throws NativeException;

    static native void renew(long mount, String transaction) throws NativeException;

    /** Has the commit replace directories, whole, by such as have only what the transaction has written below them. */
    static native void replaceDirectories(long mount, String transaction, byte[][] paths) throws NativeException;

    /** What the attempts that were committed have written: {@link Staged}. */
    static native byte[] staged(long mount, String transaction) throws NativeException;

    /** Makes all files of all attempts that were committed visible, at one moment. */
    static native void commitTransaction(long mount, String transaction) throws NativeException;

    static native void abortTransaction(long mount, String transaction) throws NativeException;

    /**
     * A handle of an attempt at a task of a transaction: of a new one, or of the one with these names. It begins beside what the
     * caller does; if it cannot, the first chunks of its files say so, their ends, and {@link #commitAttempt}.
     */
    static native long attempt(long mount, String transaction, String task, String attempt) throws NativeException;

    /** A handle of an output stream, of a file that is visible when the attempt and the transaction are committed. */
    static native long createStaged(long mount, long attempt, byte[] path, boolean replace) throws NativeException;

    /** Makes this attempt the one of its task that counts: the first one wins. Again: nothing happens. */
    static native void commitAttempt(long attempt) throws NativeException;

    static native void abortAttempt(long attempt) throws NativeException;

    static native void closeAttempt(long attempt) throws NativeException;

    /** Panics, for the test that a panic is an exception here. */
    static native void panic(String message);
}
