package io.onehop.rados;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Handles of streams that nobody refers to any more and that nobody has closed: they are given back, and the log says where the stream
 * was opened. A file that was being written is given up: nothing of it was visible, and nothing will be.
 */
final class Leaks {
    private static final Logger LOG = LoggerFactory.getLogger(Leaks.class);
    private static final Cleaner CLEANER = Cleaner.create();
    private static final AtomicLong FOUND = new AtomicLong();

    private Leaks() {}

    /** Gives a handle back. */
    interface Release {
        void run() throws NativeException;
    }

    /** A handle, until it is given back: by whoever has the stream, or here. */
    static final class Guard implements Runnable {
        private final String what;
        private final Release release;
        /** Where the stream was opened. Its cost is that of a stack trace, next to a question to a cluster. */
        private final Throwable opened;
        private boolean released;

        private Guard(String what, Release release) {
            this.what = what;
            this.release = release;
            this.opened = new Throwable(what + " was opened here");
        }

        /** Gives the handle back; the second time does nothing. */
        synchronized void release() throws NativeException {
            if (!released) {
                released = true;
                release.run();
            }
        }

        synchronized boolean isReleased() {
            return released;
        }

        /** Nobody refers to the stream any more. */
        @Override
        public synchronized void run() {
            if (released) {
                return;
            }
            FOUND.incrementAndGet();
            LOG.warn("{} was never closed: close it where it is opened", what, opened);
            try {
                release();
            } catch (NativeException e) {
                LOG.warn("cannot give back {}: {}", what, e.getMessage());
            }
        }
    }

    /** Watches over a stream; {@code release} must not refer to it. */
    static Guard watch(Object stream, String what, Release release) {
        Guard guard = new Guard(what, release);
        CLEANER.register(stream, guard);
        return guard;
    }

    /** How many were found. */
    static long found() {
        return FOUND.get();
    }
}
