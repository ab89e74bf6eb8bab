package io.onehop.rados;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Locale;

/**
 * Where the native library comes from; the first of these that is there:
 *
 * <ol>
 *   <li>the file that the system property {@code fs.rados.native.library} names, or the configuration of the file system that is
 *       first opened in this virtual machine;
 *   <li>the one for this platform in the jar that has this class, extracted to a new folder that only this user can enter, and
 *       removed as soon as it is loaded;
 *   <li>{@code libonehop_jni} in {@code java.library.path}.
 * </ol>
 *
 * A file that was named and cannot be loaded is an error: nothing else is tried in its place.
 */
final class NativeLibrary {
    /** The name of the property and of the configuration key. */
    static final String KEY = "fs.rados.native.library";

    private static final String NAME = "onehop_jni";

    /** What a configuration has named; nothing after the library was loaded. */
    private static volatile String configured;

    private NativeLibrary() {}

    /** Has a file be loaded, unless a library is loaded already or the system property names another one. */
    static void configure(String path) {
        if (path != null && !path.isBlank()) {
            configured = path;
        }
    }

    static void load() {
        String named = System.getProperty(KEY, configured);
        if (named != null && !named.isBlank()) {
            System.load(Path.of(named).toAbsolutePath().toString());
            return;
        }
        String resource = "native/" + platform() + "/" + System.mapLibraryName(NAME);
        try (InputStream inside = NativeLibrary.class.getResourceAsStream(resource)) {
            if (inside != null) {
                extractAndLoad(inside);
                return;
            }
        } catch (IOException e) {
            throw new UncheckedLoad(
                    "cannot extract " + resource + " to " + System.getProperty("java.io.tmpdir") + ": " + e.getMessage()
                            + "; name a library with -D" + KEY + "=FILE, or another folder with -Djava.io.tmpdir", e);
        }
        try {
            System.loadLibrary(NAME);
        } catch (UnsatisfiedLinkError e) {
            throw new UncheckedLoad(
                    "there is no native library for " + platform() + " in this jar, nor " + System.mapLibraryName(NAME)
                            + " in java.library.path; name one with -D" + KEY + "=FILE", e);
        }
    }

    private static void extractAndLoad(InputStream inside) throws IOException {
        // Nobody else can put a file there before it is loaded.
        Path folder = Files.createTempDirectory("onehop-",
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
        Path file = folder.resolve(System.mapLibraryName(NAME));
        try {
            Files.copy(inside, file, StandardCopyOption.REPLACE_EXISTING);
            System.load(file.toString());
        } finally {
            // Mapped files stay mapped.
            Files.deleteIfExists(file);
            Files.deleteIfExists(folder);
        }
    }

    /** As {@code linux-x86_64}. */
    private static String platform() {
        String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
        String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        return system + "-" + switch (machine) {
            case "amd64" -> "x86_64";
            case "arm64" -> "aarch64";
            default -> machine;
        };
    }

    /** A library that could not be loaded, and what to do. */
    private static final class UncheckedLoad extends LinkageError {
        private static final long serialVersionUID = 1;

        UncheckedLoad(String message, Throwable cause) {
            super(message, cause);
        }
    }
}
