package io.onehop.rados;

/**
 * What an error is about.
 *
 * @param path a whole URI, or two
 * @param cluster which cluster, for errors that are the cluster's rather than the path's
 */
record Where(String path, String cluster) {
    @Override
    public String toString() {
        return path;
    }
}
