package io.onehop.rados;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.Locale;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;

/**
 * A file that is being written. It is visible, whole, once {@link #close} has returned; before that, and after {@link #abort}, there is
 * nothing. A write that has failed makes closing fail.
 *
 * <p>{@link FileSystem.Statistics} count bytes by the thread that fills a small buffer, or closes the file, and not when each is
 * written. Spark takes what its thread has written until the task's end, less what it had written when the first record comes, and by
 * then formats have written headers: those of sequence files would be in no metric.
 *
 * <p>There is no {@code hflush} and no {@code hsync}: part of a file is never visible or durable, and {@link #flush} sends nothing.
 */
final class RadosOutputStream extends OutputStream implements Abortable, StreamCapabilities, IOStatisticsSource {
    /** What is counted. */
    static final String[] COUNTERS = {
        StreamStatisticNames.STREAM_WRITE_BYTES, StreamStatisticNames.STREAM_WRITE_EXCEPTIONS,
        StreamStatisticNames.STREAM_WRITE_EXCEPTIONS_COMPLETING_UPLOADS,
    };

    private final Where path;
    private final long handle;
    private final Leaks.Guard guard;
    private final FileSystem.Statistics counted;
    private final IOStatisticsStore statistics;
    private final AtomicLong bytesWritten;
    private final Consumer<IOStatistics> onClose;
    private final Consumer<Entry> onCommit;
    private final int pieceBytes;
    private final int bufferBytes;
    private final DirectMemory.Loan loan;
    /** What the native library has not got yet: a small buffer, or a piece's, if it got one when it had filled the small one. */
    private ByteBuffer buffer;
    private boolean grown;
    /** Up to where what is in the buffer has been counted. */
    private int countedTo;
    private boolean closed;
    private boolean aborted;

    /** {@code onCommit} gets to know what the file is once it is whole. */
    RadosOutputStream(
            Where path, long handle, int bufferBytes, int pieceBytes, FileSystem.Statistics counted, IOStatisticsStore statistics,
            Consumer<IOStatistics> onClose, Consumer<Entry> onCommit) throws IOException {
        this.path = path;
        this.handle = handle;
        DirectMemory.Loan lent = new DirectMemory.Loan();
        this.loan = lent;
        this.guard = Leaks.watch(this, "an output stream of " + path, () -> {
            lent.end();
            Native.closeOutput(handle);
        });
        this.pieceBytes = pieceBytes;
        this.counted = counted;
        this.statistics = statistics;
        this.bytesWritten = statistics.getCounterReference(StreamStatisticNames.STREAM_WRITE_BYTES);
        this.onClose = onClose;
        this.onCommit = onCommit;
        this.bufferBytes = bufferBytes;
        try {
            this.buffer = DirectMemory.allocate(path, bufferBytes);
        } catch (IOException e) {
            Failures.ofAction(path, guard::release);
            throw e;
        }
    }

    private void checkOpen() throws IOException {
        if (closed) {
            throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
        }
    }

    @Override
    public synchronized void write(int value) throws IOException {
        checkOpen();
        if (!buffer.hasRemaining()) {
            makeRoom();
        }
        buffer.put((byte) value);
        countGathered();
        countWritten(1);
    }

    @Override
    public synchronized void write(byte[] bytes, int offset, int length) throws IOException {
        checkOpen();
        Objects.checkFromIndexSize(offset, length, bytes.length);
        int at = offset;
        int end = offset + length;
        while (at < end) {
            if (!buffer.hasRemaining()) {
                makeRoom();
            }
            int now = Math.min(buffer.remaining(), end - at);
            buffer.put(bytes, at, now);
            at += now;
            countGathered();
        }
        countWritten(length);
    }

    /** One thread at a time counts: there is no need for an atomic operation, of which rows of text would notice two each. */
    private void countWritten(int bytes) {
        bytesWritten.lazySet(bytesWritten.getPlain() + bytes);
    }

    /** Bytes that have been written to it, handed over or not. */
    long position() {
        return bytesWritten.get();
    }

    /** The buffer is full: the first time it becomes one for a piece, if there is any. Before that nothing has been handed over. */
    private void makeRoom() throws IOException {
        if (!grown) {
            grown = true;
            ByteBuffer piece = buffer.capacity() < pieceBytes ? loan.take(pieceBytes) : null;
            if (piece != null) {
                buffer = piece.put(buffer.flip());
                return;
            }
        }
        send();
    }

    /** What a piece gathers is counted as often as if a small buffer had been handed over. */
    private void countGathered() {
        int gathered = buffer.position() - countedTo;
        if (gathered >= bufferBytes && buffer.capacity() > bufferBytes) {
            countedTo += gathered;
            counted.incrementBytesWritten(gathered);
        }
    }

    /** Hands over what is in the buffer, which may wait for the cluster. */
    private void send() throws IOException {
        int length = buffer.position();
        if (length == 0) {
            return;
        }
        int uncounted = length - countedTo;
        // A failed stream stays failed: what is in the buffer will never be part of a file.
        buffer.clear();
        countedTo = 0;
        try {
            Failures.ofAction(path, () -> Native.write(handle, buffer, 0, length));
        } catch (IOException e) {
            statistics.incrementCounter(StreamStatisticNames.STREAM_WRITE_EXCEPTIONS);
            throw e;
        }
        counted.incrementBytesWritten(uncounted);
    }

    @Override
    public void flush() {
        // Nothing that could be seen would come of it.
    }

    @Override
    public synchronized void close() throws IOException {
        if (closed) {
            return;
        }
        closed = true;
        try {
            send();
            byte[] entry = Failures.of(path, () -> Native.commit(handle));
            if (entry != null) {
                onCommit.accept(Entry.decode(entry));
            }
        } catch (IOException e) {
            statistics.incrementCounter(StreamStatisticNames.STREAM_WRITE_EXCEPTIONS_COMPLETING_UPLOADS);
            throw e;
        } finally {
            release();
        }
    }

    /** Gives the file up, and makes it impossible that it becomes visible. Never throws. */
    @Override
    public synchronized AbortableResult abort() {
        boolean again = closed;
        IOException failed = null;
        if (!closed) {
            closed = true;
            aborted = true;
            try {
                Failures.of(path, () -> Native.abort(handle));
                release();
            } catch (IOException e) {
                failed = e;
            }
        }
        return new Aborted(again, failed);
    }

    private void release() throws IOException {
        Failures.ofAction(path, guard::release);
        onClose.accept(statistics);
    }

    @Override
    public boolean hasCapability(String capability) {
        return switch (capability.toLowerCase(Locale.ROOT)) {
            case StreamCapabilities.ABORTABLE_STREAM, StreamCapabilities.IOSTATISTICS,
                    StreamCapabilities.IOSTATISTICS_CONTEXT -> true;
            default -> false;
        };
    }

    @Override
    public IOStatistics getIOStatistics() {
        return statistics;
    }

    @Override
    public synchronized String toString() {
        return "RadosOutputStream{" + path + ", " + (aborted ? "given up" : closed ? "closed" : "open") + "}";
    }

    /** What came of giving a file up. */
    private record Aborted(boolean alreadyClosed, IOException anyCleanupException) implements AbortableResult {}
}
