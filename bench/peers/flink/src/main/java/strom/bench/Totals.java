package strom.bench;

import java.nio.ByteBuffer;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.functions.windowing.WindowFunction;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * The totals of one key in one window: count, sum, least, largest. The accumulator is an array of
 * primitives, which Flink's own serializer writes as it is; a POJO or a tuple costs a box or a flag for
 * each field, at every event.
 */
final class Totals implements AggregateFunction<Tuple3<String, Long, Long>, long[], long[]> {
  private static final long serialVersionUID = 1;

  @Override
  public long[] createAccumulator() {
    return new long[] {0, 0, Long.MAX_VALUE, Long.MIN_VALUE};
  }

  @Override
  public long[] add(Tuple3<String, Long, Long> event, long[] t) {
    long amount = event.f2;
    t[0]++;
    t[1] += amount;
    t[2] = Math.min(t[2], amount);
    t[3] = Math.max(t[3], amount);
    return t;
  }

  @Override
  public long[] getResult(long[] t) {
    return t;
  }

  @Override
  public long[] merge(long[] t, long[] o) {
    return new long[] {t[0] + o[0], t[1] + o[1], Math.min(t[2], o[2]), Math.max(t[3], o[3])};
  }

  /**
   * A window's totals as they are published: its key, and five big-endian integers of 8 bytes, the
   * window's start in milliseconds, count, sum, least, largest.
   */
  static final class Writer implements WindowFunction<long[], Tuple2<String, byte[]>, String, TimeWindow> {
    private static final long serialVersionUID = 1;

    @Override
    public void apply(String key, TimeWindow window, Iterable<long[]> totals, Collector<Tuple2<String, byte[]>> out) {
      for (long[] t : totals) {
        ByteBuffer b = ByteBuffer.allocate(5 * Long.BYTES).putLong(window.getStart());
        for (long v : t) {
          b.putLong(v);
        }
        out.collect(Tuple2.of(key, b.array()));
      }
    }
  }
}
