//go:build wasip1

// Package reducer lets a Go program be a reducer of Polynya: it folds the records of a stream into a
// state. Build it with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o cart.wasm ./cart
//
// The clock stands at the time of the record, and random bytes are zeros. Iteration over a Go map has
// no fixed order: sort the keys before writing a state. An error or a panic stops the reducer for that
// stream, with its message.
package reducer

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// Record is a record of the stream. Times are milliseconds since 1970.
type Record struct {
	Number   uint64
	AppendMs int64  // 0 if that is not known
	TimeMs   int64  // its own time, else the append time
	Key      []byte // nil if it has none
	Value    []byte // nil is a deletion, as Kafka's null
}

// Reducer is a state, and how records change it. The byte slices that it gets are valid during the
// call.
type Reducer interface {
	// Restore begins at bytes that State returned.
	Restore(state []byte) error
	// Apply applies one record.
	Apply(record Record) error
	// State returns the state after the records so far. Equal records must give equal bytes.
	State() []byte
}

var (
	factory     func() Reducer
	current     Reducer
	contentType = "application/octet-stream"
	input       []byte
	output      []byte // kept, so that it is not collected
)

// Register names the reducer of this module and the content type of its states. Call it from init.
func Register(kind string, make func() Reducer) {
	contentType, factory = kind, make
}

const none = 1<<32 - 1

//go:wasmexport polynya_abi
func abi() int32 { return 1 }

//go:wasmexport polynya_content_type
func stateType() uint64 { return span([]byte(contentType)) }

//go:wasmexport alloc
func alloc(length uint32) uint32 {
	if uint32(cap(input)) < length {
		input = make([]byte, length)
	}
	input = input[:length]
	return uint32(uintptr(unsafe.Pointer(unsafe.SliceData(input))))
}

//go:wasmexport restore
func restore(_, _ uint32) {
	current = factory()
	if err := current.Restore(input); err != nil {
		panic(fmt.Sprintf("restore: %v", err))
	}
}

//go:wasmexport apply
func apply(_, _ uint32) uint32 {
	count := uint32(0)
	for rest := input; len(rest) > 0; count++ {
		record := Record{
			Number:   binary.LittleEndian.Uint64(rest),
			AppendMs: int64(binary.LittleEndian.Uint64(rest[8:])),
			TimeMs:   int64(binary.LittleEndian.Uint64(rest[16:])),
		}
		key, value := binary.LittleEndian.Uint32(rest[24:]), binary.LittleEndian.Uint32(rest[28:])
		rest = rest[32:]
		record.Key, rest = part(rest, key)
		record.Value, rest = part(rest, value)
		if err := get().Apply(record); err != nil {
			panic(fmt.Sprintf("record %d: %v", record.Number, err))
		}
	}
	return count
}

//go:wasmexport state
func state() uint64 { return span(get().State()) }

func get() Reducer {
	if current == nil {
		current = factory()
	}
	return current
}

func part(rest []byte, length uint32) (found, behind []byte) {
	if length == none {
		return nil, rest
	}
	return rest[:length:length], rest[length:]
}

func span(bytes []byte) uint64 {
	output = bytes
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(bytes))))<<32 | uint64(len(bytes))
}
