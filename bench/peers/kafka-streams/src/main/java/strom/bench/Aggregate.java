package strom.bench;

import java.io.IOException;
import java.io.OutputStream;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The workload "aggregate" on Kafka Streams: count, sum, least and largest amount of each key in
 * tumbling windows of event time. README.md says what is configured and why.
 *
 * <p>It runs until it is asked to stop (SIGTERM, or the end of standard input). On standard output it
 * says {@code started N} at the first event, N in microseconds since 1970.
 */
public final class Aggregate {
  private Aggregate() {}

  public static void main(String[] args) throws InterruptedException {
    Map<String, String> options = options(args);
    KafkaStreams streams = new KafkaStreams(topology(options), configuration(options));
    CountDownLatch ended = new CountDownLatch(1);
    streams.setUncaughtExceptionHandler(
        e -> {
          e.printStackTrace();
          ended.countDown();
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    // SIGTERM: the harness has seen all of the input committed.
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
    Thread harness = new Thread(Aggregate::awaitEndOfInput, "harness");
    harness.setDaemon(true);
    harness.start();
    streams.start();
    ended.await();
    System.exit(1);
  }

  private static void awaitEndOfInput() {
    try {
      System.in.transferTo(OutputStream.nullOutputStream());
    } catch (IOException e) {
      e.printStackTrace();
    }
    System.exit(0);
  }

  static Topology topology(Map<String, String> options) {
    Serde<Event> events = Serdes.serdeFrom(new Event.Writer(), new Event.Reader(Aggregate::started));
    Serde<Totals> totals = Serdes.serdeFrom(new Totals.Writer(), new Totals.Reader());
    Duration size = millis(options, "window-ms");
    Duration grace = millis(options, "lateness-ms");
    StreamsBuilder builder = new StreamsBuilder();
    var windowed =
        builder.stream(
                options.get("input"),
                Consumed.with(Serdes.String(), events)
                    .withTimestampExtractor((record, partitionTime) -> ((Event) record.value()).at()))
            .groupByKey(Grouped.with(Serdes.String(), events))
            .windowedBy(TimeWindows.ofSizeAndGrace(size, grace));
    windowed
        .emitStrategy(EmitStrategy.onWindowUpdate())
        .aggregate(
            Totals::new,
            (key, event, sofar) -> sofar.add(event.amount()),
            Materialized.<String, Totals, WindowStore<Bytes, byte[]>>as("windows")
                .withKeySerde(Serdes.String())
                .withValueSerde(totals)
                .withRetention(size.plus(grace)))
        .toStream()
        .map((window, value) -> KeyValue.pair(window.key(), value.in(window.window().start())))
        .to(options.get("output"), Produced.with(Serdes.String(), totals));
    return builder.build();
  }

  static Properties configuration(Map<String, String> options) {
    Properties p = new Properties();
    p.put(StreamsConfig.APPLICATION_ID_CONFIG, options.get("group"));
    p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.get("brokers"));
    p.put(StreamsConfig.STATE_DIR_CONFIG, options.get("state-dir"));
    p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    p.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, options.get("commit-ms"));
    p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, options.get("threads"));
    p.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, options.get("cache-bytes"));
    p.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    p.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "snappy");
    p.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 << 10);
    p.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 128L << 20);
    p.put(StreamsConfig.mainConsumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    p.put(StreamsConfig.mainConsumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 5000);
    p.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 10000);
    return p;
  }

  private static void started() {
    long micros = TimeUnit.SECONDS.toMicros(Instant.now().getEpochSecond()) + Instant.now().getNano() / 1000;
    System.out.println("started " + micros);
    System.out.flush();
  }

  private static Duration millis(Map<String, String> options, String name) {
    return Duration.ofMillis(Long.parseLong(options.get(name)));
  }

  /** The arguments, each written --name=value. */
  private static Map<String, String> options(String[] args) {
    Map<String, String> options = new HashMap<>();
    for (String arg : args) {
      int eq = arg.indexOf('=');
      if (!arg.startsWith("--") || eq < 0) {
        throw new IllegalArgumentException(arg + ": write --name=value");
      }
      options.put(arg.substring(2, eq), arg.substring(eq + 1));
    }
    return options;
  }
}
