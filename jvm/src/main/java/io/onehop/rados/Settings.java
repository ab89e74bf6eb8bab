package io.onehop.rados;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;

/**
 * The {@code fs.rados.*} settings of one pool. {@code fs.rados.pool.POOL.NAME} goes before {@code fs.rados.NAME}, for every name; POOL
 * is the pool as it is called in the cluster, without any encoding.
 *
 * <p>The key of the cluster's user is a secret: it is asked for by {@link Configuration#getPassword}, which looks into the credential
 * providers first, and it is in no message.
 */
final class Settings {
    static final String PREFIX = "fs.rados.";
    static final String POOL_PREFIX = PREFIX + "pool.";

    /** The cluster's configuration file; without it, where Ceph looks. */
    static final String CONF = "conf";
    /** Who we are in the cluster, without "client.". */
    static final String USER = "user";
    /** The user's key: better in a credential provider than in a file. */
    static final String KEY = "key";
    /** A file with the user's key; without it {@code CEPH_KEYRING} of the environment, then where Ceph looks. */
    static final String KEYRING = "keyring";
    /** How long anything may take before it is an error. */
    static final String TIMEOUT = "timeout";
    /** Before the names of Ceph's own options. */
    static final String OPTION = "option.";
    /** Bytes that a stream that writes has in flight. */
    static final String WINDOW = "window.bytes";
    /** Bytes that all streams of a file system have in flight, that write. */
    static final String IN_FLIGHT = "in-flight.bytes";
    /** Bytes that wait for their stream's turn beside those, of all of them. */
    static final String WAITING = "waiting.bytes";
    /** Bytes that a stream that reads has asked for before they are read. */
    static final String READ_AHEAD = "read-ahead.bytes";
    /** Bytes that a stream gathers before the native library gets them, or has it hand over at once. */
    static final String BUFFER = "buffer.bytes";
    /** What is said to be the size of a block: Spark and MapReduce cut files into splits by it. */
    static final String BLOCK_SIZE = "block.size";
    /** Threads for reads of several ranges and removals of several files. */
    static final String THREADS = "threads";
    /** What to expect of readers who do not say: adaptive, sequential or random. */
    static final String READ_POLICY = "read.policy";
    /** Makes the file system if there is none, with this pool for its bytes. */
    static final String CREATE = "create.data-pool";
    /** Bytes of a chunk of a file system that is made. */
    static final String CHUNK = "create.chunk.bytes";
    /** What a job's commit does with what is where it writes: {@link ConflictMode}. */
    static final String COMMITTER_CONFLICT = "committer.conflict";
    /** How long nobody may have heard of a job before others may abort it. */
    static final String COMMITTER_LEASE = "committer.lease";
    /** No cluster: files in this process's memory. For tests. */
    static final String MEMORY = "memory";

    private static final Set<String> NAMES = Set.of(CONF, USER, KEY, KEYRING, TIMEOUT, WINDOW, IN_FLIGHT, WAITING, READ_AHEAD, BUFFER,
            BLOCK_SIZE, THREADS, READ_POLICY, CREATE, CHUNK, COMMITTER_CONFLICT, COMMITTER_LEASE, MEMORY);
    /** What begins as they do and is no pool's setting: Hadoop's, and ours of all pools. */
    private static final Set<String> OF_ALL = Set.of(PREFIX + "impl", PREFIX + "impl.disable.cache", NativeLibrary.KEY,
            RadosOutputCommitter.TRANSACTION);

    private static final int MOST_THREADS = 4096;
    private static final long MOST_BYTES = 64L << 30;

    private final Configuration conf;
    private final String pool;

    Settings(Configuration conf, String pool) {
        this.conf = conf;
        this.pool = pool;
    }

    /** The full name of the key that counts: the pool's own if it is set. */
    String key(String name) {
        String own = POOL_PREFIX + pool + "." + name;
        return conf.get(own) != null ? own : PREFIX + name;
    }

    String get(String name) {
        String value = conf.getTrimmed(key(name));
        return value == null || value.isEmpty() ? null : value;
    }

    /** Full names that begin as settings of this pool do and are none: misspelt, as a rule. They do nothing. */
    SortedSet<String> unknown() {
        SortedSet<String> unknown = new TreeSet<>();
        String own = POOL_PREFIX + pool + ".";
        // Names alone: values may be secrets, or refer to what is not there.
        for (Map.Entry<String, String> entry : conf) {
            String full = entry.getKey();
            if (full.startsWith(own)) {
                String name = full.substring(own.length());
                // "b.user" is the user of a pool whose name goes on with "b".
                boolean isAnothers = NAMES.stream().anyMatch(known -> name.endsWith("." + known)) || name.contains("." + OPTION);
                if (!isSetting(name) && !isAnothers) {
                    unknown.add(full);
                }
            } else if (full.startsWith(PREFIX) && !full.startsWith(POOL_PREFIX) && !OF_ALL.contains(full)
                    && !isSetting(full.substring(PREFIX.length()))) {
                unknown.add(full);
            }
        }
        return unknown;
    }

    private static boolean isSetting(String name) {
        return NAMES.contains(name) || name.startsWith(OPTION);
    }

    private boolean isInMemory() {
        String value = get(MEMORY);
        if (value == null || value.equalsIgnoreCase("false")) {
            return false;
        }
        if (value.equalsIgnoreCase("true")) {
            return true;
        }
        throw new IllegalArgumentException(key(MEMORY) + " is '" + value + "': it must be true or false");
    }

    long bytes(String name, long otherwise, long least, long most) {
        long bytes = parsed(name, "a number of bytes, as 64K or 8M", () -> conf.getLongBytes(key(name), otherwise));
        return within(name, bytes, least, most);
    }

    private long within(String name, long value, long least, long most) {
        if (value < least || value > most) {
            throw new IllegalArgumentException(key(name) + " is " + value + ": it must be from " + least + " to " + most);
        }
        return value;
    }

    private long millis(String name, long otherwise) {
        return parsed(name, "a time, as 30s, 5m or 1h",
                () -> conf.getTimeDuration(key(name), otherwise, TimeUnit.MILLISECONDS));
    }

    /** What Hadoop makes of a value, or an error that says whose value it is: Hadoop's own does not. */
    private <T> T parsed(String name, String wanted, Supplier<T> parse) {
        try {
            return parse.get();
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(key(name) + " is '" + get(name) + "': it must be " + wanted, e);
        }
    }

    int threads() {
        int threads = parsed(THREADS, "a number", () -> conf.getInt(key(THREADS), 16));
        return Math.toIntExact(within(THREADS, threads, 1, MOST_THREADS));
    }

    private long timeoutMillis() {
        long millis = millis(TIMEOUT, 60_000);
        if (millis < 1000 || millis > TimeUnit.DAYS.toMillis(1)) {
            throw new IllegalArgumentException(key(TIMEOUT) + " is " + millis + " ms: it must be from a second to a day");
        }
        return millis;
    }

    int bufferBytes() {
        return Math.toIntExact(bytes(BUFFER, 64 << 10, 512, 64 << 20));
    }

    long blockBytes() {
        return bytes(BLOCK_SIZE, 128 << 20, 1, Long.MAX_VALUE);
    }

    ConflictMode conflictMode() {
        String name = get(COMMITTER_CONFLICT);
        return name == null ? ConflictMode.APPEND : ConflictMode.parse(key(COMMITTER_CONFLICT), name);
    }

    long committerLeaseMillis() {
        long millis = millis(COMMITTER_LEASE, 3_600_000);
        if (millis < 1000) {
            throw new IllegalArgumentException(key(COMMITTER_LEASE) + " is " + millis + " ms: it must be a second or more");
        }
        return millis;
    }

    ReadPolicy readPolicy() {
        String name = get(READ_POLICY);
        if (name == null) {
            return ReadPolicy.ADAPTIVE;
        }
        return ReadPolicy.of(List.of(name)).orElseThrow(() -> new IllegalArgumentException(
                key(READ_POLICY) + " is '" + name + "': it must be one of "
                        + Arrays.toString(ReadPolicy.values()).toLowerCase(Locale.ROOT)));
    }

    /** What to call the cluster in messages. */
    String cluster() {
        if (isInMemory()) {
            return "memory of this process";
        }
        String own = get(CONF);
        String file = own != null ? own : System.getenv("CEPH_CONF");
        String user = get(USER);
        return "cluster of " + (file == null ? "Ceph's default configuration" : file) + " as client."
                + (user == null ? "admin" : user);
    }

    /** Names and values by turns, as {@link Native#mount} has them. */
    String[] mountOptions() throws IOException {
        List<String> options = new ArrayList<>();
        copy(options, CONF, "conf");
        copy(options, USER, "user");
        copy(options, CREATE, "create");
        add(options, "memory", Boolean.toString(isInMemory()));
        add(options, "timeout_ms", Long.toString(timeoutMillis()));
        copyBytes(options, WINDOW, "window_bytes", 64 << 10, MOST_BYTES);
        copyBytes(options, IN_FLIGHT, "in_flight_bytes", 64 << 10, MOST_BYTES);
        copyBytes(options, WAITING, "waiting_bytes", 0, MOST_BYTES);
        copyBytes(options, READ_AHEAD, "read_ahead_bytes", 64 << 10, MOST_BYTES);
        copyBytes(options, CHUNK, "chunk_bytes", 64 << 10, 64 << 20);
        // What is set last counts.
        String keyring = get(KEYRING) != null ? get(KEYRING) : System.getenv("CEPH_KEYRING");
        if (keyring != null) {
            add(options, "ceph.keyring", keyring);
        }
        // A provider may have the pool's own key without the configuration saying so.
        char[] own = conf.getPassword(POOL_PREFIX + pool + "." + KEY);
        char[] secret = own != null ? own : conf.getPassword(PREFIX + KEY);
        if (secret != null && secret.length > 0) {
            add(options, "ceph.key", new String(secret).trim());
        }
        for (Map.Entry<String, String> option : cephOptions().entrySet()) {
            add(options, "ceph." + option.getKey(), option.getValue());
        }
        return options.toArray(new String[0]);
    }

    private Map<String, String> cephOptions() {
        Map<String, String> options = new TreeMap<>(conf.getPropsWithPrefix(PREFIX + OPTION));
        options.putAll(conf.getPropsWithPrefix(POOL_PREFIX + pool + "." + OPTION));
        return options;
    }

    private void copy(List<String> to, String name, String as) {
        String value = get(name);
        if (value != null) {
            add(to, as, value);
        }
    }

    private void copyBytes(List<String> to, String name, String as, long least, long most) {
        if (get(name) != null) {
            add(to, as, Long.toString(bytes(name, least, least, most)));
        }
    }

    private static void add(List<String> to, String name, String value) {
        to.add(name);
        to.add(value);
    }
}
