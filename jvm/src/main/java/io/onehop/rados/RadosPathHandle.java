package io.onehop.rados;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.RawPathHandle;

/** A path and, if it must be this very file, its identity: two lines of text. */
final class RadosPathHandle implements PathHandle {
    private static final long serialVersionUID = 1;

    /** The path, a whole URI. */
    private final String path;
    /** The identity, or empty: any file that has the path. */
    private final String id;

    RadosPathHandle(String path, String id) {
        this.path = path;
        this.id = id;
    }

    static RadosPathHandle of(PathHandle handle) throws IOException {
        if (handle instanceof RadosPathHandle ours) {
            return ours;
        }
        List<String> lines = StandardCharsets.UTF_8.decode(handle.bytes()).toString().lines().toList();
        if (!(handle instanceof RawPathHandle) || lines.size() != 2) {
            throw new InvalidPathHandleException("it is not a path handle of " + RadosFileSystem.SCHEME + "://");
        }
        return new RadosPathHandle(lines.get(1), lines.get(0));
    }

    String path() {
        return path;
    }

    /** Whether a file with this identity is meant. */
    boolean means(String other) {
        return id.isEmpty() || id.equals(other);
    }

    @Override
    public ByteBuffer bytes() {
        return StandardCharsets.UTF_8.encode(id + "\n" + path);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PathHandle handle && bytes().equals(handle.bytes());
    }

    @Override
    public int hashCode() {
        return path.hashCode();
    }

    @Override
    public String toString() {
        return path + (id.isEmpty() ? "" : "@" + id);
    }
}
