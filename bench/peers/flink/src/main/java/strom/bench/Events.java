package strom.bench;

import java.io.IOException;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.concurrent.atomic.AtomicBoolean;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import org.apache.flink.api.common.serialization.DeserializationSchema.InitializationContext;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Reads the three fields that the job needs of an event, with Jackson's streaming parser: user, time
 * in milliseconds, amount; and the record's partition and offset.
 */
final class Events implements KafkaRecordDeserializationSchema<Tuple5<String, Long, Long, Integer, Long>> {
  private static final long serialVersionUID = 1;

  /** One for all subtasks: they are in one process. */
  private static final AtomicBoolean BEGUN = new AtomicBoolean();

  private transient JsonFactory json;
  /** Filled anew for each event: the source hands it on before it asks for the next. */
  private transient Tuple5<String, Long, Long, Integer, Long> event;

  @Override
  public void open(InitializationContext context) {
    json = new JsonFactory();
    event = new Tuple5<>();
  }

  @Override
  public void deserialize(
      ConsumerRecord<byte[], byte[]> record, Collector<Tuple5<String, Long, Long, Integer, Long>> out)
      throws IOException {
    if (!BEGUN.getPlain() && BEGUN.compareAndSet(false, true)) {
      System.out.println("started " + ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
      System.out.flush();
    }
    try (JsonParser p = json.createParser(record.value())) {
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
    event.f3 = record.partition();
    event.f4 = record.offset();
    out.collect(event);
  }

  @Override
  public TypeInformation<Tuple5<String, Long, Long, Integer, Long>> getProducedType() {
    return Types.TUPLE(Types.STRING, Types.LONG, Types.LONG, Types.INT, Types.LONG);
  }
}
