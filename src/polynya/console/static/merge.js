// Merge records of several partitions by time. Pure.

/** Return the newest `most` of several lists, each in the order of its partition, sorted by time; records of one time keep the order of their lists. */
export function merged(lists, most) {
  const all = lists.flat().map((record) => ({ record, at: record.appendTime ?? record.timestamp ?? 0 }));
  all.sort((one, other) => one.at - other.at || one.record.partition - other.record.partition || one.record.offset - other.record.offset);
  return all.slice(-most).map(({ record }) => record);
}
