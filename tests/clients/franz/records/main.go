// franz-go writes and reads numbered records with keys, headers, tombstones and nulls, in a topic
// for each codec; prints what it read as JSON, one line for each codec.
// records write|read BROKERS PREFIX COUNT CODEC...
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(ctx context.Context, brokers []string, topic, codec string, count int) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.AllowAutoTopicCreation(),
		kgo.ProducerBatchCompression(codecs[codec]),
	)
	check(err)
	defer client.Close()
	for number := 0; number < count; number++ {
		record := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(1_700_000_000_000 + int64(number))}
		if number%7 != 3 || number%5 == 2 {
			record.Key = []byte(fmt.Sprintf("k%d", number))
		}
		if number%5 != 2 {
			record.Value = []byte(strings.Repeat(fmt.Sprintf("%s %d ", codec, number), 9))
		}
		if number%3 == 0 {
			record.Headers = []kgo.RecordHeader{{Key: "n", Value: []byte(strconv.Itoa(number))}}
		}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) { check(err) })
	}
	check(client.Flush(ctx))
}

func text(data []byte) any {
	if data == nil {
		return nil
	}
	return string(data)
}

func read(ctx context.Context, brokers []string, topic string, count int) [][]any {
	from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumePartitions(from))
	check(err)
	defer client.Close()
	found := [][]any{}
	for len(found) < count {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			headers := [][]any{}
			for _, each := range record.Headers {
				headers = append(headers, []any{each.Key, text(each.Value)})
			}
			found = append(found, []any{
				record.Offset, text(record.Key), text(record.Value), headers,
				record.Timestamp.UnixMilli(),
			})
		})
	}
	return found
}

func main() {
	brokers, prefix := strings.Split(os.Args[2], ","), os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, codec := range os.Args[5:] {
		topic := prefix + "-" + codec
		if os.Args[1] == "write" {
			write(ctx, brokers, topic, codec, count)
		} else {
			check(json.NewEncoder(os.Stdout).Encode(read(ctx, brokers, topic, count)))
		}
	}
}
