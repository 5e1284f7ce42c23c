"""Acquire what a node needs before its cores start: its folder, identity, files and listeners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from pathlib import Path

import msgspec

from polynya.admin.workers.lake_worker import check_lake
from polynya.base.errors import ConfigError
from polynya.config.core_start import (
    ADMIN,
    HTTP,
    KAFKA,
    REMOTE_ADMIN,
    TEXT,
    Address,
    CoreStart,
)
from polynya.config.file_modes import begin_tightening
from polynya.config.model import Config, is_loopback, resolve, split_listen
from polynya.config.node_identity import (
    FILE,
    DiscoveredCluster,
    NodeIdentity,
    bear,
    identity_of,
    write_json,
)
from polynya.config.tls import prepare as prepare_tls
from polynya.node.kafka_ports import advertised, take_direct, take_shared
from polynya.recovery.folder_switch import finish
from polynya.system.data_dir import lock_folder, make_run_directory, write_pid
from polynya.system.open_files import Shares, raise_limit, shares
from polynya.system.ports import take_port

log = logging.getLogger("polynya.supervisor")

CLIENTS_FEW = 2048  # connections of a core


class Prepared(msgspec.Struct, frozen=True):
    start: CoreStart  # of core 0, without its pipe: the other cores differ only in the number
    lock_fd: int  # inherited by the cores: no second node starts while one of them lives
    notice: str = ""  # a recommendation for the operator
    groups: int | None = None  # as configured


def prepare(config: Config, held: contextlib.ExitStack) -> Prepared:
    """Acquire everything that a start needs; `held` releases it."""
    check_lake(config)
    lock_fd = lock_folder(config.data, held)
    identity = _identity(config)
    begin_tightening(config, identity.cluster_id)
    _say_files(shares(raise_limit(), cores=identity.cores, nodes=len(config.cluster.nodes)))
    listeners = _take_listeners(config, held)
    peer_host, peer_port = _take_peer(config, held)
    tls = prepare_tls(config)
    notice = _access_notice(config)
    write_pid(config.data, held)
    start = CoreStart(
        config=msgspec.structs.replace(config, cores=identity.cores, groups=identity.groups),
        identity=identity,
        core=0,
        start_id=secrets.token_hex(16),
        listeners=listeners,
        peer_host=peer_host,
        peer_port=peer_port,
        kafka_advertised=advertised(config, listeners.get(KAFKA)),
        kafka_direct=take_direct(config, listeners.get(KAFKA), identity.cores, held),
        kafka_auto_create=config.kafka.auto_create,
        kafka_partitions=config.kafka.partitions,
        tls=tls,
        run_directory=make_run_directory(config.data, held),
        supervisor_pid=os.getpid(),
        report_fd=-1,
    )
    return Prepared(start, lock_fd, notice, config.groups)


def _access_notice(config: Config) -> str:
    """Return a warning about tokens for the operator, or an empty text."""
    if not config.has_tokens:
        return ""
    from polynya.admin.access_keeper import check_access

    return check_access(config) or ""


def _say_files(clients: Shares) -> None:
    if clients.base < CLIENTS_FEW:
        log.warning(
            "a core accepts few client connections: raise the limit of open files (polynya doctor)",
            extra={"at_most": clients.base},
        )


def _identity(config: Config) -> NodeIdentity:
    """Return the identity of the data, resharded to the configured number of cores."""
    data = Path(config.data)
    finish(data)
    is_new = not (data / FILE).exists()
    identity = identity_of(config, _learned(config) if is_new and config.cluster.is_on else None)
    if identity.provisional and not is_new:
        identity = _still_right(config, identity)
    if config.cores in (None, identity.cores):
        return identity
    from polynya.recovery.reshard import reshare

    return reshare(data, identity, config.cores)


def _learned(config: Config) -> DiscoveredCluster:
    """Return what the other nodes and the store tell of the cluster."""
    from polynya.cluster.discovery import learn

    return asyncio.run(learn(config))


def _still_right(config: Config, identity: NodeIdentity) -> NodeIdentity:
    """Check a provisional identity; replace it if the cluster has moved to another history
    meanwhile."""
    from polynya.cluster.discovery import begun_anew, is_other, settled

    learned = _learned(config)
    if not is_other(config, identity, learned):
        return identity
    folder = Path(config.data)
    if not begun_anew(folder, identity):
        identity = settled(identity)
        write_json(folder / FILE, identity)
        return identity
    log.info(
        "starting over: the cluster has another history",
        extra={"history": learned.history, "groups": learned.groups},
    )
    return bear(folder / FILE, config, learned)


def _take_listeners(config: Config, held: contextlib.ExitStack) -> dict[str, Address]:
    """Reserve the ports that clients connect to; return the addresses by the listeners' names."""
    host, port = split_listen(config.listen)
    host = resolve(host)[0]
    base = held.enter_context(take_port(host, port, name="listen"))
    admin_host = host if is_loopback(host) else "127.0.0.1"
    admin = held.enter_context(_take_admin(admin_host, 0 if port == 0 else port + 1))
    addresses = {
        HTTP: (host, base.getsockname()[1]),
        ADMIN: (admin_host, admin.getsockname()[1]),
        REMOTE_ADMIN: _take_remote_admin(config, held),
        TEXT: _take_text(config, held),
        KAFKA: take_shared(config, held),
    }
    return {name: Address(*address) for name, address in addresses.items() if address[1]}


def _take_peer(config: Config, held: contextlib.ExitStack) -> tuple[str, int]:
    """Reserve the peer port; do nothing on a standalone node."""
    cluster = config.cluster
    if not cluster.is_on:
        return "", 0
    from polynya.cluster.certificates import peer_tls_of

    peer_tls_of(cluster)  # reports unusable certificates before anything starts
    host, port = cluster.listen_address
    host = resolve(host)[0]
    held.enter_context(
        take_port(host, port, name="the peer port", change="cluster.nodes or cluster.listen")
    )
    return host, port


def _take_admin(host: str, port: int) -> socket.socket:
    if port > 65535:
        raise ConfigError("listen: the admin port is the next one, so the port is at most 65534")
    return take_port(host, port, name="the admin port (the one after that of `listen`)")


def _take_remote_admin(config: Config, held: contextlib.ExitStack) -> tuple[str, int]:
    """Reserve the port of `admin_listen`; return its address, port 0 if it is off."""
    if not config.admin_listen:
        return "", 0
    host, port = split_listen(config.admin_listen)
    host = resolve(host)[0]
    taken = held.enter_context(take_port(host, port, name="admin_listen"))
    return host, taken.getsockname()[1]


def _take_text(config: Config, held: contextlib.ExitStack) -> tuple[str, int]:
    """Reserve the port of the text protocol; return its address, port 0 if it is off."""
    address = config.text_address
    if address is None:
        return "", 0
    host = resolve(address[0])[0]
    taken = held.enter_context(
        take_port(host, address[1], name="text_listen", change="--text-listen")
    )
    return host, taken.getsockname()[1]
