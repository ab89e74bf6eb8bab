package io.onehop.rados;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.apache.hadoop.test.LambdaTestUtils.eventually;
import static org.apache.hadoop.test.LambdaTestUtils.intercept;
import static org.assertj.core.api.Assertions.assertThat;

import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.InvalidPathException;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.statistics.IOStatisticsContext;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TestName;

/** What is {@code rados://}'s own: names, visibility, statistics, concurrency, leaks. */
public final class RadosFileSystemTest {
    private static final byte[] SMALL = "some bytes".getBytes(UTF_8);

    @Rule
    public final TestName test = new TestName();

    private Configuration conf;
    private RadosFileSystem fs;
    private Path folder;

    @Before
    public void setUp() throws IOException {
        conf = TestPool.configure(new Configuration());
        fs = open(conf);
        folder = new Path(fs.getUri() + "/" + test.getMethodName());
        fs.mkdirs(folder);
    }

    @After
    public void tearDown() throws IOException {
        fs.close();
    }

    private static RadosFileSystem open(Configuration conf) throws IOException {
        return (RadosFileSystem) FileSystem.newInstance(TestPool.uri("own"), conf);
    }

    private static byte[] random(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }

    private Path write(Path path, byte[] bytes) throws IOException {
        try (FSDataOutputStream out = fs.create(path, true)) {
            out.write(bytes);
        }
        return path;
    }

    private byte[] read(Path path) throws IOException {
        try (FSDataInputStream in = fs.open(path)) {
            return in.readAllBytes();
        }
    }

    @Test
    public void names_are_what_they_are() throws IOException {
        assertThat(fs.getUri().getHost()).as("an authority with an underscore").isNull();
        for (String name : List.of("a b", "größe=1", "_temporary", ".hidden", "100%", "a%20b", "a+b", "日本語", "𝄞", "x:y",
                "[1]*?{}", "a\\b", "#1;2&3", "year=2026/month= 1", "\u0000e\u0301".substring(1))) {
            Path path = new Path(folder, new Path(null, null, name));
            assertThat(read(write(path, name.getBytes(UTF_8)))).as(name).isEqualTo(name.getBytes(UTF_8));
            FileStatus listed = fs.listStatus(path.getParent())[0];
            assertThat(listed.getPath()).as(name).isEqualTo(path);
            assertThat(fs.getFileStatus(listed.getPath()).getLen()).isEqualTo(name.getBytes(UTF_8).length);
            Path renamed = new Path(folder, new Path(null, null, name + "~"));
            assertThat(fs.rename(path, renamed)).isTrue();
            assertThat(fs.delete(renamed, false)).isTrue();
            fs.delete(path.getParent().equals(folder) ? renamed : path.getParent(), true);
        }
        assertThat(fs.listStatus(folder)).isEmpty();
    }

    @Test
    public void a_pool_is_not_another_one_whose_name_differs_in_case() throws Exception {
        String authority = fs.getUri().getAuthority();
        assertThat(authority).isNotEqualTo(authority.toUpperCase(Locale.ROOT));
        String other = fs.getUri().getScheme() + "://" + authority.toUpperCase(Locale.ROOT) + "/f";
        write(new Path(folder, "f"), SMALL);
        intercept(IllegalArgumentException.class, "disable.cache", () -> fs.create(new Path(other)));
        intercept(IllegalArgumentException.class, "disable.cache", () -> fs.getFileStatus(new Path(other)));
        intercept(IllegalArgumentException.class, "disable.cache", () -> fs.rename(new Path(folder, "f"), new Path(other)));
        intercept(IllegalArgumentException.class, "disable.cache", () -> fs.listStatus(new Path(other).getParent()));
        intercept(IllegalArgumentException.class, "disable.cache", () -> fs.delete(new Path(other), true));
    }

    @Test
    public void half_a_character_is_no_name() throws Exception {
        intercept(IOException.class, "not valid Unicode", () -> fs.exists(new Path(folder, "a\ud834b")));
    }

    @Test
    public void many_names_are_listed_page_by_page() throws IOException {
        for (int i = 0; i < 50; i++) {
            write(new Path(folder, String.format("f%03d", i)), new byte[i]);
        }
        FileStatus[] all = fs.listStatus(folder);
        assertThat(all).hasSize(50);
        for (int i = 0; i < 50; i++) {
            assertThat(all[i].getLen()).isEqualTo(i);
        }
    }

    @Test
    public void a_file_is_visible_whole_or_not_at_all() throws Exception {
        Path path = new Path(folder, "f");
        FSDataOutputStream out = fs.create(path, false);
        out.write(random(3 << 20));
        assertThat(fs.exists(path)).isFalse();
        out.close();
        assertThat(read(path)).isEqualTo(random(3 << 20));
        intercept(FileAlreadyExistsException.class, () -> fs.create(path, false));
        intercept(FileAlreadyExistsException.class, () -> fs.create(folder, true));

        // Two who write the same: the later one finds it taken.
        Path twice = new Path(folder, "twice");
        FSDataOutputStream first = fs.create(twice, false);
        FSDataOutputStream second = fs.create(twice, false);
        first.write(1);
        second.write(2);
        second.close();
        intercept(FileAlreadyExistsException.class, first::close);
        assertThat(read(twice)).containsExactly(2);
    }

    @Test
    public void nothing_comes_of_a_file_that_is_given_up() throws Exception {
        Path path = write(new Path(folder, "f"), SMALL);
        FSDataOutputStream out = fs.create(path, true);
        assertThat(out.hasCapability(StreamCapabilities.ABORTABLE_STREAM)).isTrue();
        assertThat(fs.hasPathCapability(path, StreamCapabilities.ABORTABLE_STREAM)).isTrue();
        out.write(random(2 << 20));
        assertThat(out.abort().alreadyClosed()).isFalse();
        assertThat(out.abort().alreadyClosed()).isTrue();
        out.close();
        intercept(IOException.class, "closed", () -> out.write(1));
        assertThat(read(path)).isEqualTo(SMALL);
    }

    @Test
    public void there_is_no_syncing_and_it_says_so() throws IOException {
        try (FSDataOutputStream out = fs.create(new Path(folder, "f"))) {
            for (String capability : List.of(StreamCapabilities.HSYNC, "hflush")) {
                assertThat(out.hasCapability(capability)).as(capability).isFalse();
            }
        }
        assertThat(fs.hasPathCapability(folder, "fs.capability.paths.append")).isFalse();
        assertThat(fs.hasPathCapability(folder, "fs.capability.etags.available")).isTrue();
    }

    @Test
    public void who_has_a_file_open_has_the_file_that_it_was() throws IOException {
        byte[] old = random(700_000);
        Path path = write(new Path(folder, "f"), old);
        try (FSDataInputStream in = fs.open(path)) {
            write(path, SMALL);
            fs.rename(path, new Path(folder, "g"));
            fs.delete(new Path(folder, "g"), false);
            assertThat(in.readAllBytes()).isEqualTo(old);
        }
    }

    @Test
    public void a_directory_moves_and_goes_with_all_that_is_in_it() throws IOException {
        write(new Path(folder, "a/b/c/f"), SMALL);
        assertThat(fs.mkdirs(new Path(folder, "x"))).isTrue();
        assertThat(fs.rename(new Path(folder, "a"), new Path(folder, "x"))).isTrue();
        assertThat(read(new Path(folder, "x/a/b/c/f"))).isEqualTo(SMALL);
        assertThat(fs.rename(new Path(folder, "x"), new Path(folder, "x/a/y"))).as("into itself").isFalse();
        assertThat(fs.delete(new Path(folder, "x"), true)).isTrue();
        assertThat(fs.exists(new Path(folder, "x/a/b/c/f"))).isFalse();
        assertThat(fs.getLedger()).containsEntry("rename_copy_bytes", 0L);
    }

    @Test
    public void reads_of_every_kind_agree() throws Exception {
        byte[] bytes = random(1_500_000);
        Path path = write(new Path(folder, "f"), bytes);
        for (String policy : List.of("sequential", "random", "adaptive", "whole-file, x", "parquet")) {
            try (FSDataInputStream in = fs.openFile(path).opt("fs.option.openfile.read.policy", policy)
                    .opt("fs.option.openfile.length", Long.toString(bytes.length)).build().get()) {
                Random random = new Random(7);
                for (int i = 0; i < 200; i++) {
                    int at = random.nextInt(bytes.length);
                    byte[] expected = Arrays.copyOfRange(bytes, at, Math.min(bytes.length, at + random.nextInt(200_000)));
                    byte[] got = new byte[expected.length];
                    ByteBuffer direct = ByteBuffer.allocateDirect(expected.length + 3).position(3);
                    ByteBuffer heap = ByteBuffer.allocate(expected.length + 5).position(5).slice();
                    switch (i % 5) {
                        case 0 -> {
                            in.seek(at);
                            in.readFully(got);
                        }
                        case 1 -> in.readFully(at, got);
                        case 2 -> {
                            in.seek(at);
                            while (direct.hasRemaining() && in.read(direct) >= 0) {
                                assertThat(direct.position()).isGreaterThan(3);
                            }
                            direct.position(3).get(got);
                        }
                        case 3 -> {
                            in.readFully(at, heap);
                            heap.flip().get(got);
                        }
                        default -> {
                            in.seek(at);
                            for (int j = 0; j < Math.min(100, got.length); j++) {
                                assertThat((byte) in.read()).isEqualTo(expected[j]);
                            }
                            System.arraycopy(expected, 0, got, 0, got.length);
                        }
                    }
                    assertThat(Arrays.equals(got, expected)).as("%s, read %s at %s", policy, i, at).isTrue();
                }
                in.unbuffer();
                intercept(ReadOnlyBufferException.class, () -> in.read(ByteBuffer.allocate(1).asReadOnlyBuffer()));
                intercept(EOFException.class, () -> in.readFully(bytes.length - 1, new byte[2]));
                in.seek(bytes.length - 10);
                assertThat(in.skip(3) + in.skip(-1) + in.skip(100)).isEqualTo(10);
                assertThat(in.read()).isEqualTo(-1);
                intercept(EOFException.class, () -> in.readFully(bytes.length - 1, ByteBuffer.allocate(2)));
            }
        }
        intercept(IllegalArgumentException.class, () -> fs.openFile(path).must("fs.other.option", "1").build());
    }

    @Test
    public void a_file_must_be_the_one_whose_status_was_handed_over() throws Exception {
        Path path = write(new Path(folder, "f"), SMALL);
        FileStatus status = fs.getFileStatus(path);
        fs.openFile(path).withFileStatus(status).build().get().close();
        write(path, SMALL);
        intercept(java.util.concurrent.ExecutionException.class, "replaced",
                () -> fs.openFile(path).withFileStatus(status).build().get());
    }

    @Test
    public void identities_are_kept_by_renames_and_by_nothing_else() throws Exception {
        Path path = write(new Path(folder, "f"), SMALL);
        String etag = ((EtagSource) fs.getFileStatus(path)).getEtag();
        PathHandle exact = fs.getPathHandle(fs.getFileStatus(path), Options.HandleOpt.exact());
        PathHandle any = fs.getPathHandle(fs.getFileStatus(path), Options.HandleOpt.path());
        fs.open(exact).close();
        Path other = new Path(folder, "g");
        fs.rename(path, other);
        assertThat(((EtagSource) fs.getFileStatus(other)).getEtag()).isEqualTo(etag);
        intercept(InvalidPathHandleException.class, () -> fs.open(exact));
        write(path, SMALL);
        assertThat(((EtagSource) fs.getFileStatus(path)).getEtag()).isNotEqualTo(etag);
        intercept(InvalidPathHandleException.class, "replaced", () -> fs.open(exact));
        fs.open(any).close();
    }

    @Test
    public void files_of_a_directory_become_one() throws Exception {
        Path whole = write(new Path(folder, "whole"), random(700_000));
        Path one = write(new Path(folder, "one"), SMALL);
        Path none = write(new Path(folder, "none"), new byte[0]);
        fs.concat(whole, new Path[] {one, none});
        byte[] expected = Arrays.copyOf(random(700_000), 700_000 + SMALL.length);
        System.arraycopy(SMALL, 0, expected, 700_000, SMALL.length);
        assertThat(Arrays.equals(read(whole), expected)).isTrue();
        assertThat(fs.listStatus(folder)).hasSize(1);
        intercept(FileNotFoundException.class, () -> fs.concat(whole, new Path[] {one}));
        intercept(IllegalArgumentException.class, () -> fs.concat(whole, new Path[] {new Path("/elsewhere/f")}));
    }

    @Test
    @SuppressWarnings("deprecation") // What Spark and MapReduce ask.
    public void bytes_are_counted_once_and_on_the_thread_that_moves_them() throws Exception {
        FileSystem.Statistics counted = FileSystem.getStatistics("rados", RadosFileSystem.class);
        long written = counted.getBytesWritten();
        long read = counted.getBytesRead();
        long threadWritten = counted.getThreadStatistics().getBytesWritten();
        IOStatisticsContext.getCurrentIOStatisticsContext().reset();
        byte[] bytes = random(500_000);
        Path path = new Path(folder, "f");
        try (FSDataOutputStream out = fs.create(path)) {
            // What is in the buffer has gone nowhere yet.
            out.write(bytes, 0, 100);
            assertThat(counted.getThreadStatistics().getBytesWritten() - threadWritten).isZero();
            out.write(bytes, 100, 399_900);
            out.write(bytes[400_000]);
            out.write(bytes, 400_001, 99_999);
        }
        assertThat(counted.getBytesWritten() - written).isEqualTo(500_000);
        assertThat(counted.getThreadStatistics().getBytesWritten() - threadWritten).isEqualTo(500_000);
        try (FSDataInputStream in = fs.open(path)) {
            in.read();
            in.readFully(new byte[100_000]);
            in.readFully(400_000, new byte[100_000]);
            List<FileRange> ranges = List.of(FileRange.createFileRange(0, 1000), FileRange.createFileRange(9000, 500));
            in.readVectored(ranges, ByteBuffer::allocate);
            for (FileRange range : ranges) {
                range.getData().get();
            }
        }
        assertThat(counted.getBytesRead() - read).isEqualTo(201_501);
        assertThat(fs.getIOStatistics().counters())
                .containsEntry(StreamStatisticNames.STREAM_READ_BYTES, 201_501L)
                .containsEntry(StreamStatisticNames.STREAM_WRITE_BYTES, 500_000L);
        assertThat(IOStatisticsContext.getCurrentIOStatisticsContext().getIOStatistics().counters())
                .containsEntry(StreamStatisticNames.STREAM_READ_BYTES, 201_501L);
    }

    @Test
    public void a_position_is_of_all_that_was_written_in_whatever_way() throws Exception {
        Path path = new Path(folder, "f");
        try (FSDataOutputStream out = fs.create(path)) {
            out.write(7);
            out.write(new byte[] {1, 2, 3});
            out.write(new byte[] {0, 4, 5, 0}, 1, 2);
            out.writeInt(0x08090a0b);
            out.writeLong(-1);
            out.writeUTF("é");
            out.writeChars("ab");
            assertThat(out.getPos()).isEqualTo(26);
            assertThat(out.size()).isEqualTo(26);
            intercept(IndexOutOfBoundsException.class, () -> out.write(new byte[3], 2, 2));
            assertThat(out.getPos()).isEqualTo(26);
            assertThat(out.getIOStatistics().counters()).containsEntry(StreamStatisticNames.STREAM_WRITE_BYTES, 26L);
        }
        try (FSDataInputStream in = fs.open(path)) {
            byte[] head = new byte[6];
            in.readFully(head);
            assertThat(head).containsExactly(7, 1, 2, 3, 4, 5);
            assertThat(in.readInt()).isEqualTo(0x08090a0b);
            assertThat(in.readLong()).isEqualTo(-1);
            assertThat(in.readUTF()).isEqualTo("é");
            assertThat(in.readChar()).isEqualTo('a');
            assertThat(in.readChar()).isEqualTo('b');
            assertThat(in.read()).isEqualTo(-1);
        }
    }

    @Test
    public void many_threads_read_one_stream_while_it_is_closed() throws Exception {
        byte[] bytes = random(2_000_000);
        Path path = write(new Path(folder, "f"), bytes);
        ExecutorService threads = Executors.newFixedThreadPool(8);
        try {
            for (int round = 0; round < 20; round++) {
                FSDataInputStream in = fs.open(path);
                AtomicBoolean closing = new AtomicBoolean();
                List<Future<?>> readers = new ArrayList<>();
                for (int thread = 0; thread < 8; thread++) {
                    Random random = new Random(thread);
                    readers.add(threads.submit(() -> {
                        byte[] got = new byte[10_000];
                        try {
                            while (true) {
                                int at = random.nextInt(bytes.length - got.length);
                                in.readFully(at, got);
                                assertThat(Arrays.equals(got, 0, got.length, bytes, at, at + got.length)).isTrue();
                            }
                        } catch (IOException e) {
                            assertThat(closing).as(e.toString()).isTrue();
                        }
                        return null;
                    }));
                }
                Thread.sleep(5);
                closing.set(true);
                in.close();
                for (Future<?> reader : readers) {
                    reader.get();
                }
            }
        } finally {
            threads.shutdownNow();
        }
    }

    @Test
    public void many_threads_write_into_one_directory() throws Exception {
        List<CompletableFuture<Void>> writers = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            int number = i;
            writers.add(CompletableFuture.runAsync(() -> {
                try {
                    for (int file = 0; file < 20; file++) {
                        write(new Path(folder, "new/d" + file + "/f" + number), random(number * 1000 + file));
                    }
                } catch (IOException e) {
                    throw new java.io.UncheckedIOException(e);
                }
            }));
        }
        CompletableFuture.allOf(writers.toArray(CompletableFuture<?>[]::new)).get();
        assertThat(fs.getContentSummary(folder).getFileCount()).isEqualTo(160);
        assertThat(read(new Path(folder, "new/d7/f3"))).isEqualTo(random(3007));
    }

    @Test
    public void streams_that_were_never_closed_are_found_and_given_up() throws Exception {
        long before = Leaks.found();
        Path path = write(new Path(folder, "f"), SMALL);
        forgetStreams(path);
        eventually(30_000, 100, () -> {
            System.gc();
            assertThat(Leaks.found()).isGreaterThanOrEqualTo(before + 2);
        });
        assertThat(fs.exists(new Path(folder, "lost"))).isFalse();
        // One that was closed is no leak.
        long found = Leaks.found();
        read(path);
        System.gc();
        Thread.sleep(200);
        assertThat(Leaks.found()).isEqualTo(found);
    }

    private void forgetStreams(Path path) throws IOException {
        fs.open(path).read();
        fs.create(new Path(folder, "lost")).write(SMALL);
    }

    @Test
    public void file_systems_that_nobody_can_close_are_given_back() throws Exception {
        long before = Leaks.found();
        for (int i = 0; i < 20; i++) {
            FileContext.getFileContext(TestPool.uri("own"), conf).util().exists(folder);
        }
        int open = Leaks.followed();
        assertThat(open).isGreaterThan(20);
        eventually(30_000, 100, () -> {
            System.gc();
            assertThat(Leaks.followed()).isLessThan(open - 10);
        });
        assertThat(Leaks.found()).as("streams").isEqualTo(before);
    }

    @Test
    public void a_closed_file_system_says_so_and_its_streams_go_on() throws Exception {
        Path path = write(new Path(folder, "f"), random(600_000));
        RadosFileSystem other = open(conf);
        FSDataInputStream in = other.open(path);
        FSDataOutputStream out = other.create(new Path(folder, "g"));
        out.write(SMALL);
        other.close();
        other.close();
        intercept(IOException.class, "Filesystem closed", () -> other.exists(path));
        intercept(IOException.class, "Filesystem closed", () -> other.open(path));
        assertThat(in.readAllBytes()).isEqualTo(random(600_000));
        FileRange range = FileRange.createFileRange(100, 1000);
        in.readVectored(List.of(range), ByteBuffer::allocate);
        assertThat(range.getData().get(30, TimeUnit.SECONDS).array())
                .isEqualTo(Arrays.copyOfRange(random(600_000), 100, 1100));
        in.close();
        out.close();
        assertThat(read(new Path(folder, "g"))).isEqualTo(SMALL);
    }

    @Test
    public void file_contexts_replace_files_at_one_moment() throws Exception {
        FileContext context = FileContext.getFileContext(TestPool.uri("own"), conf);
        Path from = new Path(folder, "from");
        Path to = write(new Path(folder, "to"), new byte[] {1});
        try (FSDataOutputStream out = context.create(from, EnumSet.of(CreateFlag.CREATE))) {
            out.write(2);
        }
        intercept(FileAlreadyExistsException.class, () -> context.rename(from, to));
        context.rename(from, to, Options.Rename.OVERWRITE);
        assertThat(read(to)).containsExactly(2);
        assertThat(context.util().exists(from)).isFalse();
        assertThat(context.getDefaultFileSystem()).isInstanceOf(RadosFs.class);
        assertThat(context.getFileStatus(to).getPath()).isEqualTo(to);
        intercept(InvalidPathException.class,
                () -> context.getDefaultFileSystem().getFileStatus(new Path("rados://other_pool/x")));
    }

    @Test
    public void times_are_those_that_were_set() throws IOException {
        Path path = write(new Path(folder, "f"), SMALL);
        fs.setTimes(path, 1_234_567_890_123L, -1);
        assertThat(fs.getFileStatus(path).getModificationTime()).isEqualTo(1_234_567_890_123L);
        assertThat(read(path)).isEqualTo(SMALL);
    }

    @Test
    public void a_uri_without_a_pool_is_refused() throws Exception {
        intercept(IOException.class, "names no pool", () -> FileSystem.get(URI.create("rados:///x"), conf));
    }
}
