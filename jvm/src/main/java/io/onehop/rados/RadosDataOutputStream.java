package io.onehop.rados;

import java.io.IOException;
import org.apache.hadoop.fs.FSDataOutputStream;

/**
 * What {@code create} returns: a {@link RadosOutputStream} as Hadoop wants it.
 *
 * <p>{@link java.io.DataOutputStream} locks itself for each write, and the stream within does so again. A row of text is two writes,
 * the row and the end of its line, so that a lock is 2 to 3 percent of what a task takes that writes text. Here there is the inner one
 * alone.
 */
final class RadosDataOutputStream extends FSDataOutputStream {
    private final RadosOutputStream to;

    /** Without Hadoop's statistics: the stream counts by itself, see there. */
    RadosDataOutputStream(RadosOutputStream to) throws IOException {
        super(to, null);
        this.to = to;
    }

    @Override
    public void write(int value) throws IOException {
        to.write(value);
        count(1);
    }

    @Override
    public void write(byte[] bytes, int offset, int length) throws IOException {
        to.write(bytes, offset, length);
        count(length);
    }

    @Override
    public long getPos() {
        return to.position();
    }

    /** For {@link #size}, which has no larger numbers. */
    private void count(int bytes) {
        int sum = written + bytes;
        written = sum < 0 ? Integer.MAX_VALUE : sum;
    }
}
