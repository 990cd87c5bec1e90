package strom.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.atomic.AtomicBoolean;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serializer;

/** What the job needs of an event: when it happened, in milliseconds, and its amount. */
record Event(long at, long amount) {

  /** Reads the fields that are needed from JSON, with Jackson's streaming parser. */
  static final class Reader implements Deserializer<Event> {
    private final JsonFactory json = new JsonFactory();
    private final AtomicBoolean begun = new AtomicBoolean();
    private final Runnable first;

    Reader(Runnable first) {
      this.first = first;
    }

    @Override
    public Event deserialize(String topic, byte[] data) {
      if (!begun.getPlain() && begun.compareAndSet(false, true)) {
        first.run();
      }
      long at = 0;
      long amount = 0;
      try (JsonParser p = json.createParser(data)) {
        p.nextToken();
        while (p.nextToken() == JsonToken.FIELD_NAME) {
          String name = p.currentName();
          p.nextToken();
          switch (name) {
            case "at" -> at = p.getLongValue();
            case "amount" -> amount = p.getLongValue();
            default -> p.skipChildren();
          }
        }
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
      return new Event(at, amount);
    }
  }

  /** Is never used: nothing writes events. */
  static final class Writer implements Serializer<Event> {
    @Override
    public byte[] serialize(String topic, Event e) {
      throw new UnsupportedOperationException();
    }
  }
}
