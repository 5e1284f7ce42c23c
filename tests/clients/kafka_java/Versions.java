import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Uses of a node that a client since Kafka 2.1 has: an idempotent producer with each codec, a group
 * that goes on at its committed offset, two members that share the partitions and of which one
 * leaves, and transactions. Prints its version, and a line of JSON for each use.
 *
 * java Versions.java SERVERS TOPIC COUNT CODEC...
 */
public class Versions {
  static final String KIND = "org.apache.kafka.common.serialization.String";
  static final long SECONDS = 60;
  static String servers;
  static String topic;

  public static void main(String[] given) throws Exception {
    servers = given[0];
    topic = given[1];
    int count = Integer.parseInt(given[2]);
    List<String> codecs = List.of(given).subList(3, given.length);
    System.out.println("\"" + AppInfoParser.getVersion() + "\"");
    Map<String, Object> asked = new HashMap<>(Map.of("bootstrap.servers", servers));
    try (AdminClient admin = AdminClient.create(asked)) {
      admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
    }
    for (String codec : codecs) {
      write(codec, count);
    }
    int all = codecs.size() * count;
    List<String> first = read("resumed", all / 2);
    List<String> rest = read("resumed", all - all / 2);
    TreeSet<String> seen = new TreeSet<>(first);
    seen.addAll(rest);
    System.out.println(List.of(first.size(), rest.size(), seen.size()));
    System.out.println(shared());
    System.out.println(transactions());
  }

  static Properties settings(Map<String, String> more) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    for (String each : List.of("key", "value")) {
      settings.put(each + ".serializer", KIND + "Serializer");
      settings.put(each + ".deserializer", KIND + "Deserializer");
    }
    settings.putAll(more);
    return settings;
  }

  static KafkaConsumer<String, String> consumer(String group) {
    return new KafkaConsumer<>(
        settings(
            Map.of(
                "group.id", topic + "-" + group, "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "isolation.level", "read_committed",
                "max.poll.records", "10", "heartbeat.interval.ms", "300")));
  }

  static void write(String codec, int count) throws Exception {
    Map<String, String> more = Map.of("compression.type", codec, "enable.idempotence", "true", "acks", "all");
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings(more))) {
      var sent = new ArrayList<java.util.concurrent.Future<?>>();
      for (int number = 0; number < count; number++) {
        String value = (codec + " " + number + " ").repeat(9);
        ProducerRecord<String, String> record =
            new ProducerRecord<>(topic, number % 2, 1_700_000_000_000L + number, "k" + number, value);
        record.headers().add("n", new byte[] {(byte) number});
        sent.add(producer.send(record));
      }
      for (var each : sent) {
        each.get();
      }
    }
  }

  /** Returns the next records of a group, which it commits. */
  static List<String> read(String group, int count) {
    List<String> found = new ArrayList<>();
    Map<TopicPartition, OffsetAndMetadata> places = new HashMap<>();
    long until = System.nanoTime() + SECONDS * 1_000_000_000L;
    try (KafkaConsumer<String, String> consumer = consumer(group)) {
      consumer.subscribe(List.of(topic));
      while (found.size() < count && System.nanoTime() < until) {
        for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(100))) {
          if (found.size() < count) {
            found.add(each.partition() + " " + each.offset() + " " + each.value());
            places.put(
                new TopicPartition(topic, each.partition()), new OffsetAndMetadata(each.offset() + 1));
          }
        }
      }
      consumer.commitSync(places);
    }
    return found;
  }

  /** Returns the number of partitions of two members, and of the one that stays. */
  static List<Integer> shared() {
    KafkaConsumer<String, String> stays = consumer("shared");
    KafkaConsumer<String, String> leaves = consumer("shared");
    List<KafkaConsumer<String, String>> both = List.of(stays, leaves);
    both.forEach(each -> each.subscribe(List.of(topic)));
    List<Integer> found = new ArrayList<>();
    polled(both, 1);
    both.forEach(each -> found.add(each.assignment().size()));
    leaves.close();
    polled(List.of(stays), 2);
    found.add(stays.assignment().size());
    stays.close();
    return found;
  }

  /** Polls until each consumer has that many partitions. */
  static void polled(Collection<KafkaConsumer<String, String>> consumers, int partitions) {
    List<Thread> running = new ArrayList<>();
    long until = System.nanoTime() + SECONDS * 1_000_000_000L;
    var have = Collections.synchronizedMap(new HashMap<KafkaConsumer<String, String>, Integer>());
    for (KafkaConsumer<String, String> each : consumers) {
      Thread thread =
          new Thread(
              () -> {
                while (System.nanoTime() < until
                    && !consumers.stream().allMatch(one -> have.getOrDefault(one, 0) == partitions)) {
                  each.poll(Duration.ofMillis(50));
                  have.put(each, each.assignment().size());
                }
              });
      thread.start();
      running.add(thread);
    }
    for (Thread each : running) {
      try {
        each.join();
      } catch (InterruptedException end) {
        throw new IllegalStateException(end);
      }
    }
  }

  /** Returns what a reader of committed records gets of two transactions, and the group's offset. */
  static String transactions() throws Exception {
    TopicPartition place = new TopicPartition(topic, 0);
    try (KafkaConsumer<String, String> asks = consumer("transacted");
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(settings(Map.of("transactional.id", topic)))) {
      asks.assign(List.of(place));
      asks.seekToEnd(List.of(place));
      asks.position(place);
      producer.initTransactions();
      for (String each : List.of("aborted", "committed")) {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, null, each)).get();
        offsets(producer, Map.of(place, new OffsetAndMetadata(each.length())));
        if (each.equals("aborted")) {
          producer.abortTransaction();
        } else {
          producer.commitTransaction();
        }
      }
      List<String> found = new ArrayList<>();
      long until = System.nanoTime() + SECONDS * 1_000_000_000L;
      while (found.isEmpty() && System.nanoTime() < until) {
        asks.poll(Duration.ofMillis(100)).forEach(each -> found.add("\"" + each.value() + "\""));
      }
      return List.of(found, committed(asks, place)).toString();
    }
  }

  /** Sends offsets by the group's name before Kafka 2.5, which knows no metadata of a group. */
  static void offsets(
      KafkaProducer<String, String> producer, Map<TopicPartition, OffsetAndMetadata> places)
      throws Exception {
    String group = topic + "-transacted";
    try {
      Class<?> kind = Class.forName("org.apache.kafka.clients.consumer.ConsumerGroupMetadata");
      producer.getClass().getMethod("sendOffsetsToTransaction", Map.class, kind)
          .invoke(producer, places, kind.getConstructor(String.class).newInstance(group));
    } catch (ClassNotFoundException old) {
      producer.getClass().getMethod("sendOffsetsToTransaction", Map.class, String.class)
          .invoke(producer, places, group);
    }
  }

  /** Returns a committed offset: the method for one partition ended with Kafka 4.0. */
  static long committed(KafkaConsumer<String, String> consumer, TopicPartition place)
      throws Exception {
    try {
      Object found = KafkaConsumer.class.getMethod("committed", java.util.Set.class)
          .invoke(consumer, java.util.Set.of(place));
      return ((OffsetAndMetadata) ((Map<?, ?>) found).get(place)).offset();
    } catch (NoSuchMethodException old) {
      Object found = KafkaConsumer.class.getMethod("committed", TopicPartition.class)
          .invoke(consumer, place);
      return ((OffsetAndMetadata) found).offset();
    }
  }
}
