"""The CRC-32C of joined bytes from the CRCs of their parts, without another pass over the bytes.

A CRC is linear: bytes that follow a part change the part's CRC like as many zero bytes. Such a
change by 2^k bytes is a table look-up for each byte of the CRC.
"""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # reflected
# by the bytes of the CRC, the lowest first
_Table = tuple[list[int], list[int], list[int], list[int]]
_tables: list[_Table] = []  # of 1, 2, 4 … bytes; made when first used


def joined(first: int, second: int, second_size: int) -> int:
    """Return the CRC-32C of two parts that lie one after the other, from that of each."""
    return shifted(first, second_size) ^ second


def shifted(crc: int, size: int) -> int:
    """Return the part of a CRC-32C that remains of it behind `size` further bytes."""
    level = 0
    while size:
        if size & 1:
            low, second, third, high = _tables[level] if level < len(_tables) else _grown(level)
            crc = (
                low[crc & 0xFF]
                ^ second[crc >> 8 & 0xFF]
                ^ third[crc >> 16 & 0xFF]
                ^ high[crc >> 24]
            )
        size >>= 1
        level += 1
    return crc


def _grown(level: int) -> _Table:
    """Make the tables up to a level, and return that one."""
    while len(_tables) <= level:
        exponent = len(_tables)
        if exponent == 0:
            columns = [_behind_a_byte(1 << bit) for bit in range(32)]
        else:
            half = 1 << exponent - 1
            columns = [shifted(shifted(1 << bit, half), half) for bit in range(32)]
        low, second, third, high = (_of_byte(columns[at : at + 8]) for at in range(0, 32, 8))
        _tables.append((low, second, third, high))
    return _tables[level]


def _behind_a_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


def _of_byte(columns: list[int]) -> list[int]:
    """Return what each value of a byte becomes, from what each of its bits becomes."""
    table = [0]
    for column in columns:
        table.extend([value ^ column for value in table])
    return table
