"""The identity of a producer, and how one with a given id claims an epoch."""

from __future__ import annotations

import msgspec

from polynya.base.limits import PRODUCER_NUMBER_MAX
from polynya.client.calls import stream_target
from polynya.client.errors import ClientError, ProducerFenced, ProducerGap, Refused
from polynya.client.messages import Backoff, EffectResult, HttpRequest, Retry
from polynya.client.values import is_json


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a producer on a stream. `epoch` None: the one after the server's. `fresh`:
    the id is random and new, so no server knows it."""

    stream: str
    content_type: str
    producer_id: str
    epoch: int | None = 0
    fresh: bool = True

    @property
    def what(self) -> str:
        return f"producer '{self.producer_id}' of '{self.stream}'"

    def append(self, epoch: int, number: int, body: bytes, *, closes: bool = False) -> HttpRequest:
        """Return the request that appends a body under an epoch and a sequence number."""
        headers = {
            "content-type": self.content_type,
            "producer-id": self.producer_id,
            "producer-epoch": str(epoch),
            "producer-seq": str(number),
        }
        if closes:
            headers["stream-closed"] = "true"
        return HttpRequest("POST", stream_target(self.stream), headers, body)


class Claim:
    """The claim of an epoch: a probe that the server must refuse, because its sequence leaves a
    gap. The refusal carries the server's epoch and sequence."""

    def __init__(self, names: Names, retry: Retry) -> None:
        self.epoch = names.epoch or 0
        self.probing = False
        self._names = names
        self._trouble = Backoff(retry)
        self._not_before = 0.0

    def due(self, now: float) -> HttpRequest | None:
        """Return the probe if it is to be sent now."""
        if self.probing or self._not_before > now:
            return None
        self.probing = True
        body = b"[null]" if is_json(self._names.content_type) else b"?"
        return self._names.append(self.epoch, PRODUCER_NUMBER_MAX, body)

    def wake_at(self, now: float) -> float | None:
        """Return when `due` may return the probe; None while it is in flight."""
        return None if self.probing else max(self._not_before, now)

    def retry(self, result: EffectResult, after: float) -> bool:
        """Send the probe again after a pause. Return False if it was tried for too long."""
        pause = self._trouble.pause(result, after)
        if pause is not None:
            self._not_before = result.now + pause
        return pause is not None

    def take(self, error: Refused) -> ClientError | None:
        """Take the epoch that follows from a refused probe, one without appends. Return why there
        is none, or None."""
        given = self._names.epoch
        if error.code == "PRODUCER_EPOCH_START" or (
            isinstance(error, ProducerGap) and error.expected == 0
        ):
            return None
        if isinstance(error, ProducerGap | ProducerFenced) and given is None:
            self.epoch = (error.epoch if isinstance(error, ProducerFenced) else self.epoch) + 1
            return None
        if isinstance(error, ProducerGap):
            error.message = (
                f"{self._names.what}: epoch {given} was already used up to sequence "
                f"{error.expected - 1}; pass a higher epoch, or none"
            )
        return error
