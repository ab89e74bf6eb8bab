package io.onehop.rados;

import static org.junit.Assume.assumeTrue;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileSystemContractBaseTest;
import org.junit.Before;

/** The older suite of Hadoop's, which asks about other things than {@link HadoopContractTest}. */
public final class FileSystemContractTest extends FileSystemContractBaseTest {
    @Before
    public void setUp() throws Exception {
        fs = FileSystem.get(TestPool.uri("base"), TestPool.configure(new Configuration()));
    }

    @Override
    public void testMkdirsWithUmask() {
        assumeTrue("not supported: files have no permissions of their own, the cluster's keys have them", false);
    }
}
