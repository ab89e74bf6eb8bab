package io.onehop.rados;

import static org.apache.hadoop.test.LambdaTestUtils.intercept;
import static org.assertj.core.api.Assertions.assertThat;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import org.junit.Test;

/** The border itself: handles that are misused, arguments that make no sense, panics. Nothing of it ends the virtual machine. */
public final class NativeTest {
    private static final String[] MEMORY = {"memory", "true", "chunk_bytes", "65536"};

    private static byte[] path(String text) throws NativeException {
        return Native.utf8(text);
    }

    private static void refused(Problem problem, Failures.Action action) throws Exception {
        assertThat(intercept(NativeException.class, () -> {
            action.run();
            return null;
        }).problem()).isEqualTo(problem);
    }

    @Test
    public void a_panic_is_an_error_here() throws Exception {
        intercept(InternalError.class, "on purpose", () -> Native.panic("on purpose"));
        // And nothing has come of it.
        assertThat(Native.authority("a.b")).containsExactly("a", "b");
    }

    @Test
    public void authorities_are_taken_apart_in_one_place() throws Exception {
        assertThat(Native.authority("my_pool")).containsExactly("my_pool", "");
        assertThat(Native.authority("%2Ergw%25.a%2Eb")).containsExactly(".rgw%", "a.b");
        refused(Problem.BAD_NAME, () -> Native.authority(".ns"));
    }

    @Test
    public void handles_that_are_not_open_are_refused() throws Exception {
        long mount = Native.mount("native.handles", MEMORY);
        for (long never : new long[] {0, -1, mount + 1_000_000, Long.MIN_VALUE, Long.MAX_VALUE}) {
            refused(Problem.MISUSE, () -> Native.stat(never, path("/")));
            refused(Problem.MISUSE, () -> Native.closeInput(never));
            refused(Problem.MISUSE, () -> Native.abort(never));
        }
        refused(Problem.MISUSE, () -> Native.opened(mount));
        refused(Problem.MISUSE, () -> Native.closeOutput(mount));
        long output = Native.create(mount, path("/f"), false, true);
        refused(Problem.MISUSE, () -> Native.unmount(output));
        Native.commit(output);
        assertThat(Native.commit(output)).as("the same again").isNotEmpty();
        Native.closeOutput(output);
        refused(Problem.CLOSED, () -> Native.commit(output));
        refused(Problem.CLOSED, () -> Native.closeOutput(output));
        long input = Native.open(mount, path("/f"), "adaptive");
        Native.unmount(mount);
        refused(Problem.CLOSED, () -> Native.stat(mount, path("/")));
        refused(Problem.CLOSED, () -> Native.unmount(mount));
        // Open streams keep what they need.
        assertThat(Native.readArray(input, 0, 1, new byte[1], 0, 1)).isZero();
        Native.closeInput(input);
        refused(Problem.CLOSED, () -> Native.unbuffer(input));
    }

    @Test
    public void ranges_of_buffers_are_looked_at() throws Exception {
        long mount = Native.mount("native.ranges", MEMORY);
        long output = Native.create(mount, path("/f"), false, true);
        ByteBuffer direct = ByteBuffer.allocateDirect(100);
        Native.write(output, direct, 90, 10);
        int[][] bad = {{0, 101}, {-1, 1}, {0, -1}, {100, 1}, {Integer.MAX_VALUE, Integer.MAX_VALUE}};
        for (int[] range : bad) {
            refused(Problem.MISUSE, () -> Native.write(output, direct, range[0], range[1]));
        }
        refused(Problem.MISUSE, () -> Native.write(output, ByteBuffer.allocate(10), 0, 10));
        refused(Problem.MISUSE, () -> Native.write(output, null, 0, 10));
        Native.commit(output);
        Native.closeOutput(output);
        long input = Native.open(mount, path("/f"), "random");
        for (int[] range : bad) {
            refused(Problem.MISUSE, () -> Native.readDirect(input, 0, 1, direct, range[0], range[1]));
            refused(Problem.MISUSE, () -> Native.readArrayAt(input, 0, new byte[100], range[0], range[1]));
        }
        refused(Problem.MISUSE, () -> Native.readArray(input, -1, 1, new byte[1], 0, 1));
        refused(Problem.MISUSE, () -> Native.readArray(input, 0, 1, null, 0, 1));
        refused(Problem.MISUSE, () -> Native.readRanges(
                input, new long[] {5}, new int[] {6}, new ByteBuffer[1], new byte[][] {new byte[6]}, new int[1]));
        refused(Problem.MISUSE, () -> Native.readRanges(
                input, new long[] {5, 6}, new int[] {1}, new ByteBuffer[1], new byte[1][], new int[1]));
        Native.closeInput(input);
        Native.unmount(mount);
    }

    @Test
    public void files_of_a_transaction_are_visible_at_one_moment() throws Exception {
        long mount = Native.mount("native.transactions", MEMORY);
        Native.makeDirectories(mount, path("/out/k=1"));
        write(Native.create(mount, path("/out/k=1/old"), false, true));
        String id = Native.begin(mount, 60_000);
        Native.replaceDirectories(mount, id, new byte[][] {path("/out/k=1")});
        long first = Native.attempt(mount, id, "task", "0");
        long second = Native.attempt(mount, id, "task", "1");
        write(Native.createStaged(mount, first, path("/out/k=1/new"), false));
        write(Native.createStaged(mount, second, path("/out/k=1/zombie"), false));
        Native.commitAttempt(first);
        Native.commitAttempt(first);
        refused(Problem.OTHER_ATTEMPT, () -> Native.commitAttempt(second));
        Native.renew(mount, id);
        Staged staged = Staged.decode(Native.staged(mount, id));
        assertThat(staged.tasks()).containsExactly("task");
        assertThat(staged.directories()).isEqualTo(Map.of("/out/k=1", new Staged.Files(1, 10)));
        assertThat(Native.transactionState(mount, id)).isEqualTo("pending");
        assertThat(names(mount, "/out/k=1")).containsExactly("old");
        Native.commitTransaction(mount, id);
        assertThat(names(mount, "/out/k=1")).containsExactly("new");
        long late = Native.attempt(mount, id, "task", "2");
        long unseen = Native.createStaged(mount, late, path("/out/k=1/late"), false);
        refused(Problem.ENDED, () -> Native.commit(unseen));
        Native.closeOutput(unseen);
        refused(Problem.ENDED, () -> Native.commitAttempt(late));
        Native.abortAttempt(late);
        refused(Problem.MISUSE, () -> Native.renew(mount, "no identity"));

        String other = Native.begin(mount, 60_000);
        long lost = Native.attempt(mount, other, "task", "0");
        write(Native.createStaged(mount, lost, path("/out/lost"), false));
        Native.commitAttempt(lost);
        Native.abortTransaction(mount, other);
        refused(Problem.ENDED, () -> Native.commitTransaction(mount, other));
        assertThat(names(mount, "/out")).containsExactly("k=1");
        for (long attempt : new long[] {first, second, late, lost}) {
            Native.closeAttempt(attempt);
            refused(Problem.CLOSED, () -> Native.commitAttempt(attempt));
        }
        Native.unmount(mount);
    }

    private static void write(long output) throws NativeException {
        Native.write(output, ByteBuffer.allocateDirect(10), 0, 10);
        Native.commit(output);
        Native.closeOutput(output);
    }

    private static List<String> names(long mount, String path) throws NativeException {
        return Entry.decodePage(Native.list(mount, path(path), null)).entries().stream().map(Entry::name).toList();
    }

    @Test
    public void options_that_do_not_exist_are_refused() throws Exception {
        refused(Problem.MISUSE, () -> Native.mount("native.options", new String[] {"colour", "blue"}));
        refused(Problem.MISUSE, () -> Native.mount("native.options", new String[] {"timeout_ms", "soon"}));
        refused(Problem.MISUSE, () -> Native.open(Native.mount("native.options", MEMORY), path("/"), "clairvoyant"));
    }
}
