package strom.bench;

import java.io.IOException;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.concurrent.atomic.AtomicBoolean;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;

/**
 * Reads the three fields that the job needs of an event, with Jackson's streaming parser: user, time
 * in milliseconds, amount.
 */
final class Events implements DeserializationSchema<Tuple3<String, Long, Long>> {
  private static final long serialVersionUID = 1;

  /** One for all subtasks: they are in one process. */
  private static final AtomicBoolean BEGUN = new AtomicBoolean();

  private transient JsonFactory json;
  /** Filled anew for each event: the source hands it on before it asks for the next. */
  private transient Tuple3<String, Long, Long> event;

  @Override
  public void open(InitializationContext context) {
    json = new JsonFactory();
    event = new Tuple3<>();
  }

  @Override
  public Tuple3<String, Long, Long> deserialize(byte[] message) throws IOException {
    if (!BEGUN.getPlain() && BEGUN.compareAndSet(false, true)) {
      System.out.println("started " + ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
      System.out.flush();
    }
    try (JsonParser p = json.createParser(message)) {
      p.nextToken();
      while (p.nextToken() == JsonToken.FIELD_NAME) {
        String name = p.currentName();
        p.nextToken();
        switch (name) {
          case "user" -> event.f0 = p.getText();
          case "at" -> event.f1 = p.getLongValue();
          case "amount" -> event.f2 = p.getLongValue();
          default -> p.skipChildren();
        }
      }
    }
    return event;
  }

  @Override
  public boolean isEndOfStream(Tuple3<String, Long, Long> event) {
    return false;
  }

  @Override
  public TypeInformation<Tuple3<String, Long, Long>> getProducedType() {
    return Types.TUPLE(Types.STRING, Types.LONG, Types.LONG);
  }
}
