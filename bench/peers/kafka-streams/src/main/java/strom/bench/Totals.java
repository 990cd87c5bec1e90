package strom.bench;

import java.nio.ByteBuffer;

import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serializer;

/**
 * The totals of one key in one window. On the wire: five big-endian integers of 8 bytes, the window's
 * start in milliseconds, count, sum, least, largest.
 */
final class Totals {
  private static final int SIZE = 5 * Long.BYTES;

  private long start;
  private long n;
  private long sum;
  private long least = Long.MAX_VALUE;
  private long largest = Long.MIN_VALUE;

  Totals add(long amount) {
    n++;
    sum += amount;
    least = Math.min(least, amount);
    largest = Math.max(largest, amount);
    return this;
  }

  Totals in(long windowStart) {
    start = windowStart;
    return this;
  }

  static final class Writer implements Serializer<Totals> {
    @Override
    public byte[] serialize(String topic, Totals t) {
      return t == null
          ? null
          : ByteBuffer.allocate(SIZE)
              .putLong(t.start).putLong(t.n).putLong(t.sum).putLong(t.least).putLong(t.largest)
              .array();
    }
  }

  static final class Reader implements Deserializer<Totals> {
    @Override
    public Totals deserialize(String topic, byte[] data) {
      if (data == null) {
        return null;
      }
      ByteBuffer b = ByteBuffer.wrap(data);
      Totals t = new Totals();
      t.start = b.getLong();
      t.n = b.getLong();
      t.sum = b.getLong();
      t.least = b.getLong();
      t.largest = b.getLong();
      return t;
    }
  }
}
