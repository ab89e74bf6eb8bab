package io.onehop.rados;

import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapred.FileOutputCommitter;
import org.apache.hadoop.mapred.FileOutputFormat;
import org.apache.hadoop.mapred.JobContext;
import org.apache.hadoop.mapred.JobStatus;
import org.apache.hadoop.mapred.TaskAttemptContext;
import org.apache.hadoop.mapred.TaskAttemptContextImpl;
import org.apache.hadoop.mapred.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskType;

/**
 * {@link RadosOutputCommitter} for the older of Hadoop's two programming interfaces, which {@code saveAsTextFile} of Spark's RDDs uses:
 * {@code mapred.output.committer.class} is to name this class. Where a job writes elsewhere than to {@code rados://} it is what it
 * extends.
 *
 * <p>Hadoop makes a new one whenever it needs one: all that it knows it has from the configuration.
 */
public final class MapredOutputCommitter extends FileOutputCommitter {
    /** For Hadoop. */
    public MapredOutputCommitter() {}

    /** The committer to ask, or null: that of the parent. */
    private static RadosOutputCommitter ours(TaskAttemptContext context) throws IOException {
        Path path = FileOutputFormat.getOutputPath(context.getJobConf());
        boolean isOurs = path != null && path.getFileSystem(context.getJobConf()) instanceof RadosFileSystem;
        return isOurs ? new RadosOutputCommitter(path, context) : null;
    }

    private static RadosOutputCommitter ours(JobContext context) throws IOException {
        TaskAttemptID none = new TaskAttemptID(context.getJobID().getJtIdentifier(), context.getJobID().getId(), TaskType.MAP, 0, 0);
        return ours(new TaskAttemptContextImpl(context.getJobConf(), none));
    }

    @Override
    public Path getTaskAttemptPath(TaskAttemptContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        return ours == null ? super.getTaskAttemptPath(context) : ours.getWorkPath();
    }

    @Override
    public Path getWorkPath(TaskAttemptContext context, Path outputPath) throws IOException {
        RadosOutputCommitter ours = ours(context);
        return ours == null ? super.getWorkPath(context, outputPath) : ours.getWorkPath();
    }

    @Override
    public void setupJob(JobContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.setupJob(context);
        } else {
            ours.setupJob(context);
        }
    }

    @Override
    public void commitJob(JobContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.commitJob(context);
        } else {
            ours.commitJob(context);
        }
    }

    @Override
    @Deprecated
    public void cleanupJob(JobContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.cleanupJob(context);
        } else {
            ours.cleanupJob(context);
        }
    }

    @Override
    public void abortJob(JobContext context, int runState) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.abortJob(context, runState);
        } else {
            ours.abortJob(context, runState == JobStatus.KILLED
                    ? org.apache.hadoop.mapreduce.JobStatus.State.KILLED
                    : org.apache.hadoop.mapreduce.JobStatus.State.FAILED);
        }
    }

    @Override
    public void setupTask(TaskAttemptContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.setupTask(context);
        } else {
            ours.setupTask(context);
        }
    }

    @Override
    public void commitTask(TaskAttemptContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.commitTask(context);
        } else {
            ours.commitTask(context);
        }
    }

    @Override
    public void abortTask(TaskAttemptContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.abortTask(context);
        } else {
            ours.abortTask(context);
        }
    }

    @Override
    public boolean needsTaskCommit(TaskAttemptContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        return ours == null ? super.needsTaskCommit(context) : ours.needsTaskCommit(context);
    }

    @Override
    public boolean isRecoverySupported(JobContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        return ours == null ? super.isRecoverySupported(context) : ours.isRecoverySupported(context);
    }

    @Override
    public boolean isCommitJobRepeatable(JobContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        return ours == null ? super.isCommitJobRepeatable(context) : ours.isCommitJobRepeatable(context);
    }

    @Override
    public void recoverTask(TaskAttemptContext context) throws IOException {
        RadosOutputCommitter ours = ours(context);
        if (ours == null) {
            super.recoverTask(context);
        } else {
            ours.recoverTask(context);
        }
    }
}
