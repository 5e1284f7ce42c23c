---------------------------- MODULE Transactions ----------------------------
(* Transactions: one producer, its coordinator, and streams as participants
   (docs/design/transactions.md).

   Coordinator and participants are state machines of replicated logs: a step is an entry, and a
   crash forgets nothing that a step has done. A message may be late, lost and repeated: what was
   sent stays in a set, and is delivered at any time, any number of times. So a batch that its
   client gave up is a ghost, and a marker of a deposed leader comes after that of the next one.
   The producer keeps its epoch, as with the older protocol: no epoch helps here, numbers do.

   A batch has the transaction for which its client sent it (`of`) and the number under which its
   front proposes it. Each fence of the product is a name in Fences; the tests remove each one and
   expect TLC to find what breaks.

   fence       in the product
   ended       a participant refuses numbers that it has ended
   equal       the number that ended last is refused, too
   dataless    a participant notes the end of a transaction without data in it
   prepare     the end is logged before its answer
   acks        a transaction completes when all participants have acknowledged its markers
   logged      the answer to an orphan is an entry of the coordinator's log
   outcomes    the answer to an orphan is the outcome that the coordinator has noted
   connection  a batch that was given up does not ask for the next number *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Streams, NumberMax, Fences

VARIABLES state, number, added, unacked, outcome, \* of the coordinator
          log, open, ended,                       \* of each stream
          batches, markers,                       \* what was sent
          acked,                                  \* batches of which a client has the answer
          given,                                  \* batches that were given up
          told,                                   \* of each transaction: what its client was told
          stable                                  \* of each stream: the furthest stable end

coordinator == <<state, number, added, unacked, outcome>>
streams == <<log, open, ended, stable>>
client == <<acked, given, told>>
vars == <<coordinator, streams, batches, markers, client>>

Numbers == 1..NumberMax
Has(fence) == fence \in Fences
Ongoing == state = "ONGOING"
Prepared == state \in {"PREPARE_commit", "PREPARE_abort"}

Init ==
  /\ state = "EMPTY" /\ number = 0 /\ added = {} /\ unacked = {}
  /\ outcome = [n \in Numbers |-> "none"]
  /\ log = [s \in Streams |-> <<>>]
  /\ open = [s \in Streams |-> 0]
  /\ ended = [s \in Streams |-> 0]
  /\ batches = {} /\ markers = {} /\ acked = {} /\ given = {}
  /\ told = [n \in Numbers |-> "none"]
  /\ stable = [s \in Streams |-> 0]

(* Of the client, and of the front that has its number from the coordinator. *)
Add(s) ==
  /\ IF Ongoing THEN s \notin added /\ told[number] = "none" ELSE ~Prepared /\ number < NumberMax
  /\ number' = IF Ongoing THEN number ELSE number + 1
  /\ added' = IF Ongoing THEN added \cup {s} ELSE {s}
  /\ state' = "ONGOING"
  /\ UNCHANGED <<unacked, outcome, streams, batches, markers, client>>

Batch(s, n, of) == [stream |-> s, number |-> n, of |-> of]

Send(s) ==
  /\ Ongoing /\ s \in added /\ told[number] = "none"
  /\ Batch(s, number, number) \notin batches
  /\ batches' = batches \cup {Batch(s, number, number)}
  /\ UNCHANGED <<coordinator, streams, markers, client>>

(* A front whose number has ended asks once more. *)
AskNumber(b) ==
  /\ b.number <= ended[b.stream]
  /\ Ongoing /\ b.stream \in added
  /\ Has("connection") => b \notin given
  /\ Batch(b.stream, number, b.of) \notin batches
  /\ batches' = batches \cup {Batch(b.stream, number, b.of)}
  /\ UNCHANGED <<coordinator, streams, markers, client>>

Mine(n) == {b \in batches : b.of = n}

Decide(kind) ==
  /\ state' = IF added = {} THEN "COMPLETE" ELSE "PREPARE_" \o kind
  /\ unacked' = added
  /\ outcome' = [outcome EXCEPT ![number] = kind]
  /\ markers' = markers \cup {[stream |-> s, number |-> number, kind |-> kind] : s \in added}

Commit ==
  /\ Ongoing /\ told[number] \in {"none", "commit"}
  /\ Mine(number) \subseteq acked
  /\ Decide("commit")
  /\ told' = [told EXCEPT ![number] = "commit"]
  /\ UNCHANGED <<number, added, streams, batches, acked, given>>

(* The client has its answer, and the entry is lost with the leader. *)
CommitUnlogged ==
  /\ ~Has("prepare")
  /\ Ongoing /\ told[number] = "none"
  /\ Mine(number) \subseteq acked
  /\ told' = [told EXCEPT ![number] = "commit"]
  /\ UNCHANGED <<coordinator, streams, batches, markers, acked, given>>

(* By the client, or because its time is over. *)
Abort ==
  /\ Ongoing
  /\ Decide("abort")
  /\ given' = given \cup Mine(number)
  /\ UNCHANGED <<number, added, streams, batches, acked, told>>

(* Of a participant. *)
Last(s) == Len(log[s])
Firsts(s) == {i \in 1..Last(s) : log[s][i].kind = "data" /\ \A j \in i..Last(s) : log[s][j].kind = "data"}
StableEnd(s, opened) == IF opened = 0 \/ Firsts(s) = {} THEN Last(s)
                        ELSE (CHOOSE i \in Firsts(s) : \A j \in Firsts(s) : i <= j) - 1

IsThere(b) == \E i \in 1..Last(b.stream) : log[b.stream][i].kind = "data" /\ log[b.stream][i].of = b.of

IsRefused(b) ==
  IF ~Has("ended") THEN FALSE
  ELSE IF Has("equal") THEN b.number <= ended[b.stream] ELSE b.number < ended[b.stream]

Deliver(b) ==
  LET s == b.stream IN
    /\ b \notin acked
    /\ IF IsThere(b) THEN UNCHANGED streams \* an exact repeat
       ELSE /\ ~IsRefused(b)
            /\ open[s] \in {0, b.number}
            /\ log' = [log EXCEPT ![s] = Append(@, [kind |-> "data", number |-> b.number, of |-> b.of])]
            /\ open' = [open EXCEPT ![s] = IF @ = 0 THEN b.number ELSE @]
            /\ UNCHANGED <<ended, stable>>
    /\ acked' = IF b \in given THEN acked ELSE acked \cup {b}
    /\ UNCHANGED <<coordinator, batches, markers, given, told>>

EndHere(s, n, kind) ==
  IF n <= ended[s] THEN UNCHANGED streams
  ELSE LET isOpen == open[s] # 0 /\ open[s] <= n
           after == IF isOpen THEN Append(log[s], [kind |-> kind, number |-> open[s], of |-> 0])
                    ELSE log[s]
       IN /\ log' = [log EXCEPT ![s] = after]
          /\ open' = [open EXCEPT ![s] = IF isOpen THEN 0 ELSE @]
          /\ ended' = [ended EXCEPT ![s] = IF isOpen \/ Has("dataless") THEN n ELSE @]
          /\ stable' = [stable EXCEPT ![s] = IF isOpen /\ Len(after) > @ THEN Len(after) ELSE @]

DeliverMarker(m) ==
  /\ EndHere(m.stream, m.number, m.kind)
  /\ unacked' = IF m.number = number THEN unacked \ {m.stream} ELSE unacked
  /\ state' = IF Prepared /\ m.number = number /\ (unacked' = {} \/ ~Has("acks"))
              THEN "COMPLETE" ELSE state
  /\ UNCHANGED <<number, added, outcome, batches, markers, client>>

(* An orphan asks, and is ended by the answer. *)
Answer(n) ==
  CASE ~Has("logged") -> "abort" \* of a deposed leader, which has not seen the number
    [] n = number /\ Ongoing -> "none"
    [] OTHER -> IF Has("outcomes") /\ outcome[n] # "none" THEN outcome[n] ELSE "abort"

AskOutcome(s) ==
  /\ open[s] # 0
  /\ Answer(open[s]) # "none"
  /\ EndHere(s, open[s], Answer(open[s]))
  /\ UNCHANGED <<coordinator, batches, markers, client>>

Next ==
  \/ Commit \/ CommitUnlogged \/ Abort
  \/ \E s \in Streams : Add(s) \/ Send(s) \/ AskOutcome(s)
  \/ \E b \in batches : AskNumber(b) \/ Deliver(b)
  \/ \E m \in markers : DeliverMarker(m)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

(* The end of the data at i: the kind of the next marker, or "open". *)
RECURSIVE EndFrom(_, _)
EndFrom(s, i) ==
  IF i > Last(s) THEN "open" ELSE IF log[s][i].kind # "data" THEN log[s][i].kind ELSE EndFrom(s, i + 1)

EndsOf(s, n) ==
  {EndFrom(s, i) : i \in {j \in 1..Last(s) : log[s][j].kind = "data" /\ log[s][j].of = n}}

(* A: no transaction is committed in one stream and aborted in another. *)
Atomic ==
  \A n \in Numbers : LET ends == UNION {EndsOf(s, n) : s \in Streams}
                     IN ~({"commit", "abort"} \subseteq ends)

(* A: a transaction is committed whole. *)
Kept == \A n \in Numbers : told[n] = "commit" => \A s \in Streams : "abort" \notin EndsOf(s, n)

(* B: readers see data of committed transactions alone. *)
NothingAbortedIsRead ==
  \A s \in Streams, n \in Numbers : "commit" \in EndsOf(s, n) => outcome[n] = "commit"

(* F: the stable end does not fall. *)
NeverFalls == \A s \in Streams : StableEnd(s, open[s]) >= stable[s]

(* F: the coordinator owes an end to each open transaction. *)
NoOrphans ==
  \A s \in Streams : open[s] # 0 =>
    /\ open[s] = number
    /\ \/ Ongoing /\ s \in added
       \/ Prepared /\ s \in unacked

Symmetry == Permutations(Streams)
=============================================================================
