--------------------------- MODULE LeasedSegments ---------------------------
(* Leased streams: segments as ranges of a replicated log (decision 0026).

   The log is Raft's, as far as the segments need it: terms, votes, conflicts, the sync of a disk,
   commitment by a majority. A message has any part of the log of its sender at any time of its
   term: a lost message is a step that is not taken, and a late one may come after its sender's end.
   Nodes crash, and pause by taking no step. SegmentTraces.tla checks runs of the product's code.

   Entries: "N" begins a term, "A" is an append, "R" is a Rollover. Each fence of the product is a
   name in Fences; the tests remove each one and expect TLC to find what breaks.

   fence     in the product
   term      raft: a member refuses messages of older terms
   vote      raft: a vote needs a log that is as new as the voter's
   quorum    raft: an append is answered when a majority has it
   sync      engine: a member confirms an entry after its disk has it
   claim     local/segments.py: a leader appends only if the open segment names it
   full      the same: appends wait while a full segment is rolled over
   cas       stream/features/segments/rules.py: a Rollover closes only the epoch that it names
   applied   local/reads/local_reads.py: a replica serves segments whose Rollover it has applied
   lease     raft: a leader serves a read only if a majority is not in a later term *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Nodes, Firsts, Terms, LogMax, Limit, CrashesMax, Parts, Fences

VARIABLES term, role, log, synced, applied, \* of each node
          sent,      \* of each term: the log of its leader, which messages have parts of
          acked,     \* appends that a client was told of
          committed, \* the longest applied prefix of any node
          stale,     \* TRUE: a leader answered a read without an acknowledged append
          crashes,
          first      \* the writer of segment 1

vars == <<term, role, log, synced, applied, sent, acked, committed, stale, crashes, first>>

Quorums == {Q \in SUBSET Nodes : 2 * Cardinality(Q) > Cardinality(Nodes)}
Has(fence) == fence \in Fences
Min(a, b) == IF a < b THEN a ELSE b
Prefix(seq, k) == SubSeq(seq, 1, k)
IsPrefix(a, b) == Len(a) <= Len(b) /\ Prefix(b, Len(a)) = a
RECURSIVE CommonFrom(_, _, _)
CommonFrom(a, b, k) ==
  IF k < Len(a) /\ k < Len(b) /\ a[k + 1] = b[k + 1] THEN CommonFrom(a, b, k + 1) ELSE k
Common(a, b) == CommonFrom(a, b, 0)
Last(seq) == IF Len(seq) = 0 THEN 0 ELSE seq[Len(seq)].term
IsAsNew(a, b) == Last(a) > Last(b) \/ (Last(a) = Last(b) /\ Len(a) >= Len(b))

(* An append is known by its entry: term and place are unique. *)
Appends(seq) == {<<seq[i].term, i>> : i \in {j \in 1..Len(seq) : seq[j].kind = "A"}}

(* The state machine: the segments after a prefix of the log. `wrong` tells of an append by another
   node than the writer, `empty` of a segment that was closed neither full nor by a new writer. *)
Start == [epoch |-> 1, writer |-> first, records |-> 0, wrong |-> FALSE, empty |-> FALSE,
          sealed |-> 0]

Apply(s, entry, at) ==
  CASE entry.kind = "A" ->
         [s EXCEPT !.records = @ + 1, !.wrong = @ \/ entry.by # s.writer]
    [] entry.kind = "R" /\ (entry.epoch = s.epoch \/ ~Has("cas")) ->
         [s EXCEPT !.epoch = @ + 1, !.writer = entry.writer, !.records = 0, !.sealed = at - 1,
                   !.empty = @ \/ (s.records < Limit /\ entry.writer # entry.by)]
    [] OTHER -> s

RECURSIVE SegmentsOf(_, _)
SegmentsOf(seq, k) == IF k = 0 THEN Start ELSE Apply(SegmentsOf(seq, k - 1), seq[k], k)
Segments(seq) == SegmentsOf(seq, Len(seq))

Known(n) == SegmentsOf(log[n], applied[n])

Init ==
  \E n \in Firsts :
    /\ first = n
    /\ term = [m \in Nodes |-> 1]
    /\ role = [m \in Nodes |-> IF m = n THEN "leader" ELSE "follower"]
    /\ log = [m \in Nodes |-> <<[kind |-> "N", term |-> 1, by |-> n, epoch |-> 0, writer |-> n]>>]
    /\ synced = [m \in Nodes |-> 1]
    /\ applied = [m \in Nodes |-> 1]
    /\ sent = [t \in Terms \cup {1} |-> IF t = 1 THEN log[n] ELSE <<>>]
    /\ acked = {}
    /\ committed = log[n]
    /\ stale = FALSE
    /\ crashes = 0

Leads(n) == role[n] = "leader"

(* It has applied the entry with which its term began. *)
IsReady(n) == Leads(n) /\ applied[n] > 0 /\ log[n][applied[n]].term = term[n]

(* Without crashes nothing depends on the disks: each entry counts as synced. *)
Written(n, kept, length) ==
  synced' = [synced EXCEPT ![n] = IF CrashesMax = 0 THEN length ELSE kept]

Add(n, entry) ==
  /\ Len(log[n]) < LogMax
  /\ log' = [log EXCEPT ![n] = Append(@, entry)]
  /\ sent' = [sent EXCEPT ![entry.term] = Append(log[n], entry)]
  /\ Written(n, synced[n], Len(log[n]) + 1)

(* The nodes of Q vote for n. *)
Elect(n, t, Q) ==
  /\ n \in Q
  /\ \A m \in Q : term[m] < t /\ (Has("vote") => IsAsNew(log[n], log[m]))
  /\ term' = [m \in Nodes |-> IF m \in Q THEN t ELSE term[m]]
  /\ role' = [m \in Nodes |-> IF m = n THEN "leader" ELSE IF m \in Q THEN "follower" ELSE role[m]]
  /\ Add(n, [kind |-> "N", term |-> t, by |-> n, epoch |-> 0, writer |-> n])
  /\ UNCHANGED <<applied, acked, committed, stale, crashes, first>>

Write(n) ==
  LET s == Known(n) IN
    /\ IsReady(n)
    /\ Has("claim") => s.writer = n
    /\ Has("full") => s.records < Limit
    /\ Add(n, [kind |-> "A", term |-> term[n], by |-> n, epoch |-> 0, writer |-> n])
    /\ acked' = IF Has("quorum") THEN acked ELSE acked \cup {<<term[n], Len(log[n]) + 1>>}
    /\ UNCHANGED <<term, role, applied, committed, stale, crashes, first>>

(* The segment goes to w. The outcome of an earlier Rollover may be unknown: it may be proposed
   twice. *)
Roll(n, w) ==
  LET s == Known(n) IN
    /\ IsReady(n)
    /\ IF s.writer # n THEN w = n ELSE s.records >= Limit
    /\ Add(n, [kind |-> "R", term |-> term[n], by |-> n, epoch |-> s.epoch, writer |-> w])
    /\ UNCHANGED <<term, role, applied, acked, committed, stale, crashes, first>>

(* k entries of the leader of term t reach m, which drops what is in conflict with them. *)
Replicate(t, m, k) ==
  LET from == Prefix(sent[t], k)
      common == Common(from, log[m])
  IN
    /\ k \in 1..Len(sent[t])
    /\ sent[t][Len(sent[t])].by # m
    /\ Has("term") => term[m] <= t
    /\ common < k \/ term[m] # t
    /\ IF common = k THEN UNCHANGED <<log, synced, applied>>
       ELSE /\ log' = [log EXCEPT ![m] = from]
            /\ Written(m, Min(synced[m], common), k)
            /\ applied' = [applied EXCEPT ![m] = Min(@, common)]
    /\ term' = [term EXCEPT ![m] = t]
    /\ role' = [role EXCEPT ![m] = "follower"]
    /\ UNCHANGED <<sent, acked, committed, stale, crashes, first>>

Sync(n, k) ==
  /\ k \in (synced[n] + 1)..Len(log[n])
  /\ synced' = [synced EXCEPT ![n] = k]
  /\ UNCHANGED <<term, role, log, applied, sent, acked, committed, stale, crashes, first>>

Holds(m, t, k) ==
  /\ Len(log[m]) >= k
  /\ Prefix(log[m], k) = Prefix(sent[t], k)
  /\ Has("sync") => synced[m] >= k

(* The leader of term t may tell that k entries are committed: a majority has an entry of its own
   term at k or later. *)
IsCommitted(t, k) ==
  \E j \in k..Len(sent[t]) :
    /\ sent[t][j].term = t
    /\ \E Q \in Quorums : \A m \in Q : Holds(m, t, j)

Applied(n, k) ==
  /\ k \in (applied[n] + 1)..Len(log[n])
  /\ Has("sync") => synced[n] >= k
  /\ applied' = [applied EXCEPT ![n] = k]
  /\ committed' = IF k > Len(committed) THEN Prefix(log[n], k) ELSE committed

(* A leader applies k entries, and answers its own appends among them. *)
Commit(n, k) ==
  /\ Leads(n)
  /\ Applied(n, k)
  /\ IsCommitted(term[n], k)
  /\ acked' = acked \cup {<<log[n][i].term, i>> : i \in
                {j \in (applied[n] + 1)..k : log[n][j].kind = "A" /\ log[n][j].term = term[n]}}
  /\ UNCHANGED <<term, role, log, synced, sent, stale, crashes, first>>

(* Another node applies what a leader told of. *)
Learn(m, k) ==
  /\ Applied(m, k)
  /\ \E t \in DOMAIN sent :
       /\ Leads(m) => t > term[m]
       /\ IsPrefix(Prefix(log[m], k), sent[t])
       /\ IsCommitted(t, k)
  /\ UNCHANGED <<term, role, log, synced, sent, acked, stale, crashes, first>>

(* A leader answers a linearizable read with k entries. *)
Read(n, k) ==
  /\ Leads(n)
  /\ k \in applied[n]..Len(log[n])
  /\ k > 0 /\ log[n][k].term = term[n]
  /\ IsCommitted(term[n], k)
  /\ Has("lease") => \E Q \in Quorums : \A m \in Q : term[m] <= term[n]
  /\ stale' = (stale \/ ~(acked \subseteq Appends(Prefix(log[n], k))))
  /\ UNCHANGED <<term, role, log, synced, applied, sent, acked, committed, crashes, first>>

(* A leader that no majority answers is none any more. *)
Resign(n) ==
  /\ Leads(n)
  /\ role' = [role EXCEPT ![n] = "follower"]
  /\ UNCHANGED <<term, log, synced, applied, sent, acked, committed, stale, crashes, first>>

(* It starts again with k entries: all that were synced, perhaps more. *)
Crash(n, k) ==
  /\ crashes < CrashesMax
  /\ k \in synced[n]..Len(log[n])
  /\ crashes' = crashes + 1
  /\ log' = [log EXCEPT ![n] = Prefix(@, k)]
  /\ synced' = [synced EXCEPT ![n] = k]
  /\ applied' = [applied EXCEPT ![n] = Min(@, k)]
  /\ role' = [role EXCEPT ![n] = "follower"]
  /\ UNCHANGED <<term, sent, acked, committed, stale, first>>

(* Without Parts, messages, syncs and crashes have the whole of what there is: most logs that
   parts lead to are reached by whole messages at other times, too. *)
Of(whole) == IF Parts THEN 1..LogMax ELSE {whole}

Next ==
  \E n \in Nodes :
    \/ \E t \in Terms, Q \in Quorums : Elect(n, t, Q)
    \/ Write(n)
    \/ \E w \in Nodes : Roll(n, w)
    \/ \E t \in DOMAIN sent : \E k \in Of(Len(sent[t])) : Replicate(t, n, k)
    \/ \E k \in Of(Len(log[n])) : Sync(n, k)
    \/ \E k \in 1..LogMax : Commit(n, k) \/ Learn(n, k)
    \/ ~stale /\ \E k \in 1..LogMax : Read(n, k) /\ stale' \* others change nothing
    \/ \E k \in Of(synced[n]) : Crash(n, k)
    \/ Parts /\ Resign(n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

(* What a replica serves of closed segments, without a leader. *)
Served(n) ==
  LET prefix == IF Has("applied") THEN Prefix(log[n], applied[n]) ELSE log[n]
  IN Prefix(prefix, Segments(prefix).sealed)

OneWriter == ~Segments(committed).wrong
EpochsClosedForAReason == ~Segments(committed).empty
AckedIsCommitted == acked \subseteq Appends(committed)
ReplicasAgree ==
  \A n \in Nodes :
    LET mine == Prefix(log[n], applied[n]) IN IsPrefix(mine, committed) \/ IsPrefix(committed, mine)
SealedReadsAreFinal == \A n \in Nodes : IsPrefix(Served(n), committed)
ReadsAreCurrent == ~stale

Symmetry == Permutations(Nodes \ Firsts)
=============================================================================
