import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Reads topics from the start until its position is their end, as a changelog is restored; prints how
 * many records there were, and the last value of each key, as a line of JSON for each.
 *
 * java Compacted.java SERVERS TOPIC...
 */
public class Compacted {
  static final String KIND = "org.apache.kafka.common.serialization.StringDeserializer";

  public static void main(String[] given) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", given[0]);
    settings.put("isolation.level", "read_committed");
    settings.put("key.deserializer", KIND);
    settings.put("value.deserializer", KIND);
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
      for (int at = 1; at < given.length; at++) {
        System.out.println(restored(consumer, new TopicPartition(given[at], 0)));
      }
    }
  }

  static String restored(KafkaConsumer<String, String> consumer, TopicPartition partition) {
    consumer.assign(List.of(partition));
    consumer.seekToBeginning(List.of(partition));
    long end = consumer.endOffsets(List.of(partition)).get(partition);
    long until = System.nanoTime() + 60_000_000_000L;
    Map<String, String> last = new TreeMap<>();
    long count = 0;
    while (consumer.position(partition) < end && System.nanoTime() < until) {
      for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(500))) {
        count++;
        last.put(each.key(), each.value());
      }
    }
    StringBuilder found = new StringBuilder("[" + count + ",{");
    String comma = "";
    for (Map.Entry<String, String> each : last.entrySet()) {
      String value = each.getValue() == null ? "null" : '"' + each.getValue() + '"';
      found.append(comma).append('"').append(each.getKey()).append("\":").append(value);
      comma = ",";
    }
    return found.append("},").append(consumer.position(partition)).append("]").toString();
  }
}
