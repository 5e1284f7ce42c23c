"""Answer the proposers of a replicated core, and count the bytes that await an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from polynya.base.errors import OutcomeUnknown
from polynya.raft import Entry
from polynya.replica.member import Member, Proposal, parts_of
from polynya.stream.replies import Reply


class ProposalAnswers:
    """The answers of one core. A proposal is answered once."""

    def __init__(self) -> None:
        self.inflight_bytes = 0  # commands proposed here and not answered
        self._loop = asyncio.get_running_loop()

    def answer(self, proposal: Proposal, reply: Reply | BaseException) -> None:
        """Give the reply to the proposer."""
        token, proposal.token = proposal.token, None
        self.inflight_bytes -= len(proposal.payload)
        try:
            token(reply)
        except Exception as fault:
            # report it without raising: one client or peer must not fail the others
            self._loop.call_exception_handler(
                {"message": "an answer could not be given", "exception": fault}
            )

    def answer_all(self, entries: Sequence[Entry], reply: Reply | BaseException) -> None:
        """Give the reply to the proposers of all local proposals in the entries."""
        for entry in entries:
            for part in parts_of(entry):
                self.answer(part, reply)

    def give_up(self, member: Member, outcome: OutcomeUnknown) -> None:
        """Answer all proposals that are in the log with this outcome. Their entries are still
        applied if they commit."""
        lost = list(member.proposals)
        member.proposals.clear()
        self.answer_all(lost, outcome)

    def empty(
        self, member: Member, queued: BaseException, in_log: OutcomeUnknown | BaseException
    ) -> None:
        """Remove all proposals of the member; answer those that wait and those in the log."""
        waiting, proposals = member.emptied()
        self.answer_all(waiting, queued)
        self.answer_all(proposals, in_log)
