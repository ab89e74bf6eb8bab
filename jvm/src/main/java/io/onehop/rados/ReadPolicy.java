package io.onehop.rados;

import java.util.Collection;
import java.util.Locale;
import java.util.Optional;

/** What a stream will probably be asked for; {@code input.rs} says what each does. */
enum ReadPolicy {
    /** It will be seen: little at each new place, then more and more. */
    ADAPTIVE,
    /** From the beginning to the end. */
    SEQUENTIAL,
    /** Some here and some there. */
    RANDOM;

    /** The first policy of a list, as {@code fs.option.openfile.read.policy} has it, that means something here. */
    static Optional<ReadPolicy> of(Collection<String> names) {
        return names.stream().map(ReadPolicy::named).flatMap(Optional::stream).findFirst();
    }

    private static Optional<ReadPolicy> named(String name) {
        return switch (name.trim().toLowerCase(Locale.ROOT)) {
            case "default", "adaptive" -> Optional.of(ADAPTIVE);
            case "sequential", "whole-file", "avro", "csv", "json", "hbase-sequential" -> Optional.of(SEQUENTIAL);
            // The readers of these formats ask for what they need, column by column.
            case "random", "vector", "columnar", "parquet", "orc", "hbase" -> Optional.of(RANDOM);
            default -> Optional.empty();
        };
    }

    /** The name that the native library has for it. */
    String nativeName() {
        return name().toLowerCase(Locale.ROOT);
    }
}
