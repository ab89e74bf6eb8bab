package io.onehop.rados;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Handles that nobody has closed, of what nobody refers to any more: they are given back. Of a stream the log says where it was opened.
 * A file that was being written is given up: nothing of it was visible, and nothing will be.
 */
final class Leaks {
    private static final Logger LOG = LoggerFactory.getLogger(Leaks.class);
    private static final Cleaner CLEANER = Cleaner.create();
    private static final AtomicLong FOUND = new AtomicLong();
    private static final AtomicInteger FOLLOWED = new AtomicInteger();

    private Leaks() {}

    /** Gives a handle back. */
    interface Release {
        void run() throws NativeException;
    }

    /** A handle, until it is given back: by whoever has the stream, or here. */
    static final class Guard implements Runnable {
        private final String what;
        private final Release release;
        /** Where it was opened, or null: that it is not closed is nobody's fault. */
        private final Throwable opened;
        private boolean released;

        private Guard(String what, Release release, Throwable opened) {
            this.what = what;
            this.release = release;
            this.opened = opened;
        }

        /** Gives the handle back; the second time does nothing. */
        synchronized void release() throws NativeException {
            if (!released) {
                released = true;
                if (opened == null) {
                    FOLLOWED.decrementAndGet();
                }
                release.run();
            }
        }

        synchronized boolean isReleased() {
            return released;
        }

        /** Nobody refers to it any more. */
        @Override
        public synchronized void run() {
            if (released) {
                return;
            }
            if (opened != null) {
                FOUND.incrementAndGet();
                LOG.warn("{} was never closed: close it where it is opened", what, opened);
            }
            try {
                release();
            } catch (NativeException e) {
                LOG.warn("cannot give back {}: {}", what, e.getMessage());
            }
        }
    }

    /** Watches over a stream; {@code release} must not refer to it. */
    static Guard watch(Object stream, String what, Release release) {
        // The cost is that of a stack trace, next to a question to a cluster.
        return register(stream, new Guard(what, release, new Throwable(what + " was opened here")));
    }

    /** The same for what many never close, and cannot: Hadoop's {@code FileContext} has no way to. */
    static Guard follow(Object owner, String what, Release release) {
        FOLLOWED.incrementAndGet();
        return register(owner, new Guard(what, release, null));
    }

    private static Guard register(Object owner, Guard guard) {
        CLEANER.register(owner, guard);
        return guard;
    }

    /** How many streams were found. */
    static long found() {
        return FOUND.get();
    }

    /** How many that are followed are not given back yet. */
    static int followed() {
        return FOLLOWED.get();
    }
}
