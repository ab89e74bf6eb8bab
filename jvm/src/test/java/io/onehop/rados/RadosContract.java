package io.onehop.rados;

import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.contract.AbstractBondedFSContract;

/** What {@code rados://} promises, for Hadoop's suites: {@code contract/rados.xml}. */
final class RadosContract extends AbstractBondedFSContract {
    RadosContract(Configuration conf) {
        super(TestPool.configure(conf));
        addConfResource("contract/rados.xml");
        URI uri = TestPool.uri("contract");
        getConf().set("fs.contract.test.fs.rados", uri.toString());
        getConf().set("fs.defaultFS", uri.toString());
    }

    @Override
    public String getScheme() {
        return RadosFileSystem.SCHEME;
    }
}
