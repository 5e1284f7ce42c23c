// Members of a group of the consumer protocol (KIP-848) join one by one and leave; prints JSON.
// members BROKERS TOPIC GROUP PARTITIONS RECORDS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	check(err)
	return found
}

// owners has the members that own each partition now, and whether one ever had two.
type owners struct {
	sync.Mutex
	of    map[int32]string
	twice bool
	seen  map[string]int
}

func (known *owners) gained(member string, parts map[string][]int32) {
	known.Lock()
	defer known.Unlock()
	for _, numbers := range parts {
		for _, part := range numbers {
			known.twice = known.twice || known.of[part] != ""
			known.of[part] = member
		}
	}
}

func (known *owners) lost(parts map[string][]int32) {
	known.Lock()
	defer known.Unlock()
	for _, numbers := range parts {
		for _, part := range numbers {
			delete(known.of, part)
		}
	}
}

func (known *owners) counts() (map[string]int, int) {
	known.Lock()
	defer known.Unlock()
	found := map[string]int{}
	for _, member := range known.of {
		found[member]++
	}
	return found, len(known.seen)
}

func member(ctx context.Context, name, group string, known *owners) *kgo.Client {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(os.Args[2]),
		kgo.ServerSideBalancer(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			known.gained(name, parts)
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, parts map[string][]int32) {
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "commit", err)
			}
			known.lost(parts)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			known.lost(parts)
		}),
	)
	check(err)
	go func() {
		for ctx.Err() == nil {
			found := client.PollFetches(ctx)
			if found.IsClientClosed() {
				return
			}
			found.EachRecord(func(record *kgo.Record) {
				known.Lock()
				known.seen[string(record.Value)]++
				known.Unlock()
			})
		}
	}()
	return client
}

func main() {
	partitions, records := number(os.Args[4]), number(os.Args[5])
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	known := &owners{of: map[int32]string{}, seen: map[string]int{}}
	until := func(what string, members, seen int) {
		for {
			counts, read := known.counts()
			sum := 0
			for _, count := range counts {
				sum += count
			}
			if len(counts) == members && sum == partitions && read >= seen {
				return
			}
			if ctx.Err() != nil {
				fmt.Fprintln(os.Stderr, what, counts, read)
				os.Exit(1)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	first := member(ctx, "a", os.Args[3], known)
	until("the first member", 1, records)
	second := member(ctx, "b", os.Args[3], known)
	until("two members", 2, records)
	check(first.CommitUncommittedOffsets(ctx))
	first.Close()
	until("the second member alone", 1, records)
	second.Close()
	more := 0
	for _, times := range known.seen {
		if times > 1 {
			more++
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"seen": len(known.seen), "again": more, "twice_owned": known.twice,
	}))
}
