import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

/**
 * Transactions of one producer: committed and aborted ones by turns, one with the offsets of a
 * consumer, and a second instance that fences it. Prints the level of `transaction.version`, what
 * readers of committed and of all records get, the offset of the group before and after its commit,
 * and the error of the fenced instance.
 *
 * java Transactions.java SERVERS TOPIC
 */
public class Transactions {
  static final String KIND = "org.apache.kafka.common.serialization.String";

  public static void main(String[] given) throws Exception {
    String servers = given[0];
    String topic = given[1];
    TopicPartition input = new TopicPartition(topic + "-input", 0);
    Map<String, Object> admin = Map.of("bootstrap.servers", servers);
    try (Admin asked = Admin.create(admin)) {
      System.out.println(
          asked.describeFeatures().featureMetadata().get().finalizedFeatures()
              .get("transaction.version").maxVersionLevel());
      KafkaProducer<String, String> first = producer(servers, topic);
      for (int number = 0; number < 4; number++) {
        first.beginTransaction();
        for (int part = 0; part < 2; part++) {
          first.send(new ProducerRecord<>(topic, part, null, (number % 2 == 0 ? "c" : "a") + number));
        }
        if (number % 2 == 0) {
          first.commitTransaction();
        } else {
          first.flush();
          first.abortTransaction();
        }
      }
      try (KafkaConsumer<String, String> consumer = consumer(servers, topic, "read_committed")) {
        consumer.assign(List.of(input));
        first.beginTransaction();
        first.send(new ProducerRecord<>(topic, 0, null, "c4"));
        first.sendOffsetsToTransaction(
            Map.of(input, new OffsetAndMetadata(7)), consumer.groupMetadata());
        first.commitTransaction();
        System.out.println(consumer.committed(Set.of(input)).get(input).offset());
        first.beginTransaction();
        first.sendOffsetsToTransaction(
            Map.of(input, new OffsetAndMetadata(9)), consumer.groupMetadata());
        first.abortTransaction();
        System.out.println(consumer.committed(Set.of(input)).get(input).offset());
      }
      first.beginTransaction();
      first.send(new ProducerRecord<>(topic, 1, null, "a5")).get();
      System.out.println(asked.describeTransactions(List.of(topic)).all().get().get(topic).state());
      KafkaProducer<String, String> second = producer(servers, topic);
      try {
        first.commitTransaction();
        System.out.println("not fenced");
      } catch (ProducerFencedException fenced) {
        System.out.println("fenced");
      }
      first.close(Duration.ZERO);
      second.beginTransaction();
      second.send(new ProducerRecord<>(topic, 1, null, "c6"));
      second.commitTransaction();
      second.close();
      producer(servers, topic).close(); // waits for the markers
    }
    System.out.println(read(servers, topic, "read_committed"));
    System.out.println(read(servers, topic, "read_uncommitted"));
  }

  static KafkaProducer<String, String> producer(String servers, String id) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("transactional.id", id);
    settings.put("key.serializer", KIND + "Serializer");
    settings.put("value.serializer", KIND + "Serializer");
    KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
    producer.initTransactions();
    return producer;
  }

  static KafkaConsumer<String, String> consumer(String servers, String group, String isolation) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("group.id", group);
    settings.put("isolation.level", isolation);
    settings.put("enable.auto.commit", "false");
    settings.put("key.deserializer", KIND + "Deserializer");
    settings.put("value.deserializer", KIND + "Deserializer");
    return new KafkaConsumer<>(settings);
  }

  static List<String> read(String servers, String topic, String isolation) {
    List<String> found = new ArrayList<>();
    try (KafkaConsumer<String, String> consumer = consumer(servers, "none", isolation)) {
      List<TopicPartition> both = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
      consumer.assign(both);
      consumer.seekToBeginning(both);
      Map<TopicPartition, Long> ends = consumer.endOffsets(both);
      long until = System.nanoTime() + 60_000_000_000L;
      while (both.stream().anyMatch(each -> consumer.position(each) < ends.get(each))
          && System.nanoTime() < until) {
        for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
          found.add(each.partition() + each.value());
        }
      }
    }
    found.sort(null);
    return found;
  }
}
