package strom.bench;

import java.nio.charset.StandardCharsets;

import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;

/** How a result becomes a record. Classes, because the sink asks them for their type, which a lambda has not. */
final class Results {
  private Results() {}

  static KafkaRecordSerializationSchema<Tuple2<String, byte[]>> to(String topic) {
    return KafkaRecordSerializationSchema.<Tuple2<String, byte[]>>builder()
        .setTopic(topic)
        .setKeySerializationSchema(new Key())
        .setValueSerializationSchema(new Value())
        .build();
  }

  private static final class Key implements SerializationSchema<Tuple2<String, byte[]>> {
    private static final long serialVersionUID = 1;

    @Override
    public byte[] serialize(Tuple2<String, byte[]> result) {
      return result.f0.getBytes(StandardCharsets.UTF_8);
    }
  }

  private static final class Value implements SerializationSchema<Tuple2<String, byte[]>> {
    private static final long serialVersionUID = 1;

    @Override
    public byte[] serialize(Tuple2<String, byte[]> result) {
      return result.f1;
    }
  }
}
