package io.onehop.rados;

import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitterFactory;

/** Makes {@link RadosOutputCommitter}s: {@code mapreduce.outputcommitter.factory.scheme.rados} is to name this class. */
public final class RadosOutputCommitterFactory extends PathOutputCommitterFactory {
    /** For Hadoop. */
    public RadosOutputCommitterFactory() {}

    @Override
    public PathOutputCommitter createOutputCommitter(Path outputPath, TaskAttemptContext context) throws IOException {
        // Without a destination there is nothing to commit: what Hadoop does then is right.
        return outputPath == null ? createFileOutputCommitter(null, context)
                : new RadosOutputCommitter(outputPath, context);
    }
}
