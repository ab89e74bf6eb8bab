package io.onehop.rados;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.task.JobContextImpl;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;
import org.apache.spark.internal.io.FileNameSpec;
import org.junit.Before;
import org.junit.Test;
import scala.Option;

/** Spark's half, without Spark: what it calls, in the order in which it does. */
public final class SparkCommitProtocolTest {
    private final Configuration conf = TestPool.configure(new Configuration());
    private FileSystem fs;
    private Path output;

    @Before
    public void output() throws Exception {
        output = new Path(TestPool.uri("spark") + "/" + UUID.randomUUID());
        fs = output.getFileSystem(conf);
    }

    private SparkCommitProtocol protocol(boolean dynamic) {
        return new SparkCommitProtocol(UUID.randomUUID().toString(), output.toString(), dynamic);
    }

    private JobContext master() {
        return new JobContextImpl(conf, new JobID("driver", 0));
    }

    /** A task of another process: it has the protocol as it was sent, and the job has another name there. */
    private void task(SparkCommitProtocol sent, int number, int attempt, String... partitions) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        new ObjectOutputStream(bytes).writeObject(sent);
        SparkCommitProtocol protocol =
                (SparkCommitProtocol) new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray())).readObject();
        TaskID task = new TaskID(new JobID("executor", 7), TaskType.MAP, number);
        TaskAttemptContext context = new TaskAttemptContextImpl(new Configuration(conf), new TaskAttemptID(task, attempt));
        protocol.setupTask(context);
        for (String partition : partitions) {
            Option<String> directory = partition.isEmpty() ? Option.empty() : Option.apply(partition);
            String path = partition.startsWith("rados:")
                    ? protocol.newTaskTempFileAbsPath(context, partition, new FileNameSpec("", ".txt"))
                    : protocol.newTaskTempFile(context, directory, new FileNameSpec("", ".txt"));
            fs.create(new Path(path), false).close();
        }
        protocol.commitTask(context);
    }

    private Iterable<String> directories() throws Exception {
        return CommitterJob.files(fs, output).keySet().stream()
                .map(name -> name.substring(0, Math.max(0, name.lastIndexOf('/')))).sorted().toList();
    }

    @Test
    public void tasks_of_other_processes_are_committed_at_one_moment() throws Exception {
        SparkCommitProtocol protocol = protocol(false);
        protocol.setupJob(master());
        task(protocol, 0, 3, "", "k=a%2Fb/l=ü");
        task(protocol, 1, 4, "k=1");
        task(protocol, 1, 5, "k=1", "k=2");
        assertThat(fs.exists(output)).isFalse();
        protocol.commitJob(master(), null);
        assertThat(directories()).containsExactly("", "", "k=1", "k=a%2Fb/l=ü");
    }

    @Test
    public void overwriting_is_part_of_the_transaction() throws Exception {
        fs.create(new Path(output, "old/a")).close();
        SparkCommitProtocol failing = protocol(false);
        assertThat(failing.deleteWithJob(fs, output, true)).isTrue();
        failing.setupJob(master());
        task(failing, 0, 0, "new");
        assertThat(directories()).containsExactly("old");
        failing.abortJob(master());
        assertThat(directories()).containsExactly("old");
        SparkCommitProtocol protocol = protocol(false);
        assertThat(protocol.deleteWithJob(fs, output, true)).isTrue();
        protocol.setupJob(master());
        task(protocol, 0, 0, "new");
        assertThat(directories()).containsExactly("old");
        protocol.commitJob(master(), null);
        assertThat(directories()).containsExactly("", "new");
    }

    @Test
    public void partitions_are_replaced_wherever_they_are() throws Exception {
        Path elsewhere = new Path(TestPool.uri("spark") + "/" + UUID.randomUUID() + "/elsewhere of k=3");
        fs.create(new Path(output, "k=1/old")).close();
        fs.create(new Path(output, "k=2/old")).close();
        fs.create(new Path(elsewhere, "old")).close();
        SparkCommitProtocol protocol = protocol(true);
        protocol.setupJob(master());
        task(protocol, 0, 0, "k=1", "k=4", elsewhere.toString());
        assertThat(CommitterJob.files(fs, elsewhere)).containsOnlyKeys("old");
        protocol.commitJob(master(), null);
        assertThat(directories()).containsExactly("", "k=1", "k=2", "k=4");
        assertThat(CommitterJob.files(fs, new Path(output, "k=1"))).doesNotContainKey("old").hasSize(1);
        assertThat(CommitterJob.files(fs, new Path(output, "k=2"))).containsOnlyKeys("old");
        assertThat(CommitterJob.files(fs, elsewhere)).doesNotContainKey("old").hasSize(1);
    }
}
