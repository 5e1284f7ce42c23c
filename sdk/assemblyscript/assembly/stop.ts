// The end of a call by an Error. It allocates nothing: memory may be what is missing.

// @ts-ignore: decorator
@lazy export let message: string | null = null;
// @ts-ignore: decorator
@lazy export let file: string | null = null;
// @ts-ignore: decorator
@lazy export let line: u32 = 0;

/** Keep an Error and stop: pass `--use abort=…/stop/stop` to asc. */
export function stop(text: string | null, source: string | null, at: u32, column: u32): void {
  message = text;
  file = source;
  line = at;
  unreachable();
}
