"""`polynya serve`: start a node. Its flags come from the table of settings."""

from __future__ import annotations

import click

from polynya.cli.node.setting_flags import config_option, loaded_config, with_settings
from polynya.cli.terminal import options, output


@click.command("serve")
@with_settings
@config_option
@options.flag("--show-config", help="Print every setting with its value and source, and exit.")
@options.json_flag("With --show-config: print JSON.")
def serve_command(file: str | None, show_config: bool, as_json: bool, **values: str | None) -> None:
    """Start a node and serve until SIGTERM or Ctrl-C.

    Acknowledged data is on disk, however the node ends. Only common settings are listed below: each
    setting has a flag, a variable and a key in the file, and --show-config prints them all.

    \b
    polynya serve
    polynya serve --listen 127.0.0.1:8080 --data /var/lib/polynya
    POLYNYA_COLD_BACKEND=s3 POLYNYA_COLD_S3_BUCKET=events polynya serve
    """
    loaded = loaded_config(file, values)
    if show_config:
        from polynya.config.loading import show

        rows = show(loaded)
        if as_json:
            output.json_line(
                {key: {"value": value, "origin": origin} for key, value, origin in rows}
            )
        else:
            output.table(("setting", "value", "from"), rows)
        return
    from polynya.node.supervisor import serve

    for line in loaded.warnings:
        output.notice(f"warning: {line}")
    raise click.exceptions.Exit(serve(loaded.config))
