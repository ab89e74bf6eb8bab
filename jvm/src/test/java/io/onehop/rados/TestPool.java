package io.onehop.rados;

import java.net.URI;
import org.apache.hadoop.conf.Configuration;

/**
 * The file system that the tests have: in memory, or, if the system property {@code onehop.ceph.conf} names a cluster's
 * configuration, in a namespace of its own of the pool {@code meta} there, with {@code data} for its bytes.
 *
 * <p>Either way its authority has an underscore, which makes {@link URI#getHost} null, and chunks are small, so that files have several.
 */
final class TestPool {
    private static final String CEPH_CONF = System.getProperty("onehop.ceph.conf", "");
    /** Of this run: what other runs have left is not in it. */
    private static final String RUN = "jvm_" + ProcessHandle.current().pid() + "_" + System.currentTimeMillis();

    private TestPool() {}

    static boolean isCluster() {
        return !CEPH_CONF.isEmpty();
    }

    /** The authority of a file system of this run. */
    static URI uri(String name) {
        return URI.create("rados://meta." + RUN + "_" + name);
    }

    /** What is needed to use it. */
    static Configuration configure(Configuration conf) {
        conf.set("fs.rados.create.chunk.bytes", "256K");
        if (isCluster()) {
            conf.set("fs.rados.conf", CEPH_CONF);
            conf.set("fs.rados.create.data-pool", "data");
            conf.set("fs.rados.timeout", "20s");
        } else {
            conf.setBoolean("fs.rados.memory", true);
        }
        return conf;
    }
}
