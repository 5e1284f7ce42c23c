// ABI 1: the functions that the entry file exports with `export * from "…/abi"`.

import * as stopped from "./stop";
import { Record, Reducer, encode, made } from "./index";

let input: Uint8Array = new Uint8Array(0); // kept here, so that it is not collected
let output: Uint8Array = new Uint8Array(0);
let reducer: Reducer | null = null;
let record: Record = new Record();
let where: string = ""; // of an error

export function polynya_abi(): i32 {
  return 1;
}

export function polynya_content_type(): u64 {
  return range(encode(current().contentType));
}

/** The reason of the last trap. */
export function polynya_error(): u64 {
  const text = stopped.message === null ? "stopped" : stopped.message!;
  const place = where == "record" ? `record ${record.number}` : where;
  const source = stopped.file === null ? "" : ` (${stopped.file!}:${stopped.line})`;
  return range(encode(`${place}: ${text}${source}`));
}

/** Room for an input of this length, valid until the next call. */
export function alloc(length: i32): usize {
  if (input.length != length) input = new Uint8Array(length);
  return input.dataStart;
}

export function restore(pointer: usize, length: i32): void {
  where = "restore";
  reducer = made();
  current().restore(input);
}

export function migrate(pointer: usize, length: i32): void {
  where = "migrate";
  reducer = made();
  current().migrate(input);
}

export function apply(pointer: usize, length: i32): i32 {
  const into = current();
  const end = input.dataStart + input.length;
  let at = input.dataStart;
  let count = 0;
  while (at < end) {
    at = record.read(at);
    where = "record";
    into.apply(record);
    count++;
  }
  return count;
}

export function state(): u64 {
  where = "state";
  return range(current().state());
}

export function get(pointer: usize, length: i32): u64 {
  where = "get";
  const found = current().get(input);
  return found === null ? 0 : range(found);
}

function current(): Reducer {
  if (reducer === null) reducer = made();
  return reducer!;
}

/** Keep bytes until the next call, and return where they are. */
function range(bytes: Uint8Array): u64 {
  output = bytes;
  return ((bytes.dataStart as u64) << 32) | (bytes.length as u64);
}
