import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/**
 * Writes and reads numbered records with keys, headers, tombstones and nulls, in a topic for each
 * codec; prints what was read as JSON, one line for each codec.
 *
 * java Records.java write|read SERVERS PREFIX COUNT CODEC...
 */
public class Records {
  static final String KIND = "org.apache.kafka.common.serialization.String";

  public static void main(String[] given) throws Exception {
    long count = Long.parseLong(given[3]);
    for (String codec : Arrays.copyOfRange(given, 4, given.length)) {
      String topic = given[2] + "-" + codec;
      if (given[0].equals("write")) {
        write(given[1], topic, codec, count);
      } else {
        System.out.println(read(given[1], topic, count));
      }
    }
  }

  static void write(String servers, String topic, String codec, long count) throws Exception {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("compression.type", codec);
    settings.put("key.serializer", KIND + "Serializer");
    settings.put("value.serializer", KIND + "Serializer");
    AtomicReference<Exception> failure = new AtomicReference<>();
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
      for (long number = 0; number < count; number++) {
        String key = number % 7 == 3 && number % 5 != 2 ? null : "k" + number;
        String value = number % 5 == 2 ? null : (codec + " " + number + " ").repeat(9);
        long time = 1_700_000_000_000L + number;
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, 0, time, key, value);
        if (number % 3 == 0) {
          record.headers().add("n", Long.toString(number).getBytes(StandardCharsets.UTF_8));
          record.headers().add("none", null);
        }
        producer.send(record, (at, error) -> {
          if (error != null) {
            failure.set(error);
          }
        });
      }
    }
    if (failure.get() != null) {
      throw failure.get();
    }
  }

  static String read(String servers, String topic, long count) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("key.deserializer", KIND + "Deserializer");
    settings.put("value.deserializer", KIND + "Deserializer");
    StringJoiner found = new StringJoiner(",", "[", "]");
    long until = System.nanoTime() + 60_000_000_000L;
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
      TopicPartition partition = new TopicPartition(topic, 0);
      consumer.assign(List.of(partition));
      consumer.seek(partition, 0);
      for (long got = 0; got < count && System.nanoTime() < until; ) {
        for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(500))) {
          found.add(json(each));
          got++;
        }
      }
    }
    return found.toString();
  }

  static String json(ConsumerRecord<String, String> record) {
    StringJoiner headers = new StringJoiner(",", "[", "]");
    for (Header each : record.headers()) {
      byte[] value = each.value();
      String text = value == null ? null : new String(value, StandardCharsets.UTF_8);
      headers.add("[" + quoted(each.key()) + "," + quoted(text) + "]");
    }
    return "[" + record.offset() + "," + quoted(record.key()) + "," + quoted(record.value()) + ","
        + headers + "," + record.timestamp() + "]";
  }

  /** Returns a string of letters, digits and blanks as JSON. */
  static String quoted(String text) {
    return text == null ? "null" : "\"" + text + "\"";
  }
}
