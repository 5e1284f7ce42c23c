import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams with a store of counts in memory, whose changelog the next instance reads again.
 * Writes UPDATES (may be 0) over KEYS keys to INPUT, waits until they are counted, and prints how
 * many records the store was restored from, and the counts.
 *
 * java Restored.java SERVERS INPUT UPDATES EXPECTED KEYS STATE_FOLDER
 */
public class Restored {
  public static void main(String[] given) throws Exception {
    int updates = Integer.parseInt(given[2]);
    long expected = Long.parseLong(given[3]);
    int keys = Integer.parseInt(given[4]);
    AtomicLong restored = new AtomicLong();
    CountDownLatch running = new CountDownLatch(1);
    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(given[1], Consumed.with(Serdes.String(), Serdes.String()))
        .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
        .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
            .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long())
            .withCachingDisabled());
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "restored");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, given[5]);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
    settings.put("auto.offset.reset", "earliest");
    settings.put("session.timeout.ms", 6000);
    settings.put("heartbeat.interval.ms", 1000);
    try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
      streams.setGlobalStateRestoreListener(new StateRestoreListener() {
        @Override
        public void onRestoreStart(TopicPartition place, String store, long begin, long end) {}

        @Override
        public void onBatchRestored(TopicPartition place, String store, long end, long records) {}

        @Override
        public void onRestoreEnd(TopicPartition place, String store, long records) {
          restored.addAndGet(records);
        }
      });
      streams.setStateListener((now, before) -> {
        if (now == KafkaStreams.State.RUNNING) {
          running.countDown();
        }
      });
      streams.start();
      running.await();
      write(given[0], given[1], updates, keys);
      Map<String, Long> found = counted(streams, expected);
      System.out.println(restored.get() + " " + found);
    }
  }

  static void write(String servers, String topic, int updates, int keys) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
    settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
      for (int at = 0; at < updates; at++) {
        producer.send(new ProducerRecord<>(topic, "k" + at % keys, "v"));
      }
    }
  }

  /** Returns the counts of the store, once they are those of so many updates, or after a minute. */
  static Map<String, Long> counted(KafkaStreams streams, long expected) throws Exception {
    Map<String, Long> found = new TreeMap<>();
    long until = System.nanoTime() + 60_000_000_000L;
    while (System.nanoTime() < until) {
      found.clear();
      long sum = 0;
      ReadOnlyKeyValueStore<String, Long> store = streams.store(
          StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.keyValueStore()));
      try (var all = store.all()) {
        while (all.hasNext()) {
          var each = all.next();
          found.put(each.key, each.value);
          sum += each.value;
        }
      }
      if (sum == expected) {
        return found;
      }
      Thread.sleep(100);
    }
    return found;
  }
}
