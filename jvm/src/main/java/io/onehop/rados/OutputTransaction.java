package io.onehop.rados;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.util.Progressable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The output of a job as one transaction: what Hadoop's committer and Spark's commit protocol have in common.
 *
 * <ol>
 *   <li>The job's setup begins a transaction. Its identity is all that tasks need.
 *   <li>A task attempt writes files to {@link StagedPath paths} that say to which attempt they belong. They are in no directory.
 *   <li>A task's commit is one small operation, and the first attempt of a task that comes to it is the one that counts. An attempt that
 *       comes later is given up, and told that its task is committed: so it is. Driver and executors need not agree about who may.
 *   <li>The job's commit asks the transaction what was written, not the tasks: what messages say that have got lost, or come from an
 *       attempt that does not count, decides nothing. It says which directories go, writes {@code _SUCCESS}, and commits: one
 *       compare-and-set makes all of it visible, new files, replaced directories and {@code _SUCCESS}.
 * </ol>
 *
 * <p>Nothing is renamed, and nothing copied. Until the end the driver renews the transaction's lease; when nobody does, anybody may abort
 * it, and tasks that go on fail.
 */
final class OutputTransaction {
    /** What a job's marker is called. */
    static final String SUCCESS = "_SUCCESS";
    /** Hadoop's: whether there is to be one. */
    static final String MARK_SUCCESS = "mapreduce.fileoutputcommitter.marksuccessfuljobs";

    private static final Logger LOG = LoggerFactory.getLogger(OutputTransaction.class);
    /** Of the task that is the job itself. */
    private static final String JOB_TASK = "job";

    private final RadosFileSystem fs;
    private final Path destination;
    private final String id;
    private final boolean mayReplaceFiles;

    private OutputTransaction(RadosFileSystem fs, Path destination, String id, boolean mayReplaceFiles) {
        this.fs = fs;
        this.destination = destination;
        this.id = id;
        this.mayReplaceFiles = mayReplaceFiles;
    }

    /** Begins one, and renews its lease until it has ended or this process has. */
    static OutputTransaction begin(Path destination, Configuration conf, boolean mayReplaceFiles) throws IOException {
        RadosFileSystem fs = fileSystem(destination, conf);
        Path qualified = fs.makeQualified(destination);
        long leaseMillis = fs.settings().committerLeaseMillis();
        String id = fs.mount().begin(qualified, leaseMillis);
        OutputTransaction begun = new OutputTransaction(fs, qualified, id, mayReplaceFiles);
        begun.keepAlive();
        LOG.debug("transaction {} of {} begun", id, qualified);
        return begun;
    }

    /** One that was begun, perhaps by another process. */
    static OutputTransaction of(Path destination, Configuration conf, String id, boolean mayReplaceFiles)
            throws IOException {
        RadosFileSystem fs = fileSystem(destination, conf);
        return new OutputTransaction(fs, fs.makeQualified(destination), id, mayReplaceFiles);
    }

    private static RadosFileSystem fileSystem(Path path, Configuration conf) throws IOException {
        FileSystem found = path.getFileSystem(conf);
        if (found instanceof RadosFileSystem ours) {
            return ours;
        }
        throw new PathIOException(path.toString(), "this committer is for " + RadosFileSystem.SCHEME + ":// only, not for "
                + found.getScheme() + "://");
    }

    String id() {
        return id;
    }

    Path destination() {
        return destination;
    }

    RadosFileSystem fileSystem() {
        return fs;
    }

    /** See {@link Leases}. */
    void keepAlive() {
        Leases.keep(id, fs.settings().committerLeaseMillis(), () -> fs.mount().renew(destination, id));
    }

    // Tasks.

    /** The directory that an attempt writes into. */
    Path workPath(TaskAttemptID attempt) {
        return StagedPath.directory(destination, id, mayReplaceFiles, attempt);
    }

    /** Where an attempt writes files that are to be in a directory that need not be below the destination. */
    Path workPath(TaskAttemptID attempt, Path directory) throws IOException {
        Path there = directory.makeQualified(fs.getUri(), fs.getWorkingDirectory());
        if (!there.toUri().getScheme().equals(RadosFileSystem.SCHEME)
                || !fs.getUri().getRawAuthority().equals(there.toUri().getRawAuthority())) {
            throw new PathIOException(there.toString(), "a job that writes to " + destination
                    + " cannot write there in the same transaction: it is another file system");
        }
        Path root = StagedPath.directory(new Path(fs.getUri().toString() + "/"), id, mayReplaceFiles, attempt);
        String below = there.toUri().getPath().substring(1);
        return below.isEmpty() ? root : new Path(root, new Path(null, null, below));
    }

    private String key(TaskAttemptID attempt) {
        return StagedPath.key(id, StagedPath.task(attempt), StagedPath.attempt(attempt));
    }

    /** Whether an attempt has written anything, in this process. */
    boolean hasOutput(TaskAttemptID attempt) {
        return StagedAttempts.isBegun(key(attempt));
    }

    void commitTask(TaskAttemptID attempt) throws IOException {
        if (!StagedAttempts.commit(key(attempt))) {
            LOG.info("{}: another attempt was committed before; what this one has written is given up", attempt);
        }
    }

    void abortTask(TaskAttemptID attempt) throws IOException {
        if (StagedAttempts.abort(key(attempt))) {
            return;
        }
        // Another process had it, which may still be at it.
        StagedPath path = StagedPath.of(workPath(attempt)).orElseThrow();
        try {
            StagedAttempts.join(fs.mount(), path);
            StagedAttempts.abort(path.key());
        } catch (RadosException e) {
            if (!e.is(Problem.ENDED)) {
                throw e;
            }
            LOG.debug("{} has ended", attempt, e);
        }
    }

    /** Tasks that are committed, by name. */
    Set<String> committedTasks() throws IOException {
        return Set.copyOf(fs.mount().staged(destination, id).tasks());
    }

    // The job.

    /**
     * What the commit of a job has to know.
     *
     * @param mode what becomes of what is there
     * @param replaced directories that are to go in any case, as the user has said
     * @param marksSuccess whether there is to be a {@code _SUCCESS}
     * @param committer a name for it
     * @param jobId what is called the job's
     * @param jobIdSource where that is from
     * @param progress to be told that this still goes on, or null
     */
    record Commit(
            ConflictMode mode, Collection<Path> replaced, boolean marksSuccess, String committer, String jobId,
            String jobIdSource, Progressable progress) {}

    /** Makes all that the committed attempts have written visible, at one moment. */
    void commit(Commit commit) throws IOException {
        Leases.Progress reported = Leases.report(commit.progress());
        try {
            commitReported(commit);
        } finally {
            reported.close();
        }
        ended();
    }

    private void commitReported(Commit commit) throws IOException {
        long began = System.nanoTime();
        Staged staged = fs.mount().staged(destination, id);
        if (commit.mode() == ConflictMode.FAIL) {
            // Of two jobs that both find nothing the second one cannot write _SUCCESS.
            requireEmpty(fs, destination);
        }
        Set<Path> replaced = replacedBy(commit, staged);
        if (!replaced.isEmpty()) {
            fs.mount().replaceDirectories(destination, id, replaced);
        }
        if (commit.marksSuccess()) {
            writeSuccess(commit, staged, replaced.size());
        }
        commitTransaction();
        LOG.info("{}: {} files with {} bytes of {} tasks are visible, {} directories replaced; {} ms; transaction {}",
                destination, staged.files(), staged.bytes(), staged.tasks().size(), replaced.size(),
                (System.nanoTime() - began) / 1_000_000, id);
    }

    private void ended() throws IOException {
        Leases.forget(id);
        StagedAttempts.forgetAll(id);
    }

    /** Nothing of it will ever be visible. */
    void abort() throws IOException {
        Leases.forget(id);
        try {
            fs.mount().abortTransaction(destination, id);
        } catch (RadosException e) {
            if (!e.is(Problem.ENDED)) {
                throw e;
            }
            LOG.debug("transaction {} has ended", id, e);
        } finally {
            StagedAttempts.forgetAll(id);
        }
    }

    /** {@code pending}, {@code committing}, {@code committed}, {@code aborted}, or {@code gone}. */
    String state() throws IOException {
        try {
            return fs.mount().transactionState(destination, id);
        } catch (RadosException e) {
            if (e.is(Problem.ENDED)) {
                return "gone";
            }
            throw e;
        }
    }

    /** Fails if a directory has anything that readers see. */
    static void requireEmpty(FileSystem fs, Path directory) throws IOException {
        if (!fs.exists(directory)) {
            return;
        }
        RemoteIterator<FileStatus> there = fs.listStatusIterator(directory);
        while (there.hasNext()) {
            String name = there.next().getPath().getName();
            if (!name.startsWith("_") && !name.startsWith(".") || name.equals(SUCCESS)) {
                throw new FileAlreadyExistsException(directory + ": there is something in it, " + name + ", and "
                        + Settings.PREFIX + Settings.COMMITTER_CONFLICT + " is " + ConflictMode.FAIL
                        + ": write somewhere else, or have it append or replace");
            }
        }
    }

    private Set<Path> replacedBy(Commit commit, Staged staged) {
        Set<Path> replaced = new TreeSet<>();
        for (Path path : commit.replaced()) {
            replaced.add(fs.makeQualified(path));
        }
        switch (commit.mode()) {
            case REPLACE -> replaced.add(destination);
            case PARTITIONS -> {
                String own = destination.toUri().getPath();
                for (Map.Entry<String, Staged.Files> directory : staged.directories().entrySet()) {
                    // What lies in the destination itself is in no partition.
                    if (!directory.getKey().equals(own)) {
                        replaced.add(fs.makeQualified(new Path(null, null, directory.getKey())));
                    }
                }
            }
            default -> { }
        }
        replaced.removeIf(Path::isRoot);
        return replaced;
    }

    /** As a task of its own: of two who commit the same job the first one's is there. */
    private void writeSuccess(Commit commit, Staged staged, long replaced) throws IOException {
        SuccessFile text = new SuccessFile();
        text.count("committer_files", staged.files());
        text.count("committer_bytes", staged.bytes());
        text.count("committer_directories", staged.directories().size());
        text.count("committer_directories_replaced", replaced);
        text.count("committer_tasks", staged.tasks().size());
        text.count("rename_copy_bytes", fs.getLedger().get("rename_copy_bytes"));
        text.say("transaction", id);
        text.say("conflict", commit.mode().toString());
        byte[] bytes = text.encode(commit.committer(), destination.toString(), commit.jobId(), commit.jobIdSource(), host(),
                Instant.now());
        String word = commit.mode() == ConflictMode.FAIL ? "-new/" : "-any/";
        Path directory = new Path(destination, "__transaction-" + id + word + JOB_TASK + "/" + System.nanoTime());
        try (FSDataOutputStream to = fs.create(new Path(directory, SUCCESS), true)) {
            to.write(bytes);
        }
        StagedAttempts.commit(StagedPath.of(directory).orElseThrow().key());
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return "unknown";
        }
    }

    /** Whether it has happened is found out, if the answer is lost. */
    private void commitTransaction() throws IOException {
        try {
            fs.mount().commitTransaction(destination, id);
        } catch (RadosException e) {
            if (!e.is(Problem.OUTCOME_UNKNOWN) && !e.is(Problem.TIMED_OUT)) {
                throw e;
            }
            LOG.warn("{}: no answer to the commit of transaction {}: asking what has become of it", destination, id);
            if (!isCommittedForCertain(e)) {
                throw e;
            }
        }
    }

    /** Aborting it makes certain that it never happens; that is refused if it has happened. */
    private boolean isCommittedForCertain(IOException why) throws IOException {
        try {
            String state = state();
            if (state.equals("pending") || state.equals("committing")) {
                try {
                    fs.mount().abortTransaction(destination, id);
                } catch (RadosException e) {
                    LOG.debug("not aborted", e);
                }
                state = state();
            }
            return state.equals("committed") || state.equals("gone") && isInSuccessFile();
        } catch (IOException e) {
            why.addSuppressed(e);
            throw why;
        }
    }

    /** Whether the {@code _SUCCESS} that is there is this transaction's. */
    boolean isInSuccessFile() throws IOException {
        Path path = new Path(destination, SUCCESS);
        if (!fs.exists(path)) {
            return false;
        }
        try (FSDataInputStream from = fs.open(path)) {
            String text = new String(from.readNBytes(1 << 20), StandardCharsets.UTF_8);
            return text.contains("\"transaction\" : " + SuccessFile.quoted(id));
        }
    }
}
