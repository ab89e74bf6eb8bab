package io.onehop.rados;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * What the committed attempts of a transaction have written; {@code wire.rs} has the bytes.
 *
 * @param tasks tasks of which an attempt is committed
 * @param directories directories in which there will be new files, from the root on
 */
record Staged(List<String> tasks, Map<String, Files> directories) {
    /** Files of one directory: how many, and of how many bytes in all. */
    record Files(long count, long bytes) {}

    static Staged decode(byte[] bytes) {
        ByteBuffer from = ByteBuffer.wrap(bytes);
        List<String> tasks = new ArrayList<>();
        for (int left = from.getInt(); left > 0; left--) {
            tasks.add(Entry.text(from));
        }
        Map<String, Files> directories = new TreeMap<>();
        for (int left = from.getInt(); left > 0; left--) {
            String path = "/" + Entry.text(from);
            directories.put(path, new Files(from.getLong(), from.getLong()));
        }
        return new Staged(tasks, directories);
    }

    long files() {
        return directories.values().stream().mapToLong(Files::count).sum();
    }

    long bytes() {
        return directories.values().stream().mapToLong(Files::bytes).sum();
    }
}
