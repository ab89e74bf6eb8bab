package io.onehop.rados;

import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.LocatedFileStatus;

/** A {@link RadosFileStatus} with the file's blocks, which are nowhere in particular. */
final class RadosLocatedFileStatus extends LocatedFileStatus implements EtagSource {
    private static final long serialVersionUID = 1;

    /** The file's identity. */
    private final String etag;

    RadosLocatedFileStatus(RadosFileStatus status, BlockLocation[] blocks) {
        super(status, blocks);
        this.etag = status.getEtag();
    }

    @Override
    public String getEtag() {
        return etag;
    }
}
