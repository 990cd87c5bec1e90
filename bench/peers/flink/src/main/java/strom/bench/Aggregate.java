package strom.bench;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.CoreOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceOptions;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.state.rocksdb.EmbeddedRocksDBStateBackend.PriorityQueueStateType;
import org.apache.flink.state.rocksdb.RocksDBConfigurableOptions;
import org.apache.flink.state.rocksdb.RocksDBOptions;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import sun.misc.Signal;

/**
 * The workload "aggregate" on Flink: count, sum, least and largest amount of each key in tumbling
 * windows of event time. README.md says what is configured and why.
 *
 * <p>It runs until it is asked to stop. SIGTERM drains the job: windows that are still open are
 * published and committed before the process ends. The end of standard input ends it at once: the
 * harness is gone. On standard output it says {@code started N} at the first event, N in microseconds
 * since 1970.
 */
public final class Aggregate {
  private Aggregate() {}

  public static void main(String[] args) {
    Map<String, String> options = options(args);
    // A handler in place of a shutdown hook: Flink's own hooks delete its files
    // at the same time as any other hook runs, and it still needs them.
    CompletableFuture<Void> asked = new CompletableFuture<>();
    Signal.handle(new Signal("TERM"), signal -> asked.complete(null));
    Thread harness = new Thread(Aggregate::awaitEndOfInput, "harness");
    harness.setDaemon(true);
    harness.start();
    int code = 0;
    try {
      run(options, asked);
    } catch (Exception e) {
      e.printStackTrace();
      code = 1;
    }
    System.exit(code);
  }

  private static void run(Map<String, String> options, CompletableFuture<Void> asked) throws Exception {
    StreamExecutionEnvironment env =
        StreamExecutionEnvironment.createLocalEnvironment(
            Integer.parseInt(options.get("threads")), configuration(options));
    define(env, options);
    JobClient job = env.executeAsync(options.get("group"));
    CompletableFuture<JobExecutionResult> ended = job.getJobExecutionResult();
    CompletableFuture.anyOf(ended, asked).get();
    if (ended.isDone()) {
      throw new IllegalStateException("the job ended by itself");
    }
    job.stopWithSavepoint(true, uri(options, "savepoints"), SavepointFormatType.NATIVE).get();
    ended.get();
  }

  private static void awaitEndOfInput() {
    try {
      System.in.transferTo(OutputStream.nullOutputStream());
    } catch (IOException e) {
      e.printStackTrace();
    }
    Runtime.getRuntime().halt(1);
  }

  static void define(StreamExecutionEnvironment env, Map<String, String> options) {
    WatermarkStrategy<Tuple5<String, Long, Long, Integer, Long>> watermarks =
        WatermarkStrategy.<Tuple5<String, Long, Long, Integer, Long>>forMonotonousTimestamps()
            .withTimestampAssigner((event, recordTime) -> event.f1);
    int partitions = Integer.parseInt(options.get("partitions"));
    // A reader without a partition would hold the watermark back.
    int readers = Math.min(env.getParallelism(), partitions);
    env.fromSource(source(options), watermarks, "events")
        .uid("events")
        .setParallelism(readers)
        .map(new Offsets(options.get("brokers"), options.get("group"), options.get("input"), partitions))
        .returns(Types.TUPLE(Types.STRING, Types.LONG, Types.LONG))
        .uid("offsets")
        .setParallelism(readers)
        .keyBy(event -> event.f0, Types.STRING)
        .window(TumblingEventTimeWindows.of(millis(options, "window-ms")))
        .allowedLateness(millis(options, "lateness-ms"))
        .aggregate(
            new Totals(),
            new Totals.Writer(),
            PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO,
            Types.TUPLE(Types.STRING, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO))
        .uid("windows")
        .sinkTo(sink(options))
        .uid("results");
  }

  private static KafkaSource<Tuple5<String, Long, Long, Integer, Long>> source(Map<String, String> options) {
    return KafkaSource.<Tuple5<String, Long, Long, Integer, Long>>builder()
        .setBootstrapServers(options.get("brokers"))
        .setTopics(options.get("input"))
        .setGroupId(options.get("group"))
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setDeserializer(new Events())
        .setProperty(KafkaSourceOptions.COMMIT_OFFSETS_ON_CHECKPOINT.key(), "false") // see Offsets
        .setProperty(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "5000")
        .build();
  }

  private static KafkaSink<Tuple2<String, byte[]>> sink(Map<String, String> options) {
    return KafkaSink.<Tuple2<String, byte[]>>builder()
        .setBootstrapServers(options.get("brokers"))
        .setRecordSerializer(Results.to(options.get("output")))
        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .setTransactionalIdPrefix(options.get("group"))
        .setTransactionNamingStrategy(TransactionNamingStrategy.POOLING)
        .setProperty(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, "600000")
        .setProperty(ProducerConfig.COMPRESSION_TYPE_CONFIG, "snappy")
        .setProperty(ProducerConfig.LINGER_MS_CONFIG, "100")
        .setProperty(ProducerConfig.BATCH_SIZE_CONFIG, String.valueOf(256 << 10))
        .setProperty(ProducerConfig.BUFFER_MEMORY_CONFIG, String.valueOf(128L << 20))
        .build();
  }

  static Configuration configuration(Map<String, String> options) {
    Configuration c = new Configuration();
    c.set(PipelineOptions.OBJECT_REUSE, true);
    c.set(PipelineOptions.GENERIC_TYPES, false);
    c.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
    c.set(RestOptions.BIND_ADDRESS, "localhost");
    c.set(CoreOptions.TMP_DIRS, path(options, "tmp").toString());

    c.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, millis(options, "commit-ms"));
    c.set(CheckpointingOptions.CHECKPOINTING_CONSISTENCY_MODE, CheckpointingMode.EXACTLY_ONCE);
    c.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
    c.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, uri(options, "checkpoints"));
    c.set(CheckpointingOptions.INCREMENTAL_CHECKPOINTS, true);

    c.set(StateBackendOptions.STATE_BACKEND, "rocksdb");
    c.set(RocksDBOptions.LOCAL_DIRECTORIES, path(options, "rocksdb").toString());
    c.set(RocksDBOptions.TIMER_SERVICE_FACTORY, PriorityQueueStateType.ROCKSDB);
    c.set(RocksDBOptions.ROCKSDB_TIMER_SERVICE_FACTORY_CACHE_SIZE, 512);
    c.set(RocksDBConfigurableOptions.USE_BLOOM_FILTER, true);
    // A half of it is RocksDB's memtables, by the default of
    // state.backend.rocksdb.memory.write-buffer-ratio; the other half its block cache.
    c.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, new MemorySize(2 * Long.parseLong(options.get("cache-bytes"))));
    return c;
  }

  private static Path path(Map<String, String> options, String name) {
    return Path.of(options.get("state-dir"), name).toAbsolutePath();
  }

  private static String uri(Map<String, String> options, String name) {
    return path(options, name).toUri().toString();
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
