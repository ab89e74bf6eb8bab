package io.onehop.rados;

import static org.apache.hadoop.test.LambdaTestUtils.intercept;
import static org.assertj.core.api.Assertions.assertThat;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.security.alias.CredentialProvider;
import org.apache.hadoop.security.alias.CredentialProviderFactory;
import org.junit.Test;

/** Settings of pools, secrets, and what is said when a cluster cannot be used. */
public final class SettingsTest {
    private static String option(Settings settings, String name) throws IOException {
        String[] options = settings.mountOptions();
        int at = Arrays.asList(options).lastIndexOf(name);
        return at < 0 ? null : options[at + 1];
    }

    @Test
    public void a_pools_own_settings_go_first() throws IOException {
        Configuration conf = new Configuration(false);
        conf.set("fs.rados.user", "all");
        conf.set("fs.rados.timeout", "30s");
        conf.set("fs.rados.option.ms_mode", "crc");
        conf.set("fs.rados.pool.hot_pool.user", "one");
        conf.set("fs.rados.pool.hot_pool.option.ms_mode", "secure");
        conf.set("fs.rados.pool.hot_pool.window.bytes", "16M");
        conf.set("fs.rados.read-ahead.bytes", "8M");
        Settings hot = new Settings(conf, "hot_pool");
        Settings cold = new Settings(conf, "cold");
        assertThat(option(hot, "user")).isEqualTo("one");
        assertThat(option(cold, "user")).isEqualTo("all");
        assertThat(option(hot, "timeout_ms")).isEqualTo("30000");
        assertThat(option(hot, "ceph.ms_mode")).isEqualTo("secure");
        assertThat(option(cold, "ceph.ms_mode")).isEqualTo("crc");
        assertThat(option(hot, "window_bytes")).isEqualTo(Long.toString(16 << 20));
        assertThat(option(cold, "window_bytes")).isNull();
        assertThat(option(hot, "read_ahead_bytes")).isEqualTo(Long.toString(8 << 20));
        assertThat(option(hot, "in_flight_bytes")).isNull();
    }

    @Test
    public void names_that_no_setting_has_are_found() {
        Configuration conf = new Configuration(false);
        for (String name : List.of("user", "timeuot", "impl", "impl.disable.cache", "native.library", "option.ms_mode",
                "committer.transaction", "committer.confilct", "pool.hot.user", "pool.hot.usr", "pool.hot.option.x", "pool.hot.b.user",
                "pool.hot.b.option.x", "pool.cold.usr")) {
            conf.set("fs.rados." + name, "1");
        }
        assertThat(new Settings(conf, "hot").unknown())
                .containsExactly("fs.rados.committer.confilct", "fs.rados.pool.hot.usr", "fs.rados.timeuot");
        assertThat(new Settings(conf, "cold").unknown())
                .containsExactly("fs.rados.committer.confilct", "fs.rados.pool.cold.usr", "fs.rados.timeuot");
    }

    @Test
    public void keys_come_from_credential_providers() throws Exception {
        File store = File.createTempFile("onehop", ".jceks");
        assertThat(store.delete()).isTrue();
        Configuration conf = new Configuration(false);
        conf.set(CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH, "localjceks://file" + store);
        CredentialProvider provider = CredentialProviderFactory.getProviders(conf).get(0);
        provider.createCredentialEntry("fs.rados.key", "for all".toCharArray());
        provider.createCredentialEntry("fs.rados.pool.hot.key", "for one".toCharArray());
        provider.flush();
        try {
            assertThat(option(new Settings(conf, "cold"), "ceph.key")).isEqualTo("for all");
            assertThat(option(new Settings(conf, "hot"), "ceph.key")).isEqualTo("for one");
        } finally {
            assertThat(store.delete()).isTrue();
        }
    }

    @Test
    public void what_makes_no_sense_is_said_by_its_name() throws Exception {
        Configuration conf = new Configuration();
        conf.setBoolean("fs.rados.memory", true);
        conf.set("fs.rados.pool.odd.buffer.bytes", "1");
        intercept(IllegalArgumentException.class, "fs.rados.pool.odd.buffer.bytes",
                () -> FileSystem.newInstance(URI.create("rados://odd"), conf));
        conf.set("fs.rados.read.policy", "wild");
        intercept(IllegalArgumentException.class, "fs.rados.read.policy",
                () -> FileSystem.newInstance(URI.create("rados://even"), conf));
        conf.unset("fs.rados.read.policy");
        for (String name : List.of("timeout", "threads", "block.size")) {
            conf.set("fs.rados." + name, "10 parsecs");
            intercept(IllegalArgumentException.class, "fs.rados." + name + " is '10 parsecs'",
                    () -> FileSystem.newInstance(URI.create("rados://even"), conf));
            conf.unset("fs.rados." + name);
        }
        for (String setting : List.of("timeout=-5s", "timeout=0", "timeout=999999999999d", "threads=1000000000",
                "create.chunk.bytes=7", "create.chunk.bytes=128M", "memory=maybe")) {
            String[] pair = setting.split("=");
            Configuration odd = new Configuration(conf);
            odd.set("fs.rados." + pair[0], pair[1]);
            intercept(IllegalArgumentException.class, "fs.rados." + pair[0],
                    () -> FileSystem.newInstance(URI.create("rados://even"), odd));
        }
        conf.set("fs.rados.committer.lease", "10min");
        intercept(IllegalArgumentException.class, "fs.rados.committer.lease",
                () -> new Settings(conf, "even").committerLeaseMillis());
    }

    @Test
    public void a_cluster_that_does_not_answer_is_named_within_the_time() throws Exception {
        File file = File.createTempFile("onehop", ".conf");
        // Nobody listens there.
        Files.writeString(file.toPath(), "[global]\nmon_host = [v2:127.0.0.1:1]\nauth_client_required = none\nkeyring = /dev/null\n");
        Configuration conf = new Configuration();
        conf.set("fs.rados.conf", file.toString());
        conf.set("fs.rados.timeout", "3s");
        long began = System.nanoTime();
        RadosException e = intercept(RadosException.class, file.toString(),
                () -> FileSystem.newInstance(URI.create("rados://my_pool"), conf));
        assertThat(e.getKind()).isIn("TIMED_OUT", "CLUSTER", "NO_LIBRARY");
        assertThat(e.toString().split("`rados://my_pool'", -1)).as("said once: " + e).hasSize(2);
        // The machines of some tests have no librados, where the linker's words are a second "cannot".
        if (!e.getKind().equals("NO_LIBRARY")) {
            assertThat(e.toString().split("cannot ", -1)).as("said once: " + e).hasSize(2);
        }
        assertThat(TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - began)).isLessThan(15);
        assertThat(file.delete()).isTrue();
    }

    @Test
    public void a_cluster_that_cannot_be_used_is_named() throws Exception {
        Configuration conf = new Configuration();
        conf.set("fs.rados.conf", "/nowhere/ceph.conf");
        conf.set("fs.rados.user", "spark");
        conf.set("fs.rados.key", "do not tell");
        IOException e = intercept(IOException.class, () -> FileSystem.newInstance(URI.create("rados://my_pool.x"), conf));
        assertThat(e.toString()).contains("rados://my_pool.x", "/nowhere/ceph.conf", "client.spark")
                .doesNotContain("do not tell");
    }
}
