package strom.bench;

import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * Commits to Kafka, when a checkpoint is complete, how far the source was with it. Chained to the
 * source, so that a barrier passes both at one time. This version of the connector does the same, but
 * from a thread that sits in a poll of up to ten seconds once nothing more comes: the harness, which
 * waits for the last offset, would add them to the time of the run.
 */
final class Offsets extends RichMapFunction<Tuple5<String, Long, Long, Integer, Long>, Tuple3<String, Long, Long>>
    implements CheckpointedFunction, CheckpointListener {
  private static final long serialVersionUID = 1;
  private static final long NONE = -1;

  private final String brokers;
  private final String group;
  private final String topic;
  /** The next offset of each partition; NONE where this subtask has not read it. */
  private final long[] next;

  private transient Admin admin;
  /** What to commit, by checkpoint. */
  private transient TreeMap<Long, long[]> pending;
  private transient Tuple3<String, Long, Long> event;

  Offsets(String brokers, String group, String topic, int partitions) {
    this.brokers = brokers;
    this.group = group;
    this.topic = topic;
    next = new long[partitions];
    Arrays.fill(next, NONE);
  }

  /** Is called before open. There is no state: the source has the offsets. */
  @Override
  public void initializeState(FunctionInitializationContext context) {
    pending = new TreeMap<>();
  }

  @Override
  public void open(OpenContext context) {
    admin = Admin.create(Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, brokers));
    event = new Tuple3<>();
  }

  @Override
  public Tuple3<String, Long, Long> map(Tuple5<String, Long, Long, Integer, Long> e) {
    next[e.f3] = e.f4 + 1;
    event.setFields(e.f0, e.f1, e.f2);
    return event;
  }

  @Override
  public void snapshotState(FunctionSnapshotContext context) {
    pending.put(context.getCheckpointId(), next.clone());
  }

  /** Does not wait: a commit that fails is made good by the next. */
  @Override
  public void notifyCheckpointComplete(long checkpoint) {
    long[] offsets = pending.get(checkpoint);
    pending.headMap(checkpoint, true).clear();
    if (offsets == null) {
      return;
    }
    Map<TopicPartition, OffsetAndMetadata> commit = new HashMap<>();
    for (int p = 0; p < offsets.length; p++) {
      if (offsets[p] != NONE) {
        commit.put(new TopicPartition(topic, p), new OffsetAndMetadata(offsets[p]));
      }
    }
    if (!commit.isEmpty()) {
      admin.alterConsumerGroupOffsets(group, commit);
    }
  }

  @Override
  public void close() {
    if (admin != null) {
      admin.close(Duration.ofSeconds(5));
    }
  }
}
