"""The codecs that `scripts/kafka_codec.py` generates: see `polynya.wire.kafka`."""
