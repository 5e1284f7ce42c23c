"""`polynya schema`: the schema registry of the server, its subjects and their versions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_subject

ROOT = "/registry"
TYPES = ("AVRO", "JSON", "PROTOBUF")
LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
_BY_NAME = {".avsc": "AVRO", ".avro": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
_subject = click.argument("subject", shell_complete=complete_subject)
_file = click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
_type_option = options.value(
    "--type",
    "type_",
    type=click.Choice(TYPES, case_sensitive=False),
    help="Type of the schema.  [default: by the file's name: .avsc, .json, .proto; else AVRO]",
)
_reference_option = options.value(
    "--reference NAME=SUBJECT:VERSION",
    "references",
    multiple=True,
    help="A registered schema that FILE refers to by NAME. Repeatable.",
)


@click.group("schema", cls=CommandGroup)
def schema_command() -> None:
    """Manage the schemas of the schema registry. A subject is usually TOPIC-value or TOPIC-key."""


@schema_command.command("ls")
@click.argument("subject", required=False, shell_complete=complete_subject)
@options.value("--prefix", default="", help="List only subjects that begin so.")
@options.flag("--deleted", help="Also those that are soft-deleted.")
@options.as_json
@server_option
def ls_command(
    client: Client, subject: str | None, prefix: str, deleted: bool, as_json: bool
) -> None:
    """List the subjects, or the versions of SUBJECT.

    \b
    polynya schema ls
    polynya schema ls orders-value
    """
    params: dict[str, Any] = {"subjectPrefix": subject or prefix}
    if deleted:
        params["deleted"] = "true"
    if subject is None:
        params["latestOnly"] = "true"
    rows = client.call("GET", f"{ROOT}/schemas", params=params).json()
    if subject is not None:
        rows = [each for each in rows if each["subject"] == subject]
        if not rows:
            raise exits.Refused(f"there is no subject '{subject}'")
    output.listing(
        rows,
        ("subject", "version", "id", "type"),
        lambda row: (row["subject"], row["version"], row["id"], row.get("schemaType", "AVRO")),
        "no schemas yet: 'polynya schema register' registers one",
        as_json=as_json,
        lines=True,
    )


@schema_command.command("get")
@click.argument("subject", required=False, shell_complete=complete_subject)
@options.value("--version", default="latest", help="Version of SUBJECT.")
@options.value("--id", "id_", type=options.Number(0), help="The schema with this id instead.")
@options.as_json
@server_option
def get_command(
    client: Client, subject: str | None, version: str, id_: int | None, as_json: bool
) -> None:
    """Print the text of a schema: of SUBJECT, or by its id.

    \b
    polynya schema get orders-value
    polynya schema get orders-value --version 1 --json
    polynya schema get --id 17
    """
    if (subject is None) == (id_ is None):
        raise click.UsageError("name a SUBJECT or pass --id")
    path = f"/schemas/ids/{id_}" if subject is None else f"{_path(subject)}/{_quoted(version)}"
    found = client.call("GET", f"{ROOT}{path}").json()
    if as_json:
        output.json_line(found)
    else:
        click.echo(found["schema"])


@schema_command.command("register")
@_subject
@_file
@_type_option
@_reference_option
@options.flag("--normalize", help="Register the text in its normal form.")
@options.as_json
@server_option
def register_command(client: Client, subject: str, file: str, as_json: bool, **given: Any) -> None:
    """Register the schema in FILE (- is stdin) as the next version of SUBJECT. It must be compatible
    with the versions that the level of the subject names.

    \b
    polynya schema register orders-value order.avsc
    polynya schema register orders-value order.proto --reference item.proto=item:1
    """
    params = {"normalize": "true"} if given["normalize"] else {}
    body = _body(file, given["type_"], given["references"])
    answer = client.call("POST", f"{ROOT}{_path(subject)}", params=params, body=body).json()
    said = f"{subject} has the schema as version {answer['version']}, with id {answer['id']}"
    output.outcome({"subject": subject, **answer}, said, as_json=as_json)


@schema_command.command("check")
@_subject
@_file
@options.value("--version", help="Compare with this version alone, or with 'latest'.")
@_type_option
@_reference_option
@options.as_json
@server_option
def check_command(
    client: Client, subject: str, file: str, version: str | None, as_json: bool, **given: Any
) -> None:
    """Check whether the schema in FILE (- is stdin) may become the next version of SUBJECT. Registers
    nothing; exits with 1 if it is incompatible.

    \b
    polynya schema check orders-value order.avsc
    """
    body = _body(file, given["type_"], given["references"])
    path = f"/compatibility{_path(subject)}" + (f"/{_quoted(version)}" if version else "")
    answer = client.call("POST", f"{ROOT}{path}", params={"verbose": "true"}, body=body).json()
    if as_json:
        output.json_line(answer)
    if not answer["is_compatible"]:
        why = "\n  ".join(answer["messages"])
        raise exits.Refused(f"the schema is incompatible with subject '{subject}':\n  {why}")
    if not as_json:
        output.notice(f"the schema is compatible with {subject}")


@schema_command.command("delete")
@_subject
@options.value("--version", help="Delete this version alone, or 'latest'.  [default: all]")
@options.flag(
    "--permanent", help="Delete what is soft-deleted for good. Its ids are not used again."
)
@options.as_json
@server_option
def delete_command(
    client: Client, subject: str, version: str | None, permanent: bool, as_json: bool
) -> None:
    """Delete SUBJECT, or one version of it. Records with its ids can still be read, until it is
    deleted a second time with --permanent.

    \b
    polynya schema delete orders-value --version 3
    polynya schema delete orders-value
    polynya schema delete orders-value --permanent
    """
    path = _path(subject)
    path = f"{path}/{_quoted(version)}" if version else path.removesuffix("/versions")
    params = {"permanent": "true"} if permanent else {}
    gone = client.call("DELETE", f"{ROOT}{path}", params=params).json()
    numbers = gone if isinstance(gone, list) else [gone]
    spelled = ", ".join(map(str, numbers))
    how = "deleted for good" if permanent else "deleted"
    output.outcome(
        {"subject": subject, "versions": numbers, "permanent": permanent},
        f"{how}: {subject}, version{'s' if len(numbers) > 1 else ''} {spelled}",
        as_json=as_json,
    )


@schema_command.command("config")
@click.argument("subject", required=False, shell_complete=complete_subject)
@options.value(
    "--level", type=click.Choice(LEVELS, case_sensitive=False), help="Set the compatibility level."
)
@options.flag("--clear", help="Return to the level of all subjects, or to the default.")
@options.as_json
@server_option
def config_command(
    client: Client, subject: str | None, level: str | None, clear: bool, as_json: bool
) -> None:
    """Show or set the compatibility level of SUBJECT, or of all subjects that have none.

    \b
    polynya schema config
    polynya schema config orders-value --level FULL
    """
    if clear and level:
        raise click.UsageError("pass --level or --clear, not both")
    path = f"{ROOT}/config" + (f"/{_quoted(subject)}" if subject else "")
    if level:
        client.call("PUT", path, body={"compatibility": level.upper()})
    elif clear:
        client.call("DELETE", path)
    found = client.call("GET", path, params={"defaultToGlobal": "true"}).json()
    found_level = found.get("compatibilityLevel", "")
    where = subject or "all subjects without a level of their own"
    output.outcome({"subject": subject, **found}, f"{found_level} for {where}", as_json=as_json)


def _path(subject: str) -> str:
    return f"/subjects/{_quoted(subject)}/versions"


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _body(file: str, type_: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    """Return a request with the schema of a file. Raises click's errors."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode()
    except OSError as error:
        raise exits.Refused(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise exits.Refused(f"{file} is not UTF-8") from None
    found = (type_ or _BY_NAME.get(Path(file).suffix.lower(), "AVRO")).upper()
    return {
        "schema": text,
        "schemaType": found,
        "references": [_reference(each) for each in references],
    }


def _reference(text: str) -> dict[str, Any]:
    name, equals, rest = text.partition("=")
    subject, colon, version = rest.rpartition(":")
    if not (name and equals and subject and colon and version.isascii() and version.isdigit()):
        raise click.BadParameter(
            f"'{text}': expected NAME=SUBJECT:VERSION", param_hint="--reference"
        )
    return {"name": name, "subject": subject, "version": int(version)}
