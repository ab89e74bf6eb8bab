package io.onehop.rados;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;

/**
 * What there is to know about a name; {@code wire.rs} has the bytes.
 *
 * @param name the last name of its path, empty for the root
 * @param isDirectory whether it is a directory
 * @param length bytes of a file
 * @param modified when the file was closed or the directory made, in milliseconds since 1970
 * @param id unlike that of every other file that was ever written; a rename keeps it
 */
record Entry(String name, boolean isDirectory, long length, long modified, String id) {
    private static final HexFormat HEX = HexFormat.of();

    /** Some entries of a directory, and the name behind which the next ones begin, or null. */
    record Page(List<Entry> entries, String next) {}

    static Entry decode(byte[] bytes) {
        return take(ByteBuffer.wrap(bytes));
    }

    static Page decodePage(byte[] bytes) {
        ByteBuffer from = ByteBuffer.wrap(bytes);
        String next = text(from);
        int count = from.getInt();
        List<Entry> entries = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            entries.add(take(from));
        }
        return new Page(entries, next.isEmpty() ? null : next);
    }

    /** A text behind the number of its bytes. */
    static String text(ByteBuffer from) {
        byte[] bytes = new byte[from.getInt()];
        from.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static Entry take(ByteBuffer from) {
        boolean isDirectory = from.get() == 1;
        long length = from.getLong();
        long modified = from.getLong();
        String id = HEX.toHexDigits(from.getLong()) + HEX.toHexDigits(from.getLong());
        return new Entry(text(from), isDirectory, length, modified, id);
    }
}
