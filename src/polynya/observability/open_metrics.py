"""The OpenMetrics 1.0 format, with exemplars, made of the Prometheus text format.

OpenMetrics names the family of a counter without `_total`. Where a gauge has that name, the counter
is of the type `unknown`, under its whole name: two families must not share one.
"""

from __future__ import annotations

from polynya.observability.histograms import Exemplars
from polynya.observability.metrics import BY_NAME, Samples, escaped

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_MEDIA = "application/openmetrics-text"
_TOTAL = "_total"


def is_asked(accept: str) -> bool:
    """Report whether an Accept header names the format, as Prometheus does."""
    return any(part.partition(";")[0].strip().lower() == _MEDIA for part in accept.split(","))


def open_metrics(text: bytes, exemplars: Exemplars) -> bytes:
    """Return the same samples in OpenMetrics."""
    lines = []
    for line in text.decode().splitlines():
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            family = _family(name)
            shown = _type_of(name) if word == "TYPE" else rest.replace('"', '\\"')
            lines.append(f"# {word} {family} {shown}")
        else:
            found = exemplars.get(line.rpartition(" ")[0])
            lines.append(line if found is None else line + _spelled(*found))
    return ("\n".join([*lines, "# EOF"]) + "\n").encode()


def samples_of(text: str) -> Samples:
    """Read the samples of either format back."""
    samples: Samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition(" # ")[0].rpartition(" ")
            samples[key] = float(value)
    return samples


def _family(name: str) -> str:
    return name.removesuffix(_TOTAL) if _type_of(name) == "counter" else name


def _type_of(name: str) -> str:
    kind = BY_NAME[name].kind
    is_taken = kind == "counter" and name.removesuffix(_TOTAL) in BY_NAME
    return "unknown" if is_taken else kind


def _spelled(label: str, value: str, seconds: float) -> str:
    return f' # {{{label}="{escaped(value)}"}} {seconds!r}'
