--------------------------- MODULE LeasedSegments ---------------------------
(* Leased streams: segments as ranges of a replicated log (decision 0026).

   The log is Raft's, as far as the segments need it: terms, votes, conflicts, the sync of a disk,
   commitment by a majority. Messages are steps between two nodes: a lost message is a step that is
   not taken, and a late one has the term of its sender. Nodes crash, and pause by taking no step.

   Entries: "N" begins a term, "A" is an append, "R" is a Rollover. Each fence of the product is a
   name in Fences; the tests remove each one and expect TLC to find what breaks.

   fence     in the product
   term      raft: a member refuses messages of older terms
   vote      raft: a vote needs a log that is as new as the voter's
   quorum    raft: an append is answered when a majority has it
   sync      engine: a member confirms an entry after its disk has it
   claim     service/streams/segments.py: a leader appends only if the open segment names it
   full      the same: appends wait while a full segment is rolled over
   cas       stream/rules/segments.py: a Rollover closes only the epoch that it names
   applied   service/streams/local.py: a replica serves segments whose Rollover it has applied
   lease     raft: a leader serves a read only if a majority is not in a later term *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Nodes, Terms, LogMax, Limit, CrashesMax, Fences

VARIABLES term, role, log, synced, applied, \* of each node
          acked,     \* appends that a client was told of
          committed, \* the longest applied prefix of any node
          stale,     \* TRUE: a leader answered a read without an acknowledged append
          crashes,
          first      \* the writer of segment 1

vars == <<term, role, log, synced, applied, acked, committed, stale, crashes, first>>

Quorums == {Q \in SUBSET Nodes : 2 * Cardinality(Q) > Cardinality(Nodes)}
Has(fence) == fence \in Fences
Min(a, b) == IF a < b THEN a ELSE b
Prefix(seq, k) == SubSeq(seq, 1, k)
IsPrefix(a, b) == Len(a) <= Len(b) /\ Prefix(b, Len(a)) = a
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

RECURSIVE Segments(_)
Segments(seq) ==
  IF Len(seq) = 0 THEN Start
  ELSE Apply(Segments(Prefix(seq, Len(seq) - 1)), seq[Len(seq)], Len(seq))

Known(n) == Segments(Prefix(log[n], applied[n]))

Init ==
  \E n \in Nodes :
    /\ first = n
    /\ term = [m \in Nodes |-> 1]
    /\ role = [m \in Nodes |-> IF m = n THEN "leader" ELSE "follower"]
    /\ log = [m \in Nodes |-> <<[kind |-> "N", term |-> 1, by |-> n, epoch |-> 0, writer |-> n]>>]
    /\ synced = [m \in Nodes |-> 1]
    /\ applied = [m \in Nodes |-> 1]
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
  /\ Written(n, synced[n], Len(log[n]) + 1)

Elect(n) ==
  \E t \in Terms, Q \in Quorums :
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

(* The outcome of an earlier Rollover may be unknown: it may be proposed twice. *)
Roll(n) ==
  LET s == Known(n) IN
    /\ IsReady(n)
    /\ \E w \in Nodes :
         /\ IF s.writer # n THEN w = n ELSE s.records >= Limit
         /\ Add(n, [kind |-> "R", term |-> term[n], by |-> n, epoch |-> s.epoch, writer |-> w])
    /\ UNCHANGED <<term, role, applied, acked, committed, stale, crashes, first>>

(* The leader's log reaches another node, which drops what is in conflict with it. *)
Replicate(n, m) ==
  /\ n # m
  /\ Leads(n)
  /\ Has("term") => term[m] <= term[n]
  /\ log[m] # log[n]
  /\ ~(term[m] = term[n] /\ IsPrefix(log[n], log[m]))
  /\ LET common == CHOOSE k \in 0..Min(Len(log[n]), Len(log[m])) :
                     /\ Prefix(log[n], k) = Prefix(log[m], k)
                     /\ \A j \in 0..Min(Len(log[n]), Len(log[m])) :
                          Prefix(log[n], j) = Prefix(log[m], j) => j <= k
     IN /\ Written(m, Min(synced[m], common), Len(log[n]))
        /\ applied' = [applied EXCEPT ![m] = Min(@, common)]
  /\ log' = [log EXCEPT ![m] = log[n]]
  /\ term' = [term EXCEPT ![m] = term[n]]
  /\ role' = [role EXCEPT ![m] = "follower"]
  /\ UNCHANGED <<acked, committed, stale, crashes, first>>

Sync(n) ==
  /\ synced[n] < Len(log[n])
  /\ synced' = [synced EXCEPT ![n] = Len(log[n])]
  /\ UNCHANGED <<term, role, log, applied, acked, committed, stale, crashes, first>>

Holds(m, n, k) ==
  /\ Len(log[m]) >= k
  /\ Prefix(log[m], k) = Prefix(log[n], k)
  /\ Has("sync") => synced[m] >= k

Commit(n) ==
  \E k \in (applied[n] + 1)..Len(log[n]) :
    /\ Leads(n)
    /\ log[n][k].term = term[n]
    /\ \E Q \in Quorums : \A m \in Q : Holds(m, n, k)
    /\ Has("sync") => synced[n] >= k
    /\ applied' = [applied EXCEPT ![n] = k]
    /\ committed' = IF k > Len(committed) THEN Prefix(log[n], k) ELSE committed
    /\ acked' = acked \cup {a \in Appends(Prefix(log[n], k)) : a[1] = term[n] /\ a[2] > applied[n]}
    /\ UNCHANGED <<term, role, log, synced, stale, crashes, first>>

(* A follower learns how far the leader has committed. *)
Learn(n, m) ==
  LET k == Min(applied[n], IF Has("sync") THEN synced[m] ELSE Len(log[m])) IN
    /\ n # m
    /\ Leads(n)
    /\ term[m] = term[n]
    /\ IsPrefix(Prefix(log[n], k), log[m])
    /\ k > applied[m]
    /\ applied' = [applied EXCEPT ![m] = k]
    /\ UNCHANGED <<term, role, log, synced, acked, committed, stale, crashes, first>>

Read(n) ==
  /\ IsReady(n)
  /\ Has("lease") => \E Q \in Quorums : \A m \in Q : term[m] <= term[n]
  /\ ~(acked \subseteq Appends(Prefix(log[n], applied[n])))
  /\ stale' = TRUE
  /\ UNCHANGED <<term, role, log, synced, applied, acked, committed, crashes, first>>

Crash(n) ==
  /\ crashes < CrashesMax
  /\ crashes' = crashes + 1
  /\ log' = [log EXCEPT ![n] = Prefix(@, synced[n])]
  /\ applied' = [applied EXCEPT ![n] = Min(@, synced[n])]
  /\ role' = [role EXCEPT ![n] = "follower"]
  /\ UNCHANGED <<term, synced, acked, committed, stale, first>>

Next ==
  \/ \E n \in Nodes : Elect(n) \/ Write(n) \/ Roll(n) \/ Sync(n) \/ Commit(n) \/ Read(n) \/ Crash(n)
  \/ \E n, m \in Nodes : Replicate(n, m) \/ Learn(n, m)

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

Symmetry == Permutations(Nodes)
=============================================================================
