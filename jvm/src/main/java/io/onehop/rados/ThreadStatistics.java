package io.onehop.rados;

import java.util.function.Consumer;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsAggregator;
import org.apache.hadoop.fs.statistics.IOStatisticsContext;

/** Statistics of the thread that has opened a stream, where this Hadoop (3.3.5 and later) has such a thing. */
final class ThreadStatistics {
    private static final boolean PRESENT = isPresent();

    private ThreadStatistics() {}

    /** Where the statistics of a stream go that this thread opens. */
    static Consumer<IOStatistics> collector() {
        return PRESENT ? Present.collector() : statistics -> {};
    }

    private static boolean isPresent() {
        try {
            Class.forName("org.apache.hadoop.fs.statistics.IOStatisticsContext", false,
                    ThreadStatistics.class.getClassLoader());
            return true;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    /** Loaded only if there is what it uses. */
    private static final class Present {
        static Consumer<IOStatistics> collector() {
            IOStatisticsAggregator context = IOStatisticsContext.getCurrentIOStatisticsContext().getAggregator();
            return context::aggregate;
        }
    }
}
