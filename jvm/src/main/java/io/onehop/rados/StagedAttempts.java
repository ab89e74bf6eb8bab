package io.onehop.rados;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The attempts at tasks that this process works on. An attempt is begun with its first file: a task without any costs nothing. It is
 * here until it is committed or given up, and so are the names and lengths of its files, which nobody else can ask for: who has written
 * a file may look at it (Spark does, for its metrics), without a question to the cluster.
 */
final class StagedAttempts {
    private static final Map<String, Attempt> OPEN = new ConcurrentHashMap<>();

    private StagedAttempts() {}

    /** One of them. */
    static final class Attempt {
        private final Where where;
        private final Map<String, Entry> files = new TreeMap<>();
        private Leaks.Guard guard;
        private long handle;

        private Attempt(Where where) {
            this.where = where;
        }

        /** Begins it, the first time, without waiting for the cluster: if that fails, its first file to be sent does. */
        private synchronized Attempt begin(Mount mount, StagedPath of) throws IOException {
            if (guard == null) {
                long begun = mount.attempt(where, of.transaction(), of.task(), of.attempt());
                handle = begun;
                guard = Leaks.follow(this, "an attempt at a task", () -> Native.closeAttempt(begun));
            }
            return this;
        }

        synchronized void add(String path, Entry file) {
            files.put(path, file);
        }

        synchronized Optional<Entry> file(String path) {
            return Optional.ofNullable(files.get(path));
        }

        /** Paths of files below a directory, and what they are. */
        synchronized Map<String, Entry> below(String directory) {
            String prefix = directory.endsWith("/") ? directory : directory + "/";
            return new TreeMap<>(((TreeMap<String, Entry>) files).subMap(prefix, prefix + Character.MAX_VALUE));
        }

        long handle() {
            return handle;
        }

        private void commit() throws IOException {
            Failures.ofAction(where, () -> Native.commitAttempt(handle));
        }

        private void abort() throws IOException {
            Failures.ofAction(where, () -> Native.abortAttempt(handle));
        }

        private synchronized void close() throws IOException {
            if (guard != null) {
                Failures.ofAction(where, guard::release);
            }
        }
    }

    /** The attempt that a file belongs to, begun if it was not before. */
    static Attempt join(Mount mount, StagedPath path) throws IOException {
        Attempt attempt = OPEN.computeIfAbsent(path.key(), key -> new Attempt(mount.where(path.base())));
        try {
            return attempt.begin(mount, path);
        } catch (IOException e) {
            OPEN.remove(path.key(), attempt);
            throw e;
        }
    }

    static Optional<Attempt> find(StagedPath path) {
        return Optional.ofNullable(OPEN.get(path.key()));
    }

    /** Whether this process has begun a file of it. */
    static boolean isBegun(String key) {
        return OPEN.containsKey(key);
    }

    /**
     * Makes an attempt the one of its task that counts; one without a file need not be.
     *
     * @return false if another attempt counts: then what this one has written is given up
     */
    static boolean commit(String key) throws IOException {
        Attempt attempt = OPEN.get(key);
        if (attempt == null) {
            return true;
        }
        boolean isFirst = true;
        try {
            attempt.commit();
        } catch (RadosException e) {
            if (!e.is(Problem.OTHER_ATTEMPT)) {
                throw e;
            }
            isFirst = false;
            attempt.abort();
        }
        forget(key, attempt);
        return isFirst;
    }

    /** Gives up what an attempt has written; false: it is not one of this process. */
    static boolean abort(String key) throws IOException {
        Attempt attempt = OPEN.get(key);
        if (attempt == null) {
            return false;
        }
        try {
            attempt.abort();
        } finally {
            forget(key, attempt);
        }
        return true;
    }

    /** The transaction has ended: nothing more can come of its attempts. */
    static void forgetAll(String transaction) throws IOException {
        List<String> keys = new ArrayList<>(OPEN.keySet());
        for (String key : keys) {
            if (key.startsWith(transaction + "/")) {
                Attempt attempt = OPEN.get(key);
                if (attempt != null) {
                    forget(key, attempt);
                }
            }
        }
    }

    private static void forget(String key, Attempt attempt) throws IOException {
        OPEN.remove(key, attempt);
        attempt.close();
    }
}
