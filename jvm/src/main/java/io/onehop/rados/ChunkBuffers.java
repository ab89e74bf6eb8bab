package io.onehop.rados;

import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.util.DirectBufferPool;

/**
 * Memory for whole chunks of files that are being written: the native library sends a chunk from where it lies, so that bytes are
 * copied once less on their way. Files that have less than a small buffer never need any, and where all of it is taken, streams go on
 * with their small buffers.
 */
final class ChunkBuffers {
    /** What all streams of the process may have: 32 chunks of 4 MiB. Executors have fewer tasks, and these one file open at a time. */
    static final long MOST_BYTES = 128 << 20;
    /** It keeps what was given back until the garbage collector wants it. */
    private static final DirectBufferPool POOL = new DirectBufferPool();
    private static final AtomicLong LENT = new AtomicLong();

    private ChunkBuffers() {}

    /** What is lent now. */
    static long lentBytes() {
        return LENT.get();
    }

    /** One stream's: nothing, a buffer, then nothing for good. */
    static final class Loan {
        private ByteBuffer lent;
        private boolean ended;

        /** An empty buffer, or null: there is none. */
        synchronized ByteBuffer take(int bytes) {
            if (ended || lent != null) {
                return null;
            }
            if (LENT.addAndGet(bytes) > MOST_BYTES) {
                LENT.addAndGet(-bytes);
                return null;
            }
            try {
                lent = POOL.getBuffer(bytes);
            } catch (OutOfMemoryError e) {
                // The virtual machine's limit of direct memory, which others have used up; the small buffer is there.
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
