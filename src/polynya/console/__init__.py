"""The web console: a page that uses the public HTTP API like any other client.

This package serves files only: HTML, CSS and ES modules, read into memory at the start of a core,
each with a strong ETag. The page reads all its data from the public API of its own origin, with the
user's token if one was entered. The console has no more rights than curl.

Invariants:

* It loads nothing from other origins and has no inline code. The policy (`assets.POLICY`) forbids
  both, and markup built from text. Data
  from streams, tables and servers is shown as text nodes.
* It changes something only in a dialog that asks for it, by a request with the header
  `Polynya-Console`, with which the node audits it or, by `console.acts`, refuses it.
* It holds a bounded number of rows, records, samples and bytes, whatever the streams hold.
"""
