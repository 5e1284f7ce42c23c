// Uses of a node by kafka-go: `kafkago SERVERS TOPIC COUNT CODEC...`. Prints a line of JSON for each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

var servers, topic string

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func shown(value any) {
	text, err := json.Marshal(value)
	must(err)
	fmt.Println(string(text))
}

func write(ctx context.Context, codec string, count int) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(servers), Topic: topic, Balancer: &kafka.RoundRobin{},
		RequiredAcks: kafka.RequireAll, BatchTimeout: 5 * time.Millisecond,
	}
	if codec != "none" {
		var compression kafka.Compression
		must(compression.UnmarshalText([]byte(codec)))
		writer.Compression = compression
	}
	messages := make([]kafka.Message, count)
	for number := range messages {
		messages[number] = kafka.Message{
			Key:     []byte("k" + strconv.Itoa(number)),
			Value:   []byte(strings.Repeat(fmt.Sprintf("%s %d ", codec, number), 9)),
			Headers: []kafka.Header{{Key: "n", Value: []byte(strconv.Itoa(number))}},
		}
	}
	must(writer.WriteMessages(ctx, messages...))
	must(writer.Close())
}

func reader() *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{servers}, GroupID: topic + "-readers", Topic: topic,
		StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond,
		HeartbeatInterval: 300 * time.Millisecond, RebalanceTimeout: 5 * time.Second,
	})
}

// The next values of the group, which it commits.
func read(ctx context.Context, count int, members ...*kafka.Reader) []string {
	found := make(chan kafka.Message)
	for _, member := range members {
		go func() {
			for {
				message, err := member.FetchMessage(ctx)
				if err != nil {
					if !errors.Is(err, io.EOF) && ctx.Err() == nil {
						panic(err)
					}
					return
				}
				must(member.CommitMessages(ctx, message))
				found <- message
			}
		}()
	}
	values := []string{}
	for len(values) < count {
		message := <-found
		values = append(values, string(message.Value))
	}
	return values
}

func main() {
	servers, topic = os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	codecs := os.Args[4:]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(servers)}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}},
	})
	must(err)
	must(created.Errors[topic])
	all := map[string]bool{}
	for _, codec := range codecs {
		write(ctx, codec, count)
	}
	alone := reader()
	for _, value := range read(ctx, len(codecs)*count, alone) {
		all[value] = true
	}
	must(alone.Close())
	// the group goes on at what it committed, with two members
	write(ctx, "none", 20)
	first, second := reader(), reader()
	rest := map[string]bool{}
	for _, value := range read(ctx, 20, first, second) {
		rest[value] = true
	}
	must(first.Close())
	must(second.Close())
	shown([]int{len(all), len(rest)})
}
