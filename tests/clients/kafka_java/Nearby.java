import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * A consumer of partition 0 in a rack: it checks that the records are numbered and in order, and
 * prints from which broker it reads once it has half of them, and once it has all.
 *
 * java Nearby.java SERVERS TOPIC RACK COUNT; prints a broker's id, "null" for the leader, or what
 * failed.
 */
public class Nearby {
  public static void main(String[] given) throws Exception {
    String topic = given[1];
    long count = Long.parseLong(given[3]);
    Properties settings = new Properties();
    settings.put("bootstrap.servers", given[0]);
    settings.put("client.rack", given[2]);
    String kind = "org.apache.kafka.common.serialization.String";
    settings.put("key.deserializer", kind + "Deserializer");
    settings.put("value.deserializer", kind + "Deserializer");
    TopicPartition partition = new TopicPartition(topic, 0);
    long next = 0;
    long until = System.nanoTime() + 60_000_000_000L;
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
      consumer.assign(List.of(partition));
      consumer.seek(partition, 0);
      while (next < count && System.nanoTime() < until) {
        for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
          if (Long.parseLong(each.value()) != next || each.offset() != next) {
            System.out.println("offset " + each.offset() + ": " + each.value());
            System.exit(1);
          }
          next++;
          if (next == count / 2 || next == count) {
            System.out.println(broker(consumer));
          }
        }
      }
    }
    System.exit(next == count ? 0 : 1);
  }

  /** Returns the broker that the consumer reads from in place of the leader. */
  static Object broker(KafkaConsumer<String, String> consumer) {
    return consumer.metrics().entrySet().stream()
        .filter(each -> each.getKey().name().equals("preferred-read-replica"))
        .map(each -> each.getValue().metricValue())
        .findFirst()
        .orElse(null);
  }
}
