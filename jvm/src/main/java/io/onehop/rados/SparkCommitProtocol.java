package io.onehop.rados;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.util.Progressable;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.internal.io.FileNameSpec;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * What Spark SQL writes to {@code rados://} as one {@link OutputTransaction}: {@code spark.sql.sources.commitProtocolClass} is to name
 * this class, and nothing else needs to be set.
 *
 * <p>Overwriting is part of the transaction. What Spark has the protocol delete before it begins to write goes when the job is
 * committed, at the same moment at which what is new comes; with {@code partitionOverwriteMode=dynamic} so do the partitions that are
 * written. A job that fails has changed nothing.
 *
 * <p>Which {@code OutputCommitter} a format asks for (Parquet has one of its own) has no meaning here: files are written where they are to
 * be, and there is nothing for a committer to do. What is written to other file systems goes the way that Spark goes without this class.
 */
public final class SparkCommitProtocol extends FileCommitProtocol implements Serializable {
    private static final long serialVersionUID = 1;
    private static final Logger LOG = LoggerFactory.getLogger(SparkCommitProtocol.class);
    private static final String SPARKS_OWN =
            "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol";

    private final String jobId;
    private final String path;
    private final boolean replacesPartitions;
    /** Spark's own, where the destination is another file system; it is known which from the first call on that says so. */
    private FileCommitProtocol sparks;
    /** The transaction, from the job's setup on; this is what executors are sent. */
    private String transaction;
    /** In the driver: what goes with the commit. */
    private final transient List<Path> replaced = new ArrayList<>();

    /**
     * For Spark.
     *
     * @param jobId the job's name, unlike all others'
     * @param path the destination
     * @param dynamicPartitionOverwrite whether partitions are replaced that are written
     */
    public SparkCommitProtocol(String jobId, String path, boolean dynamicPartitionOverwrite) {
        this.jobId = jobId;
        this.path = path;
        this.replacesPartitions = dynamicPartitionOverwrite;
    }

    /** Whether the destination is ours; if it is not, there is Spark's own protocol from now on. */
    private boolean isOurs(Configuration conf) throws IOException {
        if (transaction != null) {
            return true;
        }
        if (sparks != null) {
            return false;
        }
        if (new Path(path).getFileSystem(conf) instanceof RadosFileSystem) {
            return true;
        }
        sparks = FileCommitProtocol.instantiate(SPARKS_OWN, jobId, path, replacesPartitions);
        return false;
    }

    private OutputTransaction of(Configuration conf) throws IOException {
        // Names of files have the job's identity in them: nobody else's file has the same one, and none is replaced.
        return OutputTransaction.of(new Path(path), conf, transaction, false);
    }

    // In the driver.

    @Override
    public void setupJob(JobContext context) {
        run(() -> {
            Configuration conf = context.getConfiguration();
            if (!isOurs(conf)) {
                sparks.setupJob(context);
                return;
            }
            transaction = OutputTransaction.begin(new Path(path), conf, false).id();
            // What output formats ask for before there is a task.
            TaskID task = new TaskID(new JobID(jobId, 0), TaskType.MAP, 0);
            conf.set("mapreduce.job.id", task.getJobID().toString());
            conf.set("mapreduce.task.id", task.toString());
            conf.set("mapreduce.task.attempt.id", new TaskAttemptID(task, 0).toString());
            conf.setBoolean("mapreduce.task.ismap", true);
            conf.setInt("mapreduce.task.partition", 0);
        });
    }

    /** Called before the setup. */
    @Override
    public boolean deleteWithJob(FileSystem fs, Path directory, boolean recursive) {
        return call(() -> {
            if (!isOurs(fs.getConf())) {
                return sparks.deleteWithJob(fs, directory, recursive);
            }
            Path qualified = fs.makeQualified(directory);
            boolean isSameFileSystem = fs instanceof RadosFileSystem
                    && fs.getUri().equals(new Path(path).getFileSystem(fs.getConf()).getUri());
            if (!isSameFileSystem || !recursive || qualified.isRoot() || !fs.getFileStatus(qualified).isDirectory()) {
                return fs.delete(directory, recursive);
            }
            replaced.add(qualified);
            return true;
        });
    }

    @Override
    public void commitJob(JobContext context, Seq<TaskCommitMessage> tasks) {
        run(() -> {
            Configuration conf = context.getConfiguration();
            if (!isOurs(conf)) {
                sparks.commitJob(context, tasks);
                return;
            }
            of(conf).commit(new OutputTransaction.Commit(
                    replacesPartitions ? ConflictMode.PARTITIONS : ConflictMode.APPEND, replaced,
                    conf.getBoolean(OutputTransaction.MARK_SUCCESS, true), SparkCommitProtocol.class.getName(), jobId,
                    "Spark", context instanceof Progressable waiting ? waiting : null));
        });
    }

    @Override
    public void abortJob(JobContext context) {
        run(() -> {
            if (!isOurs(context.getConfiguration())) {
                sparks.abortJob(context);
                return;
            }
            if (transaction == null) {
                return;
            }
            try {
                of(context.getConfiguration()).abort();
            } catch (IOException e) {
                // The job has failed, and that is what the user is told. Nothing becomes visible: the lease sees to that.
                LOG.warn("{}: transaction {} was not aborted, which happens when its lease is over", path, transaction, e);
            }
        });
    }

    @Override
    public void onTaskCommit(TaskCommitMessage message) {
        if (sparks != null) {
            sparks.onTaskCommit(message);
        }
    }

    // In executors.

    @Override
    public void setupTask(TaskAttemptContext context) {
        run(() -> {
            if (!isOurs(context.getConfiguration())) {
                sparks.setupTask(context);
            }
        });
    }

    @Override
    @Deprecated
    public String newTaskTempFile(TaskAttemptContext context, Option<String> directory, String extension) {
        return newTaskTempFile(context, directory, new FileNameSpec("", extension));
    }

    @Override
    public String newTaskTempFile(TaskAttemptContext context, Option<String> directory, FileNameSpec name) {
        return call(() -> {
            if (!isOurs(context.getConfiguration())) {
                return sparks.newTaskTempFile(context, directory, name);
            }
            Path work = of(context.getConfiguration()).workPath(context.getTaskAttemptID());
            // A partition's directory has its values escaped, by Spark; what is in it is text, and nothing is escaped again.
            Path below = directory.isDefined() ? new Path(work, new Path(null, null, directory.get())) : work;
            return new Path(below, fileName(context, name)).toString();
        });
    }

    @Override
    @Deprecated
    public String newTaskTempFileAbsPath(TaskAttemptContext context, String directory, String extension) {
        return newTaskTempFileAbsPath(context, directory, new FileNameSpec("", extension));
    }

    @Override
    public String newTaskTempFileAbsPath(TaskAttemptContext context, String directory, FileNameSpec name) {
        return call(() -> {
            if (!isOurs(context.getConfiguration())) {
                return sparks.newTaskTempFileAbsPath(context, directory, name);
            }
            Path work = of(context.getConfiguration()).workPath(context.getTaskAttemptID(), new Path(directory));
            return new Path(work, fileName(context, name)).toString();
        });
    }

    private String fileName(TaskAttemptContext context, FileNameSpec name) {
        int split = context.getTaskAttemptID().getTaskID().getId();
        return name.prefix() + String.format(Locale.ROOT, "part-%05d-", split) + jobId + name.suffix();
    }

    @Override
    public TaskCommitMessage commitTask(TaskAttemptContext context) {
        return call(() -> {
            if (!isOurs(context.getConfiguration())) {
                return sparks.commitTask(context);
            }
            of(context.getConfiguration()).commitTask(context.getTaskAttemptID());
            // The transaction knows what was written.
            return new TaskCommitMessage(null);
        });
    }

    @Override
    public void abortTask(TaskAttemptContext context) {
        run(() -> {
            if (!isOurs(context.getConfiguration())) {
                sparks.abortTask(context);
                return;
            }
            try {
                of(context.getConfiguration()).abortTask(context.getTaskAttemptID());
            } catch (IOException e) {
                // Why the task has failed is what counts, and nothing of it is ever visible.
                LOG.warn("{}: attempt {} was not given up, which the job's end does", path, context.getTaskAttemptID(), e);
            }
        });
    }

    // Scala declares no exceptions.

    private interface Step {
        void run() throws IOException;
    }

    private interface Asked<T> {
        T run() throws IOException;
    }

    private static void run(Step step) {
        call(() -> {
            step.run();
            return null;
        });
    }

    private static <T> T call(Asked<T> asked) {
        try {
            return asked.run();
        } catch (IOException e) {
            throw SparkCommitProtocol.<RuntimeException>unchecked(e);
        }
    }

    /** The very exception: whoever catches it, in Scala, knows nothing of checked ones. */
    @SuppressWarnings("unchecked")
    private static <E extends Exception> E unchecked(Exception e) throws E {
        throw (E) e;
    }
}
