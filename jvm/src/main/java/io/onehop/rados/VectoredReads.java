package io.onehop.rados;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.VectoredReadUtils;

/**
 * Reads of several ranges of a file. Ranges that are close to each other are a group; a group is one call of the native library, on a
 * thread of the file system's pool, which reads what lies between as well and copies each range to its place. A group's ranges are
 * there when all of it is.
 *
 * <p>On its own, so that a Hadoop without these classes loads {@link RadosInputStream} all the same.
 */
final class VectoredReads {
    /** What lies between two ranges is read rather than asking twice; the native library joins them by the same measure. */
    static final int MIN_SEEK = 256 << 10;
    /** A group that has so many bytes is followed by another one, beside it. */
    static final int MAX_SIZE = 8 << 20;

    private VectoredReads() {}

    /** Starts reading; the bytes that there will be. */
    static long start(
            Where path, long handle, long length, List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate,
            Consumer<ByteBuffer> release, Executor executor) throws IOException {
        List<? extends FileRange> sorted = VectoredReadUtils.validateAndSortRanges(ranges, Optional.of(length));
        for (FileRange range : sorted) {
            range.setData(new CompletableFuture<>());
        }
        long bytes = 0;
        List<FileRange> group = new ArrayList<>();
        long groupStart = 0;
        long groupEnd = 0;
        for (FileRange range : sorted) {
            long end = range.getOffset() + range.getLength();
            boolean near = range.getOffset() - groupEnd <= MIN_SEEK && end - groupStart <= MAX_SIZE;
            if (!group.isEmpty() && !near) {
                submit(path, handle, group, allocate, release, executor);
                group = new ArrayList<>();
            }
            if (group.isEmpty()) {
                groupStart = range.getOffset();
            }
            group.add(range);
            groupEnd = end;
            bytes += range.getLength();
        }
        if (!group.isEmpty()) {
            submit(path, handle, group, allocate, release, executor);
        }
        return bytes;
    }

    private static void submit(
            Where path, long handle, List<FileRange> group, IntFunction<ByteBuffer> allocate,
            Consumer<ByteBuffer> release, Executor executor) {
        executor.execute(() -> {
            List<ByteBuffer> buffers = new ArrayList<>(group.size());
            try {
                for (FileRange range : group) {
                    buffers.add(allocate.apply(range.getLength()));
                }
                read(path, handle, group, buffers);
                for (int i = 0; i < group.size(); i++) {
                    group.get(i).getData().complete(buffers.get(i));
                }
            } catch (Throwable e) {
                // Whoever waits is told, whatever it was.
                buffers.forEach(release);
                group.forEach(range -> range.getData().completeExceptionally(e));
            }
        });
    }

    private static void read(Where path, long handle, List<FileRange> group, List<ByteBuffer> buffers)
            throws IOException {
        int count = group.size();
        long[] positions = new long[count];
        int[] lengths = new int[count];
        ByteBuffer[] direct = new ByteBuffer[count];
        byte[][] arrays = new byte[count][];
        int[] offsets = new int[count];
        for (int i = 0; i < count; i++) {
            ByteBuffer buffer = buffers.get(i);
            positions[i] = group.get(i).getOffset();
            lengths[i] = group.get(i).getLength();
            if (buffer.isDirect()) {
                direct[i] = buffer.slice();
            } else {
                arrays[i] = buffer.array();
                offsets[i] = buffer.arrayOffset() + buffer.position();
            }
        }
        Failures.ofAction(path, () -> Native.readRanges(handle, positions, lengths, direct, arrays, offsets));
        for (int i = 0; i < count; i++) {
            buffers.get(i).limit(buffers.get(i).position() + lengths[i]);
        }
    }
}
