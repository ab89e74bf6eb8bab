package io.onehop.rados;

import java.io.Closeable;
import java.io.IOException;
import java.net.URI;
import java.util.Collection;
import org.apache.hadoop.fs.Path;

/**
 * A file system of the native library: what {@link Native} does, with paths and exceptions of Hadoop's. May be used from many threads.
 */
final class Mount implements Closeable {
    private final String cluster;
    private final Where root;
    private final long handle;
    private final Leaks.Guard guard;
    private final int pieceBytes;

    Mount(URI uri, Settings settings) throws IOException {
        this.cluster = settings.cluster();
        this.root = new Where(uri.toString(), cluster);
        String[] options = settings.mountOptions();
        long mounted = Failures.of(root, () -> Native.mount(uri.getRawAuthority(), options));
        this.handle = mounted;
        this.guard = Leaks.follow(this, "the file system " + uri, () -> Native.unmount(mounted));
        this.pieceBytes = Failures.of(root, () -> Native.pieceBytes(mounted));
    }

    /** What to write at once: it is passed on from where it is. */
    int pieceBytes() {
        return pieceBytes;
    }

    /** What errors about a path are about. */
    Where where(Path path) {
        return new Where(path.toString(), cluster);
    }

    /** The pool that a URI names. */
    static String pool(URI uri) throws IOException {
        if (uri.getRawAuthority() == null) {
            throw new IOException(uri + " names no pool: rados://POOL[.NAMESPACE]/PATH");
        }
        return Failures.of(new Where(uri.toString(), null), () -> Native.authority(uri.getRawAuthority())[0]);
    }

    /** The path as the native library has it; it begins with a slash. */
    private static byte[] bytes(Path path) throws NativeException {
        return Native.utf8(path.toUri().getPath());
    }

    Entry stat(Path path) throws IOException {
        return Failures.of(where(path), () -> {
            try {
                return Entry.decode(Native.stat(handle, bytes(path)));
            } catch (NativeException e) {
                throw absent(e);
            }
        });
    }

    /** A page of a directory, behind a name. */
    Entry.Page list(Path path, String after) throws IOException {
        return Failures.of(where(path),
                () -> Entry.decodePage(Native.list(handle, bytes(path), after == null ? null : Native.utf8(after))));
    }

    void makeDirectories(Path path) throws IOException {
        Failures.ofAction(where(path), () -> Native.makeDirectories(handle, bytes(path)));
    }

    void rename(Path from, Path to, boolean replace) throws IOException {
        Failures.ofAction(new Where(from + " -> " + to, cluster), () -> Native.rename(handle, bytes(from), bytes(to), replace));
    }

    void concat(Path directory, String[] names) throws IOException {
        Failures.ofAction(where(directory), () -> {
            byte[][] encoded = new byte[names.length][];
            for (int i = 0; i < names.length; i++) {
                encoded[i] = Native.utf8(names[i]);
            }
            Native.concat(handle, bytes(directory), encoded);
        });
    }

    void setModified(Path path, long millis) throws IOException {
        Failures.ofAction(where(path), () -> Native.setModified(handle, bytes(path), millis));
    }

    void removeFile(Path path) throws IOException {
        Failures.ofAction(where(path), () -> Native.removeFile(handle, bytes(path)));
    }

    void removeEmptyDirectory(Path path) throws IOException {
        Failures.ofAction(where(path), () -> Native.removeEmptyDirectory(handle, bytes(path)));
    }

    void removeAll(Path path) throws IOException {
        Failures.ofAction(where(path), () -> Native.removeAll(handle, bytes(path)));
    }

    /** A handle for {@link RadosInputStream}. */
    long open(Path path, ReadPolicy policy) throws IOException {
        return Failures.of(where(path), () -> {
            try {
                return Native.open(handle, bytes(path), policy.nativeName());
            } catch (NativeException e) {
                // A directory is no file that could be opened, and that is all that Hadoop's contract has to say.
                throw e.problem() == Problem.IS_A_DIRECTORY
                        ? new NativeException(Problem.NOT_FOUND.name(), e.getMessage()) : absent(e);
            }
        });
    }

    /** A handle for {@link RadosOutputStream}. */
    long create(Path path, boolean replace, boolean parents) throws IOException {
        return Failures.of(where(path), () -> Native.create(handle, bytes(path), replace, parents));
    }

    /** Begins a transaction: its identity. */
    String begin(Path about, long leaseMillis) throws IOException {
        return Failures.of(where(about), () -> Native.begin(handle, leaseMillis));
    }

    String transactionState(Path about, String transaction) throws IOException {
        return Failures.of(where(about), () -> Native.transactionState(handle, transaction));
    }

    void renew(Path about, String transaction) throws IOException {
        Failures.ofAction(where(about), () -> Native.renew(handle, transaction));
    }

    void replaceDirectories(Path about, String transaction, Collection<Path> paths) throws IOException {
        Failures.ofAction(where(about), () -> {
            byte[][] encoded = new byte[paths.size()][];
            int at = 0;
            for (Path path : paths) {
                encoded[at++] = bytes(path);
            }
            Native.replaceDirectories(handle, transaction, encoded);
        });
    }

    Staged staged(Path about, String transaction) throws IOException {
        return Failures.of(where(about), () -> Staged.decode(Native.staged(handle, transaction)));
    }

    void commitTransaction(Path about, String transaction) throws IOException {
        Failures.ofAction(where(about), () -> Native.commitTransaction(handle, transaction));
    }

    void abortTransaction(Path about, String transaction) throws IOException {
        Failures.ofAction(where(about), () -> Native.abortTransaction(handle, transaction));
    }

    /** A handle for {@link StagedAttempts}. */
    long attempt(Where where, String transaction, String task, String attempt) throws IOException {
        return Failures.of(where, () -> Native.attempt(handle, transaction, task, attempt));
    }

    /** A handle for {@link RadosOutputStream}, of a file that is visible when its attempt and its transaction are committed. */
    long createStaged(StagedAttempts.Attempt attempt, Path path, boolean replace) throws IOException {
        return Failures.of(where(path), () -> Native.createStaged(handle, attempt.handle(), bytes(path), replace));
    }

    /** What was moved: see {@link Native#moved}. */
    long[] moved() throws IOException {
        return Failures.of(root, () -> Native.moved(handle));
    }

    /** Nothing is below a file: who only asks is told that nothing is there. */
    private static NativeException absent(NativeException e) {
        return e.problem() == Problem.NOT_A_DIRECTORY
                ? new NativeException(Problem.NOT_FOUND.name(), e.getMessage()) : e;
    }

    @Override
    public void close() throws IOException {
        Failures.ofAction(root, guard::release);
    }
}
