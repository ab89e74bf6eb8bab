package io.onehop.rados;

import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.util.Progressable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Signs of life: transactions of this process's jobs are renewed four times in each lease, and whoever waits for a commit hears that it
 * goes on. If this process ends, or stands still, nothing is renewed, and that is the meaning of it.
 */
final class Leases {
    private static final Logger LOG = LoggerFactory.getLogger(Leases.class);
    private static final long PROGRESS_SECONDS = 5;
    private static final Map<String, Future<?>> KEPT = new ConcurrentHashMap<>();
    /** Two: a cluster that does not answer holds up one. */
    private static final ScheduledExecutorService THREADS = Executors.newScheduledThreadPool(2, task -> {
        Thread thread = new Thread(task, "rados-leases");
        thread.setDaemon(true);
        return thread;
    });

    private Leases() {}

    /** Says that somebody still cares. */
    interface Renewal {
        void run() throws IOException;
    }

    /** Something that is reported until it is closed. */
    interface Progress extends AutoCloseable {
        @Override
        void close();
    }

    /** Renews a transaction from now on; once is enough. */
    static void keep(String transaction, long leaseMillis, Renewal renewal) {
        long period = Math.max(leaseMillis / 4, 1);
        KEPT.computeIfAbsent(transaction, id -> THREADS.scheduleAtFixedRate(
                () -> renew(id, renewal), period, period, TimeUnit.MILLISECONDS));
    }

    private static void renew(String transaction, Renewal renewal) {
        try {
            renewal.run();
        } catch (RadosException e) {
            if (e.is(Problem.ENDED)) {
                // Whoever works on it gets to know by what is refused.
                LOG.warn("transaction {} has ended: {}", transaction, e.getMessage());
                forget(transaction);
            } else {
                LOG.warn("transaction {} was not renewed, and will be tried again: {}", transaction, e.getMessage());
            }
        } catch (IOException | RuntimeException e) {
            LOG.warn("transaction {} was not renewed, and will be tried again: {}", transaction, e.getMessage());
        }
    }

    /** It has ended. */
    static void forget(String transaction) {
        Future<?> kept = KEPT.remove(transaction);
        if (kept != null) {
            kept.cancel(false);
        }
    }

    static boolean isKept(String transaction) {
        return KEPT.containsKey(transaction);
    }

    /** Tells somebody, if there is anybody, that something goes on. */
    static Progress report(Progressable to) {
        if (to == null) {
            return () -> { };
        }
        Future<?> reporting =
                THREADS.scheduleAtFixedRate(to::progress, PROGRESS_SECONDS, PROGRESS_SECONDS, TimeUnit.SECONDS);
        return () -> reporting.cancel(false);
    }
}
