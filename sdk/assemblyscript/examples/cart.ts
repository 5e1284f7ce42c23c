// A shopping cart: records such as {"item": "book", "count": 2} become the counts of the items.
// A negative count takes some out.

import { Record, Reducer, decode, encode, register } from "../assembly";
import { Members, integer, integerOf, quoted, stringOf } from "../assembly/json";

export * from "../assembly/abi";

class Cart extends Reducer {
  private items: Map<string, i64> = new Map<string, i64>();

  get contentType(): string {
    return "application/json";
  }

  restore(state: Uint8Array): void {
    const members = new Members(state);
    while (members.next()) this.items.set(members.name, integer(members.value));
    if (!members.valid) throw new Error("the state is no JSON object");
  }

  apply(record: Record): void {
    const value = record.value;
    if (value === null) throw new Error("it has no value");
    const item = stringOf(value, "item");
    if (item === null) throw new Error("it has no item");
    const count = integerOf(value, "count");
    const had = this.items.has(item) ? this.items.get(item) : 0;
    const sum = had + count;
    if (count > 0 ? sum < had : sum > had) throw new Error("the count is too large");
    if (sum == 0) this.items.delete(item);
    else this.items.set(item, sum);
  }

  /** A JSON object in the order of its items. */
  state(): Uint8Array {
    const items = this.items.keys().sort();
    const members = new Array<string>(items.length);
    for (let at = 0; at < items.length; at++) {
      members[at] = `${quoted(items[at])}:${this.items.get(items[at])}`;
    }
    return encode(`{${members.join(",")}}`);
  }

  get(key: Uint8Array): Uint8Array | null {
    const item = decode(key);
    return this.items.has(item) ? encode(this.items.get(item).toString()) : null;
  }
}

register(() => new Cart());
