//go:build wasip1

// A shopping cart: records such as {"item": "book", "count": 2} become the counts of the items.
// A negative count takes some out.
package main

import (
	"bytes"
	"encoding/json"
	"errors"

	"polynya/reducer"
)

type cart map[string]int64

type line struct {
	Item  string `json:"item"`
	Count *int64 `json:"count"`
}

func (c cart) Restore(state []byte) error { return json.Unmarshal(state, (*map[string]int64)(&c)) }

func (c cart) Apply(record reducer.Record) error {
	var each line
	if err := json.Unmarshal(record.Value, &each); err != nil {
		return err
	}
	if each.Item == "" || each.Count == nil {
		return errors.New("it has no item or no count")
	}
	if c[each.Item] += *each.Count; c[each.Item] == 0 {
		delete(c, each.Item)
	}
	return nil
}

// State is a JSON object in the order of its items, for so json writes maps.
func (c cart) State() []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(map[string]int64(c)); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func init() {
	reducer.Register("application/json", func() reducer.Reducer { return cart{} })
}

func main() {}
