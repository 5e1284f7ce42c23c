// Merge records of several partitions by time. Pure.

/** Return the records of several lists, each in the order of its partition, sorted by time; those of one time keep the order of their lists. */
export function byTime(lists) {
  const all = lists.flat().map((record) => ({ record, at: record.appendTime ?? record.timestamp ?? 0 }));
  all.sort((one, other) => one.at - other.at || one.record.partition - other.record.partition || one.record.offset - other.record.offset);
  return all.map(({ record }) => record);
}

/** Return the newest `most` of several lists by time. */
export function merged(lists, most) {
  return byTime(lists).slice(-most);
}

/** Return where to read the records of a partition from a place on that `parsePlace` found: {time}, {record}, or null if it has none there. */
export function beginOf(place, first, end) {
  if (first >= end) return null;
  if (place.time !== undefined) return { time: place.time };
  const record = place.start ? first : (place.record ?? end - place.last);
  return record < end ? { record: Math.max(first, record) } : null;
}
