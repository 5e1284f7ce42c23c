"""The web console: a page that is a client like any other.

What is served here is files alone: HTML, CSS and ES modules as they are written, read into memory when a core starts, each with a strong
ETag. All that the page shows it asks of the public HTTP API of its own origin, with the token that its user entered, if any: the console
can do nothing that curl cannot.

Invariants:

* Nothing is fetched from elsewhere, nothing is inline: the policy (`assets.POLICY`) forbids both, and forbids building markup from text.
  What streams, tables and servers say is shown as text nodes.
* It only reads. No request of it changes a stream, but that a read extends a sliding TTL, as every read does.
* It holds a bounded number of rows, records, samples and bytes, whatever streams do.
"""
