// franz-go writes numbered records and reads them by assignment; prints JSON.
// franz BROKERS TOPIC COUNT [MECHANISM USER PASSWORD CA]
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func secured(mechanism, user, password, ca string) []kgo.Opt {
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	with := kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism())
	if mechanism == "SCRAM-SHA-256" {
		with = kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism())
	}
	return []kgo.Opt{with, kgo.DialTLSConfig(&tls.Config{RootCAs: roots})}
}

func main() {
	brokers, topic := strings.Split(os.Args[1], ","), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	options := []kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()),
	}
	if len(os.Args) > 4 {
		options = append(options, secured(os.Args[4], os.Args[5], os.Args[6], os.Args[7])...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	for number := 0; number < count; number++ {
		record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprintf("value %d", number))}
		record.Headers = []kgo.RecordHeader{{Key: "n", Value: []byte(strconv.Itoa(number))}}
		check(client.ProduceSync(ctx, record).FirstErr())
	}
	var values []string
	for len(values) < count {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	check(json.NewEncoder(os.Stdout).Encode(values))
}
