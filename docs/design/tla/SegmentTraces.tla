--------------------------- MODULE SegmentTraces ---------------------------
(* Recorded runs of the product's code as behaviours of LeasedSegments.

   tests/sim/segment_traces.py writes the module Recorded from simulated clusters:
   Traces == <<[first |-> node, steps |-> <<event, ...>>], ...>>. Each event is one step of the
   specification with all that it leaves open. An event that is no such step is a deadlock. *)
EXTENDS LeasedSegments, Recorded

VARIABLES trace, \* its number
          step   \* the number of the next event

IsStep(event) ==
  LET n == event.node
      k == event.at
  IN CASE event.kind = "elect" -> Elect(n, event.term, event.votes) /\ Len(log'[n]) = k
       [] event.kind = "append" -> Write(n) /\ Len(log'[n]) = k
       [] event.kind = "rollover" ->
            Roll(n, event.writer) /\ Len(log'[n]) = k /\ log'[n][k].epoch = event.epoch
       [] event.kind = "replicate" -> Replicate(event.term, n, k)
       [] event.kind = "sync" -> Sync(n, k)
       [] event.kind = "commit" -> Commit(n, k)
       [] event.kind = "learn" -> Learn(n, k)
       [] event.kind = "acknowledge" -> <<event.term, k>> \in acked /\ UNCHANGED vars
       [] event.kind = "read" -> Read(n, k)
       [] event.kind = "resign" -> Resign(n)
       [] event.kind = "crash" -> Crash(n, k)

TraceInit ==
  /\ Init
  /\ trace \in DOMAIN Traces
  /\ first = Traces[trace].first
  /\ step = 1

TraceNext ==
  /\ UNCHANGED trace
  /\ IF step <= Len(Traces[trace].steps)
     THEN IsStep(Traces[trace].steps[step]) /\ step' = step + 1
     ELSE UNCHANGED <<vars, step>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, step>>
=============================================================================
