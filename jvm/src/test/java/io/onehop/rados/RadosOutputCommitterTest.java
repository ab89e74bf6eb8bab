package io.onehop.rados;

import static org.apache.hadoop.test.LambdaTestUtils.intercept;
import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapreduce.JobStatus;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.files.ManifestSuccessData;
import org.junit.Before;
import org.junit.Test;

/** What our committer does and others do not. */
public final class RadosOutputCommitterTest {
    private static final AtomicInteger JOBS = new AtomicInteger(1000);

    private FileSystem fs;
    private Path output;

    private static Configuration conf() {
        return CommitterJob.ours(TestPool.configure(new Configuration()));
    }

    private CommitterJob job(Configuration conf) throws IOException {
        return new CommitterJob(conf, output, JOBS.incrementAndGet());
    }

    private CommitterJob job() throws IOException {
        return job(conf());
    }

    private static Configuration with(String conflict) {
        Configuration conf = conf();
        conf.set("fs.rados.committer.conflict", conflict);
        return conf;
    }

    /** A job that writes these files, ready to be committed. */
    private CommitterJob ready(Configuration conf, String... names) throws Exception {
        CommitterJob job = job(conf);
        job.setup();
        CommitterJob.Attempt task = job.task(0);
        for (String name : names) {
            task.file(name, "of " + job.id.getId());
        }
        task.commit();
        return job;
    }

    @Before
    public void output() throws IOException {
        output = new Path(TestPool.uri("ours") + "/" + JOBS.incrementAndGet() + "/out");
        fs = output.getFileSystem(conf());
    }

    @Test
    public void success_says_what_was_written() throws Exception {
        CommitterJob job = job();
        job.setup();
        job.task(0).file("k=1/a \"quoted\"", "12345").file("k=2/b", "678").commit();
        job.task(1).file("k=2/c", "9").commit();
        job.commit();
        ManifestSuccessData success = ManifestSuccessData.load(fs, new Path(output, "_SUCCESS"));
        assertThat(success.getSuccess()).isTrue();
        assertThat(success.getCommitter()).isEqualTo(RadosOutputCommitter.class.getName());
        assertThat(success.getJobId()).isEqualTo(job.id.toString());
        assertThat(success.getMetrics()).containsEntry("committer_files", 3L).containsEntry("committer_bytes", 9L)
                .containsEntry("committer_tasks", 2L).containsEntry("committer_directories", 2L)
                .containsEntry("rename_copy_bytes", 0L);
        assertThat(success.getDiagnostics().get("transaction")).hasSize(32);
    }

    @Test
    public void zombies_are_fenced() throws Exception {
        CommitterJob job = job();
        job.setup();
        CommitterJob.Attempt zombie = job.task(0).file("zombie", "zombie");
        Path open = new Path(zombie.workPath(), "open");
        FSDataOutputStream unfinished = fs.create(open);
        unfinished.write(1);
        job.attempt(TaskType.MAP, 0, 1).setup().file("counts", "counts").commit();
        // It is told that its task is committed; what it has written is not what counts.
        zombie.commit();
        intercept(IOException.class, unfinished::close);
        CommitterJob.Attempt late = job.task(1).file("late", "late");
        job.commit();
        assertThat(job.data()).isEqualTo(Map.of("counts", "counts"));
        // After the end.
        intercept(IOException.class, () -> late.file("more", "more"));
        intercept(IOException.class, () -> job.attempt(TaskType.MAP, 2, 0).file("more", "more"));
        assertThat(job.data()).isEqualTo(Map.of("counts", "counts"));
    }

    @Test
    public void tasks_of_a_job_that_was_aborted_fail() throws Exception {
        CommitterJob job = job();
        job.setup();
        CommitterJob.Attempt task = job.task(0).file("a", "a");
        Path directory = task.workPath();
        FSDataOutputStream open = fs.create(new Path(directory, "open"));
        job.committer.abortJob(job.master, JobStatus.State.KILLED);
        intercept(IOException.class, open::close);
        intercept(IOException.class, () -> {
            fs.create(new Path(directory, "b")).close();
            return "it was written";
        });
        intercept(IOException.class, job::commit);
        assertThat(job.data()).isEmpty();
    }

    @Test
    public void append_leaves_what_is_there_and_replace_does_not() throws Exception {
        ready(conf(), "k=1/a", "k=2/b").commit();
        ready(conf(), "k=1/c").commit();
        assertThat(job().data().keySet()).containsExactly("k=1/a", "k=1/c", "k=2/b");
        CommitterJob replacing = ready(with("replace"), "k=3/d");
        assertThat(job().data().keySet()).as("until it is committed").containsExactly("k=1/a", "k=1/c", "k=2/b");
        replacing.commit();
        assertThat(job().data().keySet()).containsExactly("k=3/d");
        assertThat(fs.exists(new Path(output, "_SUCCESS"))).isTrue();
    }

    @Test
    public void partitions_that_are_written_are_replaced() throws Exception {
        ready(conf(), "k=1/l=1/a", "k=1/l=2/b", "k=2/l=1/c").commit();
        CommitterJob job = ready(with("partitions"), "k=1/l=2/d", "k=3/l=1/e");
        assertThat(job.data().keySet()).containsExactly("k=1/l=1/a", "k=1/l=2/b", "k=2/l=1/c");
        job.commit();
        assertThat(job.data().keySet()).containsExactly("k=1/l=1/a", "k=1/l=2/d", "k=2/l=1/c", "k=3/l=1/e");
    }

    @Test
    public void fail_wants_nothing_there() throws Exception {
        CommitterJob first = ready(with("fail"), "a");
        CommitterJob second = ready(with("fail"), "b");
        first.commit();
        intercept(FileAlreadyExistsException.class, second::commit);
        second.committer.abortJob(second.master, JobStatus.State.FAILED);
        assertThat(first.data()).hasSize(1).containsKey("a");
        CommitterJob third = job(with("fail"));
        intercept(FileAlreadyExistsException.class, third::setup);
        intercept(IllegalArgumentException.class, () -> {
            job(with("guess")).setup();
            return "no such mode";
        });
    }

    @Test
    public void two_jobs_write_into_one_directory_at_once() throws Exception {
        CommitterJob one = ready(conf(), "k=1/one", "same");
        CommitterJob other = ready(conf(), "k=1/other", "same");
        Thread thread = new Thread(() -> {
            try {
                one.commit();
            } catch (IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        });
        thread.start();
        other.commit();
        thread.join();
        assertThat(one.data().keySet()).containsExactly("k=1/one", "k=1/other", "same");
    }

    @Test
    public void a_job_may_be_committed_again() throws Exception {
        CommitterJob job = ready(conf(), "a");
        String told = job.conf.get(RadosOutputCommitter.TRANSACTION);
        assertThat(job.committer.isCommitJobRepeatable(job.master)).isTrue();
        job.commit();
        job.commit();
        // By a committer that has heard of nothing but the transaction: as where the first one has died after its commit.
        job.conf.set(RadosOutputCommitter.TRANSACTION, told);
        new CommitterJob(job.conf, output, job.id.getId()).commit();
        assertThat(job.data()).hasSize(1);
        // What nobody knows of is not taken for what was committed.
        CommitterJob unknown = new CommitterJob(job.conf, output, job.id.getId());
        assertThat(intercept(PathIOException.class, unknown::commit).getMessage()).contains("the job has ended");
        assertThat(job.data()).hasSize(1);
    }

    /** As in MapReduce: tasks have the configuration from before the setup, and another master goes on where one has died. */
    @Test
    public void a_master_that_takes_over_finds_the_transaction_and_the_tasks() throws Exception {
        Configuration master = conf();
        master.setInt(MRJobConfig.APPLICATION_ATTEMPT_ID, 1);
        CommitterJob first = job(master);
        int id = first.id.getId();
        first.setup();
        CommitterJob tasks = new CommitterJob(conf(), output, id);
        tasks.task(0).file("a", "a").commit();
        tasks.task(1).file("b", "b");

        Configuration again = conf();
        again.setInt(MRJobConfig.APPLICATION_ATTEMPT_ID, 2);
        CommitterJob second = new CommitterJob(again, output, id);
        second.setup();
        assertThat(again.get(RadosOutputCommitter.TRANSACTION)).isEqualTo(master.get(RadosOutputCommitter.TRANSACTION));
        assertThat(second.committer.isRecoverySupported(second.master)).isTrue();
        second.committer.recoverTask(second.attempt(TaskType.MAP, 0, 1000).context);
        intercept(PathIOException.class, () -> second.committer.recoverTask(second.attempt(TaskType.MAP, 1, 1000).context));
        second.attempt(TaskType.MAP, 1, 1000).setup().file("b", "anew").commit();
        second.commit();
        assertThat(CommitterJob.files(fs, output)).containsEntry("a", "a").containsEntry("b", "anew").hasSize(3);

        // One that comes when all has ended begins anew.
        CommitterJob third = new CommitterJob(again, output, id);
        third.setup();
        assertThat(again.get(RadosOutputCommitter.TRANSACTION)).isNotEqualTo(master.get(RadosOutputCommitter.TRANSACTION));
        third.committer.abortJob(third.master, JobStatus.State.FAILED);
    }

    @Test
    public void a_task_without_a_job_says_so() throws Exception {
        CommitterJob job = job();
        PathIOException error = intercept(PathIOException.class, () -> job.task(0).file("a", "a"));
        assertThat(error.getMessage()).contains("has not set the job up");
    }

    @Test
    public void leases_are_renewed_until_the_end() throws Exception {
        Configuration conf = conf();
        conf.set("fs.rados.committer.lease", "10m");
        CommitterJob job = ready(conf, "a");
        String id = conf.get(RadosOutputCommitter.TRANSACTION).split(" ")[0];
        assertThat(Leases.isKept(id)).isTrue();
        job.commit();
        assertThat(Leases.isKept(id)).isFalse();
        CommitterJob other = ready(conf, "b");
        id = conf.get(RadosOutputCommitter.TRANSACTION).split(" ")[0];
        other.committer.abortJob(other.master, JobStatus.State.FAILED);
        assertThat(Leases.isKept(id)).isFalse();
    }

    /** A lease of a second, that nobody else breaks: after three it must have been renewed, or the commit fails. */
    @Test
    public void a_job_that_takes_longer_than_its_lease_is_committed() throws Exception {
        Configuration conf = conf();
        conf.set("fs.rados.committer.lease", "1s");
        CommitterJob job = ready(conf, "a");
        Thread.sleep(3000);
        job.commit();
        assertThat(job.data()).hasSize(1);
    }

    @Test
    public void staged_paths_are_for_writing() throws Exception {
        CommitterJob job = job();
        job.setup();
        CommitterJob.Attempt task = job.task(0).file("a", "a");
        Path path = new Path(task.workPath(), "a");
        intercept(PathIOException.class, () -> fs.open(path));
        intercept(PathIOException.class, () -> fs.rename(path, new Path(output, "b")));
        intercept(PathIOException.class, () -> fs.rename(new Path(output, "b"), path));
        intercept(FileAlreadyExistsException.class, () -> fs.create(path, false));
        intercept(FileAlreadyExistsException.class, () -> fs.create(task.workPath(), false));
        assertThat(fs.delete(path, false)).isFalse();
        job.committer.abortJob(job.master, JobStatus.State.FAILED);
        // Only what looks exactly like one is one.
        Path alike = new Path(output, "__transaction-12/a");
        fs.create(alike).close();
        assertThat(fs.exists(alike)).isTrue();
    }

    @Test
    public void the_older_interface_has_it_as_well() throws Exception {
        JobConf conf = new JobConf(conf());
        conf.setOutputCommitter(MapredOutputCommitter.class);
        org.apache.hadoop.mapred.FileOutputFormat.setOutputPath(conf, output);
        org.apache.hadoop.mapred.JobID id = new org.apache.hadoop.mapred.JobID("old", JOBS.incrementAndGet());
        org.apache.hadoop.mapred.JobContext master = new org.apache.hadoop.mapred.JobContextImpl(conf, id);
        conf.getOutputCommitter().setupJob(master);
        JobConf taskConf = new JobConf(conf);
        org.apache.hadoop.mapred.TaskAttemptID attempt =
                new org.apache.hadoop.mapred.TaskAttemptID("old", id.getId(), TaskType.MAP, 0, 0);
        taskConf.set("mapreduce.task.attempt.id", attempt.toString());
        org.apache.hadoop.mapred.TaskAttemptContext context =
                new org.apache.hadoop.mapred.TaskAttemptContextImpl(taskConf, attempt);
        org.apache.hadoop.mapred.RecordWriter<Object, Object> writer =
                new org.apache.hadoop.mapred.TextOutputFormat<>().getRecordWriter(fs, taskConf, "part-00000", () -> { });
        writer.write(null, "line");
        writer.close(org.apache.hadoop.mapred.Reporter.NULL);
        assertThat(CommitterJob.files(fs, output)).isEmpty();
        assertThat(taskConf.getOutputCommitter().needsTaskCommit(context)).isTrue();
        taskConf.getOutputCommitter().commitTask(context);
        conf.getOutputCommitter().commitJob(master);
        assertThat(CommitterJob.files(fs, output)).containsEntry("part-00000", "line\n").containsKey("_SUCCESS").hasSize(2);
    }
}
