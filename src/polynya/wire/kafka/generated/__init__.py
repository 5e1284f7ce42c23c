"""The codecs that `scripts/kafka_codec.py` generates; `index.py` lists them."""
