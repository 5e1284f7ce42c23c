// franz-go's client of the schema registry registers two versions of an Avro schema, writes a record
// with each in the wire format, is refused a third version, and reads the records back; prints JSON.
// schemas REGISTRY BROKERS TOPIC [USER TOKEN]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

const (
	first  = `{"type":"record","name":"R","fields":[{"name":"x","type":"long"}]}`
	second = `{"type":"record","name":"R","fields":[{"name":"x","type":"long"},{"name":"y","type":"string","default":""}]}`
	third  = `{"type":"record","name":"R","fields":[{"name":"x","type":"string"}]}`
)

type found struct {
	Ids     []int    `json:"ids"`
	Code    int      `json:"code"`
	Values  []string `json:"values"`
	Schemas []string `json:"schemas"`
	Decoded []string `json:"decoded"`
}

type text struct{ Body string }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	topic := os.Args[3]
	options := []sr.ClientOpt{sr.URLs(os.Args[1])}
	if len(os.Args) > 4 {
		options = append(options, sr.BasicAuth(os.Args[4], os.Args[5]))
	}
	registry, err := sr.NewClient(options...)
	check(err)
	var result found
	for _, schema := range []string{first, second} {
		made, err := registry.CreateSchema(ctx, topic+"-value", sr.Schema{Schema: schema})
		check(err)
		result.Ids = append(result.Ids, made.ID)
	}
	_, err = registry.CreateSchema(ctx, topic+"-value", sr.Schema{Schema: third})
	var refused *sr.ResponseError
	if errors.As(err, &refused) {
		result.Code = refused.ErrorCode
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[2], ",")...),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	)
	check(err)
	defer client.Close()
	for number, id := range result.Ids {
		// the body is opaque here: the frame around it is what the client makes
		var serde sr.Serde
		serde.Register(id, text{}, sr.EncodeFn(func(value any) ([]byte, error) { return []byte(value.(text).Body), nil }))
		value, err := serde.Encode(text{fmt.Sprintf("body %d", number)})
		check(err)
		check(client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: value}).FirstErr())
	}
	for len(result.Values) < 2 {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			var header sr.ConfluentHeader
			id, body, err := header.DecodeID(record.Value)
			check(err)
			schema, err := registry.SchemaByID(ctx, id)
			check(err)
			result.Values = append(result.Values, fmt.Sprintf("%x", record.Value[:5]))
			result.Schemas = append(result.Schemas, schema.Schema)
			result.Decoded = append(result.Decoded, string(body))
		})
	}
	check(json.NewEncoder(os.Stdout).Encode(result))
}
