package io.onehop.rados;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestCleanupStage;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestCommitTaskStage;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestCreateOutputDirectoriesStage;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestJobThroughManifestCommitter;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestLoadManifestsStage;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestManifestCommitProtocol;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestRenameStageFailure;
import org.apache.hadoop.mapreduce.lib.output.committer.manifest.TestTaskManifestFileIO;
import org.junit.experimental.runners.Enclosed;
import org.junit.runner.RunWith;

/**
 * Hadoop's own tests of its manifest committer, as they are: tasks in parallel, files renamed into place, failures injected. What they
 * ask of a file system is what a committer of anybody's does.
 */
@RunWith(Enclosed.class)
public final class ManifestCommitterTest {
    private ManifestCommitterTest() {}

    public static final class CleanupStage extends TestCleanupStage {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class CommitTaskStage extends TestCommitTaskStage {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class CreateOutputDirectoriesStage extends TestCreateOutputDirectoriesStage {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class JobThroughManifestCommitter extends TestJobThroughManifestCommitter {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class LoadManifestsStage extends TestLoadManifestsStage {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class ManifestCommitProtocol extends TestManifestCommitProtocol {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class RenameStageFailure extends TestRenameStageFailure {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class TaskManifestFileIO extends TestTaskManifestFileIO {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }
}
