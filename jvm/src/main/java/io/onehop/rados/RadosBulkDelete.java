package io.onehop.rados;

import java.io.IOException;
import java.util.AbstractMap.SimpleImmutableEntry;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.BulkDeleteUtils;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.fs.statistics.IOStatistics;

/**
 * Removals of many files, side by side. As Hadoop has it, what is not there is no failure, and a directory goes if it is empty.
 *
 * <p>On its own, so that a Hadoop without these classes loads {@link RadosFileSystem} all the same.
 */
final class RadosBulkDelete implements BulkDelete {
    static final int PAGE = 1000;

    private final RadosFileSystem fs;
    private final Path base;
    private final Executor executor;

    private RadosBulkDelete(RadosFileSystem fs, Path base, Executor executor) {
        this.fs = fs;
        this.base = base;
        this.executor = executor;
    }

    /** Declared as what it implements: whoever calls this loads nothing. */
    static BulkDelete create(RadosFileSystem fs, Path base, Executor executor) {
        return new RadosBulkDelete(fs, fs.makeQualified(base), executor);
    }

    @Override
    public int pageSize() {
        return PAGE;
    }

    @Override
    public Path basePath() {
        return base;
    }

    @Override
    public List<Map.Entry<Path, String>> bulkDelete(Collection<Path> paths) throws IOException {
        BulkDeleteUtils.validateBulkDeletePaths(paths, PAGE, base);
        List<CompletableFuture<IOException>> removals = new ArrayList<>();
        List<Path> all = List.copyOf(paths);
        for (Path path : all) {
            removals.add(CompletableFuture.supplyAsync(() -> remove(path), executor));
        }
        List<Map.Entry<Path, String>> failed = new ArrayList<>();
        List<Path> later = new ArrayList<>();
        for (int i = 0; i < all.size(); i++) {
            IOException failure = removals.get(i).join();
            if (failure instanceof PathIsNotEmptyDirectoryException) {
                later.add(all.get(i));
            } else if (failure != null) {
                failed.add(new SimpleImmutableEntry<>(all.get(i), failure.getMessage()));
            }
        }
        // What was in them may have been among the others. The deepest go first.
        later.sort(Comparator.comparingInt(Path::depth).reversed());
        for (Path path : later) {
            IOException failure = remove(path);
            if (failure != null) {
                failed.add(new SimpleImmutableEntry<>(path, failure.getMessage()));
            }
        }
        return failed;
    }

    /** Why a path is still there; null if it is not. */
    private IOException remove(Path path) {
        try {
            fs.delete(path, false);
            return null;
        } catch (IOException e) {
            return e;
        }
    }

    @Override
    public IOStatistics getIOStatistics() {
        return fs.getIOStatistics();
    }

    @Override
    public void close() {}
}
