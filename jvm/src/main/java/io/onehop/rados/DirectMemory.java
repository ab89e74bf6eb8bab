package io.onehop.rados;

import com.sun.management.HotSpotDiagnosticMXBean;
import java.io.IOException;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.util.DirectBufferPool;

/**
 * Memory that the native library reads and writes where it lies: a small buffer of each stream, and, for files that are being written
 * and have more than that, buffers of what is passed on at once, so that bytes are copied once less on their way.
 *
 * <p>The virtual machine has a limit for such memory, which others need as well, and it collects garbage for half a second before it
 * says that it is reached. So the larger buffers are lent only while there is plenty, and no stream depends on them.
 */
final class DirectMemory {
    /** What may be lent to all streams of the process: 128 pieces of 256 KiB. Executors have fewer tasks, and most of these one file open. */
    static final long MOST_LENT = 32 << 20;
    private static final long LIMIT = limit();
    private static final BufferPoolMXBean DIRECT = direct();
    /** It keeps what was given back until the garbage collector wants it. */
    private static final DirectBufferPool POOL = new DirectBufferPool();
    private static final AtomicLong LENT = new AtomicLong();

    private DirectMemory() {}

    /** What the virtual machine allows. */
    private static long limit() {
        try {
            HotSpotDiagnosticMXBean machine = ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
            long set = Long.parseLong(machine.getVMOption("MaxDirectMemorySize").getValue());
            // Not set: as much as the heap may have.
            return set > 0 ? set : Runtime.getRuntime().maxMemory();
        } catch (RuntimeException | LinkageError e) {
            // Another virtual machine.
            return Runtime.getRuntime().maxMemory();
        }
    }

    private static BufferPoolMXBean direct() {
        for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
            if (pool.getName().equals("direct")) {
                return pool;
            }
        }
        return null;
    }

    /** What is lent now. */
    static long lentBytes() {
        return LENT.get();
    }

    /** A small buffer of a stream's own. */
    static ByteBuffer allocate(Object stream, int bytes) throws IOException {
        try {
            return ByteBuffer.allocateDirect(bytes);
        } catch (OutOfMemoryError e) {
            throw new IOException(stream + ": there is no direct memory left for a buffer of " + bytes + " bytes (of " + LIMIT
                    + "): -XX:MaxDirectMemorySize raises the limit; fewer open streams or a smaller buffer.bytes need less", e);
        }
    }

    /** Whether that much can be had without a search for it. */
    private static boolean isPlenty(int bytes) {
        return DIRECT == null || DIRECT.getMemoryUsed() + bytes <= LIMIT / 2;
    }

    /** One stream's larger buffer: none, one, then none for good. */
    static final class Loan {
        private ByteBuffer lent;
        private boolean ended;

        /** An empty buffer, or null: there is none. */
        synchronized ByteBuffer take(int bytes) {
            if (ended || lent != null || !isPlenty(bytes)) {
                return null;
            }
            if (LENT.addAndGet(bytes) > Math.min(MOST_LENT, LIMIT / 4)) {
                LENT.addAndGet(-bytes);
                return null;
            }
            try {
                lent = POOL.getBuffer(bytes);
            } catch (OutOfMemoryError e) {
                // Others were faster.
                LENT.addAndGet(-bytes);
            }
            return lent;
        }

        /** Nobody may touch the buffer any more. */
        synchronized void end() {
            ended = true;
            if (lent != null) {
                LENT.addAndGet(-lent.capacity());
                POOL.returnBuffer(lent);
                lent = null;
            }
        }
    }
}
