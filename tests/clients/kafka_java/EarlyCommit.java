import com.sun.jdi.Bootstrap;
import com.sun.jdi.Location;
import com.sun.jdi.ReferenceType;
import com.sun.jdi.VMDisconnectedException;
import com.sun.jdi.VirtualMachine;
import com.sun.jdi.connect.Connector;
import com.sun.jdi.connect.LaunchingConnector;
import com.sun.jdi.event.BreakpointEvent;
import com.sun.jdi.event.ClassPrepareEvent;
import com.sun.jdi.event.Event;
import com.sun.jdi.event.EventSet;
import com.sun.jdi.request.BreakpointRequest;
import com.sun.jdi.request.ClassPrepareRequest;
import com.sun.jdi.request.EventRequest;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * A producer whose sender is stopped between two steps: it has read that no batch is unsent, and
 * does not have the lock under which it takes the next request. What the application writes and
 * commits meanwhile is overtaken by its own EndTxn. Prints how many transactions were committed.
 *
 * java EarlyCommit.java SOURCE SERVERS TOPIC, with this file as SOURCE
 */
public class EarlyCommit {
  static final String SENDER = "org.apache.kafka.clients.producer.internals.Sender";
  static final String METHOD = "maybeSendAndPollTransactionalRequest";
  static final long NEXT_REQUEST = 97; // the call of TransactionManager.nextRequest, in Kafka 4.3.1
  static final int PAUSE_MS = 10;
  static final int TRANSACTIONS = 20;

  public static void main(String[] given) throws Exception {
    if (given.length == 2) {
      write(given[0], given[1]);
      return;
    }
    LaunchingConnector connector = Bootstrap.virtualMachineManager().defaultConnector();
    Map<String, Connector.Argument> how = connector.defaultArguments();
    String path = System.getProperty("java.class.path");
    how.get("options").setValue("-Xmx256m -XX:TieredStopAtLevel=1 -cp \"" + path + "\"");
    how.get("main").setValue(given[0] + " " + given[1] + " " + given[2]);
    VirtualMachine machine = connector.launch(how);
    ClassPrepareRequest prepared = machine.eventRequestManager().createClassPrepareRequest();
    prepared.addClassFilter(SENDER);
    prepared.enable();
    machine.resume();
    follow(machine);
    machine.process().getInputStream().transferTo(System.out);
    machine.process().getErrorStream().transferTo(System.err);
    System.exit(machine.process().waitFor());
  }

  static void follow(VirtualMachine machine) throws Exception {
    try {
      while (true) {
        EventSet events = machine.eventQueue().remove();
        for (Event each : events) {
          if (each instanceof ClassPrepareEvent) {
            stop(machine, ((ClassPrepareEvent) each).referenceType());
          } else if (each instanceof BreakpointEvent) {
            Thread.sleep(PAUSE_MS); // the application's thread goes on
          }
        }
        events.resume();
      }
    } catch (VMDisconnectedException ended) {
      return;
    }
  }

  static void stop(VirtualMachine machine, ReferenceType sender) {
    Location place = sender.methodsByName(METHOD).get(0).locationOfCodeIndex(NEXT_REQUEST);
    BreakpointRequest request = machine.eventRequestManager().createBreakpointRequest(place);
    request.setSuspendPolicy(EventRequest.SUSPEND_EVENT_THREAD);
    request.enable();
  }

  static void write(String servers, String topic) {
    String serializer = "org.apache.kafka.common.serialization.StringSerializer";
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.put("transactional.id", "early");
    settings.put("key.serializer", serializer);
    settings.put("value.serializer", serializer);
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
      producer.initTransactions();
      for (int number = 0; number < TRANSACTIONS; number++) {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, "k", "" + number));
        producer.commitTransaction();
      }
    } catch (RuntimeException failed) {
      System.out.println(failed);
      System.exit(1);
    }
    System.out.println(TRANSACTIONS + " committed");
  }
}
