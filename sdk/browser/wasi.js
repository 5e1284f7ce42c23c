// WASI preview 1 for modules whose runtime imports it: the same constants as on the server.

const BADF = 8

/** Returns the imports for a module; `time.ms` is the time of the record. */
export function wasiImports(module, memory, time) {
  const view = () => new DataView(memory().buffer)
  const zeros = (count, size) => (view().setUint32(count, 0, true), view().setUint32(size, 0, true), 0)
  const known = {
    args_sizes_get: zeros,
    environ_sizes_get: zeros,
    args_get: () => 0,
    environ_get: () => 0,
    sched_yield: () => 0,
    clock_time_get: (clock, _, pointer) => {
      view().setBigInt64(pointer, clock === 0 ? BigInt(time.ms) * 1000000n : 1n, true)
      return 0
    },
    clock_res_get: (_, pointer) => (view().setBigUint64(pointer, 1000000n, true), 0),
    random_get: (pointer, length) => (new Uint8Array(memory().buffer, pointer >>> 0, length >>> 0).fill(0), 0),
    fd_write: (file, vectors, count, pointer) => {
      if (file !== 1 && file !== 2) return BADF
      let written = 0
      for (let each = 0; each < count; each++) written += view().getUint32(vectors + 8 * each + 4, true)
      view().setUint32(pointer, written, true)
      return 0
    },
    poll_oneoff: (waits, events, count, pointer) => {
      for (let each = 0; each < count; each++) {
        const number = view().getBigUint64(waits + 48 * each, true)
        new Uint8Array(memory().buffer, events + 32 * each, 32).fill(0)
        view().setBigUint64(events + 32 * each, number, true)
      }
      view().setUint32(pointer, count, true)
      return 0
    },
    proc_exit: (code) => {
      throw new Error(`the module called proc_exit(${code})`)
    },
  }
  const functions = {}
  for (const { module: from, name } of WebAssembly.Module.imports(module)) {
    if (from !== "wasi_snapshot_preview1") throw new Error(`the module imports ${from}.${name}`)
    functions[name] = known[name] ?? (() => BADF)
  }
  return { wasi_snapshot_preview1: functions }
}

/** Whether the module can ask for the time, so that it gets one record at a time. */
export function asksForTime(module) {
  return WebAssembly.Module.imports(module).some(({ name }) => name === "clock_time_get")
}
