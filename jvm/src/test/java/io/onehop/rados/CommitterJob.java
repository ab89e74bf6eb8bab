package io.onehop.rados;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.OutputCommitter;
import org.apache.hadoop.mapreduce.RecordWriter;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.TextOutputFormat;
import org.apache.hadoop.mapreduce.task.JobContextImpl;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;

/** A job as a test sees it: its master, its attempts at tasks, and what is visible. Every context has a committer of its own. */
final class CommitterJob {
    private static final String FACTORY = "mapreduce.outputcommitter.factory.scheme.rados";

    /** Contexts share it, and what a job's setup puts there its tasks see: a {@code JobConf} is not copied. */
    final JobConf conf;
    final JobID id;
    final Path output;
    final JobContext master;
    final OutputCommitter committer;

    CommitterJob(Configuration given, Path output, int number) throws IOException {
        this.conf = given instanceof JobConf shared ? shared : new JobConf(given);
        this.output = output;
        this.id = new JobID("test", number);
        conf.set(FileOutputFormat.OUTDIR, output.toString());
        this.master = new JobContextImpl(conf, id);
        this.committer = attempt(TaskType.MAP, 0, 0).committer;
    }

    /** The settings of a job that has our committer. */
    static JobConf ours(Configuration conf) {
        conf.set(FACTORY, RadosOutputCommitterFactory.class.getName());
        return new JobConf(conf);
    }

    void setup() throws IOException {
        committer.setupJob(master);
    }

    void commit() throws IOException {
        committer.commitJob(master);
    }

    /** An attempt at a task. */
    final class Attempt {
        final TaskAttemptContext context;
        final TextOutputFormat<LongWritable, Text> format = new TextOutputFormat<>();
        final OutputCommitter committer;

        Attempt(TaskAttemptID id) throws IOException {
            context = new TaskAttemptContextImpl(conf, id);
            committer = format.getOutputCommitter(context);
        }

        /** As a task does it: by the output format, which asks the committer where to. */
        Attempt write(String... lines) throws Exception {
            RecordWriter<LongWritable, Text> writer = format.getRecordWriter(context);
            for (String line : lines) {
                writer.write(null, new Text(line));
            }
            writer.close(context);
            return this;
        }

        Path workPath() throws IOException {
            return ((PathOutputCommitter) committer).getWorkPath();
        }

        /** A file of another name. */
        Attempt file(String name, String text) throws IOException {
            Path path = new Path(workPath(), name);
            try (var to = path.getFileSystem(conf).create(path, false)) {
                to.write(text.getBytes(StandardCharsets.UTF_8));
            }
            return this;
        }

        Attempt setup() throws IOException {
            committer.setupTask(context);
            return this;
        }

        Attempt commit() throws IOException {
            if (committer.needsTaskCommit(context)) {
                committer.commitTask(context);
            }
            return this;
        }
    }

    Attempt attempt(TaskType type, int task, int attempt) throws IOException {
        return new Attempt(new TaskAttemptID(new TaskID(id, type, task), attempt));
    }

    Attempt task(int task) throws IOException {
        return attempt(TaskType.MAP, task, 0).setup();
    }

    /** Files that are visible below a directory, by their paths from there, and what is in them. */
    static Map<String, String> files(FileSystem fs, Path directory) throws IOException {
        Map<String, String> found = new TreeMap<>();
        if (!fs.exists(directory)) {
            return found;
        }
        RemoteIterator<LocatedFileStatus> files = fs.listFiles(directory, true);
        int skip = fs.makeQualified(directory).toUri().getPath().length() + 1;
        while (files.hasNext()) {
            Path path = files.next().getPath();
            try (FSDataInputStream from = fs.open(path)) {
                found.put(path.toUri().getPath().substring(skip), new String(from.readAllBytes(), StandardCharsets.UTF_8));
            }
        }
        return found;
    }

    /** The same without {@code _SUCCESS}. */
    Map<String, String> data() throws IOException {
        Map<String, String> found = files(output.getFileSystem(conf), output);
        found.remove("_SUCCESS");
        return found;
    }
}
