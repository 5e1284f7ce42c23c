"""Encoders and decoders of external formats. Pure code: no I/O, clock, randomness or asyncio.

Each module contains the encoder and the decoder of one format, which `docs/formats/` specifies
first. Decoders do not trust their input. Damaged data raises `CorruptData`, and invalid client
input raises the module's own error. Numbers in the input are checked against the available bytes
before they control a loop or an allocation.
"""
