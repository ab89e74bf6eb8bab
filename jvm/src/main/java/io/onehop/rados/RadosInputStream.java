package io.onehop.rados;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.ByteBufferPositionedReadable;
import org.apache.hadoop.fs.ByteBufferReadable;
import org.apache.hadoop.fs.CanUnbuffer;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;

/**
 * A file as it was when it was opened, whoever replaces it meanwhile.
 *
 * <p>Reads from where the stream is take turns; those by position need no turn, from as many threads as there are. {@link #close} never
 * waits: a read that is going on in another thread ends as it would have, and the next one is refused.
 *
 * <p>Small reads are served from a buffer outside the heap, so that a byte costs no call of the native library; large ones go
 * straight to where they are wanted. Reading ahead is the native library's business.
 */
final class RadosInputStream extends FSInputStream
        implements ByteBufferReadable, ByteBufferPositionedReadable, CanUnbuffer, StreamCapabilities, IOStatisticsSource {
    /** What is counted. */
    static final String[] COUNTERS = {
        StreamStatisticNames.STREAM_READ_BYTES, StreamStatisticNames.STREAM_READ_OPERATIONS,
        StreamStatisticNames.STREAM_READ_SEEK_OPERATIONS, StreamStatisticNames.STREAM_READ_UNBUFFERED,
        StreamStatisticNames.STREAM_READ_VECTORED_OPERATIONS, StreamStatisticNames.STREAM_READ_VECTORED_INCOMING_RANGES,
    };

    private final Where path;
    private final long handle;
    private final Leaks.Guard guard;
    private final long length;
    private final String id;
    private final int bufferBytes;
    private final FileSystem.Statistics counted;
    private final IOStatisticsStore statistics;
    private final Consumer<IOStatistics> onClose;
    private final Executor executor;
    private final AtomicLong bytesRead;
    private final AtomicLong reads;

    /** Where the next read is from. */
    private long position;
    /** What comes next, or has been read last, or nothing yet: bytes up to its limit are those of the file from {@code start} on. */
    private ByteBuffer buffer;
    private long start;
    private volatile boolean closed;

    RadosInputStream(
            Where path, long handle, Entry entry, int bufferBytes, FileSystem.Statistics counted,
            IOStatisticsStore statistics, Consumer<IOStatistics> onClose, Executor executor) {
        this.path = path;
        this.handle = handle;
        this.guard = Leaks.watch(this, "an input stream of " + path, () -> Native.closeInput(handle));
        this.length = entry.length();
        this.id = entry.id();
        this.bufferBytes = bufferBytes;
        this.counted = counted;
        this.statistics = statistics;
        this.onClose = onClose;
        this.executor = executor;
        this.bytesRead = statistics.getCounterReference(StreamStatisticNames.STREAM_READ_BYTES);
        this.reads = statistics.getCounterReference(StreamStatisticNames.STREAM_READ_OPERATIONS);
    }

    private void checkOpen() throws IOException {
        if (closed) {
            throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
        }
    }

    /** Counts what a reader gets, on the thread of the reader: Spark asks for each task's. */
    private int got(int bytes) {
        reads.incrementAndGet();
        if (bytes > 0) {
            bytesRead.addAndGet(bytes);
            counted.incrementBytesRead(bytes);
        }
        return bytes;
    }

    @Override
    public synchronized void seek(long to) throws IOException {
        checkOpen();
        if (to < 0) {
            throw new EOFException(path + ": " + FSExceptionMessages.NEGATIVE_SEEK + " " + to);
        }
        if (to > length) {
            throw new EOFException(path + ": " + FSExceptionMessages.CANNOT_SEEK_PAST_EOF + ": " + to + " of " + length);
        }
        if (to != position) {
            statistics.incrementCounter(StreamStatisticNames.STREAM_READ_SEEK_OPERATIONS);
            position = to;
        }
    }

    @Override
    public synchronized long getPos() {
        return position;
    }

    @Override
    public synchronized long skip(long bytes) throws IOException {
        checkOpen();
        long skipped = Math.max(0, Math.min(bytes, length - position));
        seek(position + skipped);
        return skipped;
    }

    /** There is one place that a file is at. */
    @Override
    public boolean seekToNewSource(long target) {
        return false;
    }

    @Override
    public synchronized int available() throws IOException {
        checkOpen();
        return (int) Math.min(length - position, Integer.MAX_VALUE);
    }

    @Override
    public synchronized int read() throws IOException {
        checkOpen();
        if (position >= length) {
            return -1;
        }
        if (buffered() == 0) {
            fill(1);
        }
        int next = buffer.get((int) (position - start)) & 0xff;
        position++;
        got(1);
        return next;
    }

    @Override
    public synchronized int read(byte[] to, int offset, int wanted) throws IOException {
        checkOpen();
        Objects.checkFromIndexSize(offset, wanted, to.length);
        int rest = (int) Math.min(wanted, length - position);
        if (wanted == 0 || rest <= 0) {
            return wanted == 0 ? 0 : -1;
        }
        int read = takeBuffered(to, offset, rest);
        if (read < rest && rest - read >= bufferBytes) {
            int at = read;
            read += Failures.of(path, () -> Native.readArray(handle, position, rest - at, to, offset + at, rest - at));
            position += read - at;
        } else if (read < rest) {
            fill(rest - read);
            read += takeBuffered(to, offset + read, rest - read);
        }
        return got(read);
    }

    @Override
    public synchronized int read(ByteBuffer to) throws IOException {
        checkOpen();
        int wanted = to.remaining();
        if (to.isReadOnly()) {
            throw new ReadOnlyBufferException();
        }
        if (wanted == 0 || position >= length) {
            return wanted == 0 ? 0 : -1;
        }
        if (!to.isDirect()) {
            int read = read(to.array(), to.arrayOffset() + to.position(), wanted);
            to.position(to.position() + Math.max(read, 0));
            return read;
        }
        int read = Failures.of(path, () -> Native.readDirect(handle, position, wanted, to, to.position(), wanted));
        position += read;
        to.position(to.position() + read);
        return got(read);
    }

    /** How many bytes from where we are on are in the buffer. */
    private int buffered() {
        if (buffer == null || position < start) {
            return 0;
        }
        return (int) Math.max(0, start + buffer.limit() - position);
    }

    private int takeBuffered(byte[] to, int offset, int wanted) {
        int taken = Math.min(buffered(), wanted);
        if (taken > 0) {
            buffer.get((int) (position - start), to, offset, taken);
            position += taken;
        }
        return taken;
    }

    /** Has what comes next in the buffer: at least so many bytes, which fit into it and which the file has. */
    private void fill(int least) throws IOException {
        if (buffer == null) {
            buffer = DirectMemory.allocate(path, bufferBytes);
        }
        // After an error nothing is in it.
        buffer.limit(0);
        int read = Failures.of(path, () -> Native.readDirect(handle, position, least, buffer, 0, buffer.capacity()));
        start = position;
        buffer.limit(read);
        if (read < least) {
            throw new EOFException(path + ": " + read + " of " + least + " bytes at " + position + " of " + length);
        }
    }

    @Override
    public int read(long at, byte[] to, int offset, int wanted) throws IOException {
        checkOpen();
        validatePositionedReadArgs(at, to, offset, wanted);
        Objects.checkFromIndexSize(offset, wanted, to.length);
        if (wanted == 0 || at >= length) {
            return wanted == 0 ? 0 : -1;
        }
        return got(Failures.of(path, () -> Native.readArrayAt(handle, at, to, offset, wanted)));
    }

    @Override
    public int read(long at, ByteBuffer to) throws IOException {
        checkOpen();
        int wanted = to.remaining();
        if (at < 0) {
            throw new EOFException(path + ": position " + at);
        }
        if (to.isReadOnly()) {
            throw new ReadOnlyBufferException();
        }
        if (wanted == 0 || at >= length) {
            return wanted == 0 ? 0 : -1;
        }
        int from = to.position();
        int read = Failures.of(path, () -> to.isDirect()
                ? Native.readDirectAt(handle, at, to, from, wanted)
                : Native.readArrayAt(handle, at, to.array(), to.arrayOffset() + from, wanted));
        to.position(from + read);
        return got(read);
    }

    @Override
    public void readFully(long at, ByteBuffer to) throws IOException {
        long end = at + to.remaining();
        if (to.hasRemaining() && (end > length || read(at, to) < 0)) {
            throw new EOFException(path + ": " + FSExceptionMessages.EOF_IN_READ_FULLY + ": up to " + end + " of " + length);
        }
    }

    @Override
    public int minSeekForVectorReads() {
        return VectoredReads.MIN_SEEK;
    }

    @Override
    public int maxReadSizeForVectorReads() {
        return VectoredReads.MAX_SIZE;
    }

    @Override
    public void readVectored(List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate) throws IOException {
        readVectored(ranges, allocate, buffer -> {});
    }

    @Override
    public void readVectored(
            List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate, Consumer<ByteBuffer> release)
            throws IOException {
        checkOpen();
        Objects.requireNonNull(allocate, "allocate");
        Objects.requireNonNull(release, "release");
        // Counted here and now: the threads that read are nobody's task.
        long bytes = VectoredReads.start(path, handle, length, ranges, allocate, release, executor);
        statistics.incrementCounter(StreamStatisticNames.STREAM_READ_VECTORED_OPERATIONS);
        statistics.incrementCounter(StreamStatisticNames.STREAM_READ_VECTORED_INCOMING_RANGES, ranges.size());
        bytesRead.addAndGet(bytes);
        counted.incrementBytesRead(bytes);
    }

    /** Gives memory back, here and in the native library; what is on its way is forgotten. */
    @Override
    public synchronized void unbuffer() {
        buffer = null;
        if (!closed) {
            statistics.incrementCounter(StreamStatisticNames.STREAM_READ_UNBUFFERED);
            try {
                Native.unbuffer(handle);
            } catch (NativeException e) {
                throw new IllegalStateException(path + ": " + e.getMessage(), e);
            }
        }
    }

    /** Which file it is. */
    String id() {
        return id;
    }

    @Override
    public void close() throws IOException {
        if (closed) {
            return;
        }
        closed = true;
        if (!guard.isReleased()) {
            Failures.ofAction(path, guard::release);
            onClose.accept(statistics);
        }
    }

    @Override
    public boolean hasCapability(String capability) {
        return switch (capability.toLowerCase(Locale.ROOT)) {
            case StreamCapabilities.READBYTEBUFFER, StreamCapabilities.PREADBYTEBUFFER, StreamCapabilities.UNBUFFER,
                    StreamCapabilities.IOSTATISTICS, StreamCapabilities.VECTOREDIO,
                    StreamCapabilities.IOSTATISTICS_CONTEXT -> true;
            default -> false;
        };
    }

    @Override
    public IOStatistics getIOStatistics() {
        return statistics;
    }

    @Override
    public String toString() {
        return "RadosInputStream{" + path + ", " + length + " bytes, " + (closed ? "closed" : "open") + "}";
    }
}
