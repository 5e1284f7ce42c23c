// franz-go moves records from a topic to another in transactions of a group; prints JSON.
// franz-transactions BROKERS INPUT OUTPUT COUNT
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	brokers, input, output := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	writer, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	check(err)
	for number := 0; number < count; number++ {
		writer.Produce(ctx, &kgo.Record{Topic: input, Value: []byte(strconv.Itoa(number))}, func(_ *kgo.Record, err error) { check(err) })
	}
	check(writer.Flush(ctx))
	writer.Close()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(brokers...),
		kgo.TransactionalID(output),
		kgo.ConsumerGroup(output),
		kgo.ConsumeTopics(input),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	check(err)
	for moved, turn := 0, 0; moved < count; turn++ {
		fetches := session.PollRecords(ctx, 7)
		check(fetches.Err0())
		check(session.Begin())
		some := 0
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Topic: output, Value: record.Value}, func(_ *kgo.Record, err error) {
				if !errors.Is(err, kgo.ErrAborting) {
					check(err)
				}
			})
			some++
		})
		// each third one is aborted: its records come again
		committed, err := session.End(ctx, kgo.TransactionEndTry(turn%3 != 1))
		check(err)
		if committed {
			moved += some
		}
	}
	session.Close()
	reader, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeTopics(output),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	check(err)
	defer reader.Close()
	found := map[string]int{}
	for len(found) < count {
		fetches := reader.PollFetches(ctx)
		check(fetches.Err0())
		fetches.EachRecord(func(record *kgo.Record) { found[string(record.Value)]++ })
	}
	check(json.NewEncoder(os.Stdout).Encode(found))
}
