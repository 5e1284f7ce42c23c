"""Schemas that users give to `format("polynya")`, without a session."""

from __future__ import annotations

import pytest
from missing import needed_module

from polynya.base.errors import ConfigError

needed_module("pyspark")
from pyspark.sql import types  # noqa: E402

from polynya.spark.readers import BatchReader, StreamReader  # noqa: E402
from polynya.spark.source import PolynyaSource  # noqa: E402

SOURCE = PolynyaSource({"stream": "shop/orders"})
BINARY = types.BinaryType()
PAIR = types.StructType().add("key", types.StringType()).add("value", BINARY)


def test_some_columns_in_any_order_are_read() -> None:
    schema = types.StructType().add("value", BINARY).add("headers", types.ArrayType(PAIR))
    assert isinstance(SOURCE.reader(schema), BatchReader)
    more = schema.add("offset", types.LongType())
    assert isinstance(SOURCE.streamReader(more), StreamReader)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("value", types.StringType(), "'value' as string; .* has it as binary"),
        ("offset", types.IntegerType(), "'offset' as int; .* has it as bigint"),
        ("price", BINARY, "no column 'price'"),
    ],
)
def test_a_column_of_another_type_is_refused(
    name: str, kind: types.DataType, expected: str
) -> None:
    schema = types.StructType().add(name, kind)
    for read in (SOURCE.reader, SOURCE.streamReader):
        with pytest.raises(ConfigError, match=expected):
            read(schema)
