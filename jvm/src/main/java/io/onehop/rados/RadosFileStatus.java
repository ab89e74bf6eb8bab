package io.onehop.rados;

import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/** What there is to know about a file, with its identity as the entity tag: no two files ever have the same, and a rename keeps it. */
final class RadosFileStatus extends FileStatus implements EtagSource {
    private static final long serialVersionUID = 1;
    /** Nobody is kept from anything here: the cluster's keys do that, by pool and namespace. */
    private static final FsPermission FILE = new FsPermission((short) 0666);
    private static final FsPermission DIRECTORY = new FsPermission((short) 0777);

    /** The identity. */
    private final String id;

    RadosFileStatus(Entry entry, Path path, long blockBytes, String owner) {
        super(entry.length(), entry.isDirectory(), 1, entry.isDirectory() ? 0 : blockBytes, entry.modified(),
                entry.modified(), entry.isDirectory() ? DIRECTORY : FILE, owner, owner, path);
        this.id = entry.id();
    }

    @Override
    public String getEtag() {
        return isDirectory() ? null : id;
    }
}
