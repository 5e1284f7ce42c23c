import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * A default producer and a default consumer of one topic: the producer writes until a line comes on
 * standard input and it has written COUNT records. Each value is the number of its record in its
 * partition. The consumer checks that none is missing, repeated or out of order.
 *
 * java Steady.java SERVERS TOPIC PARTITIONS COUNT; prints "go", then what failed, then the count.
 */
public class Steady {
  static final List<String> failures = Collections.synchronizedList(new ArrayList<>());
  static final AtomicLong written = new AtomicLong(-1);

  public static void main(String[] given) throws Exception {
    String topic = given[1];
    int partitions = Integer.parseInt(given[2]);
    long count = Long.parseLong(given[3]);
    Properties settings = new Properties();
    settings.put("bootstrap.servers", given[0]);
    String kind = "org.apache.kafka.common.serialization.Long";
    settings.put("key.serializer", kind + "Serializer");
    settings.put("value.serializer", kind + "Serializer");
    settings.put("key.deserializer", kind + "Deserializer");
    settings.put("value.deserializer", kind + "Deserializer");
    settings.put("group.id", "steady");
    settings.put("auto.offset.reset", "earliest");
    Thread reader = new Thread(() -> read(settings, topic, partitions));
    reader.start();
    AtomicBoolean stopping = new AtomicBoolean();
    Thread listener = new Thread(() -> {
      try {
        System.in.read();
      } catch (Exception error) {
        failures.add("stdin: " + error);
      }
      stopping.set(true);
    });
    listener.setDaemon(true);
    listener.start();
    long number = 0;
    try (KafkaProducer<Long, Long> producer = new KafkaProducer<>(settings)) {
      for (; number < count || !stopping.get(); number++) {
        long value = number / partitions;
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
    written.set(number);
    reader.join(120_000);
    for (String failure : failures.subList(0, Math.min(5, failures.size()))) {
      System.out.println(failure.replace('\n', ' '));
    }
    System.out.println(number);
    System.exit(failures.isEmpty() ? 0 : 1);
  }

  static void read(Properties settings, String topic, int partitions) {
    long[] next = new long[partitions];
    long found = 0;
    long last = System.nanoTime();
    try (KafkaConsumer<Long, Long> consumer = new KafkaConsumer<>(settings)) {
      consumer.subscribe(List.of(topic));
      while (found != written.get()) {
        for (ConsumerRecord<Long, Long> each : consumer.poll(Duration.ofMillis(200))) {
          long expected = next[each.partition()]++;
          if (each.value() != expected) {
            failures.add("partition " + each.partition() + " offset " + each.offset() + ": "
                + each.value() + ", expected " + expected);
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
    } catch (Exception error) {
      failures.add("consume: " + error);
    }
  }
}
