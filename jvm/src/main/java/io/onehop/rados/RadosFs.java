package io.onehop.rados;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.InvalidPathException;
import org.apache.hadoop.fs.Path;

/**
 * {@link RadosFileSystem} for {@code FileContext}: what structured streaming's checkpoints and YARN's log aggregation use.
 *
 * <p>Hadoop takes an authority for a host here, and refuses one that no host could have, as with "_". So it is given a name that a
 * host could have, one for each authority, and asks for the real one.
 */
public final class RadosFs extends DelegateToFileSystem {
    /**
     * What {@code FileContext} calls, by reflection.
     *
     * @param uri the pool, as {@code rados://POOL[.NAMESPACE]}
     * @param conf what {@link RadosFileSystem} is configured by
     * @throws IOException if the file system cannot be had
     * @throws URISyntaxException if the URI is of another scheme
     */
    public RadosFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
        // An authority that is "needed" is one with a port, to Hadoop.
        super(standIn(uri), new RadosFileSystem(uri), conf, RadosFileSystem.SCHEME, false);
    }

    private static URI standIn(URI uri) {
        if (uri.getHost() != null || uri.getRawAuthority() == null) {
            return uri;
        }
        byte[] authority = uri.getRawAuthority().getBytes(StandardCharsets.UTF_8);
        return URI.create(uri.getScheme() + "://x" + HexFormat.of().formatHex(authority) + "/");
    }

    /** None: an authority is a pool. */
    @Override
    public int getUriDefaultPort() {
        return -1;
    }

    /** The real one. */
    @Override
    public URI getUri() {
        return fsImpl == null ? super.getUri() : fsImpl.getUri();
    }

    /** Compares what Hadoop does not: authorities that are no hosts. */
    @Override
    public void checkPath(Path path) {
        super.checkPath(path);
        String authority = path.toUri().getRawAuthority();
        if (authority != null && !authority.equals(getUri().getRawAuthority())) {
            throw new InvalidPathException("Wrong FS: " + path + ", expected: " + getUri());
        }
    }
}
