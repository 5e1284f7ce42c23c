"""Bytes to words and back: the formats that leave a process. Pure: no I/O, no clock, no randomness, no asyncio.

Each module is one format with its encoder and decoder side by side, and is written down in `docs/formats/` first. Decoders trust
nothing: what is damaged raises `CorruptData`, what a client sent wrongly raises the module's own error, and neither an endless loop nor
an allocation follows from a number in the input that was not checked against the bytes that are there.
"""
