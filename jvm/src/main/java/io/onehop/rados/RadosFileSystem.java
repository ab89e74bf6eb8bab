package io.onehop.rados;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.impl.AbstractFSBuilderImpl;
import org.apache.hadoop.fs.impl.FileSystemMultipartUploaderBuilder;
import org.apache.hadoop.fs.impl.OpenFileParameters;
import org.apache.hadoop.fs.impl.PathCapabilitiesSupport;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.hadoop.fs.statistics.StoreStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.LambdaUtils;
import org.apache.hadoop.util.Progressable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Files on a Ceph cluster, by librados alone: {@code rados://POOL[.NAMESPACE]/PATH}.
 *
 * <p>What may be relied on: a file is visible whole or not at all; a rename is one change, of a directory as of a file, and copies
 * nothing; a directory goes with all that is in it at one moment; a listing sees what was done before it began; who has a file open
 * has the file that it was.
 *
 * <p>What there is not: appending, truncating, {@code hflush} and {@code hsync}, permissions of files (the cluster's keys have them, by
 * pool and namespace), symbolic links, extended attributes. {@code docs/guide/hadoop.md} has the settings and the reasons.
 *
 * <p>May be used from many threads. Streams outlive the file system that opened them.
 */
public final class RadosFileSystem extends FileSystem implements IOStatisticsSource {
    /** The scheme of the URIs. */
    public static final String SCHEME = "rados";

    private static final Logger LOG = LoggerFactory.getLogger(RadosFileSystem.class);
    /** Names that are no settings, once each. */
    private static final Set<String> WARNED_OF = ConcurrentHashMap.newKeySet();
    /** As {@code fs.option.openfile} of {@code Options}, which Hadoop 3.3.4 does not have. */
    private static final String OPTION_READ_POLICY = "fs.option.openfile.read.policy";
    /** All of these are hints that may be left aside, so that demanding one of them is no error. */
    private static final Set<String> OPEN_OPTIONS = Set.of(
            OPTION_READ_POLICY, "fs.option.openfile.length", "fs.option.openfile.buffer.size",
            "fs.option.openfile.split.start", "fs.option.openfile.split.end", "fs.option.openfile.footer.cache",
            "fs.option.openfile.ec.policy");
    private static final String[] OPERATIONS = {
        StoreStatisticNames.OP_CREATE, StoreStatisticNames.OP_CREATE_NON_RECURSIVE, StoreStatisticNames.OP_DELETE,
        StoreStatisticNames.OP_GET_FILE_STATUS, StoreStatisticNames.OP_LIST_LOCATED_STATUS,
        StoreStatisticNames.OP_LIST_STATUS, StoreStatisticNames.OP_MKDIRS, StoreStatisticNames.OP_OPEN,
        StoreStatisticNames.OP_RENAME,
    };

    static {
        // FileContext finds its half of this file system by a setting and by nothing else.
        Configuration.addDefaultResource("onehop-rados-default.xml");
    }

    private final IOStatisticsStore ioStatistics = IOStatisticsBinding.iostatisticsStore()
            .withCounters(Stream.of(OPERATIONS, RadosInputStream.COUNTERS, RadosOutputStream.COUNTERS)
                    .flatMap(Arrays::stream).toArray(String[]::new))
            .build();

    private final URI named;
    private URI uri;
    private String owner;
    private Path workingDirectory;
    private Settings settings;
    private ReadPolicy readPolicy;
    private int bufferBytes;
    private long blockBytes;
    private ThreadPoolExecutor executor;
    private volatile Mount mount;

    /** For Hadoop, which calls {@link #initialize} next. */
    public RadosFileSystem() {
        this(null);
    }

    /** For {@link RadosFs}: the URI to go by, whatever {@link #initialize} is given. */
    RadosFileSystem(URI named) {
        this.named = named;
    }

    @Override
    public void initialize(URI given, Configuration conf) throws IOException {
        URI name = named == null ? given : named;
        super.initialize(name, conf);
        setConf(conf);
        NativeLibrary.configure(conf.getTrimmed(NativeLibrary.KEY));
        // "_" makes getHost null: the authority is what there is to go by.
        uri = URI.create(SCHEME + "://" + name.getRawAuthority());
        settings = new Settings(conf, Mount.pool(name));
        for (String unknown : settings.unknown()) {
            if (WARNED_OF.add(unknown)) {
                LOG.warn("There is no setting {}: it does nothing", unknown);
            }
        }
        owner = UserGroupInformation.getCurrentUser().getShortUserName();
        workingDirectory = getHomeDirectory();
        readPolicy = settings.readPolicy();
        bufferBytes = settings.bufferBytes();
        blockBytes = settings.blockBytes();
        int threads = settings.threads();
        // Last of all that can fail.
        mount = new Mount(uri, settings);
        executor = executor(threads);
    }

    /**
     * Threads that are there while they are needed. When all are busy and enough waits, whoever asks does it; and when the file system is
     * closed and its streams are not, where {@link ThreadPoolExecutor.CallerRunsPolicy} would do nothing, and have them wait for ever.
     */
    private static ThreadPoolExecutor executor(int threads) {
        AtomicInteger number = new AtomicInteger();
        ThreadPoolExecutor pool = new ThreadPoolExecutor(threads, threads, 30, TimeUnit.SECONDS,
                new ArrayBlockingQueue<>(4 * threads), task -> {
                    Thread thread = new Thread(task, "rados-" + number.incrementAndGet());
                    thread.setDaemon(true);
                    return thread;
                }, (task, full) -> task.run());
        pool.allowCoreThreadTimeOut(true);
        return pool;
    }

    /** What the settings say about this pool. */
    Settings settings() {
        return settings;
    }

    /** The native library's file system. */
    Mount mount() throws IOException {
        Mount current = mount;
        if (current == null) {
            throw new IOException("Filesystem closed: " + uri);
        }
        return current;
    }

    private void count(String operation) {
        ioStatistics.incrementCounter(operation);
    }

    @Override
    public String getScheme() {
        return SCHEME;
    }

    @Override
    public URI getUri() {
        return uri;
    }

    /** Hadoop, and its cache of file systems, take pools for the same whose names differ in case alone. Ceph does not. */
    @Override
    protected void checkPath(Path path) {
        super.checkPath(path);
        String authority = path.toUri().getAuthority();
        if (authority != null && !authority.equals(uri.getAuthority())) {
            throw new IllegalArgumentException("Wrong FS: " + path + " is not on " + uri + ". Hadoop takes the two for the same,"
                    + " and this process has used the other one before; with fs." + SCHEME
                    + ".impl.disable.cache=true it can use both");
        }
    }

    /** None: there are no tokens to get; whoever may read a keyring is whom the cluster trusts. */
    @Override
    public String getCanonicalServiceName() {
        return null;
    }

    @Override
    public Path getWorkingDirectory() {
        return workingDirectory;
    }

    @Override
    public void setWorkingDirectory(Path directory) {
        workingDirectory = makeQualified(directory);
    }

    @Override
    public long getDefaultBlockSize(Path path) {
        return blockBytes;
    }

    @Override
    @Deprecated
    public long getDefaultBlockSize() {
        return blockBytes;
    }

    private RadosFileStatus status(Entry entry, Path path) {
        return new RadosFileStatus(entry, path, blockBytes, owner);
    }

    // Reading.

    @Override
    public FSDataInputStream open(Path path, int bufferSize) throws IOException {
        return open(makeQualified(path), readPolicy, null);
    }

    @Override
    protected CompletableFuture<FSDataInputStream> openFileWithOptions(Path path, OpenFileParameters parameters)
            throws IOException {
        Path qualified = makeQualified(path);
        AbstractFSBuilderImpl.rejectUnknownMandatoryKeys(parameters.getMandatoryKeys(), OPEN_OPTIONS, "for " + path);
        List<String> wanted = List.of(parameters.getOptions().getTrimmedStrings(OPTION_READ_POLICY));
        ReadPolicy policy = ReadPolicy.of(wanted).orElse(readPolicy);
        String etag = parameters.getStatus() instanceof RadosFileStatus known ? known.getEtag() : null;
        return LambdaUtils.eval(new CompletableFuture<>(), () -> open(qualified, policy, etag));
    }

    /** Opens a file; {@code id}: which one it must be. */
    private FSDataInputStream open(Path path, ReadPolicy policy, String id) throws IOException {
        checkPath(path);
        refuseStaged(path);
        count(StoreStatisticNames.OP_OPEN);
        statistics.incrementReadOps(1);
        Where where = mount().where(path);
        long handle = mount().open(path, policy);
        Entry entry = Failures.of(where, () -> Entry.decode(Native.opened(handle)));
        RadosInputStream stream = new RadosInputStream(where, handle, entry, bufferBytes, statistics,
                IOStatisticsBinding.iostatisticsStore().withCounters(RadosInputStream.COUNTERS).build(),
                collector(), executor);
        if (id != null && !id.equals(entry.id())) {
            stream.close();
            throw new PathIOException(path.toString(), "it is not the file whose status was handed over: it has been replaced since");
        }
        return new FSDataInputStream(stream);
    }

    /** Where the statistics of a stream go when it is closed. */
    private Consumer<IOStatistics> collector() {
        Consumer<IOStatistics> thread = ThreadStatistics.collector();
        return stream -> {
            ioStatistics.aggregate(stream);
            thread.accept(stream);
        };
    }

    @Override
    protected PathHandle createPathHandle(FileStatus status, Options.HandleOpt... options) {
        if (!status.isFile()) {
            throw new IllegalArgumentException(status.getPath() + ": only files have path handles");
        }
        checkPath(status.getPath());
        boolean mayMove = Options.HandleOpt.getOpt(Options.HandleOpt.Location.class, options)
                .orElse(Options.HandleOpt.moved(false)).allowChange();
        if (mayMove) {
            throw new UnsupportedOperationException("a file is found by its path: where it has moved to is not known");
        }
        boolean mayChange = Options.HandleOpt.getOpt(Options.HandleOpt.Data.class, options)
                .orElse(Options.HandleOpt.changed(false)).allowChange();
        String etag = status instanceof RadosFileStatus file ? file.getEtag()
                : status instanceof RadosLocatedFileStatus located ? located.getEtag() : null;
        if (etag == null && !mayChange) {
            throw new IllegalArgumentException(status.getPath() + ": this is not a status of " + uri);
        }
        return new RadosPathHandle(makeQualified(status.getPath()).toString(), mayChange ? "" : etag);
    }

    @Override
    public FSDataInputStream open(PathHandle handle, int bufferSize) throws IOException {
        RadosPathHandle wanted = RadosPathHandle.of(handle);
        Path path = new Path(wanted.path());
        FSDataInputStream stream;
        try {
            stream = open(path, readPolicy, null);
        } catch (FileNotFoundException e) {
            throw new InvalidPathHandleException("it is not there any more: " + wanted, e);
        }
        RadosInputStream ours = (RadosInputStream) stream.getWrappedStream();
        if (!wanted.means(ours.id())) {
            stream.close();
            throw new InvalidPathHandleException("it has been replaced: " + wanted);
        }
        return stream;
    }

    // Writing.

    @Override
    public FSDataOutputStream create(
            Path path, FsPermission permission, boolean overwrite, int bufferSize, short replication, long blockSize,
            Progressable progress) throws IOException {
        count(StoreStatisticNames.OP_CREATE);
        return create(path, overwrite, true);
    }

    @Override
    public FSDataOutputStream createNonRecursive(
            Path path, FsPermission permission, EnumSet<CreateFlag> flags, int bufferSize, short replication,
            long blockSize, Progressable progress) throws IOException {
        count(StoreStatisticNames.OP_CREATE_NON_RECURSIVE);
        if (flags.contains(CreateFlag.APPEND)) {
            return append(path, bufferSize, progress);
        }
        return create(path, flags.contains(CreateFlag.OVERWRITE), false);
    }

    private FSDataOutputStream create(Path given, boolean overwrite, boolean parents) throws IOException {
        Path path = makeQualified(given);
        checkPath(path);
        statistics.incrementWriteOps(1);
        if (path.isRoot()) {
            throw new FileAlreadyExistsException(path + ": it is a directory");
        }
        Optional<StagedPath> staged = StagedPath.of(path);
        if (staged.isPresent()) {
            return createStaged(path, staged.get(), overwrite);
        }
        return written(path, mount().create(path, overwrite, parents), entry -> {});
    }

    /** A file of an attempt at a task: it is visible when that and its transaction are committed. */
    private FSDataOutputStream createStaged(Path path, StagedPath staged, boolean overwrite) throws IOException {
        if (staged.isDirectory()) {
            throw new FileAlreadyExistsException(path + ": it is the directory of an attempt at a task");
        }
        StagedAttempts.Attempt attempt = StagedAttempts.join(mount(), staged);
        Path destination = staged.destination();
        String key = destination.toUri().getPath();
        if (!overwrite && attempt.file(key).isPresent()) {
            throw new FileAlreadyExistsException(path + ": this attempt at a task has written it");
        }
        long handle = mount().createStaged(attempt, destination, staged.mayReplace());
        return written(path, handle, entry -> attempt.add(key, entry));
    }

    private FSDataOutputStream written(Path path, long handle, Consumer<Entry> onCommit) throws IOException {
        RadosOutputStream stream = new RadosOutputStream(mount().where(path), handle, bufferBytes, mount().pieceBytes(), statistics,
                IOStatisticsBinding.iostatisticsStore().withCounters(RadosOutputStream.COUNTERS).build(), collector(),
                onCommit);
        return new RadosDataOutputStream(stream);
    }

    /** Never: chunks are written once. */
    @Override
    public FSDataOutputStream append(Path path, int bufferSize, Progressable progress) {
        throw new UnsupportedOperationException(
                path + ": files of " + SCHEME + ":// are written once; write another one, and concat() it");
    }

    /** Appends files of a directory to another one there, at one moment, and copies nothing. */
    @Override
    public void concat(Path target, Path[] sources) throws IOException {
        Path to = makeQualified(target);
        if (sources.length == 0) {
            throw new IllegalArgumentException("nothing to append to " + to);
        }
        String[] names = new String[sources.length + 1];
        names[0] = to.getName();
        for (int i = 0; i < sources.length; i++) {
            Path source = makeQualified(sources[i]);
            if (source.isRoot() || !source.getParent().equals(to.getParent())) {
                throw new IllegalArgumentException(source + " is not in the directory of " + to);
            }
            names[i + 1] = source.getName();
        }
        statistics.incrementWriteOps(1);
        mount().concat(to.getParent(), names);
    }

    @Override
    @SuppressWarnings("rawtypes")
    public MultipartUploaderBuilder createMultipartUploader(Path base) {
        // Parts are files of a directory of their own, and concat() makes one of them.
        return new FileSystemMultipartUploaderBuilder(this, makeQualified(base));
    }

    // Names.

    @Override
    public boolean rename(Path from, Path to) throws IOException {
        Path source = makeQualified(from);
        Path target = makeQualified(to);
        refuseStaged(source);
        refuseStaged(target);
        count(StoreStatisticNames.OP_RENAME);
        statistics.incrementWriteOps(1);
        Optional<Entry> there = find(target);
        if (there.isPresent() && !there.get().isDirectory()) {
            // To itself: nothing to do. To another one: that is what the caller is told.
            return source.equals(target);
        }
        if (source.isRoot()) {
            return false;
        }
        try {
            mount().rename(source, there.isPresent() ? new Path(target, source.getName()) : target, false);
            return true;
        } catch (FileNotFoundException | FileAlreadyExistsException | ParentNotDirectoryException e) {
            LOG.debug("not renamed", e);
            return false;
        } catch (RadosException e) {
            if (e.is(Problem.IMPOSSIBLE)) {
                LOG.debug("not renamed", e);
                return false;
            }
            throw e;
        }
    }

    /** As {@code FileContext} has it: errors rather than {@code false}; a file takes another one's place at one moment. */
    @Override
    @Deprecated
    protected void rename(Path from, Path to, Options.Rename... options) throws IOException {
        Path source = makeQualified(from);
        Path target = makeQualified(to);
        refuseStaged(source);
        refuseStaged(target);
        count(StoreStatisticNames.OP_RENAME);
        statistics.incrementWriteOps(1);
        boolean overwrite = Arrays.asList(options).contains(Options.Rename.OVERWRITE);
        if (source.equals(target)) {
            throw new FileAlreadyExistsException(source + ": the source and the target are the same");
        }
        try {
            mount().rename(source, target, overwrite);
        } catch (FileAlreadyExistsException e) {
            // A directory is there: one without anything in it may go.
            if (!overwrite || !find(source).map(Entry::isDirectory).orElse(false)) {
                throw e;
            }
            mount().removeEmptyDirectory(target);
            mount().rename(source, target, false);
        }
    }

    @Override
    public boolean delete(Path given, boolean recursive) throws IOException {
        Path path = makeQualified(given);
        count(StoreStatisticNames.OP_DELETE);
        statistics.incrementWriteOps(1);
        if (path.isRoot()) {
            return deleteBelowRoot(path, recursive);
        }
        if (StagedPath.of(path).isPresent()) {
            // It goes with its attempt, if that is given up.
            return false;
        }
        try {
            if (recursive) {
                mount().removeAll(path);
            } else if (mount().stat(path).isDirectory()) {
                mount().removeEmptyDirectory(path);
            } else {
                mount().removeFile(path);
            }
            return true;
        } catch (FileNotFoundException | ParentNotDirectoryException e) {
            LOG.debug("not deleted", e);
            return false;
        }
    }

    /** The root stays; what is in it goes, name by name. */
    private boolean deleteBelowRoot(Path root, boolean recursive) throws IOException {
        FileStatus[] below = listStatus(root);
        if (below.length == 0) {
            return false;
        }
        if (!recursive) {
            throw new PathIsNotEmptyDirectoryException(root.toString());
        }
        for (FileStatus status : below) {
            delete(status.getPath(), true);
        }
        return true;
    }

    @Override
    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        count(StoreStatisticNames.OP_MKDIRS);
        statistics.incrementWriteOps(1);
        Path directory = makeQualified(path);
        if (StagedPath.of(directory).isPresent()) {
            // Directories of staged files are made with them.
            return true;
        }
        try {
            mount().makeDirectories(directory);
            return true;
        } catch (ParentNotDirectoryException e) {
            // A file has the very name, or something above it is one.
            throw find(directory).isPresent() ? new FileAlreadyExistsException(directory + ": it is a file") : e;
        }
    }

    @Override
    public void setTimes(Path given, long modified, long accessed) throws IOException {
        Path path = makeQualified(given);
        statistics.incrementWriteOps(1);
        // Nobody notes when a file is read, so there is no time of that to be set.
        if (modified < 0 || path.isRoot()) {
            mount().stat(path);
            return;
        }
        mount().setModified(path, modified);
    }

    @Override
    public BulkDelete createBulkDelete(Path base) throws IOException {
        return RadosBulkDelete.create(this, base, executor);
    }

    // Looking.

    /** What has a name, if anything has. */
    private Optional<Entry> find(Path path) throws IOException {
        try {
            return Optional.of(mount().stat(path));
        } catch (FileNotFoundException e) {
            return Optional.empty();
        }
    }

    @Override
    public FileStatus getFileStatus(Path given) throws IOException {
        Path path = makeQualified(given);
        count(StoreStatisticNames.OP_GET_FILE_STATUS);
        statistics.incrementReadOps(1);
        Optional<StagedPath> staged = StagedPath.of(path);
        return status(staged.isPresent() ? stagedEntry(path, staged.get()) : mount().stat(path), path);
    }

    /** What has the path of a staged file, or of a directory above one. */
    private static Entry stagedEntry(Path path, StagedPath staged) throws FileNotFoundException {
        Optional<StagedAttempts.Attempt> attempt = StagedAttempts.find(staged);
        String destination = staged.destination().toUri().getPath();
        Optional<Entry> file = attempt.flatMap(found -> found.file(destination));
        boolean isDirectory = staged.isDirectory() || attempt.isPresent() && !attempt.get().below(destination).isEmpty();
        if (file.isEmpty() && !isDirectory) {
            throw new FileNotFoundException(path + ": this process has staged no such file");
        }
        return file.orElse(new Entry("", true, 0, 0, "0".repeat(32)));
    }

    /** A staged file can be written and looked at; all else it must be visible for. */
    private static void refuseStaged(Path path) throws PathIOException {
        if (StagedPath.of(path).isPresent()) {
            throw new PathIOException(path.toString(), "it is a file of an attempt at a task, which is not visible yet:"
                    + " it can be written, and given up with its attempt");
        }
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        count(StoreStatisticNames.OP_LIST_STATUS);
        Listing listing = new Listing(makeQualified(path));
        List<FileStatus> all = new ArrayList<>();
        while (listing.hasNext()) {
            all.add(listing.next());
        }
        return all.toArray(new FileStatus[0]);
    }

    @Override
    public RemoteIterator<FileStatus> listStatusIterator(Path path) throws IOException {
        count(StoreStatisticNames.OP_LIST_STATUS);
        Listing listing = new Listing(makeQualified(path));
        return new RemoteIterator<>() {
            @Override
            public boolean hasNext() throws IOException {
                return listing.hasNext();
            }

            @Override
            public FileStatus next() throws IOException {
                return listing.next();
            }
        };
    }

    @Override
    protected RemoteIterator<LocatedFileStatus> listLocatedStatus(Path path, PathFilter filter) throws IOException {
        count(StoreStatisticNames.OP_LIST_LOCATED_STATUS);
        Listing listing = new Listing(makeQualified(path));
        return new RemoteIterator<>() {
            private RadosFileStatus next;

            @Override
            public boolean hasNext() throws IOException {
                while (next == null && listing.hasNext()) {
                    RadosFileStatus candidate = listing.next();
                    next = filter.accept(candidate.getPath()) ? candidate : null;
                }
                return next != null;
            }

            @Override
            public LocatedFileStatus next() throws IOException {
                if (!hasNext()) {
                    throw new NoSuchElementException(path.toString());
                }
                RadosFileStatus status = next;
                next = null;
                return new RadosLocatedFileStatus(status,
                        status.isFile() ? getFileBlockLocations(status, 0, status.getLen()) : null);
            }
        };
    }

    /** A directory page by page, or a file on its own. The first page is there when it is made: an error is told at once. */
    private final class Listing {
        private final Path directory;
        private final Deque<RadosFileStatus> page = new ArrayDeque<>();
        /** Behind which name the next page begins; without one there is none. */
        private String after;

        Listing(Path directory) throws IOException {
            this.directory = directory;
            checkPath(directory);
            Optional<StagedPath> staged = StagedPath.of(directory);
            if (staged.isPresent()) {
                loadStaged(staged.get());
                return;
            }
            try {
                load(null);
            } catch (ParentNotDirectoryException e) {
                // It is a file, or something above it is, and then it is not there.
                page.add(status(mount().stat(directory), directory));
            }
        }

        /** Files of an attempt at a task that are directly here, and directories of others. */
        private void loadStaged(StagedPath staged) throws IOException {
            Entry itself = stagedEntry(directory, staged);
            if (!itself.isDirectory()) {
                page.add(status(itself, directory));
                return;
            }
            String above = staged.destination().toUri().getPath();
            int skip = above.endsWith("/") ? above.length() : above.length() + 1;
            Map<String, Entry> below = StagedAttempts.find(staged).map(attempt -> attempt.below(above)).orElse(Map.of());
            Set<String> seen = new HashSet<>();
            for (Map.Entry<String, Entry> file : below.entrySet()) {
                String name = file.getKey().substring(skip);
                int slash = name.indexOf('/');
                String first = slash < 0 ? name : name.substring(0, slash);
                if (seen.add(first)) {
                    Path path = new Path(directory, new Path(null, null, first));
                    page.add(status(slash < 0 ? file.getValue() : stagedEntry(path, StagedPath.of(path).orElseThrow()), path));
                }
            }
        }

        private void load(String behind) throws IOException {
            statistics.incrementReadOps(1);
            Entry.Page loaded = mount().list(directory, behind);
            after = loaded.next();
            for (Entry entry : loaded.entries()) {
                page.add(status(entry, new Path(directory, new Path(null, null, entry.name()))));
            }
        }

        boolean hasNext() throws IOException {
            while (page.isEmpty() && after != null) {
                load(after);
            }
            return !page.isEmpty();
        }

        RadosFileStatus next() throws IOException {
            if (!hasNext()) {
                throw new NoSuchElementException(directory.toString());
            }
            return page.remove();
        }
    }

    // What there is.

    @Override
    public boolean hasPathCapability(Path path, String capability) throws IOException {
        Path qualified = makeQualified(path);
        return switch (PathCapabilitiesSupport.validatePathCapabilityArgs(qualified, capability)) {
            case CommonPathCapabilities.ABORTABLE_STREAM, CommonPathCapabilities.BULK_DELETE,
                    CommonPathCapabilities.ETAGS_AVAILABLE, CommonPathCapabilities.ETAGS_PRESERVED_IN_RENAME,
                    CommonPathCapabilities.FS_CONCAT, CommonPathCapabilities.FS_MULTIPART_UPLOADER,
                    CommonPathCapabilities.FS_PATHHANDLES, CommonPathCapabilities.VIRTUAL_BLOCK_LOCATIONS -> true;
            default -> super.hasPathCapability(qualified, capability);
        };
    }

    @Override
    public IOStatistics getIOStatistics() {
        return ioStatistics;
    }

    /**
     * What the native library has moved for this file system so far, streams that are open included.
     *
     * @return bytes by the names of Onehop's ledger, among them those copied by renames: none, ever
     * @throws IOException if the file system is closed
     */
    public Map<String, Long> getLedger() throws IOException {
        long[] moved = mount().moved();
        return Map.of("storage_to_host_bytes", moved[0], "host_to_storage_bytes", moved[1],
                "read_ops", moved[2], "write_ops", moved[3], "rename_copy_bytes", moved[4]);
    }

    @Override
    public void close() throws IOException {
        try {
            super.close();
        } finally {
            Mount last = mount;
            mount = null;
            if (last != null) {
                executor.shutdown();
                last.close();
            }
        }
    }

    @Override
    public String toString() {
        return String.format(Locale.ROOT, "RadosFileSystem{%s, %s, %s}", uri,
                settings == null ? "not initialized" : settings.cluster(), mount == null ? "closed" : "open");
    }
}
