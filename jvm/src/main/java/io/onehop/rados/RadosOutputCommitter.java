package io.onehop.rados;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.JobStatus;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter;
import org.apache.hadoop.util.Progressable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A committer that renames nothing: a job's output is one {@link OutputTransaction}.
 *
 * <p>Tasks must know which. Spark sends them the job's configuration as it is after the setup, which has the transaction's identity;
 * MapReduce sends it before, so there, where the master says which attempt it is, a file {@code _transaction-JOB} beside the output has
 * it as well, until the job has ended. By this file a master that takes over finds the transaction, and the tasks that are committed in it.
 *
 * <p>It is a {@code FileOutputCommitter} in name only, and everything that that one does is done differently here. It has to be one
 * because Spark's own commit protocol asks only those for the directory to write into, and has tasks write straight into the destination
 * otherwise, where everybody sees what they write.
 */
public final class RadosOutputCommitter extends FileOutputCommitter implements StreamCapabilities {
    /** Which transaction, and the destination that it is for. */
    static final String TRANSACTION = "fs.rados.committer.transaction";
    /** Spark asks for it before it lets a job replace partitions, which it does by renaming them. */
    private static final String DYNAMIC_PARTITIONING = "mapreduce.job.committer.dynamic.partitioning";
    private static final String SPARK_JOB = "spark.sql.sources.writeJobUUID";

    private static final Logger LOG = LoggerFactory.getLogger(RadosOutputCommitter.class);

    private final Path outputPath;
    private final TaskAttemptContext task;
    private OutputTransaction transaction;
    private Set<String> recovered;

    /**
     * For a task attempt, or for the job.
     *
     * @param outputPath the destination
     * @param context whose
     * @throws IOException if the context makes no sense
     */
    public RadosOutputCommitter(Path outputPath, TaskAttemptContext context) throws IOException {
        super(outputPath, context);
        this.outputPath = outputPath.getFileSystem(context.getConfiguration()).makeQualified(outputPath);
        this.task = context;
    }

    private static Settings settings(Path path, Configuration conf) throws IOException {
        return new Settings(conf, Mount.pool(path.toUri()));
    }

    private static ConflictMode mode(Path path, Configuration conf) throws IOException {
        return settings(path, conf).conflictMode();
    }

    // Which transaction.

    private synchronized OutputTransaction transaction(JobContext context) throws IOException {
        if (transaction == null) {
            Configuration conf = context.getConfiguration();
            String id = told(conf);
            if (id == null) {
                id = written(context);
            }
            transaction = OutputTransaction.of(outputPath, conf, id, mayReplaceFiles(conf));
        }
        return transaction;
    }

    private boolean mayReplaceFiles(Configuration conf) throws IOException {
        return mode(outputPath, conf) != ConflictMode.FAIL;
    }

    /** What the configuration says, if it was this job's setup that has put it there. */
    private String told(Configuration conf) {
        String[] words = conf.get(TRANSACTION, "").split(" ", 2);
        return words.length == 2 && words[1].equals(outputPath.toString()) ? words[0] : null;
    }

    private Path file(JobContext context) {
        return new Path(outputPath, "_transaction-" + context.getJobID());
    }

    private String written(JobContext context) throws IOException {
        Path path = file(context);
        FileSystem fs = outputPath.getFileSystem(context.getConfiguration());
        try (FSDataInputStream from = fs.open(path)) {
            return new String(from.readNBytes(64), StandardCharsets.US_ASCII);
        } catch (FileNotFoundException e) {
            throw (IOException) new PathIOException(outputPath.toString(), "job " + context.getJobID()
                    + " has no transaction here: this committer has not set the job up, or the job has ended").initCause(e);
        }
    }

    // The job.

    @Override
    public synchronized void setupJob(JobContext context) throws IOException {
        Configuration conf = context.getConfiguration();
        if (mode(outputPath, conf) == ConflictMode.FAIL) {
            OutputTransaction.requireEmpty(outputPath.getFileSystem(conf), outputPath);
        }
        int masterAttempt = conf.getInt(MRJobConfig.APPLICATION_ATTEMPT_ID, 0);
        transaction = masterAttempt > 1 ? takenOver(context) : null;
        if (transaction == null) {
            transaction = OutputTransaction.begin(outputPath, conf, mayReplaceFiles(conf));
            if (masterAttempt > 0) {
                try (FSDataOutputStream to = transaction.fileSystem().create(file(context), true)) {
                    to.write(transaction.id().getBytes(StandardCharsets.US_ASCII));
                }
            }
        }
        conf.set(TRANSACTION, transaction.id() + " " + outputPath);
    }

    /** The transaction of a master that has died, if it can still be used. */
    private OutputTransaction takenOver(JobContext context) throws IOException {
        Configuration conf = context.getConfiguration();
        OutputTransaction before;
        try {
            before = OutputTransaction.of(outputPath, conf, written(context), mayReplaceFiles(conf));
        } catch (PathIOException e) {
            LOG.info("nothing to take over: {}", e.getMessage());
            return null;
        }
        String state = before.state();
        if (!state.equals("pending")) {
            LOG.info("transaction {} is {}: the job begins anew", before.id(), state);
            return null;
        }
        before.keepAlive();
        return before;
    }

    @Override
    public void commitJob(JobContext context) throws IOException {
        Configuration conf = context.getConfiguration();
        OutputTransaction ours = transaction(context);
        String state = ours.state();
        if (state.equals("committed") || state.equals("gone") && ours.isInSuccessFile()) {
            LOG.info("{}: transaction {} was committed before", outputPath, ours.id());
        } else {
            String uuid = conf.getTrimmed(SPARK_JOB, "");
            ours.commit(new OutputTransaction.Commit(mode(outputPath, conf), List.of(),
                    conf.getBoolean(OutputTransaction.MARK_SUCCESS, true), RadosOutputCommitter.class.getName(),
                    uuid.isEmpty() ? context.getJobID().toString() : uuid, uuid.isEmpty() ? "JobID" : SPARK_JOB,
                    context instanceof Progressable waiting ? waiting : null));
        }
        forget(context);
    }

    @Override
    protected void commitJobInternal(JobContext context) throws IOException {
        commitJob(context);
    }

    @Override
    public void abortJob(JobContext context, JobStatus.State state) throws IOException {
        OutputTransaction ours;
        try {
            ours = transaction(context);
        } catch (PathIOException e) {
            LOG.debug("nothing to abort", e);
            return;
        }
        try {
            ours.abort();
        } finally {
            forget(context);
        }
    }

    /** Nobody looks for the transaction any more. */
    private void forget(JobContext context) throws IOException {
        context.getConfiguration().unset(TRANSACTION);
        if (context.getConfiguration().getInt(MRJobConfig.APPLICATION_ATTEMPT_ID, 0) > 0) {
            outputPath.getFileSystem(context.getConfiguration()).delete(file(context), false);
        }
    }

    @Override
    @Deprecated
    public void cleanupJob(JobContext context) throws IOException {
        // There is nothing left after either end.
    }

    @Override
    public boolean isCommitJobRepeatable(JobContext context) {
        return true;
    }

    // Tasks.

    @Override
    public void setupTask(TaskAttemptContext context) throws IOException {
        // An attempt is begun with its first file.
    }

    @Override
    public boolean needsTaskCommit(TaskAttemptContext context) throws IOException {
        return transaction(context).hasOutput(context.getTaskAttemptID());
    }

    @Override
    public boolean needsTaskCommit(TaskAttemptContext context, Path ignored) throws IOException {
        return needsTaskCommit(context);
    }

    @Override
    public void commitTask(TaskAttemptContext context) throws IOException {
        transaction(context).commitTask(context.getTaskAttemptID());
    }

    @Override
    public void commitTask(TaskAttemptContext context, Path ignored) throws IOException {
        commitTask(context);
    }

    @Override
    public void abortTask(TaskAttemptContext context) throws IOException {
        transaction(context).abortTask(context.getTaskAttemptID());
    }

    @Override
    public void abortTask(TaskAttemptContext context, Path ignored) throws IOException {
        abortTask(context);
    }

    @Override
    @Deprecated
    public boolean isRecoverySupported() {
        return true;
    }

    @Override
    public synchronized void recoverTask(TaskAttemptContext context) throws IOException {
        if (recovered == null) {
            recovered = transaction(context).committedTasks();
        }
        String name = StagedPath.task(context.getTaskAttemptID());
        if (!recovered.contains(name)) {
            throw new PathIOException(outputPath.toString(), "task " + context.getTaskAttemptID().getTaskID()
                    + " is not committed in transaction " + transaction(context).id() + ": it has to be done again");
        }
    }

    // Where.

    @Override
    public Path getOutputPath() {
        return outputPath;
    }

    @Override
    public Path getWorkPath() throws IOException {
        return transaction(task).workPath(task.getTaskAttemptID());
    }

    @Override
    public Path getTaskAttemptPath(TaskAttemptContext context) {
        try {
            return transaction(context).workPath(context.getTaskAttemptID());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public boolean hasCapability(String capability) {
        return DYNAMIC_PARTITIONING.equals(capability);
    }

    @Override
    public String toString() {
        return "RadosOutputCommitter{" + outputPath + ", " + task.getTaskAttemptID() + "}";
    }
}
