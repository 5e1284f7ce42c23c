"""The Kafka protocol: messages in every served version, and record batches (`batches.py`).

`generated/` is the output of `scripts/kafka_codec.py`. A request is decoded from one buffer; its
byte fields are views of that buffer. A response is encoded as a list of pieces.
"""
