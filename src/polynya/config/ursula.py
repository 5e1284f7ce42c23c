"""The variables of Ursula that a node understands: fourteen of its object tier, as other names of ours.

Every other variable of Ursula changes nothing, and is named in a warning.
"""

from __future__ import annotations

from collections.abc import Mapping

from polynya.config.setting import PREFIX

URSULA = "URSULA_"
_COLD = (
    "BACKEND",
    "ROOT",
    "S3_BUCKET",
    "S3_REGION",
    "S3_ENDPOINT",
    "S3_ACCESS_KEY_ID",
    "S3_SECRET_ACCESS_KEY",
    "S3_SESSION_TOKEN",
    "FLUSH_INTERVAL_MS",
    "FLUSH_BYTES",
    "FLUSH_MIN_HOT_BYTES",
    "FLUSH_MAX_BYTES",
    "FLUSH_MAX_CONCURRENCY",
    "MAX_HOT_BYTES_PER_GROUP",
)
ALIASES = {f"{URSULA}COLD_{name}": f"{PREFIX}COLD_{name}" for name in _COLD}


def aliases_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Ursula that are set and understood, with our names of them."""
    return {alias: name for alias, name in ALIASES.items() if alias in environ}


def conflicts_in(environ: Mapping[str, str]) -> list[str]:
    """Return a problem for each setting that has both spellings."""
    return [
        f"{alias}: {name} is set too, which is the same setting; unset one of them"
        for alias, name in aliases_in(environ).items()
        if name in environ
    ]


def warnings_in(environ: Mapping[str, str]) -> list[str]:
    """Return what to tell about the variables of Ursula: at most two sentences."""
    used = sorted(aliases_in(environ))
    unknown = sorted(name for name in environ if name.startswith(URSULA) and name not in ALIASES)
    found = []
    if used:
        found.append(
            f"{', '.join(used)}: Ursula's spelling; the name here is {PREFIX}COLD_…, with the same "
            "meaning"
        )
    if unknown:
        found.append(
            f"{', '.join(unknown)}: no setting of this node, and without effect; the settings are in "
            "docs/configuration.md"
        )
    return found


def in_own_names(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with our names of the variables, where these are not set."""
    own = {name: environ[alias] for alias, name in aliases_in(environ).items()}
    return own | {name: text for name, text in environ.items() if name not in ALIASES}
