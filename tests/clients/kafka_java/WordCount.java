import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams with exactly_once_v2 counts words. One instance ends in the middle, and another one
 * goes on with the counts of the changelog. Prints the last committed count of each word.
 *
 * java WordCount.java SERVERS INPUT OUTPUT LINES STATE_FOLDER [MILLISECONDS between two lines]
 */
public class WordCount {
  static final String KIND = "org.apache.kafka.common.serialization.";
  static final List<String> WORDS = List.of("a", "b", "c", "a", "b", "a");

  static int pause = 0;

  public static void main(String[] given) throws Exception {
    int lines = Integer.parseInt(given[3]);
    pause = given.length > 5 ? Integer.parseInt(given[5]) : 0;
    KafkaStreams first = started(given);
    write(given[0], given[1], lines / 2);
    counted(given[0], given[2], lines / 2);
    write(given[0], given[1], lines / 4); // some of it is in an open transaction
    first.close(Duration.ofSeconds(20));
    KafkaStreams second = started(given);
    write(given[0], given[1], lines - lines / 2 - lines / 4);
    System.out.println(counted(given[0], given[2], lines));
    second.close(Duration.ofSeconds(20));
  }

  static KafkaStreams started(String[] given) {
    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(given[1], Consumed.with(Serdes.String(), Serdes.String()))
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
        .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
            .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
        .toStream()
        .to(given[2], Produced.with(Serdes.String(), Serdes.Long()));
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "count-" + given[1]);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, given[4]);
    settings.put("auto.offset.reset", "earliest");
    settings.put("session.timeout.ms", 6000); // an instance that ends does not leave its group
    settings.put("heartbeat.interval.ms", 1000);
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
      return null;
    });
    streams.start();
    return streams;
  }

  static void write(String servers, String topic, int lines) throws InterruptedException {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("key.serializer", KIND + "StringSerializer");
    settings.put("value.serializer", KIND + "StringSerializer");
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
      for (int line = 0; line < lines; line++) {
        producer.send(new ProducerRecord<>(topic, line % 2, null, String.join(" ", WORDS)));
        Thread.sleep(pause);
      }
    }
  }

  /** Returns the last committed counts, once they are those of so many lines. A count beyond that
   * is a word that was counted twice. */
  static Map<String, Long> counted(String servers, String topic, int lines) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("isolation.level", "read_committed");
    settings.put("key.deserializer", KIND + "StringDeserializer");
    settings.put("value.deserializer", KIND + "LongDeserializer");
    Map<String, Long> wanted = Map.of("a", 3L * lines, "b", 2L * lines, "c", 1L * lines);
    Map<String, Long> found = new TreeMap<>();
    long until = System.nanoTime() + (pause > 0 ? 240_000_000_000L : 60_000_000_000L);
    try (KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(settings)) {
      List<TopicPartition> both = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
      consumer.assign(both);
      consumer.seekToBeginning(both);
      while (!found.equals(wanted) && System.nanoTime() < until) {
        for (ConsumerRecord<String, Long> each : consumer.poll(Duration.ofMillis(100))) {
          found.put(each.key(), each.value());
        }
      }
    }
    return found;
  }
}
