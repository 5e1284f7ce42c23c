"""One run: a cluster under load, a fault after the other from a seed, the cluster well again after
each, and in the end the checker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from chaos import disks as own_disks
from chaos import kafka_clients, moves, objects, shim
from chaos import network as own_network
from chaos.clients import Clients, Wrong
from chaos.disks import Disk, Folder
from chaos.faults import FAULTS, Failed, Fault, Inflicted
from chaos.group_history import check_group
from chaos.history import FAIL, INFO, OK, check, differences
from chaos.kafka_clients import KafkaProcess
from chaos.keyed_clients import STREAMS as KEYED
from chaos.measures import Sample, grown, measure
from chaos.network import Loopback, Namespaces
from chaos.nodes import FIRST, Cluster
from chaos.proxy import Wires
from chaos.transaction_clients import TransactionsFound
from chaos.transaction_watch import TransactionWatch
from chaos.wire import Lost, Unsent, ask_once

WELL_SECONDS = 60.0  # after healing: leaders for all groups, and no node behind
START_SECONDS = 90.0
MOVED_SECONDS = 120.0  # likewise, and everything that was to move is where it was to go
FAULT_FIRST = 0.3  # so often what is asked for is asked for while the fault is there
FLUSHED_SECONDS = 90.0  # from the last append until everything is in packs
REST_SECONDS = (0.2, 1.0)  # between two episodes
QUIET_SECONDS = (3.0, 10.0)  # in a soak
STREAMS = 6
LEASED = 2  # of them are chains of segments
BEAT_SECONDS = 0.1
COMPACT_SECONDS = 1.0  # between two requests for a pass
PAUSE_SECONDS = 5.0  # without an append to a stream, that are told …
# … or so many where one node died and nothing else was wrong, and clients soon asked the others: an
# idle machine takes less than 2
DEATH_SECONDS = 2.5


class Options(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = 0
    seconds: float = 120.0  # of episodes; 0: as many as `episodes` says
    episodes: int = 0
    # each fault that this machine supports, exactly once; `seconds` and `episodes` do not apply
    once: bool = False
    cores: int = 1
    only: str = ""  # part of the names of faults
    namespaces: bool = True  # if they work
    pause: float = 0.03  # between two appends of a writer
    soak: bool = False  # nothing may grow, and there are quiet times
    s3: bool = False  # a real S3 server as object store, which fails too
    # in the end all disks are lost, and what had reached the store must be there
    lose_all: bool = False
    acts: float = 0.0  # the share of episodes in which nodes come and go, or groups move
    pace: float = 1.0  # how long faults last, of what they last otherwise
    kafka: bool = False  # also Kafka's producers, consumers and a group


class Episode(msgspec.Struct):
    """`well`: seconds from healing until everything was well again. `trouble`: why it never was, or
    what a node did not do."""

    number: int
    fault: str
    what: str
    began: float
    lasted: float = 0.0
    well: float = 0.0
    trouble: str = ""
    act: str = ""  # what operators asked for
    store: str = ""  # what the object store was like
    pause: str = ""  # the longest time without an append to some stream, where that was long


class Outcome(msgspec.Struct, kw_only=True):
    """The findings of a run. `wrong` is empty when all checks held."""

    seed: int
    network: str
    seconds: float = 0.0
    episodes: list[Episode] = []
    skipped: dict[str, str] = {}  # fault -> why
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    reads: int = 0
    tailed: int = 0
    rollovers: int = 0  # of leased streams
    longest_pause: float = 0.0
    # at most, chaos itself: nothing passed between the nodes, and no client did anything
    stood_still: float = 0.0
    samples: list[Sample] = []
    store: dict[str, int] = {}  # what was done to requests to the object store
    recovered: int = 0  # records that were there again after the loss of all disks
    commits: int = 0  # of a Kafka consumer group, acknowledged
    kafka_records: int = 0  # that Kafka's producers wrote
    compacted: int = 0  # records that passes of key compaction dropped
    transactions: int = 0  # of Kafka clients, committed
    switches: int = 0  # of the profile of a topic with transactions
    wrong: list[str] = []


class Run:
    """A run of one seed: the nodes, the faults, and the findings. Prints a line for each
    episode."""

    def __init__(self, options: Options, folder: Path, name: str) -> None:
        self.options, self.folder, self.name = options, folder, name
        self.draw = Random(f"chaos {options.seed}")
        self.store = objects.Store(options.seed)
        self._acted, self._healed = False, 0.0
        self._clients: Clients | None = None
        self._watch: TransactionWatch | None = None  # with Kafka clients
        self._acts: list[str] = []  # those that come next, where groups move
        self.began = time.monotonic()

    async def run(self) -> Outcome:
        options = self.options
        lacking = {
            "namespaces": "not wanted" if not options.namespaces else own_network.why_not(),
            "power": own_disks.why_not(self.folder),
        }
        library, lacking["shim"] = shim.build(self.folder)
        lacking["the same disk"] = ""
        network = (
            Loopback(FIRST, self.name) if lacking["namespaces"] else Namespaces(FIRST, self.name)
        )
        outcome = Outcome(seed=options.seed, network=network.kind)
        faults = self._available(lacking, outcome)
        if options.kafka and (lack := kafka_clients.why_not()):
            self._skip("Kafka's clients", lack, outcome)
        cluster = Cluster(
            self.folder,
            network,
            Wires(options.seed),
            Folder if lacking["power"] else Disk,
            cores=options.cores,
            kafka=options.kafka and not kafka_clients.why_not(),
        )
        store: AbstractContextManager[dict[str, str]] = (
            objects.server() if options.s3 else nullcontext({})
        )
        with store as settings:
            try:
                await cluster.prepare(library, partial(self._open_store, network.outside, settings))
                await self._drive(cluster, faults, outcome)
            finally:
                await cluster.close()
                await self.store.close()
                network.close()
        outcome.store = dict(self.store.met)
        outcome.seconds = self._now()
        return outcome

    async def _open_store(self, host: str, settings: dict[str, str]) -> list[str]:
        """Start the proxy before the S3 server, and return the settings of the nodes for it; none
        for a store in a folder."""
        if not settings:
            return []
        host, port = await self.store.listen(host, objects.address_of(settings["s3_endpoint"]))
        return [
            f'{name} = "{value}"'
            for name, value in (settings | {"s3_endpoint": f"http://{host}:{port}"}).items()
        ]

    def _available(self, lacking: dict[str, str], outcome: Outcome) -> list[Fault]:
        found = []
        for each in FAULTS:
            if self.options.only and not any(
                word.strip() in each.name for word in self.options.only.split(",")
            ):
                continue
            reasons = [lacking[need] for need in each.needs if lacking[need]]
            if reasons:
                self._skip(each.name, "; ".join(reasons), outcome)
            else:
                found.append(each)
        return found

    @staticmethod
    def _skip(name: str, why: str, outcome: Outcome) -> None:
        outcome.skipped[name] = why
        print(f"  skipped: {name}: {why}", flush=True)

    async def _drive(self, cluster: Cluster, faults: list[Fault], outcome: Outcome) -> None:
        if not await self._starts(cluster, "the cluster", outcome):
            return
        print(
            f"  {self._now():6.1f} s  three nodes in {cluster.network.kind}, {cluster.cores} "
            "cores each, are well",
            flush=True,
        )
        clients = Clients(
            cluster.addresses,
            streams := [f"chaos/s{number}" for number in range(STREAMS)],
            self.options.seed,
            time.monotonic,
            streams[:LEASED],
        )
        await clients.create()
        self._clients = clients
        kafka = await self._kafka_clients(cluster)
        clients.start(pause=self.options.pause)
        await asyncio.sleep(1.0)
        beside = [asyncio.create_task(self._beat(outcome))]
        beside += [asyncio.create_task(self._compact(cluster, each)) for each in KEYED if kafka]
        if kafka:
            self._watch = TransactionWatch(cluster, self.options.seed)
            beside += map(asyncio.create_task, (self._watch.read(), self._watch.switch()))
        await self._episodes(cluster, clients, faults, outcome)
        for task in beside:
            task.cancel()
        self._healed = time.monotonic()
        await asyncio.gather(clients.stop(), *(each.stop() for each in kafka))
        await self._judge(cluster, clients, kafka, outcome)

    async def _compact(self, cluster: Cluster, stream: str) -> None:
        """Ask one node after the other for a pass of key compaction, as an operator may."""
        while True:
            for number in cluster.numbers:
                address = cluster.network.http(number)
                with suppress(Lost, Unsent):
                    await ask_once(address, "POST", f"/v1/compaction/{stream}", seconds=5.0)
                await asyncio.sleep(COMPACT_SECONDS)

    async def _kafka_clients(self, cluster: Cluster) -> list[KafkaProcess]:
        """Start those of this run: one process, or none."""
        if not cluster.kafka:
            return []
        kafka = KafkaProcess(cluster.kafka_servers, self.options.seed, self.options.pause)
        await kafka.start()
        return [kafka]

    async def _starts(self, cluster: Cluster, what: str, outcome: Outcome) -> bool:
        for node in cluster.nodes.values():
            node.start()
        trouble = await self._until_well(cluster, START_SECONDS)
        if trouble:
            outcome.wrong.append(f"liveness: {what} does not start: {trouble}")
        return not trouble

    async def _episodes(
        self, cluster: Cluster, clients: Clients, faults: list[Fault], outcome: Outcome
    ) -> None:
        """Run episodes from a shuffled deck of all faults, then from the next deck."""
        once, seconds = self.options.once, self.options.seconds
        deadline = self._now() + seconds if seconds and not once else float("inf")
        most = len(faults) if once else self.options.episodes or 1 << 30
        deck: list[Fault] = []
        while self._now() < deadline and len(outcome.episodes) < most:
            if not deck:
                deck = self._deck(faults)
            before, fault = len(clients.pauses), deck.pop()
            episode = await self._episode(cluster, fault, len(outcome.episodes) + 1)
            pauses, alone = (
                clients.pauses[before:],
                fault.dies and not episode.act and not self.options.s3,
            )
            hasty = [each for each in pauses if each[1] in clients.hasty]
            episode.pause = _long(hasty, DEATH_SECONDS) if alone else _long(pauses, PAUSE_SECONDS)
            outcome.episodes.append(episode)
            said = (
                f"well after {episode.well:.1f} s"
                if not episode.trouble
                else f"TROUBLE: {episode.trouble}"
            )
            parts = filter(
                None,
                (
                    f"{episode.fault}: {episode.what}",
                    episode.act,
                    episode.store,
                    said,
                    episode.pause,
                ),
            )
            print(f"  {episode.began:6.1f} s  {episode.number:3}  {'; '.join(parts)}", flush=True)
            if episode.trouble:
                outcome.wrong.append(
                    f"liveness: episode {episode.number}, {episode.fault}: {episode.trouble}"
                )
                return
            await asyncio.sleep(
                self.draw.uniform(*(QUIET_SECONDS if self.options.soak else REST_SECONDS))
            )
            for node in cluster.nodes.values() if self.options.soak else ():
                outcome.samples.append(
                    measure(
                        self._now(),
                        node.number,
                        node.processes(),
                        node.data,
                        self.folder / "objects",
                    )
                )

    async def _beat(self, outcome: Outcome) -> None:
        while True:
            due = time.monotonic() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            outcome.stood_still = max(outcome.stood_still, time.monotonic() - due)

    def _deck(self, faults: list[Fault]) -> list[Fault]:
        """Draw an order of the faults, the next one at the end. Once nodes have come and gone, one
        that lost its disk would be replaced by one with another number: before that only it comes
        back as who it was."""
        able = [each for each in faults if "the same disk" not in each.needs or not self._acted]
        deck = self.draw.sample(able, len(able))
        return (
            sorted(deck, key=lambda each: "the same disk" in each.needs)
            if self.options.acts
            else deck
        )

    async def _episode(self, cluster: Cluster, fault: Fault, number: int) -> Episode:
        episode = Episode(number, fault.name, "", self._now())
        draw = Random(f"episode {self.options.seed} {number} {fault.name}")
        weather = draw.choice(objects.WEATHERS) if self.options.s3 else objects.FAIR
        self.store.turn(weather)
        try:
            episode.what, mend = await self._happen(cluster, fault, episode, draw)
        except Failed as failed:
            episode.trouble = str(failed)
            return episode
        await asyncio.sleep(draw.uniform(*fault.seconds) * self.options.pace)
        if mend is not None:
            await mend()
        if cluster.unsure:
            self._heal(
                cluster,
                but={number for number in cluster.nodes if not cluster.nodes[number].starts},
            )
            episode.trouble = await self._answered(cluster, draw)
            if episode.trouble:
                return episode
        self._heal(cluster)
        episode.store = weather.name if self.options.s3 else ""
        healed = self._now()
        episode.lasted = healed - episode.began
        episode.trouble = await self._until_well(
            cluster, MOVED_SECONDS if self._acted else WELL_SECONDS
        )
        if self._acted and not episode.trouble:
            episode.trouble = await moves.settle(cluster, draw) or await self._until_well(
                cluster, MOVED_SECONDS
            )
        episode.well = self._now() - healed
        if self._watch is not None and not episode.trouble:
            ends = await self._watch.ends()
            episode.trouble = await self._watch.until_moved(
                ends, WELL_SECONDS, lambda: time.monotonic() - self._last_append() < PAUSE_SECONDS
            )
        cluster.aims = []
        return episode

    async def _happen(
        self, cluster: Cluster, fault: Fault, episode: Episode, draw: Random
    ) -> Inflicted:
        """Inflict the fault; where groups move, something of that has been asked for shortly
        before, or is asked for while the fault is there."""
        if "the same disk" in fault.needs or not self._is_turn(episode.number):
            return await fault.inflict(cluster, draw)
        self._acted = True
        if not self._acts or not set(self._acts) & set(moves.possible(cluster)):
            self._acts += draw.sample([each.name for each in moves.ACTS], len(moves.ACTS))
        able = set(moves.possible(cluster))
        name = next(each for each in self._acts if each in able)
        self._acts.remove(name)
        act = next(each for each in moves.ACTS if each.name == name)
        if draw.random() < FAULT_FIRST:
            inflicted = await fault.inflict(cluster, draw)
            await asyncio.sleep(draw.uniform(0.0, 1.0))
            episode.act, _ = await act.do(cluster, draw)
            return inflicted
        episode.act, cluster.aims = await act.do(cluster, draw)
        await asyncio.sleep(draw.uniform(0.0, 1.0))
        return await fault.inflict(cluster, draw)

    def _is_turn(self, number: int) -> bool:
        """Report whether this episode has its share of `acts`: these are spread evenly, whatever
        the seed is."""
        return int(number * self.options.acts) > int((number - 1) * self.options.acts)

    async def _answered(self, cluster: Cluster, draw: Random) -> str:
        """Wait until every operator's request has a known outcome."""
        deadline = self._now() + WELL_SECONDS
        while (trouble := await moves.ask_again(cluster, draw)) and self._now() < deadline:
            await asyncio.sleep(0.2)
        return trouble

    def _heal(self, cluster: Cluster, but: Container[int] = ()) -> None:
        self.store.turn(objects.FAIR)
        cluster.network.heal()
        cluster.wires.heal()
        for node in cluster.nodes.values():
            if node.orders is not None:
                node.orders.heal()
            if not node.is_alive and not node.was_removed and node.number not in but:
                node.start()

    def _last_append(self) -> float:
        """Return when the stream that waited for longest had an append acknowledged: a machine's
        disk may stand still."""
        return time.monotonic() if self._clients is None else min(self._clients.last_ok.values())

    async def _bury(self, cluster: Cluster) -> None:
        """Wait until the removed nodes have ended. One that was down meanwhile does not learn of
        its removal when it starts again: the others refuse it."""
        for number, starts in list(cluster.leaving.items()):
            node = cluster.nodes[number]
            if node.starts > starts:
                await node.kill()
            if not node.is_alive:
                cluster.let_go(number)

    async def _until_well(self, cluster: Cluster, seconds: float) -> str:
        """Return the problems after that time; empty as soon as the cluster is healthy and the
        removed nodes have ended."""
        deadline = self._now() + seconds
        while True:
            unwell = await cluster.unwell()
            if not unwell:
                await self._bury(cluster)
            ended = [
                node
                for node in cluster.nodes.values()
                if not (node.is_alive or (node.number in cluster.leaving and node.was_removed))
            ]
            if not unwell and not cluster.leaving:
                return ""
            if ended:
                assert ended[0].process is not None
                return (
                    f"node {ended[0].number} ended with {ended[0].process.returncode}:\n"
                    f"{ended[0].said()[-3000:]}"
                )
            if self._now() > deadline:
                return (
                    f"{unwell or f'{list(cluster.leaving)} were removed and have not ended'} "
                    f"after {seconds:.0f} s"
                )
            await asyncio.sleep(0.1)

    async def _judge(
        self, cluster: Cluster, clients: Clients, kafka: list[KafkaProcess], outcome: Outcome
    ) -> None:
        """Read every stream fully by each node, compare the reads, and run the checker."""
        final: dict[str, list[str]] = {}
        for stream in [*clients.streams, *(kafka_clients.STREAMS if kafka else ())]:
            for number in cluster.numbers:
                try:
                    records = await clients.read_all(number, stream)
                except (Lost, Unsent, Wrong) as fault:
                    outcome.wrong.append(
                        f"liveness: {stream} cannot be read by node {number} in the end: {fault!r}"
                    )
                    continue
                if final.setdefault(stream, records) != records:
                    outcome.wrong.append(
                        f"{stream}: nodes {cluster.numbers[0]} and {number} have not the same in "
                        "the end"
                    )
        try:
            outcome.rollovers = await clients.rollovers(cluster.numbers[0])
        except (Lost, Unsent, Wrong) as fault:
            outcome.wrong.append(f"liveness: segments cannot be read in the end: {fault!r}")
        await asyncio.gather(
            clients.finish(final, 30.0), *(each.finish(final, 30.0) for each in kafka)
        )
        history = clients.history
        for each in kafka:
            partitions = {stream: final.get(stream, []) for stream in kafka_clients.STREAMS}
            found = each.found
            outcome.wrong += found.wrong + check_group(found.group, partitions)
            outcome.wrong += found.keyed.wrong()
            outcome.compacted += found.keyed.dropped()
            await self._judge_transactions(found.transactions, outcome)
            outcome.commits += found.group.acknowledged()
            history.appends += found.history.appends
            history.tails += found.history.tails
            outcome.kafka_records += sum(map(len, partitions.values()))
        outcome.wrong += (
            clients.wrong + check(history, final) + cluster.odd_lines() + grown(outcome.samples)
        )
        outcome.acknowledged, outcome.refused, outcome.unknown = (
            history.count(each) for each in (OK, FAIL, INFO)
        )
        outcome.reads, outcome.tailed = (
            len(history.reads),
            sum(len(piece.records) for tail in history.tails for piece in tail.pieces),
        )
        outcome.longest_pause = clients.longest_pause()
        if self.options.lose_all and not outcome.wrong:
            await self._lose_all(cluster, clients, final, outcome)

    async def _judge_transactions(self, found: TransactionsFound, outcome: Outcome) -> None:
        assert self._watch is not None
        await self._watch.finish()
        history = found.history
        history.healed = self._healed
        history.polls += self._watch.polls
        history.held += self._watch.held
        (self.folder / "transactions.msgpack").write_bytes(msgspec.msgpack.encode(found))
        outcome.wrong += self._watch.wrong + await asyncio.to_thread(found.wrong)
        outcome.transactions, outcome.switches = found.committed(), self._watch.switches

    async def _lose_all(
        self, cluster: Cluster, clients: Clients, final: dict[str, list[str]], outcome: Outcome
    ) -> None:
        """Destroy the disks of all nodes, once everything is in packs; then all of it must be read
        from a cluster made of the store alone."""
        deadline = self._now() + FLUSHED_SECONDS
        while (hot := await cluster.hot_bytes()) and self._now() < deadline:
            await asyncio.sleep(0.2)
        if hot:
            outcome.wrong.append(
                f"liveness: {hot} bytes are in no pack {FLUSHED_SECONDS:.0f} s after the last "
                "append"
            )
            return
        await asyncio.gather(*(node.kill() for node in cluster.nodes.values()))
        cluster.begin_anew()
        print(f"  {self._now():6.1f} s  all disks are lost", flush=True)
        configs = [f"--config={node.config}" for node in cluster.nodes.values()]
        await cluster.run("restore", "--from-store", "--take-over", *configs)
        if not await self._starts(cluster, "what was restored from the store", outcome):
            return
        for number, (stream, records) in enumerate(final.items()):
            found = await clients.read_all(cluster.numbers[number % len(cluster.numbers)], stream)
            outcome.recovered += len(found)
            outcome.wrong += [f"{stream}: {wrong}" for wrong in differences(found, records)]
        print(f"  {self._now():6.1f} s  {outcome.recovered} records are there again", flush=True)

    def _now(self) -> float:
        return time.monotonic() - self.began


def _long(pauses: list[tuple[float, str]], usual: float) -> str:
    """Describe the longest pause, where it was longer than is usual after a fault."""
    seconds, stream = max(pauses, default=(0.0, ""))
    return f"no append to {stream} for {seconds:.1f} s" if seconds > usual else ""
