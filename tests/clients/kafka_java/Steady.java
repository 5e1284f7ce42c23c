import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * A default producer and a default consumer of one topic: the producer writes until a line comes on
 * standard input and it has written COUNT records. Each value has its writer and the number of its
 * record among those of the writer in the partition. The consumer checks that none is missing,
 * repeated or out of order, also of other writers: the line tells how many records they wrote.
 *
 * java Steady.java SERVERS TOPIC PARTITIONS COUNT [CLIENT_ID RACK]; prints "go", then what failed,
 * then the count. With a rack, a last line has the brokers that the consumer preferred.
 */
public class Steady {
  static final List<String> failures = Collections.synchronizedList(new ArrayList<>());
  static final AtomicLong written = new AtomicLong(-1);
  static volatile Object preferred = "";
  static final AtomicLong others = new AtomicLong();

  public static void main(String[] given) throws Exception {
    String topic = given[1];
    int partitions = Integer.parseInt(given[2]);
    long count = Long.parseLong(given[3]);
    Properties settings = new Properties();
    settings.put("bootstrap.servers", given[0]);
    String kind = "org.apache.kafka.common.serialization.String";
    settings.put("key.serializer", kind + "Serializer");
    settings.put("value.serializer", kind + "Serializer");
    settings.put("key.deserializer", kind + "Deserializer");
    settings.put("value.deserializer", kind + "Deserializer");
    settings.put("group.id", "steady");
    settings.put("auto.offset.reset", "earliest");
    if (given.length > 4) {
      settings.put("client.id", given[4]);
    }
    Properties reading = new Properties();
    reading.putAll(settings);
    if (given.length > 5) {
      reading.put("client.id", "reader");
      reading.put("client.rack", given[5]);
    }
    Thread reader = new Thread(() -> read(reading, topic));
    reader.start();
    AtomicBoolean stopping = new AtomicBoolean();
    Thread listener = new Thread(() -> {
      try {
        String line = new BufferedReader(new InputStreamReader(System.in)).readLine();
        others.set(Long.parseLong(line.strip()));
      } catch (Exception error) {
        failures.add("stdin: " + error);
      }
      stopping.set(true);
    });
    listener.setDaemon(true);
    listener.start();
    long number = 0;
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
      for (; number < count || !stopping.get(); number++) {
        String value = "{\"by\":\"java\",\"n\":" + number / partitions + "}";
        int partition = (int) (number % partitions);
        producer.send(new ProducerRecord<>(topic, partition, null, value), (at, error) -> {
          if (error != null) {
            failures.add("produce: " + error);
          }
        });
        if (number == count / 10) {
          producer.flush();
          System.out.println("go");
        }
        if (number >= count) {
          Thread.sleep(2);
        }
      }
    }
    written.set(number + others.get());
    reader.join(120_000);
    for (String failure : failures.subList(0, Math.min(5, failures.size()))) {
      System.out.println(failure.replace('\n', ' '));
    }
    System.out.println(number);
    if (given.length > 5) {
      System.out.println(preferred);
    }
    System.exit(failures.isEmpty() ? 0 : 1);
  }

  static void read(Properties settings, String topic) {
    Map<String, Long> next = new HashMap<>();
    long found = 0;
    long last = System.nanoTime();
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
      consumer.subscribe(List.of(topic));
      while (found != written.get()) {
        for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
          String[] parts = each.value().split("[\": ,{}]+");
          String writer = parts[2] + " in partition " + each.partition();
          long expected = next.merge(writer, 1L, Long::sum) - 1;
          if (Long.parseLong(parts[4]) != expected) {
            failures.add(writer + " offset " + each.offset() + ": " + each.value() + ", expected "
                + expected);
            return;
          }
          found++;
          last = System.nanoTime();
        }
        if (System.nanoTime() - last > 100_000_000_000L) {
          failures.add("read " + found + " records of " + written.get());
          return;
        }
      }
      preferred = consumer.metrics().entrySet().stream()
          .filter(each -> each.getKey().name().equals("preferred-read-replica"))
          .map(each -> each.getValue().metricValue().toString())
          .distinct()
          .collect(Collectors.joining(" "));
    } catch (Exception error) {
      failures.add("consume: " + error);
    }
  }
}
