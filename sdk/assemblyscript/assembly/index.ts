// Write a reducer of Polynya in AssemblyScript: extend `Reducer`, name it by `register`, and export
// the functions of `abi.ts` from the entry file. See README.md.

const NONE: u32 = u32.MAX_VALUE;

/** A record of the stream. Times are milliseconds since 1970. */
export class Record {
  /** Its number in the stream. */
  number: u64 = 0;
  /** When it was appended; 0 if that is not known. */
  appendMs: i64 = 0;
  /** Its own time, else the append time. */
  timeMs: i64 = 0;
  private keyAt: usize = 0;
  private keyLength: u32 = NONE;
  private valueAt: usize = 0;
  private valueLength: u32 = NONE;

  /** Read the record at an address, and return where the next one begins. Not for direct use. */
  read(at: usize): usize {
    this.number = load<u64>(at);
    this.appendMs = load<i64>(at, 8);
    this.timeMs = load<i64>(at, 16);
    this.keyLength = load<u32>(at, 24);
    this.valueLength = load<u32>(at, 28);
    this.keyAt = at + 32;
    this.valueAt = this.keyAt + (this.keyLength == NONE ? 0 : this.keyLength);
    return this.valueAt + (this.valueLength == NONE ? 0 : this.valueLength);
  }

  /** Its key; null if it has none. */
  get key(): Uint8Array | null {
    return this.keyLength == NONE ? null : bytes(this.keyAt, this.keyLength);
  }

  /** Its key as UTF-8. */
  get keyText(): string | null {
    return this.keyLength == NONE ? null : String.UTF8.decodeUnsafe(this.keyAt, this.keyLength);
  }

  /** Its value; null is a deletion, as Kafka's null. */
  get value(): Uint8Array | null {
    return this.valueLength == NONE ? null : bytes(this.valueAt, this.valueLength);
  }

  /** Its value as UTF-8. */
  get text(): string | null {
    return this.valueLength == NONE ? null : String.UTF8.decodeUnsafe(this.valueAt, this.valueLength);
  }
}

/** A state, and how records change it. Throw an Error to stop the reducer for this stream. */
export abstract class Reducer {
  /** The content type of the states. */
  get contentType(): string {
    return "application/octet-stream";
  }

  /** Begin at bytes that `state` returned. Called on a new object. */
  abstract restore(state: Uint8Array): void;

  /** Apply one record. The object is used again for the next one. */
  abstract apply(record: Record): void;

  /** Return the state after the records so far. Equal records must give equal bytes. */
  abstract state(): Uint8Array;

  /** Begin at a state of an older revision of this reducer. */
  migrate(state: Uint8Array): void {
    throw new Error("this reducer has no migrate: it must begin at the first record");
  }

  /** Return the part of the state for one key, as JSON; null if there is none. */
  get(key: Uint8Array): Uint8Array | null {
    return null;
  }
}

let make: (() => Reducer) | null = null;

/** Name the reducer of this module, as a function that makes a new one. */
export function register(factory: () => Reducer): void {
  make = factory;
}

/** Return a new reducer. Not for direct use. */
export function made(): Reducer {
  const factory = make;
  if (factory === null) throw new Error("no reducer is registered: call register()");
  return factory();
}

/** Return bytes as UTF-8. */
export function decode(bytes: Uint8Array): string {
  return String.UTF8.decodeUnsafe(bytes.dataStart, bytes.length);
}

/** Return a text in UTF-8. */
export function encode(text: string): Uint8Array {
  return Uint8Array.wrap(String.UTF8.encode(text));
}

function bytes(at: usize, length: u32): Uint8Array {
  const copy = new Uint8Array(length);
  memory.copy(copy.dataStart, at, length);
  return copy;
}
