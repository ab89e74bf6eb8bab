package io.onehop.rados;

import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Options.HandleOpt;
import org.apache.hadoop.fs.contract.AbstractContractAppendTest;
import org.apache.hadoop.fs.contract.AbstractContractBulkDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractConcatTest;
import org.apache.hadoop.fs.contract.AbstractContractContentSummaryTest;
import org.apache.hadoop.fs.contract.AbstractContractCopyFromLocalTest;
import org.apache.hadoop.fs.contract.AbstractContractCreateTest;
import org.apache.hadoop.fs.contract.AbstractContractDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractEtagTest;
import org.apache.hadoop.fs.contract.AbstractContractGetEnclosingRoot;
import org.apache.hadoop.fs.contract.AbstractContractGetFileStatusTest;
import org.apache.hadoop.fs.contract.AbstractContractMkdirTest;
import org.apache.hadoop.fs.contract.AbstractContractMultipartUploaderTest;
import org.apache.hadoop.fs.contract.AbstractContractOpenTest;
import org.apache.hadoop.fs.contract.AbstractContractPathHandleTest;
import org.apache.hadoop.fs.contract.AbstractContractRenameTest;
import org.apache.hadoop.fs.contract.AbstractContractRootDirectoryTest;
import org.apache.hadoop.fs.contract.AbstractContractSeekTest;
import org.apache.hadoop.fs.contract.AbstractContractSetTimesTest;
import org.apache.hadoop.fs.contract.AbstractContractStreamIOStatisticsTest;
import org.apache.hadoop.fs.contract.AbstractContractUnbufferTest;
import org.apache.hadoop.fs.contract.AbstractContractVectoredReadTest;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;
import org.junit.experimental.runners.Enclosed;
import org.junit.runner.RunWith;

/** The contract suites that Hadoop publishes, each as it is. What they may ask for is in {@code contract/rados.xml}. */
@RunWith(Enclosed.class)
public final class HadoopContractTest {
    private HadoopContractTest() {}

    public static final class Append extends AbstractContractAppendTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class BulkDelete extends AbstractContractBulkDeleteTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }

        @Override
        protected int getExpectedPageSize() {
            return RadosBulkDelete.PAGE;
        }
    }

    public static final class Concat extends AbstractContractConcatTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class ContentSummary extends AbstractContractContentSummaryTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class CopyFromLocal extends AbstractContractCopyFromLocalTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class Create extends AbstractContractCreateTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class Delete extends AbstractContractDeleteTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class Etag extends AbstractContractEtagTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class GetEnclosingRoot extends AbstractContractGetEnclosingRoot {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class GetFileStatus extends AbstractContractGetFileStatusTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class Mkdir extends AbstractContractMkdirTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class MultipartUploader extends AbstractContractMultipartUploaderTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }

        @Override
        protected int partSizeInBytes() {
            return 300 << 10;
        }

        @Override
        protected boolean finalizeConsumesUploadIdImmediately() {
            return true;
        }

        @Override
        protected boolean supportsConcurrentUploadsToSamePath() {
            return true;
        }
    }

    public static final class Open extends AbstractContractOpenTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class PathHandle extends AbstractContractPathHandleTest {
        public PathHandle(String name, HandleOpt[] options, boolean serialized) {
            super(name, options, serialized);
        }

        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class Rename extends AbstractContractRenameTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class RootDirectory extends AbstractContractRootDirectoryTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class Seek extends AbstractContractSeekTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class SetTimes extends AbstractContractSetTimesTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class StreamIOStatistics extends AbstractContractStreamIOStatisticsTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }

        @Override
        public List<String> inputStreamStatisticKeys() {
            return List.of(StreamStatisticNames.STREAM_READ_BYTES, StreamStatisticNames.STREAM_READ_OPERATIONS);
        }

        @Override
        public List<String> outputStreamStatisticKeys() {
            return List.of(StreamStatisticNames.STREAM_WRITE_BYTES);
        }
    }

    public static final class Unbuffer extends AbstractContractUnbufferTest {
        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }

    public static final class VectoredRead extends AbstractContractVectoredReadTest {
        public VectoredRead(String bufferType) {
            super(bufferType);
        }

        @Override
        protected AbstractFSContract createContract(Configuration conf) {
            return new RadosContract(conf);
        }
    }
}
