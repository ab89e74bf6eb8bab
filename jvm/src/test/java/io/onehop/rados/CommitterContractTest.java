package io.onehop.rados;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assumptions.assumeThat;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.MapFile;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.JobStatus;
import org.apache.hadoop.mapreduce.RecordWriter;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.MapFileOutputFormat;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.junit.runners.Parameterized;
import org.junit.runners.Parameterized.Parameter;
import org.junit.runners.Parameterized.Parameters;

/**
 * What every committer must do, in the manner of Hadoop's {@code AbstractITCommitProtocol}, which is in no published jar that knows
 * nothing of S3. Hadoop's own committers are held to it as well: what they do not do would be a mistake of the suite.
 */
@RunWith(Parameterized.class)
public final class CommitterContractTest {
    private static final AtomicInteger JOBS = new AtomicInteger();

    @Parameter
    public String kind;

    private FileSystem fs;
    private Path output;

    @Parameters(name = "{0}")
    public static List<String> kinds() {
        return List.of("rados", "file v1", "file v2");
    }

    private boolean isOurs() {
        return kind.equals("rados");
    }

    private Configuration conf() {
        Configuration conf = TestPool.configure(new Configuration());
        if (isOurs()) {
            return CommitterJob.ours(conf);
        }
        conf.setInt(FileOutputCommitter.FILEOUTPUTCOMMITTER_ALGORITHM_VERSION, kind.endsWith("1") ? 1 : 2);
        return conf;
    }

    private CommitterJob job() throws IOException {
        return new CommitterJob(conf(), output, JOBS.incrementAndGet());
    }

    @Before
    public void output() throws IOException {
        output = new Path(TestPool.uri("committer") + "/" + kind.replace(' ', '_') + "/" + JOBS.incrementAndGet() + "/out");
        fs = output.getFileSystem(conf());
    }

    @After
    public void nothingIsCopied() throws IOException {
        assertThat(((RadosFileSystem) fs).getLedger()).containsEntry("rename_copy_bytes", 0L);
    }

    @Test
    public void a_job_is_visible_when_it_is_committed() throws Exception {
        CommitterJob job = job();
        assertThat(job.committer instanceof RadosOutputCommitter).isEqualTo(isOurs());
        job.setup();
        CommitterJob.Attempt task = job.task(0).write("a", "b");
        assertThat(task.committer.needsTaskCommit(task.context)).isTrue();
        assertThat(job.data().keySet()).noneMatch(name -> name.startsWith("part"));
        task.commit();
        job.task(1).write("c").commit();
        if (!kind.equals("file v2")) {
            assertThat(job.data().keySet()).noneMatch(name -> name.startsWith("part"));
        }
        job.commit();
        assertThat(job.data()).isEqualTo(Map.of("part-m-00000", "a\nb\n", "part-m-00001", "c\n"));
        assertThat(fs.exists(new Path(output, "_SUCCESS"))).isTrue();
        assertThat(fs.listStatus(output)).as("and nothing else").hasSize(3);
    }

    @Test
    public void a_task_without_output_needs_no_commit() throws Exception {
        CommitterJob job = job();
        job.setup();
        CommitterJob.Attempt task = job.attempt(TaskType.MAP, 0, 0);
        assertThat(task.committer.needsTaskCommit(task.context)).isFalse();
        task.commit();
        job.commit();
        assertThat(job.data()).isEmpty();
    }

    @Test
    public void a_job_may_have_no_marker() throws Exception {
        CommitterJob job = job();
        job.conf.setBoolean(FileOutputCommitter.SUCCESSFUL_JOB_OUTPUT_DIR_MARKER, false);
        job.setup();
        job.task(0).write("a").commit();
        job.commit();
        assertThat(CommitterJob.files(fs, output)).isEqualTo(Map.of("part-m-00000", "a\n"));
    }

    @Test
    public void a_task_that_is_aborted_leaves_nothing() throws Exception {
        CommitterJob job = job();
        job.setup();
        CommitterJob.Attempt failed = job.task(0).write("failed");
        failed.committer.abortTask(failed.context);
        job.attempt(TaskType.MAP, 0, 1).setup().write("a").commit();
        // By the master, of a task that it knows only the name of.
        CommitterJob.Attempt dead = job.task(1).write("dead");
        CommitterJob.Attempt seen = job.attempt(TaskType.MAP, 1, 0);
        seen.committer.abortTask(seen.context);
        assertThat(dead.committer.needsTaskCommit(dead.context)).isFalse();
        job.commit();
        assertThat(job.data()).isEqualTo(Map.of("part-m-00000", "a\n"));
    }

    @Test
    public void a_job_that_is_aborted_leaves_nothing() throws Exception {
        assumeThat(kind).as("version 2 makes tasks visible one by one").isNotEqualTo("file v2");
        CommitterJob job = job();
        job.setup();
        job.task(0).write("a").commit();
        job.task(1).write("b");
        job.committer.abortJob(job.master, JobStatus.State.FAILED);
        assertThat(job.data()).isEmpty();
        // Twice, and before anything was set up: nothing to do.
        job.committer.abortJob(job.master, JobStatus.State.KILLED);
        job().committer.abortJob(job.master, JobStatus.State.KILLED);
    }

    @Test
    public void files_of_all_names_in_directories_of_all_names() throws Exception {
        CommitterJob job = job();
        job.setup();
        job.task(0).file("k=1/a b", "1").file("k=1/l=%2F/ünï", "2").file("_hidden", "3").commit();
        job.task(1).file("k=1/b", "4").file("k=ü/a b", "5").commit();
        job.commit();
        assertThat(job.data()).isEqualTo(Map.of(
                "k=1/a b", "1", "k=1/l=%2F/ünï", "2", "_hidden", "3", "k=1/b", "4", "k=ü/a b", "5"));
    }

    @Test
    public void what_is_there_stays_but_for_files_of_the_same_names() throws Exception {
        CommitterJob first = job();
        first.setup();
        first.task(0).file("k=1/a", "old").file("k=1/b", "old").commit();
        first.commit();
        CommitterJob second = job();
        second.setup();
        second.task(0).file("k=1/b", "new").file("k=2/c", "new").commit();
        second.commit();
        assertThat(second.data()).isEqualTo(Map.of("k=1/a", "old", "k=1/b", "new", "k=2/c", "new"));
    }

    @Test
    public void of_two_attempts_that_are_committed_one_counts() throws Exception {
        CommitterJob job = job();
        job.setup();
        CommitterJob.Attempt first = job.task(0).write("first");
        CommitterJob.Attempt second = job.attempt(TaskType.MAP, 0, 1).setup().write("second");
        first.commit();
        second.commit();
        job.commit();
        assertThat(job.data()).hasSize(1);
        assertThat(job.data().get("part-m-00000")).isIn("first\n", "second\n");
    }

    @Test
    public void maps_and_reduces_are_different_tasks() throws Exception {
        CommitterJob job = job();
        job.setup();
        job.attempt(TaskType.MAP, 0, 0).setup().write("m").commit();
        job.attempt(TaskType.REDUCE, 0, 0).setup().write("r").commit();
        job.commit();
        assertThat(job.data()).isEqualTo(Map.of("part-m-00000", "m\n", "part-r-00000", "r\n"));
    }

    @Test
    public void formats_that_write_directories_work() throws Exception {
        CommitterJob job = job();
        job.conf.setClass("mapreduce.job.output.key.class", LongWritable.class, Object.class);
        job.conf.setClass("mapreduce.job.output.value.class", Text.class, Object.class);
        job.setup();
        CommitterJob.Attempt task = job.task(0);
        MapFileOutputFormat format = new MapFileOutputFormat();
        @SuppressWarnings({"unchecked", "rawtypes"})
        RecordWriter<LongWritable, Text> writer = (RecordWriter) format.getRecordWriter(task.context);
        for (int key = 0; key < 1000; key++) {
            writer.write(new LongWritable(key), new Text("value " + key));
        }
        writer.close(task.context);
        task.commit();
        job.commit();
        try (MapFile.Reader reader = new MapFile.Reader(new Path(output, "part-m-00000"), job.conf)) {
            Text value = new Text();
            assertThat(reader.get(new LongWritable(777), value)).isNotNull();
            assertThat(value.toString()).isEqualTo("value 777");
        }
    }

    @Test
    public void many_tasks_at_once() throws Exception {
        CommitterJob job = job();
        job.setup();
        List<Thread> threads = new ArrayList<>();
        List<Throwable> failed = new ArrayList<>();
        for (int number = 0; number < 16; number++) {
            int task = number;
            Thread thread = new Thread(() -> {
                try {
                    job.task(task).file("k=" + task % 3 + "/part-" + task, "of " + task).commit();
                } catch (Exception | Error e) {
                    synchronized (failed) {
                        failed.add(e);
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        assertThat(failed).isEmpty();
        job.commit();
        assertThat(job.data()).hasSize(16).containsEntry("k=1/part-7", "of 7");
    }

    @Test
    public void jobs_beside_each_other() throws Exception {
        CommitterJob one = new CommitterJob(conf(), new Path(output, "one"), JOBS.incrementAndGet());
        CommitterJob other = new CommitterJob(conf(), new Path(output, "other"), JOBS.incrementAndGet());
        one.setup();
        other.setup();
        one.task(0).write("one").commit();
        other.task(0).write("other").commit();
        one.commit();
        other.commit();
        assertThat(one.data()).isEqualTo(Map.of("part-m-00000", "one\n"));
        assertThat(other.data()).isEqualTo(Map.of("part-m-00000", "other\n"));
    }

    @Test
    public void written_files_can_be_looked_at_by_who_has_written_them() throws Exception {
        CommitterJob job = job();
        job.setup();
        CommitterJob.Attempt task = job.task(0).file("k=1/a", "12345");
        Path work = task.workPath();
        assertThat(fs.mkdirs(new Path(work, "k=2"))).isTrue();
        assertThat(fs.getFileStatus(new Path(work, "k=1/a")).getLen()).isEqualTo(5);
        assertThat(fs.getFileStatus(new Path(work, "k=1")).isDirectory()).isTrue();
        assertThat(fs.exists(new Path(work, "k=1/b"))).isFalse();
        assertThat(fs.listStatus(work)).extracting(status -> status.getPath().getName()).contains("k=1");
        assertThat(fs.listStatus(new Path(work, "k=1"))).extracting(status -> status.getLen()).containsExactly(5L);
        task.commit();
        job.commit();
        assertThat(job.data()).isEqualTo(Map.of("k=1/a", "12345"));
    }
}
